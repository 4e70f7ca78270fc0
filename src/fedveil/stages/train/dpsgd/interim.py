"""What a run of DP-SGD in this process keeps between rounds, so that a run that was stopped goes on from there.

Kept are the model, the moving average of the models if that is what is released, and every client's memory; by the
clock of the network also the messages on their way (fedveil.stages.train.dpsgd.scene). Whatever else a client holds
(its settings, batches, noise) follows from the plan, the key and the round.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedveil.core.values import Vector
from fedveil.stages.train.acting import Interim
from fedveil.stages.train.dpsgd.client import Client
from fedveil.stages.train.dpsgd.method import DpSgd
from fedveil.stages.train.stage import Training


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
