r"""Privacy-loss laws: what one use of a mechanism can reveal, as the law of $L = \ln(dP/dQ)$ under $P$ and $Q$.

Each law belongs to a pair $(P, Q)$ that dominates every pair of neighbouring outputs. All pairs here have a likelihood
ratio that grows along one real coordinate ``x``, so "loss above a level" is "``x`` above a threshold".
Theory page: dominating-pairs.md.

References:
    [ZDW22] Zhu, Dong, Wang. Optimal Accounting of Differential Privacy via Characteristic Function. AISTATS 2022.
"""

import math
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple, Protocol, final

import numpy as np
import scipy

from fedveil.core.errors import require
from fedveil.core.values import Vector

LARGEST_GROUP = 200
_RARE = math.log(1e-45)  # counts of a group that are less likely than this are moved
_NEWTON_STEPS = 60
_KNOTS = 500
_FAR = 40.0  # losses beyond which adding one to exp(loss) changes nothing


class Tails(NamedTuple):
    """Probabilities, for each level, that the loss is above it or at most it, under ``P`` and under ``Q``."""

    p_above: Vector
    p_below: Vector
    q_above: Vector
    q_below: Vector


class LossLaw(Protocol):
    """The law of a privacy loss; hashable, so that equal laws are computed once."""

    def tails(self, levels: Vector, /) -> Tails:
        """Return both tails at each level, each accurate in itself (never one minus the other)."""
        ...

    def reach(self, mass: float, /) -> tuple[float, float]:
        """Return levels such that at most ``mass`` of ``P`` is below the first and above the second."""
        ...


def _mixture(thresholds: Vector, weights: tuple[float, ...], means: tuple[float, ...]) -> tuple[Vector, Vector]:
    above, below = np.zeros_like(thresholds), np.zeros_like(thresholds)
    for weight, mean in zip(weights, means, strict=True):
        above += weight * scipy.special.ndtr(mean - thresholds)
        below += weight * scipy.special.ndtr(thresholds - mean)
    return above, below


@final
@dataclass(frozen=True, slots=True)
class GaussianLaw:
    """Two unit Gaussians ``mu`` apart: the loss is Gaussian with mean mu^2/2 and variance mu^2."""

    mu: float

    def __post_init__(self) -> None:
        require(0 < self.mu < 1e6, "GaussianLaw.mu", "lie in (0, 1e6)", self.mu)

    def tails(self, levels: Vector, /) -> Tails:
        """Return the tails of N(mu, 1) and N(0, 1) at the threshold."""
        x = levels / self.mu + self.mu / 2
        return Tails(*_mixture(x, (1.0,), (self.mu,)), *_mixture(x, (1.0,), (0.0,)))

    def reach(self, mass: float, /) -> tuple[float, float]:
        """Return the mean plus or minus a normal quantile."""
        spread = -float(scipy.special.ndtri(mass)) * self.mu
        return self.mu**2 / 2 - spread, self.mu**2 / 2 + spread


@final
@dataclass(frozen=True, slots=True)
class SampledLaw:
    r"""Poisson sampling at ``rate``, noise in units of one contribution: $(1-q) N(0) + q N(\mu)$ against $N(0)$.

    ``removal``: P is the mixture (the victim is in the data). Otherwise P is $N(0)$ and Q the mixture.
    """

    mu: float
    rate: float
    removal: bool = True

    def __post_init__(self) -> None:
        require(0 < self.mu < 1e6, "SampledLaw.mu", "lie in (0, 1e6)", self.mu)
        require(0 < self.rate <= 1, "SampledLaw.rate", "lie in (0, 1]", self.rate)

    def tails(self, levels: Vector, /) -> Tails:
        """Return the tails at thresholds in closed form; the other direction is the mirror image."""
        weights = (1 - self.rate, self.rate)
        if self.removal:
            x = self._threshold(levels)
            return Tails(*_mixture(x, weights, (0.0, self.mu)), *_mixture(x, (1.0,), (0.0,)))
        x = -self._threshold(-levels)
        return Tails(*_mixture(x, (1.0,), (0.0,)), *_mixture(x, weights, (0.0, -self.mu)))

    def _threshold(self, levels: Vector) -> Vector:
        with np.errstate(divide="ignore", invalid="ignore"):
            high = np.log1p(np.expm1(np.clip(levels, -0.5, _FAR)) / self.rate)
            low = np.log(np.maximum(np.exp(np.minimum(levels, 0.0)) - (1 - self.rate), 0.0)) - math.log(self.rate)
        inner = np.where(levels < -0.5, low, np.where(levels > _FAR, levels - math.log(self.rate), high))
        inner = np.where(np.isnan(inner), -np.inf, inner)  # below every loss
        return np.asarray(inner / self.mu + self.mu / 2, dtype=np.float64)

    def loss(self, x: float) -> float:
        """Return the loss at coordinate ``x`` (``removal`` direction)."""
        inside = self.mu * x - self.mu**2 / 2
        rest = math.log1p(-self.rate) if self.rate < 1 else -math.inf
        return float(np.logaddexp(rest, math.log(self.rate) + inside))

    def reach(self, mass: float, /) -> tuple[float, float]:
        """Return the losses at the coordinate's own quantiles."""
        z = -float(scipy.special.ndtri(mass))
        if self.removal:
            return self.loss(-z), self.loss(self.mu + z)
        return -self.loss(z), -self.loss(-z)


