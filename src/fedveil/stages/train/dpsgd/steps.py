"""DP-SGD at clients that do not wait for each other; one data holder alone needs neither server nor clock.

van Dijk and Nguyen 2023, Algorithm 1. Every update is noised at its client before anything else happens to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from fedveil.core.errors import require
from fedveil.core.values import Vector
from fedveil.data.records import Records
from fedveil.noise.entropy import Entropy
from fedveil.stages.train.acting import Interim, Session, Tick, Trained
from fedveil.stages.train.base import Training, expected
from fedveil.stages.train.dpsgd.client import Client, message_bytes
from fedveil.stages.train.dpsgd.clock import Clock, Journal, scene_of
from fedveil.stages.train.dpsgd.method import DpSgd
from fedveil.stages.train.optimiser import averaged, project

# What a run of DP-SGD in this process keeps between rounds, so that a run that was stopped goes on from there.
#
# Kept are the model, the moving average of the models if that is what is released, and every client's memory; by the
# clock of the network also the messages on their way (fedveil.stages.train.dpsgd.clock). Whatever else a client holds
# (its settings, batches, noise) follows from the plan, the key and the round.


def interim(clients: Sequence[Client], done: int, *rows: Vector) -> Interim:
    """Return what is kept after ``done`` rounds: these rows, then the clients' memories.

    None of them may be changed later; rounds replace models and memories by new ones.
    """
    dropped = sum(client.dropped for client in clients)
    return Interim(done, (*rows, *(client.memory for client in clients)), dropped)


def models_of(method: DpSgd, model: Vector, average: Vector) -> tuple[Vector, ...]:
    """Return the model, and the moving average of the models if that is what is released."""
    return (model,) if method.average is None else (model, average)


def continued(plan: Training, method: DpSgd, clients: Sequence[Client], begun: Any) -> tuple[int, Vector, Vector]:
    """Return how many rounds are done, the model and the average, and set the clients to where the run stopped.

    ``begun``: what was kept of a run whose clients wait for each other, or None for a run that begins.
    """
    if begun is None:
        return 0, np.zeros(plan.dimension), np.zeros(plan.dimension)
    models = 1 if method.average is None else 2
    parts = begun.parts([plan.dimension] * models + [client.memory.size for client in clients])
    remember(clients, parts[models:], [min(begun.round, client.rounds) for client in clients], begun.dropped)
    return begun.round, parts[0], parts[models - 1]


def remember(clients: Sequence[Client], memories: Sequence[Vector], done: Sequence[int], dropped: int) -> None:
    """Set clients to their memories after so many rounds of each; ``dropped``: updates so far, of all of them."""
    for client, memory, count in zip(clients, memories, done, strict=True):
        client.resume(memory, count)
    clients[0].dropped = dropped  # only the sum over all clients is ever told


def train_dpsgd(
    plan: Training, records: Records, entropy: Entropy, tick: Tick, /, *, journal: Journal | None = None
) -> Trained:
    """Run the whole training from its beginning; ``tick`` is called with the number of rounds done."""
    return train_network(plan, records, entropy, Session(watch=lambda done: tick(done.round)), journal=journal)


def train_network(
    plan: Training, records: Records, entropy: Entropy, session: Session, /, *, journal: Journal | None = None
) -> Trained:
    """Run the training, or what is left of it; ``journal`` is filled with the messages of the network."""
    method = dpsgd_of(plan)
    require(records.shape == plan.data, "The records", f"have the plan's shape, {plan.data}", records.shape)
    clients = clients_of(plan, method, records, entropy)
    if len(clients) == 1 and method.network.alone and journal is None:
        model = _alone(plan, method, clients[0], session)
        sent, received = method.total, method.total
    else:
        journal = Journal() if journal is None else journal
        model = _clocked(plan, clients, weights_of(method, records), session, journal)
        sent, received = journal.counts
    return Trained(
        model=model,
        dropped=sum(client.dropped for client in clients),
        bytes_up=sent * message_bytes(method, plan.dimension),
        bytes_down=received * 8 * plan.dimension,
    )


def _clocked(
    plan: Training, clients: Sequence[Client], weights: Sequence[float], session: Session, journal: Journal
) -> Vector:
    """Train by the clock of the network; a run that was stopped goes on from the end of a window."""
    method, rounds = dpsgd_of(plan), [client.rounds for client in clients]

    def done() -> int:
        return journal.counts[0] * method.total // sum(rounds)

    clock = Clock(
        network=method.network,
        weights=weights,
        model=np.zeros(plan.dimension),
        project=partial(project, radius=plan.radius),
        journal=journal,
        tick=lambda _: session.tick(done()),
        average=method.average,
        rest=lambda: session.watch(interim(clients, done(), *clock.scene().rows())),
    )
    if session.begun is None:
        clock.begin(clients, rounds)
    else:
        memories = [client.memory.size for client in clients]
        scene, remembered = scene_of(session.begun, len(clients), plan.dimension, memories)
        clock.resume(scene, clients, rounds)
        remember(clients, remembered, clock.started, session.begun.dropped)
    return clock.run()


def weights_of(method: DpSgd, records: Records) -> tuple[float, ...]:
    """Return the weights that the plan states, or weights in proportion to the clients' records."""
    return method.weights or tuple((records.sizes / len(records)).tolist())


def clients_of(
    plan: Training, method: DpSgd, records: Records, entropy: Entropy, numbers: Sequence[int] | None = None
) -> list[Client]:
    """Return every client with its own records; ``numbers``: in the whole study, where these are some of them."""
    named = range(records.clients) if numbers is None else numbers
    return [
        Client(plan, method, index, *rows, entropy)
        for index, rows in zip(named, records_by_client(records), strict=True)
    ]


def records_by_client(records: Records) -> list[tuple[Vector, Vector]]:
    """Return the features and targets of every client."""
    if records.clients == 1:
        return [(records.features, records.targets)]
    order, starts = records.by_client()
    parts = [order[a:b] for a, b in pairwise(starts.tolist())]
    return [(records.features[part], records.targets[part]) for part in parts]


def _alone(plan: Training, method: DpSgd, client: Client, session: Session) -> Vector:
    """Train one client whose messages arrive at once, so that the global model is its own."""
    done, model, average = continued(plan, method, [client], session.begun)
    for turn in range(done, client.rounds):
        model = project(model - client.update(model, turn), plan.radius)
        average = released(method, average, model, turn + 1)
        session.watch(interim([client], turn + 1, *models_of(method, model, average)))
    return average


def released(method: DpSgd, average: Vector, model: Vector, done: int) -> Vector:
    """Return what would be released after ``done`` rounds: the model itself, or the moving average of all models."""
    return model if method.average is None else averaged(method.average, average, model, done)


def dpsgd_of(plan: Training) -> DpSgd:
    """Return the plan's method, which must be DP-SGD."""
    return expected(DpSgd, plan.method)
