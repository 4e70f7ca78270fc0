"""The aggregator's part of a private preparation: its sums are the first rounds of a run, before those of training."""

from dataclasses import dataclass, replace
from typing import final

import numpy as np

from fedveil.algorithms.across_sites import Consortium, Serving, Standing
from fedveil.checks import require
from fedveil.data.records import DataShape
from fedveil.errors import BadValue
from fedveil.federation.aggregator.serving import sum_limit
from fedveil.federation.agreements.turns import length_of, measured, measurement_of
from fedveil.plan import Plan
from fedveil.prepare.budget import settled
from fedveil.prepare.columns import Outline
from fedveil.prepare.learned import LearnedRule
from fedveil.prepare.replay import learned_by
from fedveil.prepare.request import PrepareRequest
from fedveil.run.preparing import preparation_in, units_of
from fedveil.stages.sums import STEPS, NoisySums
from fedveil.study import Study
from fedveil.sums.seam import Whole
from fedveil.values import Indices, Vector
from fedveil.wire.content import Content


def planned_outline(
    study: Study, outline: Outline | None, shape: DataShape
) -> tuple[NoisySums | None, Outline | None, DataShape]:
    """Return what will be measured of columns like these, the outline of their rows, and the shape of these.

    Nothing where the sites have rows already.
    """
    asked = study.prepare
    if outline is None:
        stated = asked is None or asked.kind == "stated"
        hint = "Leave data.feature_bound out of the sites' data files, or [prepare] out of the study."
        require(stated, "[prepare]", "find columns left open at the sites", "sites that state their rule", hint)
        return None, None, shape
    request = asked or PrepareRequest()
    hint = "State data.feature_bound in the sites' data files, or leave prepare.kind out of the study."
    require(request.kind != "stated", "prepare.kind", "be auto or private for sites like these", request.kind, hint)
    hint = "State data.categories at every site: words that nobody knows beforehand cannot be added up in parts."
    require(not outline.open_texts, "The sites", "state the categories of their columns", outline.open_texts, hint)
    hint = "Updates that come late have no place among the rounds of a preparation."
    require(study.trust.patience is None, "trust.patience", "be left out here", study.trust.patience, hint)
    open_outline = replace(outline, components=request.components, whiten=request.whiten)
    found, fitted = settled(request, open_outline, shape, study.target, study.trust)
    return found, fitted, replace(shape, features=fitted.width, bound=fitted.total)


@final
@dataclass(frozen=True, slots=True, eq=False)
class MeasuredServer:
    """Implements Serving: one round a measurement, then those of ``then``, if the algorithm has a server.

    The row of a state is the noisy sums so far, followed by the row of the algorithm.
    """

    plan: Plan
    members: Consortium
    outline: Outline
    then: Serving | None = None

    @property
    def rounds(self) -> int:
        """How many rounds the preparation has."""
        return measured(self.plan)

    @property
    def last(self) -> int:
        """The rounds of the preparation and of training."""
        return self.rounds + (0 if self.then is None else self.then.last)

    def begin(self) -> Standing:
        """Return the state before the first sum."""
        return Standing(0, np.zeros(0))

    def learned(self, standing: Standing) -> LearnedRule:
        """Return what the sums say, once all of them are known."""
        sums = np.split(self.sums(standing), np.cumsum(self._sizes)[:-1])
        planned, classes = preparation_in(self.plan), self.plan.data.classes
        return learned_by(planned, self.outline, classes, units_of(self.plan), sums)

    def sums(self, standing: Standing) -> Vector:
        """Return the noisy sums of the whole preparation, one after another."""
        if standing.round < self.rounds:
            raise BadValue("The preparation must have ended before its sums are used.")
        return standing.row[: sum(self._sizes)]

    def model(self, standing: Standing) -> Vector:
        """Return the model of a state of training."""
        return self._training.model(self._inner(standing))

    def proposal(self, site: str) -> dict[str, Indices]:
        """Return what one site must know besides the plan."""
        return {"numbers": self.members.members[site].clients} if self.then is None else self.then.proposal(site)

    def questions(self, standing: Standing) -> dict[str, Content]:
        """Return the questions of the next round: the sums so far, or those of training."""
        if standing.round < self.rounds:
            return {site: Content(rows={"sums": standing.row}) for site in self.members.members}
        return self._training.questions(self._inner(standing))

    def cohort(self, turn: int) -> int:
        """Return how many clients take part; all of them in a measurement."""
        return self.plan.data.clients if turn < self.rounds else self._training.cohort(turn - self.rounds)

    def clients(self, turn: int, site: str) -> set[int]:
        """Return the clients of a site that take part in a round."""
        if turn < self.rounds:
            return set(self.members.members[site].clients.tolist())
        return self._training.clients(turn - self.rounds, site)

    def limit(self, turn: int, site: str, clients: list[int]) -> int:
        """Return a norm in grid steps that the sum of these clients exceeds with a chance below exp(-72)."""
        one = measurement_of(self.plan, turn)
        if one is None:
            return self._training.limit(turn - self.rounds, site, clients)
        sizes = np.bincount(self.members.owner, minlength=self.plan.data.clients)
        return sum_limit(self.plan, one, sizes, clients)

    def advance(self, standing: Standing, total: Whole) -> Standing:
        """Return the state after one more round, with this sum."""
        if standing.round >= self.rounds:
            inner = self._training.advance(self._inner(standing), total)
            return Standing(self.rounds + inner.round, np.concatenate([self.sums(standing), inner.row]))
        row = np.concatenate([standing.row, np.asarray(total / STEPS, dtype=np.float64)])
        if standing.round + 1 == self.rounds and self.then is not None:
            row = np.concatenate([row, self.then.begin().row])
        return Standing(standing.round + 1, row)

    @property
    def _sizes(self) -> list[int]:
        return [length_of(self.plan, turn) for turn in range(self.rounds)]

    @property
    def _training(self) -> Serving:
        if self.then is None:
            raise BadValue("An algorithm without a server has no rounds here.")
        return self.then

    def _inner(self, standing: Standing) -> Standing:
        return Standing(standing.round - self.rounds, standing.row[sum(self._sizes) :])
