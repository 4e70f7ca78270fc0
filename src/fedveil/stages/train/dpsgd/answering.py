"""DP-SGD in windows that wait for all clients, where records are: noised updates, in whole steps.

Every update carries its client's own noise, enough for itself. What is done here is post-processing: rounding, adding
up, and leaving clients out cost no privacy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np

from fedveil.core.values import Vector
from fedveil.data.records import Records
from fedveil.noise.entropy import Entropy
from fedveil.stages.adding import LARGEST_PART
from fedveil.stages.protocol import Away, Memory, needed_row, nobody
from fedveil.stages.train.base import Training
from fedveil.stages.train.dpsgd.client import Client
from fedveil.stages.train.dpsgd.method import DpSgd
from fedveil.stages.train.dpsgd.steps import clients_of, dpsgd_of
from fedveil.stages.train.optimiser import project
from fedveil.sums.seam import Whole
from fedveil.wire.content import Content
from fedveil.wire.envelope import Refused

_FINE = 44  # bits of the ball's radius: finer than any noise on the model


def unit_of(stage: Training) -> float:
    """Return the grid step of the windows' sums: a power of two, from the radius of the ball only."""
    return 2.0 ** (math.ceil(math.log2(stage.radius)) - _FINE)


def contribution(
    client: Client, model: Vector, window: int, turns: range, weight: float, unit: float, clients: int
) -> Whole:
    """Return a client's noised updates of one window, weighted, in whole steps; cut so that no sum exceeds 64 bits.

    The client continues from its own model within the window, as it does if clients do not wait.
    """
    total, radius, network = np.zeros_like(model), client.plan.radius, client.method.network
    for turn in turns:
        update = client.update(model, turn)
        if network.window_steps is not None:
            update = network.step(window) * update
        model = project(model - update, radius)
        total += update
    most = min(LARGEST_PART, 2**62 // clients)
    return np.clip(np.rint(total * (weight / unit)), -most, most).astype(np.int64)


@final
@dataclass(eq=False)
class DpSgdAnswering:
    """``numbers``: of these clients in the whole study. Clients keep what their optimisers and clips need."""

    stage: Training
    records: Records
    numbers: tuple[int, ...]
    entropy: Entropy

    def __post_init__(self) -> None:
        self.method, self.unit = dpsgd_of(self.stage), unit_of(self.stage)
        self.clients = clients_of(self.stage, self.method, self.records, self.entropy, self.numbers)
        own = self.records.sizes / self.stage.data.records
        self.weights = [self.method.weights[k] for k in self.numbers] if self.method.weights else own.tolist()
        self.width = int(self.method.network.window)

    @property
    def dropped(self) -> int:
        """How many gradients were no finite numbers."""
        return sum(client.dropped for client in self.clients)

    @dropped.setter
    def dropped(self, count: int) -> None:
        for place, client in enumerate(self.clients):
            client.dropped = 0 if place else count  # only the sum over all clients is ever told

    @property
    def memory(self) -> Memory:
        """What each client's optimiser keeps, and its clip if that is adaptive."""
        return tuple(client.memory for client in self.clients)

    def recall(self, turn: int, memory: Memory) -> None:
        """Go back to the clients' memories before a window."""
        for client, row in zip(self.clients, memory, strict=True):
            client.resume(row, min(turn * self.width, client.rounds))

    def choose(self, method: DpSgd) -> None:
        """Go on with these segments, of which the first ones were run already."""
        self.method = method
        for client in self.clients:
            client.method = method

    def whole(self, turn: int, asked: Content) -> Whole:
        """Return the sum of all clients' updates."""
        parts = self.parts(turn, asked)
        return np.asarray(np.sum(list(parts.values()), axis=0), dtype=np.int64)

    def parts(self, turn: int, asked: Content, away: Away = nobody) -> dict[int, Whole]:
        """Return what every client with rounds left sends in this window."""
        model, first = needed_row(asked, "model", self.stage.dimension), turn * self.width
        if not 0 <= first < self.method.total:
            raise Refused("no-such-round")
        result, clients = dict[int, Whole](), self.stage.data.clients
        for client, weight in zip(self.clients, self.weights, strict=True):
            turns = range(first, min(first + self.width, client.rounds))
            if len(turns) and not away(client.index):
                result[client.index] = contribution(client, model, turn, turns, weight, self.unit, clients)
        return result
