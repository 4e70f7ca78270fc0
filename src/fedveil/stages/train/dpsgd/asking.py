"""DP-SGD in windows, where sums are known: the questions of a window and how it is mixed."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, sqrt
from typing import final

import numpy as np

from fedveil.core.values import Indices, Vector
from fedveil.noise.entropy import Entropy
from fedveil.stages.protocol import LOOSE, TAIL, Consortium, State, Total
from fedveil.stages.train.base import Training
from fedveil.stages.train.dpsgd.answering import unit_of
from fedveil.stages.train.dpsgd.method import DpSgd
from fedveil.stages.train.dpsgd.settings import ClientSettings
from fedveil.stages.train.dpsgd.steps import dpsgd_of, released
from fedveil.stages.train.optimiser import project
from fedveil.wire.content import Content


@final
@dataclass(frozen=True, slots=True, eq=False)
class DpSgdAsking:
    """One turn is a window of the method's rounds.

    The row of a state is the model; the moving average of the models comes after it, if that is what is released.
    """

    stage: Training
    method: DpSgd
    members: Consortium
    unit: float

    @classmethod
    def make(cls, stage: Training, members: Consortium, entropy: Entropy) -> DpSgdAsking:
        """Set up the server; nothing is drawn here, because every client has its own noise."""
        return cls(stage, dpsgd_of(stage), members, unit_of(stage))

    @property
    def width(self) -> int:
        """Number of rounds in a window."""
        return int(self.method.network.window)

    @property
    def last(self) -> int:
        """Number of windows."""
        return -(-self.method.total // self.width)

    def start(self) -> State:
        """Return a model of zeros."""
        return State(0, np.zeros(self.stage.dimension * (1 if self.method.average is None else 2)))

    def model(self, state: State) -> Vector:
        """Return the model, or the average of all so far: the end of the row in either case."""
        return state.row[-self.stage.dimension :]

    def proposal(self, site: str) -> dict[str, Indices]:
        """Return the numbers of the site's clients."""
        return {"numbers": self.members.members[site].clients}

    def question(self, state: State, site: str | None = None) -> Content | None:
        """Return the model, for whoever has clients with rounds left."""
        if site is not None and not self.clients(state.round, site):
            return None
        return Content(rows={"model": self._latest(state)})

    def clients(self, turn: int, site: str) -> set[int]:
        """Return the clients of a site with rounds left."""
        own = self.members.members[site].clients.tolist()
        return {client for client in own if self.method.rounds_of(client) > turn * self.width}

    def limit(self, turn: int, site: str, clients: list[int]) -> int:
        """Return the limit of a window.

        All records clipped, the noise and the penalty, gathered in the velocity, times the step, for every round.
        """
        size, sizes = self.stage.dimension, np.bincount(self.members.owner, minlength=self.stage.data.clients)
        total, first = 0.0, turn * self.width
        for client in clients:
            records = int(sizes[client])
            weight = self.method.weights[client] if self.method.weights else records / self.stage.data.records
            for k in range(first, min(first + self.width, self.method.rounds_of(client))):
                total += weight * self._longest(client, k, records) / self.unit
        return ceil(total * LOOSE + 2 * len(clients) * sqrt(size))

    def _longest(self, client: int, turn: int, records: int) -> float:
        """Return a norm that a client's update of one round hardly exceeds.

        The velocity holds what came before: with momentum m it is up to 1 / (1 - m) times as long as one gradient.
        """
        method, optimiser = self.method, self.method.optimiser
        each = max(self._gradient(client, settings, records) for settings in method.parts_of(client))
        step = method.settings(client, turn).step(turn - method.segment(client, turn)[1])
        longest = optimiser.longest(each, self.stage.dimension)
        if optimiser.weight_decay:
            start = self.stage.model.loss.start(self.stage.data.features)
            longest += optimiser.weight_decay * (self.stage.radius + float(np.linalg.norm(start)))
        return step * longest * self._coarser

    def _gradient(self, client: int, settings: ClientSettings, records: int) -> float:
        """Return a norm that a client's noised mean gradient, with the penalty's pull, hardly exceeds."""
        method, size = self.method, self.stage.dimension
        clip = settings.clip if method.segments else method.longest(method.place(client))
        part = method.adaptive.of_sum
        individual, divisor = method.clipping == "individual", method.divisor(settings, records)
        data = clip * (records / divisor if individual else 1.0)
        noise = settings.noise / part * clip * (sqrt(size) + TAIL) / (divisor if individual else 1.0)
        return data + noise + self.stage.model.l2 * self.stage.radius

    @property
    def _coarser(self) -> float:
        """By how much compression may lengthen an update."""
        match self.method.compression.kind:
            case "random-k":
                return 1 / self.method.compression.keep
            case "quantised" | "rotated":  # at most one level in each coordinate; a rotation pads to a power of two
                return 1 + sqrt(2 * self.stage.dimension) / self.method.compression.levels
            case _:
                return 1.0

    def advance(self, state: State, total: Total) -> State:
        """Return the state after one more window."""
        model = project(self._latest(state) - total.steps * self.unit, self.stage.radius)
        if self.method.average is None:
            return State(state.round + 1, model)
        average = released(self.method, self.model(state), model, state.round + 1)
        return State(state.round + 1, np.concatenate([model, average]))

    def _latest(self, state: State) -> Vector:
        """Return the model that the next window starts from."""
        return state.row[: self.stage.dimension]
