r"""Batches of a fixed size, and how many members of a group share one.

Given all but one of the batch, the last is the victim (with probability q, its share) or some further record. So with
unit noise the pair is $(1-q) N(b) + q N(v)$ against $(1-q) N(b) + q N(0)$ with $|b|, |v| \le \mu$. Where the victim's
presence is to be shown the worst further record points away from it, where its absence is, along with it. Theory
page: dominating-pairs.md.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import final

import numpy as np
import scipy

from fedveil.core.errors import require
from fedveil.core.values import Vector
from fedveil.theory.loss import GaussianLaw, SampledLaw, Tails


@final
@dataclass(frozen=True, slots=True)
class AwayLaw:
    r"""$(1-q) N(0) + q N(2\mu)$ against $(1-q) N(0) + q N(\mu)$: all further records point away from the victim.

    The loss falls a little below zero before it grows, so a level below zero is passed twice.
    """

    mu: float
    rate: float

    def __post_init__(self) -> None:
        require(0 < self.mu < 1e6, "AwayLaw.mu", "lie in (0, 1e6)", self.mu)
        require(0 < self.rate < 1, "AwayLaw.rate", "lie in (0, 1)", self.rate)

    def tails(self, levels: Vector, /) -> Tails:
        """Return the tails.

        A quadratic equation gives both thresholds, and between them the loss is at most the level.
        """
        mu, q = self.mu, self.rate
        with np.errstate(over="ignore", under="ignore", invalid="ignore", divide="ignore"):
            inside = 4 * np.exp(-mu * mu - levels) * ((1 - q) / q) * -np.expm1(-levels)
            crossed = inside >= -1
            root = 1 + np.sqrt(np.maximum(1 + inside, 0.0))
            high = (levels + np.log(root / 2)) / mu + 1.5 * mu
            low = (levels + np.log(np.maximum(-inside / (2 * root), 0.0))) / mu + 1.5 * mu
        low = np.where(crossed & (levels < 0), low, -np.inf)
        high = np.where(levels == np.inf, np.inf, np.where(crossed, high, -np.inf))
        return Tails(*self._outside(low, high, 2 * mu), *self._outside(low, high, mu))

    def reach(self, mass: float, /) -> tuple[float, float]:
        """Return a lower bound on the least loss, and the loss at a quantile."""
        end = 2 * self.mu - float(scipy.special.ndtri(mass))
        one, two = SampledLaw(2 * self.mu, self.rate), SampledLaw(self.mu, self.rate)
        return -two.loss(1.5 * self.mu), one.loss(end) - two.loss(end)

    def _outside(self, low: Vector, high: Vector, mean: float) -> tuple[Vector, Vector]:
        """Return the mass outside and inside the interval, of the mixture that has this mean."""
        above, below = np.zeros_like(high), np.zeros_like(high)
        for weight, at in ((1 - self.rate, 0.0), (self.rate, mean)):
            above += weight * (scipy.special.ndtr(at - high) + scipy.special.ndtr(low - at))
            below += weight * np.maximum(scipy.special.ndtr(high - at) - scipy.special.ndtr(low - at), 0.0)
        return above, below


@final
@dataclass(frozen=True, slots=True)
class ZeroedBatchLaw:
    r"""Losses above zero from $(1-q) N(0) + q N(2\mu)$ against $(1-q) N(0) + q N(\mu)$, below from N(0) and a mixture.

    ``removal``: P has the victim's contribution; otherwise the mirror image. The data that attain the two halves
    differ, so ``under`` is the law of one data set: all further records along with the victim, or all away from it.
    """

    mu: float
    rate: float
    removal: bool = True

    def __post_init__(self) -> None:
        require(0 < self.mu < 1e6, "ZeroedBatchLaw.mu", "lie in (0, 1e6)", self.mu)
        require(0 < self.rate < 1, "ZeroedBatchLaw.rate", "lie in (0, 1)", self.rate)

    @property
    def under_slack(self) -> float:
        """Zero: the law from below is exact."""
        return 0.0

    @property
    def under(self) -> "AwayLaw | SampledLaw":
        """The law of data whose further records all point away from the victim, or all along with it."""
        return AwayLaw(self.mu, self.rate) if self.removal else SampledLaw(self.mu, self.rate)

    def tails(self, levels: Vector, /) -> Tails:
        """Return the tails of the two halves, joined at level zero, where both have the same total variation."""
        if self.removal:
            upper = AwayLaw(self.mu, self.rate).tails(np.maximum(levels, 0.0))
            lower = SampledLaw(self.mu, self.rate, removal=False).tails(np.minimum(levels, 0.0))
        else:
            upper = SampledLaw(self.mu, self.rate).tails(np.maximum(levels, 0.0))
            p_above, p_below, q_above, q_below = AwayLaw(self.mu, self.rate).tails(np.maximum(-levels, 0.0))
            lower = Tails(q_below, q_above, p_below, p_above)
        return Tails(*(np.where(levels >= 0, high, low) for high, low in zip(upper, lower, strict=True)))

    def reach(self, mass: float, /) -> tuple[float, float]:
        """Return the outer end of either half."""
        z = -float(scipy.special.ndtri(mass))
        one, two = SampledLaw(2 * self.mu, self.rate), SampledLaw(self.mu, self.rate)
        if self.removal:
            low = SampledLaw(self.mu, self.rate, removal=False).reach(mass)[0]
            return min(low, 0.0), max(one.loss(2 * self.mu + z) - two.loss(2 * self.mu + z), 0.0)
        return min(two.loss(self.mu + z) - one.loss(self.mu + z), 0.0), max(two.reach(mass)[1], 0.0)


# Groups under shuffling: members share batches by chance, and the batches decide how far a pass moves.
#
# Given who shares with whom, a pass is one Gaussian of $\mu \sqrt{\sum_i n_i^2}$, ``n_i`` members in batch ``i``.
# Telling the adversary the sharing gives a mixture of labelled Gaussian pairs. Theory page: dominating-pairs.md.

LARGEST_SHUFFLED = 160
_WORK = 3e9  # additions that the sharing of a group may take
_LEAST = 1e-300  # a chance that is not rounded to nothing
_FEW = 400  # different mu that are told apart
_CLASSES = 1.01  # mu of a mixture that differ by less are charged at the largest


@final
@dataclass(frozen=True, slots=True)
class LabelledLaw:
    """Gaussian pairs, one of which is drawn and named, so the loss is a mixture of their losses."""

    mus: tuple[float, ...]
    weights: tuple[float, ...]

    def __post_init__(self) -> None:
        sizes = len(self.mus) == len(self.weights) >= 1
        require(sizes, "LabelledLaw", "have one weight for each mu", (len(self.mus), len(self.weights)))
        whole = min(self.weights) > 0 and abs(math.fsum(self.weights) - 1) <= 1e-12
        require(whole, "LabelledLaw.weights", "be positive and add up to 1", self.weights[:4])

    def tails(self, levels: Vector, /) -> Tails:
        """Return the weighted mean of the tails."""
        parts = [[w * t for t in GaussianLaw(mu).tails(levels)] for mu, w in zip(self.mus, self.weights, strict=True)]
        return Tails(*(np.asarray(sum(column), dtype=np.float64) for column in zip(*parts, strict=True)))

    def reach(self, mass: float, /) -> tuple[float, float]:
        """Return the lowest and the highest end of any pair."""
        ends = [GaussianLaw(mu).reach(mass) for mu in self.mus]
        return min(low for low, _ in ends), max(high for _, high in ends)


def shared_batches(group: int, batches: int, size: int | None, mu: float) -> LabelledLaw:
    """Return the law of one pass for a group, where ``mu`` is that of one member.

    Every member has its own slot among ``batches * size``. Without a size, members count as placed independently, which
    is never less: then the counts majorise those of distinct slots (theory page).
    """
    chances = sharing(group, batches, size)
    if len(chances) <= _FEW:
        return LabelledLaw(tuple(mu * math.sqrt(squares) for squares in chances), tuple(chances.values()))
    merged: dict[int, list[tuple[int, float]]] = {}
    for squares, chance in chances.items():
        merged.setdefault(math.floor(math.log(squares) / (2 * math.log(_CLASSES))), []).append((squares, chance))
    mus = tuple(mu * math.sqrt(max(squares for squares, _ in members)) for members in merged.values())
    weights = [max(math.fsum(chance for _, chance in members), _LEAST) for members in merged.values()]
    return LabelledLaw(mus, tuple(weight / math.fsum(weights) for weight in weights))


def follows_sharing(group: int, batches: int) -> bool:
    """Return whether the sharing of so large a group is worked out."""
    return group <= LARGEST_SHUFFLED and (1 if batches >= group else batches) * group**4 <= _WORK


@lru_cache(maxsize=64)
def _sharing(group: int, batches: int, size: int | None) -> tuple[tuple[int, float], ...]:
    r"""Return each sum of squares with its probability, from $[x^g] (\sum_n w_n x^n y^{n^2})^B$.

    Batch by batch where there are fewer batches than members; otherwise by the recurrence for powers of a series,
    $k q_k = \sum_n (n B - (k - n)) w_n q_{k-n}$, whose terms are then all positive.
    """
    most = min(group, size) if size is not None else group
    log_weights = [-math.lgamma(n + 1) if size is None else _log_choose(size, n) for n in range(most + 1)]
    scale = log_weights[1]  # so that no weight overflows: the weight of one member counts as one
    weights = [math.exp(value - n * scale) for n, value in enumerate(log_weights)]
    rows = _powers(group, batches, weights) if batches >= group else _products(group, batches, weights)
    total = math.fsum(rows)
    require(total > 0, "group", "fit into the batches", group)
    return tuple((at, float(rows[at] / total)) for at in np.flatnonzero(rows > 0).tolist())


def _powers(group: int, batches: int, weights: list[float]) -> Vector:
    rows = [np.ones(1)]
    for k in range(1, group + 1):
        row = np.zeros(k * k + 1)
        for n in range(1, min(k, len(weights) - 1) + 1):
            before = rows[k - n]
            row[n * n : n * n + before.size] += (n * batches - (k - n)) / k * weights[n] * before
        rows.append(row)
    return rows[-1]


def _products(group: int, batches: int, weights: list[float]) -> Vector:
    rows = [np.ones(1), *(np.zeros(k * k + 1) for k in range(1, group + 1))]
    for _ in range(batches):
        after = [np.zeros(k * k + 1) for k in range(group + 1)]
        for k in range(group + 1):
            for n in range(min(k, len(weights) - 1) + 1):
                before = rows[k - n]
                after[k][n * n : n * n + before.size] += weights[n] * before
        rows = after
    return rows[-1]


def sharing(group: int, batches: int, size: int | None) -> dict[int, float]:
    """Return the probability of each sum of squared counts."""
    require(1 <= group <= LARGEST_SHUFFLED, "group", f"lie in 1..{LARGEST_SHUFFLED}", group)
    return dict(_sharing(group, batches, size))


def _log_choose(items: int, chosen: int) -> float:
    """Return the log of a binomial coefficient; in exact integers if cheap, as lgamma of huge numbers loses digits."""
    return math.fsum(math.log((items - i) / (chosen - i)) for i in range(chosen))
