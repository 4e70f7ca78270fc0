r"""Poisson sampling of a hidden run: how long the shift of a part is when every record tosses a coin in every round.

A part's victims are shifted along one line (which can only overstate, by Kahane's inequality), so a part is a mixture
of Gaussians on a line: the law of the length of its shift. Parts are independent. Theory page: sampled-shift.md.
"""

import math
from itertools import combinations

import numpy as np
import scipy
from numpy.typing import NDArray

from fedveil.core.errors import require
from fedveil.core.values import Vector
from fedveil.theory.closing import Part, joint_lengths, lengths, longest
from fedveil.theory.mixture_law import MixtureLaw, Way
from fedveil.theory.rounds import Rounds

Whole = NDArray[np.int64]

LARGEST_PART = 60_000  # most coins of one part for which counts are computed
_ALIKE = 1e-3  # lengths that differ by less are charged at the longest
_RARE = 1e-24  # counts with less probability than this, all together, are charged at the longest shift
_JOINT = 40  # most victims for which sets of two and three are closed together
_FINE = 64  # steps of the grid, up to the longest single shift, on which lengths of sets are rounded up
_COARSE = 10  # the same if only sums of many victims are rounded
_CLASSES = 24  # number of different lengths of single victims that are kept


def part_law(rounds: Rounds, part: Part, rate: float, *, group: int = 1, way: Way = "present") -> MixtureLaw:
    """Return the dominating pair of a part: each of ``group`` records joins each round with probability ``rate``."""
    require(0 < rate <= 1, "rate", "lie in (0, 1]", rate)
    require(group >= 1, "group", "be at least 1", group)
    coins = (part.last - part.first) * group
    if coins > LARGEST_PART:
        raise OverflowError("a part has too many coins")
    single, most = np.repeat(lengths(rounds, part), group), longest(rounds, part)
    top = float(single.max())
    if not top < 1e5:
        raise OverflowError("a part's noise cannot close its gaps")
    if top == 0:
        raise ValueError("a part without victims tells nothing")
    if coins == 1 or float(single.min()) >= top * (1 - _ALIKE):
        counts, weights = _counts(coins, rate)
        return _law(np.minimum(counts * top, most), weights, way)
    return _law(*_unequal(rounds, part, single, rate, most), way)


def group_exchange_law(mu: float, rate: float, group: int) -> MixtureLaw:
    """Return the pair of one round in which each of ``group`` records joins by its coin and all are exchanged."""
    counts, weights = _counts(group, rate)
    return _law(counts * mu, weights, "exchange")


def _counts(coins: int, rate: float) -> tuple[Vector, Vector]:
    """Return how many coins show heads, with probabilities; negligible counts are taken as all heads."""
    weights, rare = _binomial(coins, rate)
    counts = np.flatnonzero(weights).astype(np.float64)
    mass = weights[weights > 0]
    return (np.append(counts, float(coins)), np.append(mass, rare)) if rare > 0 else (counts, mass)


def _binomial(coins: int, rate: float) -> tuple[Vector, float]:
    """Return probabilities of 0, 1, 2, ... heads, and the mass of the rare numbers above these, rounded up."""
    if rate == 1:
        return np.append(np.zeros(coins), 1.0), 0.0
    counts = np.arange(coins, dtype=np.float64)
    ratios = np.log((coins - counts) / (counts + 1)) + math.log(rate) - math.log1p(-rate)
    logs = np.append(0.0, np.cumsum(ratios))
    weights = np.exp(logs - logs.max())
    weights /= weights.sum()
    above = np.cumsum(weights[::-1])[::-1]
    kept = int(np.flatnonzero(above > _RARE)[-1]) + 1
    return weights[:kept], float(above[kept] * (1 + 1e-9)) if kept <= coins else 0.0


