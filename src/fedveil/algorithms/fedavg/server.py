"""The aggregator's part of federated averaging."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, sqrt
from typing import TYPE_CHECKING, final

import numpy as np

from fedveil.algorithms.across_sites import LOOSE, TAIL, Consortium, Standing
from fedveil.algorithms.fedavg.shares import Rule, State, advance
from fedveil.algorithms.fedavg.steps import cohort_of
from fedveil.noise.entropy import Entropy
from fedveil.sums.seam import Whole
from fedveil.values import Indices, Vector
from fedveil.wire.content import Content

if TYPE_CHECKING:
    from fedveil.plan import Plan


@final
@dataclass(frozen=True, slots=True, eq=False)
class FedAvgServer:
    """Implements Serving (fedveil.algorithms.across_sites); the row is the model and the server's velocity."""

    plan: Plan
    rule: Rule
    members: Consortium
    entropy: Entropy

    @classmethod
    def make(cls, plan: Plan, members: Consortium, entropy: Entropy) -> FedAvgServer:
        """Set up the server; who takes part is drawn from the aggregator's key."""
        return cls(plan, Rule.of(plan), members, entropy)

    @property
    def last(self) -> int:
        """Number of rounds."""
        return int(self.rule.method.rounds)

    def begin(self) -> Standing:
        """Return a model of zeros with velocity zero."""
        return Standing(0, np.zeros(2 * self.plan.dimension))

    def model(self, standing: Standing) -> Vector:
        """Return the first half of the row."""
        return standing.row[: self.plan.dimension]

    def proposal(self, site: str) -> dict[str, Indices]:
        """Return the numbers of the site's clients."""
        return {"numbers": self.members.members[site].clients}

    def questions(self, standing: Standing) -> dict[str, Content]:
        """Return the model and the numbers of the round's clients, for each of their sites."""
        turn, model = standing.round, self.model(standing)
        asked: dict[str, Content] = {}
        for site in self.members.members:
            mine = sorted(self.clients(turn, site))
            if mine:
                asked[site] = Content(rows={"model": model, "clients": np.array(mine, dtype=np.int64)})
        return asked

    def cohort(self, turn: int) -> int:
        """Return the planned cohort size."""
        return int(self.rule.method.cohort)

    def clients(self, turn: int, site: str) -> set[int]:
        """Return the clients of this site that were drawn for the round."""
        drawn = cohort_of(self.rule.method, self.plan.data.clients, self.entropy, turn).tolist()
        return set(drawn) & set(self.members.members[site].clients.tolist())

    def limit(self, turn: int, site: str, clients: list[int]) -> int:
        """Return the limit from clipped updates, noise and rounding."""
        size = self.plan.dimension
        bound = len(clients) * self.rule.method.update_norm / self.rule.unit
        noise = sqrt(len(clients)) * self.rule.share * (sqrt(size) + TAIL)
        return ceil((bound + noise) * LOOSE + 2 * len(clients) * sqrt(size))

    def advance(self, standing: Standing, total: Whole) -> Standing:
        """Return the state after one more round."""
        size = self.plan.dimension
        state = advance(self.rule, State(standing.round, standing.row[:size], standing.row[size:]), total)
        return Standing(state.round, np.concatenate([state.model, state.speed]))
