"""The aggregator's part of federated averaging."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, sqrt
from typing import TYPE_CHECKING, final

import numpy as np

from fedveil.algorithms.across_sites import LOOSE, TAIL, Consortium, Standing
from fedveil.algorithms.fedavg.drawing import cohort_of, senders_of
from fedveil.algorithms.fedavg.method import FedAvg
from fedveil.algorithms.fedavg.resending import nothing_past
from fedveil.algorithms.fedavg.shares import Rule, advance
from fedveil.algorithms.fedavg.steps import State, method_of
from fedveil.algorithms.optimiser import from_row, row_length, to_row
from fedveil.noise.entropy import Entropy
from fedveil.sums.seam import Whole
from fedveil.values import Indices, Vector
from fedveil.wire.content import Content

if TYPE_CHECKING:
    from fedveil.plan import Plan


@final
@dataclass(frozen=True, slots=True, eq=False)
class FedAvgServer:
    """Implements Serving (fedveil.algorithms.across_sites).

    The row of a state is the model, what the server's optimiser keeps (its velocity), what is taken off later sums
    where clients send their updates again, and the present bound on updates if that is adaptive.
    """

    plan: Plan
    method: FedAvg
    rules: Callable[[int], Rule]
    members: Consortium
    entropy: Entropy

    @classmethod
    def make(cls, plan: Plan, members: Consortium, entropy: Entropy) -> FedAvgServer:
        """Set up the server; who takes part is drawn from the aggregator's key."""
        return cls(plan, method_of(plan), Rule.each(plan), members, entropy)

    @property
    def last(self) -> int:
        """Number of rounds."""
        return int(self.method.rounds)

    def begin(self) -> Standing:
        """Return a model of zeros, before the first round."""
        return self._standing(State.begin(self.plan, self.method))

    def _standing(self, state: State) -> Standing:
        clip = [] if self.method.adaptive is None else [state.clip]
        past = nothing_past(self.method, self.plan.sum_length) if state.past is None else state.past
        return Standing(state.round, np.concatenate([state.model, to_row(state.memory), past.reshape(-1), clip]))

    def _state(self, standing: Standing) -> State:
        size, method = self.plan.dimension, self.method
        clip = method.update_norm if method.adaptive is None else float(standing.row[-1])
        end = size + row_length(method.optimiser, size)
        past = nothing_past(method, self.plan.sum_length)
        past = standing.row[end : end + past.size].reshape(past.shape)
        return State(
            standing.round, standing.row[:size], from_row(method.optimiser, standing.row[size:end]), clip, past
        )

    def model(self, standing: Standing) -> Vector:
        """Return the first part of the row."""
        return standing.row[: self.plan.dimension]

    def proposal(self, site: str) -> dict[str, Indices]:
        """Return the numbers of the site's clients."""
        return {"numbers": self.members.members[site].clients}

    def questions(self, standing: Standing) -> dict[str, Content]:
        """Return the model, an adaptive bound, and the numbers of the round's clients, for each of their sites.

        Where all clients send and some are asked for an update, ``joined`` names those.
        """
        turn, rows = standing.round, {"model": self.model(standing)}
        if self.method.adaptive is not None:
            rows["clip"] = standing.row[-1:]
        asked: dict[str, Content] = {}
        for site in self.members.members:
            mine = np.array(sorted(self.clients(turn, site)), dtype=np.int64)
            if mine.size:
                asked[site] = Content(rows={**rows, "clients": mine, **self._joined(turn, mine)})
        return asked

    def _joined(self, turn: int, mine: Indices) -> dict[str, Indices]:
        if not self.method.streams:
            return {}
        return {"joined": mine[np.isin(mine, cohort_of(self.method, self.plan.data.clients, self.entropy, turn))]}

    def cohort(self, turn: int) -> int:
        """Return how many clients are to send."""
        return self.method.at(turn).senders(self.plan.data.clients)

    def clients(self, turn: int, site: str) -> set[int]:
        """Return the clients of this site that send in the round: those drawn, or all if they draw themselves."""
        drawn = senders_of(self.method, self.plan.data.clients, self.entropy, turn).tolist()
        return set(drawn) & set(self.members.members[site].clients.tolist())

    def limit(self, turn: int, site: str, clients: list[int]) -> int:
        """Return the limit from clipped updates, noise and rounding."""
        size, rule = self.plan.sum_length, self.rules(turn)
        bound = len(clients) * rule.method.scale / rule.unit
        noise = sqrt(len(clients)) * rule.share * (sqrt(size) + TAIL)
        return ceil((bound + noise) * LOOSE + 2 * len(clients) * sqrt(size))

    def advance(self, standing: Standing, total: Whole) -> Standing:
        """Return the state after one more round."""
        return self._standing(advance(self.rules(standing.round), self._state(standing), total))
