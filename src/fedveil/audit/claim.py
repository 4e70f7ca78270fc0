r"""What a certificate claims about one observer, as a curve: many pairs (epsilon, delta) that all hold at once.

The claim is that no event separates two neighbouring data sets better: $P(A) \le e^\varepsilon Q(A) + \delta$ for every
pair, and the same with P and Q exchanged. Any subset of the true curve is a valid, weaker claim.
Theory page: trade-off-functions.md.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from fedveil.core.checks import require
from fedveil.core.values import Vector
from fedveil.ledger.costs import covered
from fedveil.planning.plan import Plan
from fedveil.planning.promises import promise, promised_delta
from fedveil.privacy.guarantee import Adversary
from fedveil.stages.prepare.alone import AlonePlan

POINTS = 48  # points on a plan's curve
_SMALL = (1e-9, 1e-7, 1e-5, 1e-4, 1e-3, 3e-3)


@dataclass(frozen=True, slots=True)
class Claim:
    """Pairs (epsilon, delta) in ascending order of epsilon; ``epsilon`` and ``delta`` are arrays of the same length."""

    points: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        kept = {(float(e), float(d)) for e, d in self.points if math.isfinite(e)}
        right = all(e >= 0 and 0 <= d <= 1 for e, d in kept)
        require(right, "Claim.points", "be pairs of epsilon >= 0 and delta in [0, 1]", sorted(kept)[:3])
        object.__setattr__(self, "points", tuple(sorted(kept)))

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

    def epsilon_at(self, delta: float) -> float:
        """Return the least epsilon that is claimed at this delta or a smaller one."""
        return min((e for e, d in self.points if d <= delta), default=math.inf)


def claim_of_plan(plan: Plan, adversary: Adversary, deltas: Sequence[float] | None = None) -> Claim:
    """Return what a plan promises against this observer, at several deltas; an empty claim if nothing is private."""
    return _claim_of_plan(plan, adversary, None if deltas is None else tuple(deltas))


@lru_cache(maxsize=16)  # for a plan of a thousand rounds this takes most of a minute, and every attack needs it
def _claim_of_plan(plan: Plan, adversary: Adversary, deltas: tuple[float, ...] | None) -> Claim:
    if not covered(plan):
        return Claim(())
    own = plan.target.delta, promise(plan, adversary).epsilon
    if deltas is None and plan.hides and math.isfinite(own[1]):
        far = promise(plan, adversary, min(1e-6, own[0])).epsilon
        epsilons = np.linspace(1e-5 * far, far, POINTS).tolist() if math.isfinite(far) else []
        return Claim(((own[1], own[0]), *((e, promised_delta(plan, adversary, e)) for e in epsilons)))
    wanted = (*_SMALL, *np.linspace(0.01, 0.98, POINTS).tolist()) if deltas is None else deltas
    pairs = ((promise(plan, adversary, delta).epsilon, delta) for delta in sorted({*wanted, own[0]}))
    return Claim(tuple(pairs))


@lru_cache(maxsize=16)
def claim_of_alone(plan: AlonePlan, adversary: Adversary) -> Claim:
    """Return what a plan that trains nothing promises against this observer, at several deltas."""
    wanted = sorted({*_SMALL, *np.linspace(0.01, 0.98, POINTS).tolist(), plan.target.delta})
    return Claim(tuple((plan.promise(adversary, delta).epsilon, delta) for delta in wanted))
