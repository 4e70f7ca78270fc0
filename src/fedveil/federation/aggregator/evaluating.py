"""The aggregator's part of a private evaluation: its sums are the last rounds of a run, after those of training."""

from dataclasses import dataclass
from typing import Any, final

import numpy as np

from fedveil.algorithms.across_sites import Consortium, Serving, Standing
from fedveil.checks import require
from fedveil.data.records import DataShape
from fedveil.data.row_rule import Labels
from fedveil.federation.aggregator.serving import sum_limit
from fedveil.federation.agreements.turns import evaluated, evaluated_from, length_of, measurement_of
from fedveil.plan import Plan
from fedveil.run.evaluating import ModelEvaluator, evaluation_in
from fedveil.stages.sums import STEPS
from fedveil.study import Study
from fedveil.sums.seam import Whole
from fedveil.values import Indices, Vector
from fedveil.wire.content import Content


def counted_held(study: Study, members: Consortium, own: int) -> DataShape | None:
    """Return the shape of the sites' held-out records that the study's evaluation counts; None if it counts none.

    ``own``: how many records the aggregator has to measure on.
    """
    asked = study.evaluation
    if asked is None or not asked.private or members.held is None or asked.records == "training":
        return None
    if asked.records is None and asked.share is not None:  # a share of training's budget: on training records
        return None
    hint = "Leave [data.held_out] out of the sites' data files, or the aggregator's records out of the study."
    require(own == 0, "[evaluation]", "count held-out records of the sites or of the aggregator, not both", own, hint)
    return members.held


def check_evaluated(plan: Plan) -> None:
    """Refuse an evaluation that has no place among the rounds of a run across sites."""
    if plan.evaluation is None:
        return
    hint = "Leave [evaluation] out, or take an algorithm with a server."
    require(plan.method.served, "[evaluation]", "be left out without a server across sites", plan.method.kind, hint)
    hint = "Updates that come late have no place among the rounds of an evaluation."
    require(plan.trust.patience is None, "trust.patience", "be left out with [evaluation]", plan.trust.patience, hint)


@final
@dataclass(frozen=True, slots=True, eq=False)
class EvaluatedServer:
    """Implements Serving: the rounds of ``then``, and one more for each sum of the evaluation.

    The row of a state is that of ``then``, followed by the noisy sums so far.
    """

    plan: Plan
    members: Consortium
    then: Serving

    @property
    def first(self) -> int:
        """The first round of the evaluation."""
        return evaluated_from(self.plan)

    @property
    def last(self) -> int:
        """The number of rounds after which the model is released."""
        return self.first + evaluated(self.plan)

    def begin(self) -> Standing:
        """Return the state before the first round."""
        return self.then.begin()

    def model(self, standing: Standing) -> Vector:
        """Return the model of a state."""
        return self.then.model(self.before(standing))

    def told(self, standing: Standing, labels: Labels | None) -> dict[str, Any]:
        """Return what the noisy sums say of the model, once all of them are known."""
        sums = np.split(self._sums(standing), np.cumsum(self._sizes(standing.round))[:-1])
        return ModelEvaluator.of(self.plan, self.model(standing)).told(sums, labels)

    def before(self, standing: Standing) -> Standing:
        """Return the state of ``then``: its last one, once the evaluation has begun."""
        if standing.round < self.first:
            return standing
        return Standing(self.then.last, standing.row[: standing.row.size - sum(self._sizes(standing.round))])

    def proposal(self, site: str) -> dict[str, Indices]:
        """Return what one site must know besides the plan."""
        return self.then.proposal(site)

    def questions(self, standing: Standing) -> dict[str, Content]:
        """Return the questions of the next round: the model and the sums so far."""
        if standing.round < self.first:
            return self.then.questions(standing)
        rows = {"model": self.model(standing), "sums": self._sums(standing)}
        return {site: Content(rows=rows) for site in self.members.members}

    def cohort(self, turn: int) -> int:
        """Return how many clients take part; all of them in a sum of the evaluation."""
        return self.then.cohort(turn) if turn < self.first else self.plan.data.clients

    def clients(self, turn: int, site: str) -> set[int]:
        """Return the clients of a site that take part in a round."""
        return self.then.clients(turn, site) if turn < self.first else set(self.members.members[site].clients.tolist())

    def limit(self, turn: int, site: str, clients: list[int]) -> int:
        """Return a norm in grid steps that the sum of these clients exceeds with a chance below exp(-72)."""
        one = measurement_of(self.plan, turn)
        if turn < self.first or one is None:
            return self.then.limit(turn, site, clients)
        sizes = np.bincount(self.members.owner, minlength=self.plan.data.clients)
        if not evaluation_in(self.plan).trains and self.members.held_sizes is not None:
            sizes = self.members.held_sizes
        # A bound for units that are exchanged is half of how far that moves a sum: the norm is at most twice it.
        return sum_limit(self.plan, one, sizes, clients, times=2)

    def advance(self, standing: Standing, total: Whole) -> Standing:
        """Return the state after one more round, with this sum."""
        if standing.round >= self.first:
            row = np.concatenate([standing.row, np.asarray(total / STEPS, dtype=np.float64)])
            return Standing(standing.round + 1, row)
        found = self.then.advance(standing, total)
        # Training may stop before its last round; the evaluation has the numbers after that all the same.
        return found if found.round < self.then.last else Standing(self.first, found.row)

    def _sizes(self, turn: int) -> list[int]:
        return [length_of(self.plan, one) for one in range(self.first, turn)]

    def _sums(self, standing: Standing) -> Vector:
        return standing.row[standing.row.size - sum(self._sizes(standing.round)) :]
