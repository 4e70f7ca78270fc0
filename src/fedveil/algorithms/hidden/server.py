"""The aggregator's part of hidden training."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, sqrt
from typing import TYPE_CHECKING, final

import numpy as np
from numpy.typing import NDArray

from fedveil.algorithms.across_sites import LOOSE, TAIL, Consortium, Standing
from fedveil.algorithms.hidden.deal import rounds_of_owned
from fedveil.algorithms.hidden.shares import advance, share_steps
from fedveil.algorithms.hidden.steps import Rule, State, last_round, model_of, start
from fedveil.noise.entropy import Entropy
from fedveil.sums.seam import Whole
from fedveil.values import Indices, Vector
from fedveil.wire.content import Content, filled

if TYPE_CHECKING:
    from fedveil.plan import Plan


@final
@dataclass(frozen=True, slots=True, eq=False)
class HiddenServer:
    """Hidden training at the aggregator; ``place``: the round of a pass that each record is dealt into.

    Where units draw their own rounds it is None: the aggregator learns no draws, and asks everybody in every round.
    """

    plan: Plan
    rule: Rule
    members: Consortium
    place: Indices | None
    cohorts: tuple[int, ...]
    last: int

    @classmethod
    def make(cls, plan: Plan, members: Consortium, entropy: Entropy) -> HiddenServer:
        """Set up the server.

        Order and stop are drawn from its key, and each site learns only its own records' rounds.
        """
        place = None if plan.run.sampled else rounds_of_owned(plan, members.owner, entropy)
        sizes = tuple(plan.method.cohorts(plan.setup))
        return cls(plan, Rule.of(plan), members, place, sizes, last_round(plan, entropy))

    def begin(self) -> Standing:
        """Return a model of zeros, whatever the data are."""
        return Standing(0, start(self.plan).position)

    def model(self, standing: Standing) -> Vector:
        """Return the model, projected on the ball."""
        return model_of(self.rule, State(standing.round, standing.row))

    def proposal(self, site: str) -> dict[str, Indices]:
        """Return the numbers of the site's clients, and the rounds of its own records."""
        member = self.members.members[site]
        if self.place is None:
            return {"numbers": member.clients}
        return {"numbers": member.clients, "place": self.place[member.records]}

    def questions(self, standing: Standing) -> dict[str, Content]:
        """Return the questions: sites with a record in the round get the model, the others only add their noise.

        Both kinds of questions have the same length, so that their size does not tell a carrier where a record is.
        """
        turn, model = standing.round, self.model(standing)
        asked: dict[str, Content] = {}
        size = len(Content(rows={"model": model}).write())
        for site, member in self.members.members.items():
            if bool(np.any(self._of_round(turn, member.records))):
                asked[site] = Content(rows={"model": model})
            elif self.plan.deal == "records":
                asked[site] = filled(size)
        return asked

    def cohort(self, turn: int) -> int:
        """Return the number of clients as the plan counts them."""
        return self.cohorts[turn]

    def clients(self, turn: int, site: str) -> set[int]:
        """Return all clients of the site if records are dealt; if clients are dealt, those of the round."""
        member = self.members.members[site]
        if self.plan.hidden.everyone:
            return set(member.clients.tolist())
        return set(self.members.owner[member.records[self._of_round(turn, member.records)]].tolist())

    def limit(self, turn: int, site: str, clients: list[int]) -> int:
        """Return the limit from the clipped gradients of the round's units, these clients' noise, and rounding."""
        records = self.members.members[site].records
        used = int(np.sum(self._of_round(turn, records)))
        units, size = used if self.plan.target.unit == "record" else len(clients), self.plan.dimension
        bound = float(units * self.rule.clip * self.rule.steps[turn] / self.rule.batches[turn] / self.rule.unit)
        noise = sqrt(len(clients)) * share_steps(self.plan, turn, self.cohorts[turn]) * (sqrt(size) + TAIL)
        return ceil((bound + noise) * LOOSE + 2 * len(clients) * sqrt(size))

    def advance(self, standing: Standing, total: Whole) -> Standing:
        """Return the state after one more round."""
        state = advance(self.rule, State(standing.round, standing.row), total)
        return Standing(state.round, state.position)

    def _of_round(self, turn: int, records: Indices) -> NDArray[np.bool_]:
        """Return the records that are in a round, or may be."""
        if self.place is None:
            return np.ones(records.size, dtype=np.bool_)
        return np.asarray(self.place[records] == turn % self.plan.run.rounds)
