"""Federated averaging where sums are known: who is asked in a round, and the server's step."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, sqrt
from typing import final

import numpy as np

from fedveil.core.values import Indices, Matrix, Vector
from fedveil.noise.entropy import Entropy
from fedveil.stages.protocol import LOOSE, TAIL, Consortium, State, Total
from fedveil.stages.train.fedavg.answering import cohort_of, nothing_past, senders_of, taken_off
from fedveil.stages.train.fedavg.method import FedAvg
from fedveil.stages.train.fedavg.steps import Averaged, advanced, method_of, resends, share_steps
from fedveil.stages.train.optimiser import begin, from_row, row_length, to_row
from fedveil.stages.train.stage import Training
from fedveil.wire.content import Content


@final
@dataclass(frozen=True, slots=True, eq=False)
class FedAvgAsking:
    """The row of a state is the model, what the server's optimiser keeps (its velocity), what is taken off later sums
    where clients send their updates again, and the present bound on updates.
    """

    stage: Training
    method: FedAvg
    members: Consortium
    entropy: Entropy

    @classmethod
    def make(cls, stage: Training, members: Consortium, entropy: Entropy) -> FedAvgAsking:
        """Who takes part is drawn from this key, unless clients draw for themselves."""
        return cls(stage, method_of(stage), members, entropy)

    @property
    def last(self) -> int:
        """Number of rounds."""
        return int(self.method.rounds)

    def start(self) -> State:
        """Return a model of zeros, before the first round."""
        size, past = self.stage.dimension, self._nothing_past()
        memory = to_row(begin(self.method.optimiser, size))
        return State(0, np.concatenate([np.zeros(size), memory, past.reshape(-1), [self.method.update_norm]]))

    def model(self, state: State) -> Vector:
        """Return the first part of the row."""
        return state.row[: self.stage.dimension]

    def proposal(self, site: str) -> dict[str, Indices]:
        """Return the numbers of the site's clients."""
        return {"numbers": self.members.members[site].clients}

    def question(self, state: State, site: str | None = None) -> Content | None:
        """Return the model, an adaptive bound, and the numbers of the round's clients.

        Where all clients send and some are asked for an update, ``joined`` names those.
        """
        turn, rows = state.round, {"model": self.model(state)}
        if self.method.adaptive is not None:
            rows["clip"] = state.row[-1:]
        senders = self._senders(turn)
        mine = senders if site is None else senders[np.isin(senders, self.members.members[site].clients)]
        if site is not None and mine.size == 0:
            return None
        return Content(rows={**rows, "clients": mine, **self._joined(turn, mine)})

    def _senders(self, turn: int) -> Indices:
        find = cohort_of if self.method.streams and not resends(self.stage) else senders_of
        return find(self.method, self.stage.data.clients, self.entropy, turn)

    def _nothing_past(self) -> Matrix:
        size = self.stage.sum_length
        return nothing_past(self.method, size) if resends(self.stage) else np.zeros((0, size))

    def _joined(self, turn: int, mine: Indices) -> dict[str, Indices]:
        if not resends(self.stage):
            return {}
        return {"joined": mine[np.isin(mine, cohort_of(self.method, self.stage.data.clients, self.entropy, turn))]}

    def clients(self, turn: int, site: str) -> set[int]:
        """Return the clients of this site that send in the round: those drawn, or all if they draw themselves."""
        return set(self._senders(turn).tolist()) & set(self.members.members[site].clients.tolist())

    def limit(self, turn: int, site: str, clients: list[int]) -> int:
        """Return the limit from clipped updates, noise and rounding."""
        size, unit = self.stage.sum_length, 2.0**self.stage.grid
        bound = len(clients) * self.method.at(turn).scale / unit
        noise = sqrt(len(clients)) * share_steps(self.stage, turn) * (sqrt(size) + TAIL)
        return ceil((bound + noise) * LOOSE + 2 * len(clients) * sqrt(size))

    def advance(self, state: State, total: Total) -> State:
        """Return the state after the server's part of a round."""
        stage, size, now = self.stage, self.stage.dimension, self.method.at(state.round)
        end = size + row_length(now.optimiser, size)
        past = self._nothing_past()
        own, past = taken_off(self.method, state.row[end : end + past.size].reshape(past.shape), total.steps)
        clip = float(state.row[-1]) if now.adaptive is not None else now.update_norm
        before = Averaged(self.model(state), from_row(now.optimiser, state.row[size:end]), clip)
        unit = 2.0**stage.grid / now.divisor(stage.data)
        after = advanced(now, before, state.round, own * unit, stage.radius)
        row = np.concatenate([after.model, to_row(after.memory), past.reshape(-1), [after.clip]])
        return State(state.round + 1, row)
