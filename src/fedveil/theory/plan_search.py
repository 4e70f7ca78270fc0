r"""Choose the plan by which gaps are closed: a search over shapes, judged by a coarse law of each part's loss.

Every plan is valid; the search only decides how good the certified number will be. So nothing here is rounded outward.
Theory page: sampled-shift.md.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedveil.core.values import Vector
from fedveil.theory.closing import Part, Shape, extended, lengths, neighbours, plan, shapes, shortened
from fedveil.theory.mixture_law import Way
from fedveil.theory.rounds import Rounds
from fedveil.theory.sampled_poisson import part_law

_CELLS = 2048
_NODES = 500
_MOST_TURNS = 14

Spectrum = NDArray[np.complex128]
Cost = Callable[[Sequence[Part]], float]


def best_plan(count: int, cost: Cost, *, constant: bool, passes: int = 1, further: int = 0) -> list[Part]:
    """Return the cheapest plan found by descent from a few shapes.

    ``further``: rounds that go on without the victim. Their noise closes what the last part leaves open, or, if the run
    has one pass, blocks are cut as if it were so much longer.
    """
    within = _descent(count, lambda shape: extended(plan(count, shape, passes), further), cost, constant)
    if further == 0 or passes > 1:
        return within
    longer = _descent(count + further, lambda shape: shortened(plan(count + further, shape), count), cost, constant)
    return min(within, longer, key=cost)


def _descent(count: int, plan_of: Callable[[Shape], list[Part]], cost: Cost, constant: bool) -> list[Part]:
    few = not constant
    costs: dict[Shape, float] = {}

    def judged(shape: Shape) -> float:
        if shape not in costs:
            costs[shape] = cost(plan_of(shape))
        return costs[shape]

    best = min(shapes(count, few), key=judged)
    for _ in range(_MOST_TURNS):
        after = min(neighbours(best, count, few), key=judged, default=best)
        if not judged(after) < judged(best) * (1 - 1e-4):
            break
        best = after
    return plan_of(best)


@dataclass(slots=True)
class PoissonCost:
    """Epsilon at ``delta`` of a plan under Poisson sampling, or more, on a coarse grid of losses up to ``widest``."""

    rounds: Rounds
    rate: float
    delta: float
    widest: float
    group: int = 1
    constant: bool = True
    way: Way = "present"
    _known: dict[Part, tuple[Spectrum, float]] = field(default_factory=dict)

    def __call__(self, parts: Sequence[Part]) -> float:
        """Return where the composed curve falls to ``delta``."""
        spectrum: Spectrum = np.ones(_CELLS // 2 + 1, dtype=np.complex128)
        log_finite = 0.0
        for key, count in Counter(map(self.key, parts)).items():
            if key not in self._known:
                self._known[key] = self._picture(key)
            law, lost = self._known[key]
            spectrum = spectrum * law**count
            log_finite += count * math.log1p(-min(lost, 0.999))
        mass = np.maximum(np.fft.irfft(spectrum, _CELLS), 0.0)
        mass = np.roll(mass, _CELLS // 4)  # a quarter of the grid is for losses below zero
        step = self._step
        above = np.cumsum(mass[::-1])[::-1] - math.expm1(log_finite)
        deltas = above - _decayed(mass, step)
        good = np.flatnonzero(deltas[_CELLS // 4 :] <= self.delta)
        if good.size == 0:
            return 2 * self.widest + float(deltas[-1])
        at = int(good[0]) + _CELLS // 4
        if at == _CELLS // 4:
            return 0.0
        logs = np.log(np.maximum(deltas[at - 1 : at + 1], 1e-300))
        share = (logs[0] - math.log(self.delta)) / max(logs[0] - logs[1], 1e-12)
        return float(step * (at - 1 - _CELLS // 4 + share))

    @property
    def _step(self) -> float:
        return self.widest / (0.75 * _CELLS)

    def key(self, part: Part) -> Part:
        """Return the part moved to the end of the run if all rounds are of one kind, since only distances count."""
        if not self.constant:
            return part
        shift = self.rounds.count - part.closes
        return part._replace(
            first=part.first + shift, last=part.last + shift, opens=part.opens + shift, closes=part.closes + shift
        )

    def _picture(self, part: Part) -> tuple[Spectrum, float]:
        """Return the law of the loss under P, split between neighbouring cells, and the mass beyond the last."""
        try:
            law = part_law(self.rounds, part, self.rate, group=self.group)
        except OverflowError:
            return np.ones(_CELLS // 2 + 1, dtype=np.complex128), 0.999
        means, weights = np.asarray(law.means), np.asarray(law.weights)
        x = np.linspace(-7.0, 7.0 + min(float(means[np.cumsum(weights[::-1])[::-1] > 1e-9][-1]), 60.0), _NODES)
        ahead = _densities(means, weights, x)
        if self.way == "exchange":
            loss = np.log(np.maximum(ahead, 1e-300) / np.maximum(_densities(-means, weights, x), 1e-300))
        else:
            loss = np.log(np.maximum(ahead, 1e-300)) + x * x / 2
        if not ahead.sum() > 0:  # all of it lies farther out than the nodes reach: nothing is private
            return np.ones(_CELLS // 2 + 1, dtype=np.complex128), 0.999
        mass = ahead / ahead.sum()
        place = loss / self._step
        beyond = place > 0.74 * _CELLS
        lower = np.floor(np.clip(place, -_CELLS // 4 + 1, None)).astype(np.int64)
        share = np.clip(place - lower, 0.0, 1.0)
        kept = ~beyond
        low = np.bincount(lower[kept] % _CELLS, weights=(mass * (1 - share))[kept], minlength=_CELLS)
        high = np.bincount((lower[kept] + 1) % _CELLS, weights=(mass * share)[kept], minlength=_CELLS)
        return np.fft.rfft(low + high), float(mass[beyond].sum())


def _decayed(mass: Vector, step: float) -> Vector:
    r"""Return $\sum_{j \ge i} e^{-(j - i) step} mass_j$ for every $i$.

    Twice as many terms join in each turn. No factor exceeds 1, where sums of $e^{-j step}$ that are multiplied by
    $e^{i step}$ afterwards would underflow, and then overflow.
    """
    sums, reach = mass.copy(), 1
    while reach < sums.size:
        sums[:-reach] += math.exp(-step * reach) * sums[reach:]
        reach *= 2
    return sums


def _densities(means: Vector, weights: Vector, x: Vector) -> Vector:
    """Return the density of the mixture, up to a constant."""
    return np.asarray(np.exp(-((x[:, None] - means[None, :]) ** 2) / 2) @ weights, dtype=np.float64)


def scattered_cost(rounds: Rounds, weights: Vector, constant: bool) -> Cost:
    """Return the cost for independent draws: the variance of the likelihood ratio, dominated by late, short parts."""
    known: dict[tuple[float, ...], float] = {}  # of rounds of one kind only the distances count

    def cost(parts: Sequence[Part]) -> float:
        total = 0.0
        for part in parts:
            places = (part.last - part.first, part.opens - part.first, part.closes - part.first)
            key = (*places, part.share) if constant else part
            if key not in known:
                mus = lengths(rounds, part)
                share = weights[part.first : part.last]
                first = np.unique(np.linspace(0, mus.size, 24, endpoint=False).astype(np.intp))
                mu, share = np.maximum.reduceat(mus, first), np.add.reduceat(share, first)
                with np.errstate(over="ignore"):
                    known[key] = float(share @ np.expm1(np.outer(mu, mu)) @ share)
            total += known[key]
        return total

    return cost