@final
@dataclass(frozen=True, slots=True)
class SwappedLaw:
    r"""Poisson sampling, one record replaced: $(1-q) N(0) + q N(\mu)$ against $(1-q) N(0) + q N(-\mu)$."""

    mu: float
    rate: float

    def __post_init__(self) -> None:
        require(0 < self.mu < 1e6, "SwappedLaw.mu", "lie in (0, 1e6)", self.mu)
        require(0 < self.rate <= 1, "SwappedLaw.rate", "lie in (0, 1]", self.rate)

    def tails(self, levels: Vector, /) -> Tails:
        """Return the tails; a quadratic equation gives the threshold, and the loss is odd in the coordinate."""
        size, q = np.minimum(np.abs(levels), 1e300), self.rate
        log_a = -(self.mu**2) / 2
        with np.errstate(divide="ignore"):
            log_one = np.log1p(-q) + np.log(-np.expm1(-size))
        log_two = math.log(2 * q) + log_a - size / 2
        top = np.maximum(log_one, log_two)
        one = np.exp(log_one - top)
        log_root = top + np.log(one + np.hypot(one, np.exp(log_two - top)))
        log_u = log_root + size - math.log(2 * q) - log_a
        x = np.copysign(np.where(np.isinf(levels), np.inf, np.maximum(log_u, 0.0) / self.mu), levels)
        weights = (1 - q, q)
        return Tails(*_mixture(x, weights, (0.0, self.mu)), *_mixture(x, weights, (0.0, -self.mu)))

    def reach(self, mass: float, /) -> tuple[float, float]:
        """Return the losses at the coordinate's quantiles; P has its upper tail at mu."""
        z = -float(scipy.special.ndtri(mass))
        one = SampledLaw(self.mu, self.rate)
        high = one.loss(self.mu + z) - one.loss(-self.mu - z)
        return -(one.loss(z) - one.loss(-z)), high


@final
@dataclass(frozen=True, slots=True)
class FixedSizeLaw:
    """Batches of fixed size without replacement, one record replaced [ZDW22, Theorem 11].

    Losses above zero come from mixture against N(0), losses below from N(0) against mixture; the rest sits at zero.
    """

    mu: float
    rate: float

    def __post_init__(self) -> None:
        require(0 < self.mu < 1e6, "FixedSizeLaw.mu", "lie in (0, 1e6)", self.mu)
        require(0 < self.rate <= 1, "FixedSizeLaw.rate", "lie in (0, 1]", self.rate)

    def tails(self, levels: Vector, /) -> Tails:
        """Return the tails of the two directions of :class:`SampledLaw`, joined at level zero, which is in the upper
        one.
        """
        upper = SampledLaw(self.mu, self.rate).tails(np.maximum(levels, 0.0))
        lower = SampledLaw(self.mu, self.rate, removal=False).tails(np.minimum(levels, 0.0))
        return Tails(*(np.where(levels >= 0, high, low) for high, low in zip(upper, lower, strict=True)))

    def reach(self, mass: float, /) -> tuple[float, float]:
        """Return the outer end of either direction."""
        high = SampledLaw(self.mu, self.rate).reach(mass)[1]
        return min(SampledLaw(self.mu, self.rate, removal=False).reach(mass)[0], 0.0), max(high, 0.0)


@lru_cache(maxsize=256)
def _binomial(size: int, rate: float) -> tuple[Vector, Vector]:
    """Return how many of a group are sampled, with log-probabilities.

    Rare counts are moved up, to where they reveal more.
    """
    counts = np.arange(size + 1, dtype=np.float64)
    choose = np.array([math.log(math.comb(size, count)) for count in range(size + 1)])
    log_p = choose + scipy.special.xlogy(counts, rate) + scipy.special.xlog1py(size - counts, -rate)
    kept = np.flatnonzero(log_p > _RARE)
    first, last = int(kept[0]), int(kept[-1])
    rare = float(np.exp(log_p[last + 1 :]).sum())
    chosen, logs = counts[first : last + 1], log_p[first : last + 1]
    logs[0] = np.logaddexp.reduce(log_p[: first + 1])
    if rare > 0:
        chosen, logs = np.append(chosen, float(size)), np.append(logs, math.log(rare))
    return chosen, np.asarray(logs, dtype=np.float64)


