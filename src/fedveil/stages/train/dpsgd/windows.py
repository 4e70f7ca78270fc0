"""DP-SGD under one noise at clients that do not wait for each other: windows of sums by the clock of the network.

A window is mixed only with the updates of enough clients, and with one update of each: so every update is seen under
the noise of as many clients as the plan counts on (docs/theory/noise-shares.md). Updates that are left over wait for
the next window; at the end, too few of them are dropped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import numpy as np

from fedveil.core.errors import require
from fedveil.core.values import Vector
from fedveil.data.records import Records
from fedveil.noise.entropy import Entropy
from fedveil.stages.adding import Noising, noised
from fedveil.stages.protocol import Consortium, State, Total
from fedveil.stages.train.acting import Interim, Session, Trained
from fedveil.stages.train.base import Training
from fedveil.stages.train.dpsgd.client import ClientSums
from fedveil.stages.train.dpsgd.clock import Clock, Journal, scene_of
from fedveil.stages.train.dpsgd.shared import SharedAnswering, SharedAsking, noising_of
from fedveil.stages.train.dpsgd.steps import dpsgd_of


def train_windows(
    plan: Training, records: Records, entropy: Entropy, session: Session, /, *, journal: Journal | None = None
) -> Trained:
    """Run the training, or what is left of it; ``journal`` is filled with the messages of the network."""
    method, journal = dpsgd_of(plan), Journal() if journal is None else journal
    require(records.shape == plan.data, "The records", f"have the plan's shape, {plan.data}", records.shape)
    asking = SharedAsking.make(plan, Consortium.here(records), entropy)
    answering = SharedAnswering(plan, records, tuple(range(records.clients)), entropy)
    noising, rounds = noising_of(plan, method, entropy), [method.total] * records.clients
    start = asking.start().row

    def done() -> int:
        return journal.counts[0] * method.total // sum(rounds)

    def rest() -> None:
        session.watch(Interim(done(), clock.scene().rows(), answering.dropped))

    clock = Clock(
        network=method.network,
        weights=(),
        model=start,
        project=lambda row: row,
        journal=journal,
        tick=lambda _: session.tick(done()),
        rest=rest,
        shared=_Mixing(asking, noising, _least(plan)),
    )
    workers = [_Worker(client, asking, answering, noising) for client in answering.clients]
    if session.begun is None:
        clock.begin(workers, rounds)
    else:
        scene, _ = scene_of(session.begun, len(workers), start.size, ())
        clock.resume(scene, workers, rounds)
        answering.dropped = session.begun.dropped
    model = asking.model(State(0, clock.run()))
    sent, received = journal.counts
    return Trained(
        model=model,
        dropped=answering.dropped,
        bytes_up=sent * 8 * plan.sum_length,
        bytes_down=received * 8 * plan.dimension,
    )


def _least(plan: Training) -> int:
    """Return how many clients make up a window: one, where one party draws all of its noise."""
    return plan.trust.least(dpsgd_of(plan).asked(plan.setup)) if plan.trust.shared else 1


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Worker:
    """A client of the clock: its sum for the model that it received, with its share of the noise."""

    client: ClientSums
    asking: SharedAsking
    answering: SharedAnswering
    noising: Noising

    def update(self, model: Vector, turn: int, /) -> Vector:
        """Return what the client sends in its own round."""
        question = self.asking.question(State(turn, model))
        if question is None:
            raise TypeError("a question to everybody is never empty")
        index, stage = self.client.index, self.answering.stage
        part = self.answering.part(self.client, question, range(turn, turn + 1))
        if stage.trust.shared:
            part = noised({index: part}, self.noising, turn, self.answering.entropy)[index]
        return np.concatenate([part, np.zeros(model.size - part.size)])  # a checkpoint holds rows of one length


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Mixing:
    """The server's part of a window."""

    asking: SharedAsking
    noising: Noising
    least: int

    def mix(self, model: Vector, window: int, updates: Mapping[int, Vector], /) -> Vector:
        """Return the state after the sum of these updates; where one party draws the noise, it does so here."""
        size = self.asking.stage.sum_length
        parts = np.stack([update[:size].astype(np.int64) for update in updates.values()]).sum(axis=0)
        noise = None if self.asking.stage.trust.shared else np.asarray(self.noising.whole(window), dtype=np.int64)
        return self.asking.advance(State(window, model), Total(np.asarray(parts, dtype=np.int64), noise)).row
