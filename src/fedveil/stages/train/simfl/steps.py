"""SimFL in this process: parties send noised sums to the leader of the round, which steps and sends the model on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedveil.core.errors import require
from fedveil.core.values import Vector
from fedveil.data.records import Records
from fedveil.models.loss import Loss
from fedveil.noise.entropy import Entropy
from fedveil.noise.grid import rounded_normal
from fedveil.stages.train.acting import Tick, Trained
from fedveil.stages.train.base import expected
from fedveil.stages.train.optimiser import project
from fedveil.stages.train.simfl.method import SimFL
from fedveil.stages.train.stage import Training


@dataclass(frozen=True, slots=True, eq=False)
class Message:
    """A message from one party to another in a round: a noised gradient sum (in grid steps), or the model."""

    round: int
    sender: int
    receiver: int
    what: Literal["gradient", "model"]
    content: Vector


Wire = Callable[[Message], None]


@dataclass(frozen=True, slots=True, eq=False)
class Party:
    """The records of one party, and what it computes from them."""

    number: int
    loss: Loss
    features: Vector
    targets: Vector
    norms: Vector

    def noised_sum(self, method: SimFL, model: Vector, unit: float, entropy: Entropy, turn: int) -> tuple[Vector, int]:
        """Return the sum of the clipped gradients of the records that join, noised, in whole grid steps."""
        weights = None if method.rate == 1 else self.joining(method.rate, entropy, turn).astype(np.float64)
        total, dropped = self.loss.gradient(
            model, self.features, self.targets, clip=method.clip, weights=weights, norms=self.norms
        )
        source = entropy.stream(f"noise of party {self.number}", turn)
        noise = rounded_normal(source, method.noise_std / unit, model.size).astype(np.float64)
        return np.rint(total / unit) + noise, dropped

    def joining(self, rate: float, entropy: Entropy, turn: int) -> NDArray[np.bool_]:
        """Return which of its records join a round, by a coin each with a chance of at most ``rate``."""
        words = entropy.words(f"records of party {self.number}", turn, self.targets.size)
        return np.asarray(words < np.uint64(min(int(rate * 2**64), 2**64 - 1)))


def train_simfl(plan: Training, records: Records, entropy: Entropy, tick: Tick, *, wire: Wire | None = None) -> Trained:
    """Train and return the model after the last round; ``wire`` is called with every message."""
    require(records.shape == plan.data, "The data", f"have the plan's shape, {plan.data}", records.shape)
    method, parties, unit = simfl_of(plan), parties_of(plan, records), 2.0**plan.grid
    send = wire or (lambda message: None)
    model, speed, dropped = np.zeros(plan.dimension), np.zeros(plan.dimension), 0
    for turn in range(method.rounds):
        leader = method.leader(turn, len(parties))
        total = np.zeros(plan.dimension)
        for party in parties:
            noised, lost = party.noised_sum(method, model, unit, entropy, turn)
            if party.number != leader:
                send(Message(turn, party.number, leader, "gradient", noised))
            total += noised
            dropped += lost
        model, speed = step(plan, model, speed, total)
        for party in parties:
            if party.number != leader:
                send(Message(turn, leader, party.number, "model", model))
        tick(turn + 1)
    sent = method.rounds * (len(parties) - 1) * plan.dimension * 8
    return Trained(model=model, dropped=dropped, bytes_up=sent, bytes_down=sent)


def step(plan: Training, model: Vector, speed: Vector, total: Vector) -> tuple[Vector, Vector]:
    """Return the leader's next model and its speed, from the sum of a round (in grid steps)."""
    method, unit = simfl_of(plan), 2.0**plan.grid
    speed = method.momentum * speed + total * (unit / method.divisor(plan.data)) + plan.model.l2 * model
    return project(model - method.step_size * speed, plan.radius), speed


def parties_of(plan: Training, records: Records) -> list[Party]:
    """Return the parties, each with its own records."""
    order, starts = records.by_client()
    features, targets = records.features[order], records.targets[order]
    norms = np.sqrt(np.vecdot(features, features))
    cuts = [slice(int(starts[k]), int(starts[k + 1])) for k in range(records.clients)]
    return [Party(k, plan.model.loss, features[cut], targets[cut], norms[cut]) for k, cut in enumerate(cuts)]


def simfl_of(plan: Training) -> SimFL:
    """Return the plan's method, which must be SimFL."""
    return expected(SimFL, plan.method)
