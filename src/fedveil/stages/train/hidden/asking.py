"""Hidden training where sums are known: the questions of a round, and the step that its sum makes."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, sqrt
from typing import final

import numpy as np
from numpy.typing import NDArray

from fedveil.core.errors import require
from fedveil.core.values import Indices, Vector
from fedveil.noise.entropy import Entropy
from fedveil.stages.adding import share_deviation
from fedveil.stages.protocol import LOOSE, TAIL, Consortium, State, Total
from fedveil.stages.train.base import Training
from fedveil.stages.train.hidden.deal import rounds_of_owned
from fedveil.stages.train.hidden.method import Hidden, hidden_of
from fedveil.stages.train.hidden.steps import LARGEST, Rule, begun, last_round, shrunk, start_row
from fedveil.stages.train.optimiser import project
from fedveil.wire.content import Content, filled


def model_of(rule: Rule, state: State) -> Vector:
    """Return the model of a state, whose row is in whole grid steps: in real units, projected on the ball."""
    return project(state.row * rule.unit, rule.radius)


def going_on(stage: Training, model: Vector) -> State:
    """Return the state before the first round of a stage that goes on from this released model."""
    require(model.shape == (stage.dimension,), "The model", f"have {stage.dimension} parameters", model.shape)
    return State(0, begun(stage, model))


def share_steps(stage: Training, turn: int, cohort: int) -> float:
    """Return the deviation of one client's share in grid steps."""
    return share_deviation(float(hidden_of(stage).noise()[turn]), stage.trust, cohort) / 2.0**stage.grid


def advance(rule: Rule, state: State, total: Total) -> State:
    """Return the state after the server's part of a round: the model shrunk, moved by the sum, on the grid."""
    model = model_of(rule, state)
    position = total.onto(shrunk(rule, state.round, model))
    return State(state.round + 1, np.clip(position, -LARGEST, LARGEST))


@final
@dataclass(frozen=True, slots=True, eq=False)
class HiddenAsking:
    """``place``: the round of a pass that each record is dealt into.

    Where units draw their own rounds it is None: nobody else learns the draws, and everybody is asked in every round.
    """

    stage: Training
    method: Hidden
    rule: Rule
    members: Consortium
    place: Indices | None
    cohorts: tuple[int, ...]
    last: int

    @classmethod
    def make(cls, stage: Training, members: Consortium, entropy: Entropy) -> HiddenAsking:
        """Draw order and stop from the key; each site learns only its own records' rounds."""
        method = hidden_of(stage)
        place = None if method.run.sampled else rounds_of_owned(stage, members.owner, entropy)
        sizes = tuple(method.cohorts(stage.setup))
        return cls(stage, method, Rule.of(stage), members, place, sizes, last_round(stage, entropy))

    def start(self) -> State:
        """Return the public parameters that the plan starts from."""
        return State(0, start_row(self.stage))

    def model(self, state: State) -> Vector:
        """Return the model, projected on the ball."""
        return model_of(self.rule, state)

    def proposal(self, site: str) -> dict[str, Indices]:
        """Return the numbers of the site's clients, and the rounds of its own records."""
        member = self.members.members[site]
        if self.place is None:
            return {"numbers": member.clients}
        return {"numbers": member.clients, "place": self.place[member.records]}

    def question(self, state: State, site: str | None = None) -> Content | None:
        """Return the model; a site without a record in the round only adds its noise.

        Both kinds of questions have the same length, so that their size does not tell a carrier where a record is.
        """
        asked = Content(rows={"model": self.model(state)})
        if site is None or bool(np.any(self._of_round(state.round, self.members.members[site].records))):
            return asked
        return filled(len(asked.write())) if self.method.deal == "records" else None

    def clients(self, turn: int, site: str) -> set[int]:
        """Return all clients of the site if records are dealt; if clients are dealt, those of the round."""
        member = self.members.members[site]
        if self.method.everyone:
            return set(member.clients.tolist())
        return set(self.members.owner[member.records[self._of_round(turn, member.records)]].tolist())

    def limit(self, turn: int, site: str, clients: list[int]) -> int:
        """Return the limit from the clipped gradients of the round's units, these clients' noise, and rounding."""
        records = self.members.members[site].records
        used = int(np.sum(self._of_round(turn, records)))
        units, size = used if self.stage.target.unit != "client" else len(clients), self.stage.dimension
        bound = float(units * self.rule.clip * self.rule.steps[turn] / self.rule.batches[turn] / self.rule.unit)
        noise = sqrt(len(clients)) * share_steps(self.stage, turn, self.cohorts[turn]) * (sqrt(size) + TAIL)
        return ceil((bound + noise) * LOOSE + 2 * len(clients) * sqrt(size))

    def advance(self, state: State, total: Total) -> State:
        """Return the state after one more round."""
        return advance(self.rule, state, total)

    def _of_round(self, turn: int, records: Indices) -> NDArray[np.bool_]:
        """Return the records that are in a round, or may be."""
        if self.place is None:
            return np.ones(records.size, dtype=np.bool_)
        return np.asarray(self.place[records] == turn % self.method.run.rounds)
