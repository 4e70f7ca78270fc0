"""What one run costs each observer, and what several charged runs reveal together, by exact composition.

Whether the promises of a plan hold at all is decided only here.

A charge holds its plan. So the whole certified curve of every run, delta as a function of epsilon, is known to whoever
reads the books, including what the grid, missing clients and masks may cost. A curve is a pair of laws that dominates
the run; pairs compose exactly, which gives less than adding epsilons. A charge without a plan that can be read is known
only by its epsilon and delta, and enters as the worst mechanism that has them.

This holds for runs that were fixed in advance. The rule for later runs that are chosen by earlier results is in
``filter.py``. Theory page: adding-up-runs.md.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import sha256
from typing import Any, Literal, Self

import numpy as np

from fedveil.accounting.loss_distribution import LossDistributionAccountant
from fedveil.core.errors import CannotCertify, FedveilError
from fedveil.ledger.budget import Cost, total
from fedveil.ledger.entry import Entry
from fedveil.planning.plan import AnyPlan, Plan, read_any_plan
from fedveil.planning.promises import promise, promise_at
from fedveil.privacy.guarantee import Adversary, Answer, Neighbours, Unit
from fedveil.privacy.mechanism import ApproximateDP
from fedveil.theory.composition import worst_upper
from fedveil.theory.loss import LossLaw, law_of_profile
from fedveil.theory.numerics import SMALLEST_DELTA


def covered(plan: AnyPlan) -> bool:
    """Return whether the guarantees hold for what a run of this plan releases."""
    return not plan.unprotected


def cost_of(plan: AnyPlan, adversary: Adversary) -> Cost:
    """Return the cost of one run against this observer; infinite if something leaves without noise."""
    answer, target = promise(plan, adversary), plan.target
    return Cost(
        adversary=adversary,
        unit=target.unit,
        neighbours=target.neighbours,
        epsilon=answer.epsilon if covered(plan) else math.inf,
        delta=answer.delta,
    )


Uses = list[tuple[LossLaw, int]]
Question = tuple[Adversary, Unit, Neighbours]
# What gave an epsilon of several runs: exact composition of their certified curves; the same with the worst mechanism
# of a stated epsilon and delta where a curve is not known; epsilons and deltas added up; nothing is proved.
Rule = Literal["curves", "worst-case", "sum", "none"]

_SMALL = tuple(10.0**-power for power in np.arange(2.0, 13.01, 1 / 3).tolist())
_DELTAS = (0.7, 0.5, 0.35, 0.25, 0.18, 0.13, 0.09, 0.06, 0.04, 0.025, 0.015, *_SMALL)
_EPSILONS = 32  # number of points of a hidden run's curve
_LAST = 1e-9  # the curve ends at this delta, or at the plan's own if that is less
_APART = 1e-6  # least distance between two epsilons of a curve
_WIDEST = 500.0  # the largest epsilon of a curve; exp of it must be finite


@dataclass(frozen=True, slots=True)
class Charged:
    """One charge: its stated costs, and the plans that ran and how often, if the entry says so.

    A plan that promises nothing has infinite cost, even if less was written down.
    """

    costs: tuple[Cost, ...]
    plans: tuple[tuple[str, int], ...] = ()

    @classmethod
    def read(cls, payload: Mapping[str, Any]) -> Self:
        """Read the payload of a charge; a text that is not the charged plan is ignored."""
        costs = tuple(Cost.read(cost) for cost in payload["costs"])
        plans = _plans_of(payload)
        if any(_exposed(text) for text, _ in plans):  # nothing is promised, whatever was written down
            costs = tuple(replace(cost, epsilon=math.inf) for cost in costs)
        return cls(costs, plans)

    def stated(self, question: Question) -> Cost:
        """Return the least stated cost that holds for this question; infinite if none does."""
        return total([self.costs], *question)

    def uses(self, question: Question) -> Uses | None:
        """Return laws that dominate what this observer learns; None if nothing finite is known."""
        cost = self.stated(question)
        if not math.isfinite(cost.epsilon):
            return None
        return self._curves(question) or _worst(cost)

    def has_curve(self, question: Question) -> bool:
        """Return whether the whole certified curve of every plan is known, and not only an epsilon and a delta."""
        return self._curves(question) is not None

    def _curves(self, question: Question) -> Uses | None:
        result = [(_law(text, question), times) for text, times in self.plans]
        known = [(law, times) for law, times in result if law is not None]
        return known if result and len(known) == len(result) else None


def _plans_of(payload: Mapping[str, Any]) -> tuple[tuple[str, int], ...]:
    """Return the texts of the charged plans, and how often each ran.

    Return none unless their hashes are those that the charge names.
    """
    text, several = payload.get("mechanism", ""), payload.get("extra", {}).get("plans")
    if isinstance(text, str) and _hash(text) == payload.get("plan"):
        return ((text, 1),)
    if isinstance(several, list | tuple) and several:
        rows = tuple((str(row["plan"]), int(row["times"])) for row in several)
        named = _hash(" ".join(_hash(text) for text, _ in rows)) == payload.get("plan")
        if named and all(times >= 1 for _, times in rows):
            return rows
    return ()


@lru_cache(maxsize=1024)
def _exposed(text: str) -> bool:
    """Return whether this is a plan whose promises do not hold, for example because its noise is known."""
    try:
        return not covered(read_any_plan(text))
    except (ValueError, FedveilError):  # no plan that this version reads: its charge states its cost
        return False


def charged(entries: Iterable[Entry]) -> list[Charged]:
    """Return all charges in the books."""
    return [Charged.read(entry.payload) for entry in entries if entry.kind == "charge"]


def together(runs: Sequence[Charged], question: Question, delta: float) -> float:
    """Return the epsilon of all runs together at ``delta``, if they were fixed in advance; infinite if none is proved.

    Adding epsilons and deltas is one way to prove it, so the result is never more than their sum if the deltas fit.
    """
    return composed(runs, question, delta)[0]


def composed(runs: Sequence[Charged], question: Question, delta: float) -> tuple[float, Rule]:
    """Return the same with the rule that gave it."""
    if not runs:
        return 0.0, "sum"
    added = total([run.costs for run in runs], *question)
    result = added.epsilon if added.delta <= delta else math.inf
    uses: Uses = []
    for run in runs:
        more = run.uses(question)
        if more is None:
            return math.inf, "none"
        uses += more
    exact = _upper(uses, delta)
    if exact < result * (1 - 1e-9):
        return exact, "curves" if all(run.has_curve(question) for run in runs) else "worst-case"
    return min(exact, result), "sum" if result < math.inf else "none"


def _upper(uses: Uses, delta: float) -> float:
    if not SMALLEST_DELTA <= delta < 1:
        return math.inf
    try:
        return worst_upper([uses], delta)
    except CannotCertify:
        return math.inf


def _hash(text: str) -> str:
    return sha256(text.encode()).hexdigest()


@lru_cache(maxsize=1024)
def _law(text: str, question: Question) -> LossLaw | None:
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


def _worst(cost: Cost) -> Uses | None:
    """Return the worst mechanism with this epsilon and delta."""
    if not (cost.epsilon < _WIDEST and cost.delta < 1):
        return None
    pair = LossDistributionAccountant().primitive(ApproximateDP(epsilon=cost.epsilon, delta=cost.delta))
    return list(pair.forward)
