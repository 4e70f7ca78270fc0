r"""What a certificate claims about one observer, as a curve: many pairs (epsilon, delta) that all hold at once.

The claim is that no event separates two neighbouring data sets better: $P(A) \le e^\varepsilon Q(A) + \delta$ for every
pair, and the same with P and Q exchanged. Any subset of the true curve is a valid, weaker claim. A test reads the curve
as rates: ``most`` is the best true-positive rate at a false-positive rate, ``least`` its inverse.
Theory page: trade-off-functions.md.
"""

import math
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Protocol

import numpy as np
from scipy.special import ndtr, ndtri

from fedveil.core.errors import require
from fedveil.core.values import Vector
from fedveil.ledger.costs import covered
from fedveil.planning.plan import Plan
from fedveil.planning.promises import promise, promised_delta
from fedveil.privacy.guarantee import Adversary
from fedveil.stages.measured.plan import MeasuredPlan
from fedveil.theory.concentrated import check_mu, gaussian_epsilon

POINTS = 32  # points on a plan's curve
_TINY = (1e-9, 1e-7)  # where many right guesses contradict a single pair
_SMALL = (*_TINY, 1e-5, 1e-4, 1e-3, 3e-3)


class Curve(Protocol):
    """A symmetric trade-off curve: what tests of "which of two neighbours" can achieve."""

    def most(self, false_positives: Vector, /) -> Vector:
        """Return the largest true-positive rate at these false-positive rates: rising and concave."""

    def least(self, true_positives: float, /) -> float:
        """Return the least false-positive rate at this true-positive rate."""

    def epsilon_at(self, delta: float, /) -> float:
        """Return the least epsilon at this delta."""


@dataclass(frozen=True, slots=True)
class GaussianCurve:
    """The curve of a Gaussian release whose means are ``mu`` deviations apart."""

    mu: float

    def __post_init__(self) -> None:
        check_mu(self.mu)

    def most(self, false_positives: Vector) -> Vector:
        """Return the largest true-positive rate at these false-positive rates."""
        return np.asarray(ndtr(ndtri(false_positives) + self.mu), dtype=np.float64)

    def least(self, true_positives: float) -> float:
        """Return the least false-positive rate at this true-positive rate.

        >>> round(GaussianCurve(1.0).least(0.5), 4)
        0.1587
        """
        return float(ndtr(ndtri(true_positives) - self.mu))

    def epsilon_at(self, delta: float) -> float:
        """Return the exact epsilon at this delta."""
        return gaussian_epsilon(self.mu, delta)


@dataclass(frozen=True, slots=True)
class Claim:
    """Pairs (epsilon, delta) in ascending order of epsilon; ``epsilon`` and ``delta`` are arrays of the same length."""

    points: tuple[tuple[float, float], ...]
    _ratio: Vector = field(init=False, repr=False, compare=False)
    _delta: Vector = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        kept = {(float(e), float(d)) for e, d in self.points if math.isfinite(e)}
        right = all(e >= 0 and 0 <= d <= 1 for e, d in kept)
        require(right, "Claim.points", "be pairs of epsilon >= 0 and delta in [0, 1]", sorted(kept)[:3])
        points = tuple(sorted(kept))
        object.__setattr__(self, "points", points)
        object.__setattr__(self, "_ratio", np.exp(np.minimum([e for e, _ in points], 700.0)))
        object.__setattr__(self, "_delta", np.array([d for _, d in points]))

    @property
    def epsilon(self) -> Vector:
        """All epsilons of the claim, ascending."""
        return np.array([e for e, _ in self.points])

    @property
    def delta(self) -> Vector:
        """The delta of each epsilon."""
        return np.array([d for _, d in self.points])

    @property
    def empty(self) -> bool:
        """True if nothing is claimed."""
        return not self.points

    def most(self, false_positives: Vector) -> Vector:
        """Return the largest true-positive rate that the claim allows at these false-positive rates.

        >>> Claim(((0.0, 0.25),)).most(np.array([0.0, 0.5, 1.0])).tolist()
        [0.25, 0.75, 1.0]
        """
        q = np.asarray(false_positives, dtype=np.float64)
        bound = np.ones_like(q)
        for epsilon, delta in self.points:
            ratio = math.exp(min(epsilon, 700.0))
            bound = np.minimum(bound, np.minimum(ratio * q + delta, 1 - (1 - q - delta) / ratio))
        return np.clip(bound, 0.0, 1.0)

    def least(self, true_positives: float) -> float:
        """Return the least false-positive rate that the claim allows at this true-positive rate.

        >>> Claim(((0.0, 0.25),)).least(0.75), Claim(((0.0, 0.25),)).least(0.1)
        (0.5, 0.0)
        """
        if self.empty:
            return 0.0
        steep = float(np.max((true_positives - self._delta) / self._ratio))
        # Differences of numbers near 1 err by some 1e-16: without the last term tiny rates would come out too large.
        flat = float(np.max(1 - self._delta - self._ratio * (1 - true_positives) - 1e-15 * (1 + self._ratio)))
        return max(0.0, steep, flat)

    def epsilon_at(self, delta: float) -> float:
        """Return the least epsilon that is claimed at this delta or a smaller one."""
        return min((e for e, d in self.points if d <= delta), default=math.inf)


@lru_cache(maxsize=64)  # for a plan of a thousand rounds this takes most of a minute, and every attack needs it
def claim_of_plan(plan: Plan, adversary: Adversary, points: int = POINTS) -> Claim:
    """Return what a plan promises against this observer, at ``points`` places; empty if nothing is private."""
    if not covered(plan):
        return Claim(())
    own = plan.target.delta, promise(plan, adversary).epsilon
    if plan.hides and math.isfinite(own[1]):
        far = promise(plan, adversary, min(1e-6, own[0])).epsilon
        epsilons = np.linspace(1e-5 * far, far, points).tolist() if math.isfinite(far) else []
        tiny = [(promise(plan, adversary, d).epsilon, d) for d in _TINY] if points == POINTS else []
        return Claim(((own[1], own[0]), *tiny, *((e, promised_delta(plan, adversary, e)) for e in epsilons)))
    spread = np.linspace(0.01, 0.98, points) if points == POINTS else np.geomspace(1e-3, 0.9, points)
    deltas = {own[0], *(_SMALL if points == POINTS else ()), *spread.tolist()}
    return Claim(tuple((promise(plan, adversary, delta).epsilon, delta) for delta in sorted(deltas)))


@lru_cache(maxsize=16)
def claim_of_alone(plan: MeasuredPlan, adversary: Adversary) -> Claim:
    """Return what a plan that trains nothing promises against this observer, at several deltas."""
    wanted = sorted({*_SMALL, *np.linspace(0.01, 0.98, POINTS).tolist(), plan.target.delta})
    return Claim(tuple((plan.promise(adversary, delta).epsilon, delta) for delta in wanted))
