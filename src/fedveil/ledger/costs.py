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

from fedveil.core.errors import FedveilError
from fedveil.ledger.budget import Cost, total
from fedveil.ledger.entry import Entry
from fedveil.planning.plan import AnyPlan, read_any_plan
from fedveil.privacy.guarantee import Adversary, Neighbours, Unit
from fedveil.theory.loss import LossLaw


def covered(plan: AnyPlan) -> bool:
    """Return whether the guarantees hold for what a run of this plan releases."""
    return not plan.unprotected


def cost_of(plan: AnyPlan, adversary: Adversary) -> Cost:
    """Return the cost of one run against this observer; infinite if something leaves without noise."""
    from fedveil.planning.promises import promise  # who only keeps books needs no accountant

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
        from fedveil.ledger.curves import worst

        return self._curves(question) or worst(cost)

    def has_curve(self, question: Question) -> bool:
        """Return whether the whole certified curve of every plan is known, and not only an epsilon and a delta."""
        return self._curves(question) is not None

    def _curves(self, question: Question) -> Uses | None:
        from fedveil.ledger.curves import law_of

        result = [(law_of(text, question), times) for text, times in self.plans]
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
    from fedveil.ledger.curves import upper

    exact = upper(uses, delta)
    if exact < result * (1 - 1e-9):
        return exact, "curves" if all(run.has_curve(question) for run in runs) else "worst-case"
    return min(exact, result), "sum" if result < math.inf else "none"


def _hash(text: str) -> str:
    return sha256(text.encode()).hexdigest()
