r"""The privacy-loss law of a mixture whose components are tied to one hub: groups in batches of fixed size.

With k members in the batch, k further records stand outside it. Swapping them back leads to the batch without members,
the hub, which is the same on both data sets. So a test that accepts the hub with probability $\Phi(x)$ accepts
component k with at most $\Phi(x + u_k)$ on the first data set, with at least $\Phi(x - d_k)$ on the second, and the two
are $o_k$-GDP apart. The largest $\sum_k h_k (p_k - \gamma q_k)$ under these ties, at every $\gamma$, is the profile of
a dominating pair. Theory page: persons.md.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import final

import numpy as np
import scipy

from fedveil.core.errors import require
from fedveil.core.values import Vector
from fedveil.theory.loss import Tails

_LOWEST, _HIGHEST = -45.0, 45.0  # normal quantiles of the hub
_STEPS = 64
_KNOTS = 200
_LARGEST = 700.0  # of an exponent


@final
@dataclass(frozen=True, slots=True)
class Ties:
    """Weights of the components beside the hub, which has the rest; ``up``, ``down`` and ``own`` of each."""

    weights: tuple[float, ...]
    up: tuple[float, ...]
    down: tuple[float, ...]
    own: tuple[float, ...]

    def best(self, levels: Vector) -> Tails:
        """Return what the best test accepts and rejects at levels of at least 0, on the first and the second data."""
        finite = np.minimum(levels, 1e6)
        hub = _solve(self, finite)
        rest = max(0.0, 1 - math.fsum(self.weights))
        ndtr = scipy.special.ndtr
        result = [rest * ndtr(hub), rest * ndtr(-hub), rest * ndtr(hub), rest * ndtr(-hub)]
        for weight, up, down, own in zip(self.weights, self.up, self.down, self.own, strict=True):
            q = np.maximum(hub - down, np.minimum(-finite / own - own / 2, hub + up - own))
            p = np.minimum(hub + up, q + own)
            for place, part in enumerate((ndtr(p), ndtr(-p), ndtr(q), ndtr(-q))):
                result[place] = result[place] + weight * part
        none = np.isposinf(levels)
        ends = (0.0, 1.0, 0.0, 1.0)
        return Tails(*(np.where(none, end, value) for end, value in zip(ends, result, strict=True)))

    def gain(self, levels: Vector, hub: Vector) -> Vector:
        """Return the slope of the value in the hub's probability, which falls: the value is concave in it."""
        gamma = np.exp(np.minimum(levels, _LARGEST))
        total = max(0.0, 1 - math.fsum(self.weights)) * (1 - gamma)
        with np.errstate(over="ignore", invalid="ignore"):
            for weight, up, down, own in zip(self.weights, self.up, self.down, self.own, strict=True):
                free = -levels / own - own / 2
                high, low = hub + up - own, hub - down
                p = np.where(free > high, hub + up, low + own)
                q = np.where(free > high, high, low)
                exponents = (hub * hub - p * p) / 2, levels + (hub * hub - q * q) / 2
                slope = np.exp(np.minimum(exponents[0], _LARGEST)) - np.exp(np.minimum(exponents[1], _LARGEST))
                total = total + weight * np.where((free > high) | (free < low), slope, 0.0)
        return np.asarray(total, dtype=np.float64)


def _solve(ties: Ties, levels: Vector) -> Vector:
    """Return the hub's best quantile at each level: where the slope changes its sign; it falls with the level."""
    if levels.size > 2 * _KNOTS:
        knots = np.linspace(float(levels.min()), float(levels.max()), _KNOTS)
        at = _solve(ties, knots)
        place = np.clip(np.searchsorted(knots, levels) - 1, 0, _KNOTS - 2)
        low, high = at[place + 1] - 1e-9, at[place] + 1e-9
    else:
        low, high = np.full_like(levels, _LOWEST), np.full_like(levels, _HIGHEST)
    for _ in range(_STEPS):
        middle = (low + high) / 2
        rising = ties.gain(levels, middle) > 0
        low, high = np.where(rising, middle, low), np.where(rising, high, middle)
    return np.asarray(high, dtype=np.float64)


@final
@dataclass(frozen=True, slots=True)
class StarLaw:
    """Losses above zero from ``ahead``, those below from ``back``, the ties of the opposite direction."""

    ahead: Ties
    back: Ties

    def tails(self, levels: Vector, /) -> Tails:
        """Return the tails of the two halves, joined at level zero, where both have the same total variation."""
        upper = self.ahead.best(np.maximum(levels, 0.0))
        p_above, p_below, q_above, q_below = self.back.best(np.maximum(-levels, 0.0))
        lower = Tails(q_below, q_above, p_below, p_above)
        return Tails(*(np.where(levels >= 0, high, low) for high, low in zip(upper, lower, strict=True)))

    def reach(self, mass: float, /) -> tuple[float, float]:
        """Return the outer end of either half."""
        return -_end(self.back, mass, first=False), _end(self.ahead, mass, first=True)


@lru_cache(maxsize=256)
def _end(ties: Ties, mass: float, *, first: bool) -> float:
    """Return a level above which lies at most so much of the first (or the second) data set's mass."""

    def above(level: float) -> float:
        result = ties.best(np.array([level]))
        return float((result.p_above if first else result.q_above)[0])

    high = 1e-3
    while above(high) > mass and high < 1e5:
        high *= 1.5
    return high


def fixed_size_group(mu: float, rate: float, group: int, *, exchanged: bool) -> tuple[StarLaw, StarLaw]:
    r"""Return the laws of both directions for a group in a batch without replacement, ``mu`` one contribution's.

    At least j members are in the batch with a chance of at most $\binom{g}{j} q^j$, however many records there are: one
    for each j of them. More members only widen the ties, so these chances may stand for the true ones.
    """
    require(0 < mu < 1e6 and 0 < rate < 1 and group >= 1, "fixed_size_group", "be of a real batch", (mu, rate, group))
    tail = [1.0]
    for j in range(1, group + 1):
        log = math.lgamma(group + 1) - math.lgamma(j + 1) - math.lgamma(group - j + 1) + j * math.log(rate)
        tail.append(min(tail[-1], math.exp(min(log + 1e-12, 0.0))))
    weights = tuple(a - b for a, b in zip(tail[1:], [*tail[2:], 0.0], strict=True))
    kept = [j for j in range(1, group + 1) if weights[j - 1] > 0]

    def ties(up: float, down: float, own: float) -> Ties:
        lengths = (tuple(part * mu * j for j in kept) for part in (up, down, own))
        return Ties(tuple(weights[j - 1] for j in kept), *lengths)

    if exchanged:
        both = ties(2, 2, 2)
        law = StarLaw(both, both)
        return law, law
    ahead, back = ties(2, 1, 1), ties(1, 2, 1)
    return StarLaw(ahead, back), StarLaw(back, ahead)