@final
@dataclass(frozen=True, slots=True)
class GroupLaw:
    r"""A group of ``size`` records, each Poisson sampled at ``rate``: $\sum_j B(j) N(j\mu)$ against $N(0)$.

    ``B``: the binomial law of how many take part. ``removal`` as in :class:`SampledLaw`, which is ``size = 1``.
    """

    mu: float
    rate: float
    size: int
    removal: bool = True

    def __post_init__(self) -> None:
        require(0 < self.mu < 1e6, "GroupLaw.mu", "lie in (0, 1e6)", self.mu)
        require(0 < self.rate <= 1, "GroupLaw.rate", "lie in (0, 1]", self.rate)
        require(1 <= self.size <= LARGEST_GROUP, "GroupLaw.size", f"lie in 1..{LARGEST_GROUP}", self.size)

    def tails(self, levels: Vector, /) -> Tails:
        """Return the tails at thresholds by Newton's method; the other direction is the mirror image."""
        counts, logs = _binomial(self.size, self.rate)
        weights, means = tuple(np.exp(logs).tolist()), tuple((self.mu * counts).tolist())
        if self.removal:
            x = self._threshold(levels)
            return Tails(*_mixture(x, weights, means), *_mixture(x, (1.0,), (0.0,)))
        x = -self._threshold(-levels)
        return Tails(*_mixture(x, (1.0,), (0.0,)), *_mixture(x, weights, tuple(-mean for mean in means)))

    def _threshold(self, levels: Vector) -> Vector:
        """Solve "the part of the ratio with someone sampled = exp(level) - P(nobody)", convex and increasing."""
        counts, logs = _binomial(self.size, self.rate)
        nobody = float(logs[0]) if counts[0] == 0 else -math.inf
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            high = np.expm1(np.clip(levels, -0.5, _FAR)) - math.expm1(nobody)
            some = np.where(levels < -0.5, np.exp(np.minimum(levels, 0.0)) - math.exp(nobody), high)
            goal = np.where(levels > _FAR, levels, np.log(np.maximum(some, 0.0)))
        x = np.where(goal > 0, np.inf, -np.inf)
        finite = np.isfinite(goal)
        if finite.any():
            x[finite] = self._solve(goal[finite])
        return np.asarray(x, dtype=np.float64)

    def _solve(self, goal: Vector) -> Vector:
        most = np.full_like(goal, np.inf)  # to the right of the root, for every line
        for slope, offset in self._lines():
            np.minimum(most, (goal - offset) / slope, out=most)
        if goal.size <= 2 * _KNOTS:
            return self._newton(goal, most, most)
        knots = np.linspace(goal.min(), goal.max(), _KNOTS)  # a few points first, as starting values for the others
        return self._newton(goal, np.minimum(np.interp(goal, knots, self._solve(knots)), most), most)

    def _newton(self, goal: Vector, x: Vector, most: Vector) -> Vector:
        for _ in range(_NEWTON_STEPS):  # the sum is convex, so from the right of the root every step stays there
            total, slant = np.zeros_like(x), np.zeros_like(x)
            for slope, offset in self._lines():
                part = np.exp(slope * x + (offset - goal))  # relative to the goal, so near one at the root
                total += part
                slant += slope * part
            move = np.log(total) * total / slant
            x = np.minimum(x - move, most)
            if not np.any(np.abs(move) > 1e-14 * (1 + np.abs(x))):
                break
        return x

    def _lines(self) -> list[tuple[float, float]]:
        """Return each count's log-ratio to N(0): slope and offset in the coordinate."""
        counts, logs = _binomial(self.size, self.rate)
        means = self.mu * counts
        return [(float(m), float(b - m * m / 2)) for m, b in zip(means, logs, strict=True) if m > 0]

    def reach(self, mass: float, /) -> tuple[float, float]:
        """Return the losses at the coordinate's own quantiles."""
        z = -float(scipy.special.ndtri(mass / 2))
        counts, logs = _binomial(self.size, self.rate)
        many = np.cumsum(np.exp(logs)[::-1])[::-1] > mass / 2  # the chance that so many or more take part

        def loss(x: float) -> float:
            return float(np.logaddexp.reduce(logs + self.mu * counts * x - (self.mu * counts) ** 2 / 2))

        top = float(counts[many][-1])
        return (loss(-z), loss(self.mu * top + z)) if self.removal else (-loss(z), -loss(-z))


