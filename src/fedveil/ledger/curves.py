"""The certified curve of a charged plan, delta as a function of epsilon, as a pair of laws that dominates the run.

Only here does the ledger ask the accountants; it is loaded by whoever adds up what several runs reveal together.
Theory page: adding-up-runs.md.
"""

import math
from functools import lru_cache

import numpy as np

from fedveil.accounting.loss_distribution import LossDistributionAccountant
from fedveil.core.errors import CannotCertify
from fedveil.ledger.budget import Cost
from fedveil.ledger.costs import Question, Uses, covered
from fedveil.planning.plan import AnyPlan, Plan, read_any_plan
from fedveil.planning.promises import promise, promise_at
from fedveil.privacy.guarantee import Adversary, Answer
from fedveil.privacy.mechanism import ApproximateDP
from fedveil.theory.composition import worst_upper
from fedveil.theory.loss import LossLaw, law_of_profile
from fedveil.theory.numerics import SMALLEST_DELTA

_SMALL = tuple(10.0**-power for power in np.arange(2.0, 13.01, 1 / 3).tolist())
_DELTAS = (0.7, 0.5, 0.35, 0.25, 0.18, 0.13, 0.09, 0.06, 0.04, 0.025, 0.015, *_SMALL)
_EPSILONS = 32  # number of points of a hidden run's curve
_LAST = 1e-9  # the curve ends at this delta, or at the plan's own if that is less
_APART = 1e-6  # least distance between two epsilons of a curve
_WIDEST = 500.0  # the largest epsilon of a curve; exp of it must be finite


def upper(uses: Uses, delta: float) -> float:
    """Return the epsilon of these laws together at a delta; infinite where none is proved."""
    if not SMALLEST_DELTA <= delta < 1:
        return math.inf
    try:
        return worst_upper([uses], delta)
    except CannotCertify:
        return math.inf


@lru_cache(maxsize=1024)
def law_of(text: str, question: Question) -> LossLaw | None:
    """Return the law of a plan's certified curve; None if this version cannot read the plan or answer the question."""
    adversary, unit, neighbours = question
    try:
        plan = read_any_plan(text)
        target = plan.target
        cost = Cost(adversary=adversary, unit=target.unit, neighbours=target.neighbours, epsilon=0.0, delta=0.0)
        return _certified(plan, adversary) if cost.covers(unit, neighbours) else None
    except (ValueError, CannotCertify):
        return None


def _certified(plan: AnyPlan, adversary: Adversary) -> LossLaw | None:
    """Build a law from certified epsilons at many deltas; the start of the curve follows from its first points."""
    if not covered(plan):
        return None
    points = _points(plan, adversary)
    points = [(epsilon, delta) for epsilon, delta in points if epsilon < _WIDEST]
    if not points:
        return None
    # For an (epsilon, delta) private pair of laws, no event's probability differs by more than this.
    start = min(1.0, *((math.expm1(epsilon) + 2 * delta) / (math.exp(epsilon) + 1) for epsilon, delta in points))
    curve = [(0.0, start)]
    for epsilon, delta in points:  # in order of epsilon; of points that nearly coincide, the first is kept
        if epsilon >= curve[-1][0] + _APART:
            curve.append((epsilon, delta))
    if len(curve) < 2:
        return None
    epsilons, bounds = np.array(curve).T
    return law_of_profile(epsilons, bounds)


def _points(plan: AnyPlan, adversary: Adversary) -> list[tuple[float, float]]:
    """Return certified (epsilon, delta) pairs, with falling delta.

    For hidden runs delta at an epsilon is several times cheaper to compute than the inverse.
    """
    own = promise(plan, adversary)
    if not isinstance(plan, Plan) or not plan.hides:
        deltas = sorted({*_DELTAS, own.delta}, reverse=True)
        return [(_epsilon(plan, adversary, delta), delta) for delta in deltas]
    # What may go wrong with the plan's own small chance (too many records in a round, say) leaves nothing provable
    # below some delta: the curve ends at the last one above it.
    ends = sorted({min(_LAST * 10.0**power, own.delta) for power in range(12)})
    far = next((there for delta in ends if (there := _reached(plan, adversary, delta)) is not None), own)
    if not 0 < far.epsilon < _WIDEST:
        return [(own.epsilon, own.delta)]
    first, *epsilons = np.linspace(far.epsilon / _EPSILONS, far.epsilon, _EPSILONS).tolist()
    near = promise_at(plan, adversary, first)
    # The bounds that are least at these points are used for the rest: each bound holds alone.
    names = {answer.certified_by for answer in (near, own, far) if answer.certified_by is not None}
    result = [(epsilon, promise_at(plan, adversary, epsilon, names).delta) for epsilon in epsilons]
    return sorted([(first, near.delta), (own.epsilon, own.delta), *result])


def _epsilon(plan: AnyPlan, adversary: Adversary, delta: float) -> float:
    """Return the certified epsilon at a delta; infinite where nothing is proved."""
    try:
        return promise(plan, adversary, delta).epsilon
    except CannotCertify:
        return math.inf


def _reached(plan: Plan, adversary: Adversary, delta: float) -> Answer | None:
    """Return what is proved at a delta; None if nothing is."""
    return promise(plan, adversary, delta) if _epsilon(plan, adversary, delta) < _WIDEST else None


def worst(cost: Cost) -> Uses | None:
    """Return the worst mechanism with this epsilon and delta."""
    if not (cost.epsilon < _WIDEST and cost.delta < 1):
        return None
    pair = LossDistributionAccountant().primitive(ApproximateDP(epsilon=cost.epsilon, delta=cost.delta))
    return list(pair.forward)
