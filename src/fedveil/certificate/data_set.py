"""What all runs on a data set cost together, as it stood when one of them released: from that run's export alone.

A release records the total of all charges in the ledger up to then, and how many there were; of the other runs it says
nothing else.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedveil.core.errors import BadValue, require
from fedveil.ledger.budget import Cost
from fedveil.ledger.entry import Export
from fedveil.privacy.guarantee import Adversary, finite_or_none


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSet:
    """How many runs were charged in the ledger, and the sum of their epsilons and deltas against each observer."""

    runs: int
    costs: tuple[Cost, ...]

    def cost(self, adversary: Adversary) -> Cost:
        """Return the total against one observer; infinite for one about whom nothing is stated."""
        found = next((cost for cost in self.costs if cost.adversary == adversary), None)
        return replace(self.costs[0], adversary=adversary, epsilon=math.inf) if found is None else found

    def as_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        rows = [
            {"adversary": one.adversary, "epsilon": finite_or_none(one.epsilon), "delta": one.delta}
            for one in self.costs
        ]
        return {"runs": self.runs, "rule": "sum", "guarantees": rows}

    def written(self) -> dict[str, Any]:
        """Return what a certificate adds: nothing where the run is alone, and its own numbers are the total."""
        return {"data_set": self.as_json()} if self.runs > 1 else {}

    def sentence(self, adversary: Adversary) -> str:
        """Return the total against an observer in words."""
        one = self.cost(adversary)
        return sentence(self.runs, finite_or_none(one.epsilon), one.delta, adversary)


def sentence(runs: int, epsilon: float | None, delta: float, adversary: str) -> str:
    """Return in words what all runs on the data set cost together.

    >>> sentence(2, 2.00001, 2e-5, "final-model")
    'Both runs on this data set: epsilon 2.0001, delta 2e-05 against final-model.'
    """
    if runs == 1:
        return "The only run on this data set so far: its cost is the total."
    told = (
        "no guarantee" if epsilon is None else f"epsilon {math.ceil(epsilon * 1e4 - 1e-6) / 1e4:g}, delta {delta:.3g}"
    )
    which = "Both runs" if runs == 2 else f"All {runs:,} runs"
    return f"{which} on this data set: {told} against {adversary}."


def data_set_of(export: Export) -> DataSet:
    """Return the total that an export states; it is at least what the run itself was charged."""
    charge, release = export.entries[0], export.entries[-1]
    own = _costs(charge.payload.get("costs"))
    try:
        stated = release.payload["total"]
        runs, costs = stated["runs"], _costs(stated["costs"])
    except (KeyError, TypeError) as error:
        raise BadValue("The total of a data set must state its runs and costs, and it cannot be read.") from error
    require(type(runs) is int and runs >= 1, "The total of a data set", "be of at least one run", runs)
    require(len(costs) == len(own), "The total of a data set", f"have {len(own)} costs", len(costs))
    for one, all_runs in zip(own, costs, strict=True):
        same = (one.adversary, one.unit, one.neighbours) == (all_runs.adversary, all_runs.unit, all_runs.neighbours)
        enough = same and all_runs.epsilon >= one.epsilon and all_runs.delta >= one.delta
        rule = f"be at least what the run itself costs against {one.adversary}, {one.epsilon:g}"
        require(enough, "The total of a data set", rule, all_runs.epsilon)
    return DataSet(runs=runs, costs=costs)


def _costs(rows: Any) -> tuple[Cost, ...]:
    right = isinstance(rows, Sequence) and len(rows) >= 1
    require(right, "The costs of a run", "be stated", rows)
    try:
        return tuple(Cost.read(row) for row in rows)
    except (KeyError, TypeError, ValueError) as error:
        raise BadValue(f"The costs of a run must be readable: {str(error).rstrip('.')}.") from error