def _law(means: Vector, weights: Vector, way: Way) -> MixtureLaw:
    """Merge equal means and make the weights sum to one, by adjusting the first, which reveals least."""
    values, where = np.unique(means, return_inverse=True)
    total = np.asarray(np.bincount(where, weights=weights), dtype=np.float64)
    kept = total > 0
    values, total = values[kept], total[kept]
    total = total / math.fsum(total)
    return MixtureLaw(tuple(values.tolist()), tuple(total.tolist()), way)


def _unequal(rounds: Rounds, part: Part, single: Vector, rate: float, most: float) -> tuple[Vector, Vector]:
    """Return lengths and weights for unequal victims.

    Nobody, one, sets of two and three closed together if that is cheaper, and sums of lengths for the rest.
    """
    coins = single.size
    together = part.closes == rounds.count and part.opens < part.last and coins <= _JOINT
    exact = 3 if together else 1
    means, weights = [np.zeros(1), _classes(single)], [_sets(coins, 0, rate), np.full(coins, _sets(coins, 1, rate)[0])]
    step = float(single.max()) / (_FINE if together else _COARSE)
    for size in range(2, exact + 1):
        chosen = np.array(list(combinations(range(coins), size)), dtype=np.intp)
        if chosen.size == 0:
            continue
        group = coins // (part.last - part.first)
        joint = joint_lengths(rounds, part, part.first + chosen // group)
        means.append(np.ceil(joint / step) * step)
        weights.append(np.full(joint.size, _sets(coins, size, rate)[0]))
    sums, mass = _sums(np.ceil(single / step - 1e-9).astype(np.int64), rate, exact)
    means.append(sums * step * (1 + 1e-9))
    weights.append(mass)
    return np.minimum(np.concatenate(means), most), np.concatenate(weights)


def _sets(coins: int, size: int, rate: float) -> Vector:
    """Return the probability of one set of this size: exactly these and no others."""
    return np.array([math.exp(float(scipy.special.xlogy(size, rate) + scipy.special.xlog1py(coins - size, -rate)))])


def _classes(single: Vector) -> Vector:
    """Return lengths rounded up to a few values."""
    values = np.unique(single)
    if values.size <= _CLASSES:
        return single
    chosen = values[np.unique(np.linspace(0, values.size - 1, _CLASSES).round().astype(np.intp))]
    return chosen[np.searchsorted(chosen, single)]


def _sums(steps: Whole, rate: float, exact: int) -> tuple[Vector, Vector]:
    """Return sums of the lengths (in steps) of more than ``exact`` victims.

    Rare ones are charged at the largest sum.
    """
    values, counts = np.unique(steps, return_counts=True)
    result: list[Vector] = [np.ones(1)] + [np.zeros(1) for _ in range(exact + 1)]  # the last entry: more than exact
    rare = 0.0
    for value, count in zip(values.tolist(), counts.tolist(), strict=True):
        heads, lost = _binomial(count, rate)
        fresh: list[Vector] = [np.zeros(1) for _ in result]
        for number, before in enumerate(result):
            for head in np.flatnonzero(heads).tolist():
                into = min(number + head, exact + 1)
                fresh[into] = _added(fresh[into], before * heads[head], head * value)
        result, dropped = [_trimmed(part)[0] for part in fresh], sum(_trimmed(part)[1] for part in fresh)
        rare += lost + dropped
    at = np.flatnonzero(result[-1])
    sums, mass = at.astype(np.float64), result[-1][at]
    return (np.append(sums, float(np.sum(steps))), np.append(mass, rare)) if rare > 0 else (sums, mass)


def _added(total: Vector, more: Vector, shift: int) -> Vector:
    out = np.zeros(max(total.size, more.size + shift))
    out[: total.size] += total
    out[shift : shift + more.size] += more
    return out


def _trimmed(mass: Vector) -> tuple[Vector, float]:
    """Return the masses without the rare sums at the top, and their mass."""
    above = np.cumsum(mass[::-1])[::-1]
    kept = int(np.max(np.flatnonzero(above > _RARE), initial=0)) + 1
    return mass[:kept], float(above[kept]) if kept < mass.size else 0.0