@final
@dataclass(frozen=True, slots=True)
class LaplaceLaw:
    """Two Laplace laws ``r`` scales apart, in one dimension."""

    r: float

    def __post_init__(self) -> None:
        require(0 < self.r < 1e6, "LaplaceLaw.r", "lie in (0, 1e6)", self.r)

    def tails(self, levels: Vector, /) -> Tails:
        """Return the tails: atoms at plus and minus ``r``, exponential between."""
        with np.errstate(over="ignore", under="ignore"):
            inner = np.clip(levels, -self.r, self.r)
            p_below = 0.5 * np.exp(-(self.r - inner) / 2)
            q_above = 0.5 * np.exp(-(self.r + inner) / 2)
        under, over = levels < -self.r, levels >= self.r
        p_below = np.where(under, 0.0, np.where(over, 1.0, p_below))
        q_above = np.where(under, 1.0, np.where(over, 0.0, q_above))
        return Tails(1 - p_below, p_below, q_above, 1 - q_above)

    def reach(self, mass: float, /) -> tuple[float, float]:
        """Return -r and r, which bound the loss."""
        return -self.r, self.r


@final
@dataclass(frozen=True, slots=True)
class FiniteLaw:
    """Finitely many losses (increasing) with their probabilities under P and Q; the rest of P is an infinite loss."""

    losses: tuple[float, ...]
    p: tuple[float, ...]
    q: tuple[float, ...] = field(repr=False)

    def __post_init__(self) -> None:
        sizes = len(self.losses) == len(self.p) == len(self.q) >= 1
        require(
            sizes,
            "FiniteLaw",
            "have one p and one q for each loss",
            (len(self.losses), len(self.p), len(self.q)),
        )
        rising = all(a < b for a, b in zip(self.losses, self.losses[1:], strict=False))
        require(
            rising and all(map(math.isfinite, self.losses)),
            "FiniteLaw.losses",
            "be finite and increase",
            self.losses[:4],
        )
        for name, masses in (("p", self.p), ("q", self.q)):
            fine = all(0 <= m <= 1 for m in masses) and math.fsum(masses) <= 1 + 1e-12
            require(fine, f"FiniteLaw.{name}", "be probabilities that add up to at most 1", masses[:4])
        pairs = [(p, q, loss) for p, q, loss in zip(self.p, self.q, self.losses, strict=True) if min(p, q) > 1e-290]
        same = all(abs(math.log(p / q) - loss) <= 1e-9 * (1 + abs(loss)) for p, q, loss in pairs)
        require(same, "FiniteLaw.q", "be p times exp(-loss)", self.q[:4])

    def tails(self, levels: Vector, /) -> Tails:
        """Return sums over the atoms on either side of each level."""
        index = np.searchsorted(np.asarray(self.losses), levels, side="right")
        p, q = np.asarray(self.p), np.asarray(self.q)
        infinite = max(0.0, 1 - math.fsum(self.p))

        def above(masses: Vector, extra: float) -> Vector:
            return np.append(np.cumsum(masses[::-1])[::-1], 0.0)[index] + extra

        def below(masses: Vector, extra: float) -> Vector:
            return np.append(0.0, np.cumsum(masses))[index] + extra

        unseen = max(0.0, 1 - math.fsum(self.q))  # mass of Q only: a loss of minus infinity
        return Tails(above(p, infinite), below(p, 0.0), above(q, 0.0), below(q, unseen))

    def reach(self, mass: float, /) -> tuple[float, float]:
        """Return the first and the last atom."""
        return self.losses[0], self.losses[-1]


def law_of_profile(epsilons: Vector, deltas: Vector) -> FiniteLaw:
    """Return the law that a privacy profile allows, for guarantees that hold in both directions.

    ``deltas[i]`` bounds delta at ``epsilons[i]`` (0 first, increasing). The true profile is convex in exp(epsilon), so
    it lies below the convex minorant of the points; what is left beyond the last point is an infinite loss.
    """
    require(
        epsilons.size >= 2 and epsilons[0] == 0, "epsilons", "start at 0 and be at least two", epsilons[:3].tolist()
    )
    gamma = np.exp(epsilons)
    top = float(min(deltas[0], 1.0))
    # A symmetric pair cannot fall faster than this at the start.
    raised = np.maximum(np.minimum.accumulate(deltas), top - (gamma - 1) * (1 - top) / 2)
    width = np.diff(gamma)
    slopes = scipy.optimize.isotonic_regression(np.diff(raised) / width, weights=width).x
    q = np.maximum(np.diff(np.append(slopes, 0.0)), 0.0)
    p = q * gamma[1:]
    losses = epsilons[1:]
    middle = max(0.0, 1 - float(p.sum()) - float(q.sum()) - float(raised[-1]))
    around = np.concatenate([q[::-1], [middle], p])
    total = float(around.sum())
    around /= max(total, 1.0)  # against rounding only
    points = np.concatenate([-losses[::-1], [0.0], losses])
    return FiniteLaw(tuple(points.tolist()), tuple(around.tolist()), tuple(around[::-1].tolist()))
