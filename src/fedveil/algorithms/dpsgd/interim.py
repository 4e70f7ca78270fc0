"""What a run of DP-SGD in this process keeps between rounds, so that a run that was stopped goes on from there.

The row holds the model, the moving average of the models if that is what is released, and every client's memory.
Whatever else a client holds (its settings, batches, noise) follows from the plan, the key and the round.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedveil.algorithms.acting import Interim
from fedveil.algorithms.dpsgd.client import Client
from fedveil.values import Vector

if TYPE_CHECKING:
    from fedveil.plan import Plan


def interim(clients: Sequence[Client], done: int, model: Vector, average: Vector) -> Interim:
    """Return what is kept after ``done`` rounds; later rounds replace these rows and do not change them."""
    mean = () if clients[0].method.average is None else (average,)
    dropped = sum(client.dropped for client in clients)
    return Interim(done, (model, *mean, *(client.memory for client in clients)), dropped)


def continued(plan: Plan, clients: Sequence[Client], begun: Any) -> tuple[int, Vector, Vector]:
    """Return how many rounds are done, the model and the average, and set the clients to where the run stopped.

    ``begun``: what :func:`interim` returned, or None for a run that begins.
    """
    if begun is None:
        return 0, np.zeros(plan.dimension), np.zeros(plan.dimension)
    models = 1 if clients[0].method.average is None else 2
    lengths = [plan.dimension] * models + [client.memory.size for client in clients]
    parts = begun.parts(lengths)
    for client, memory in zip(clients, parts[models:], strict=True):
        client.resume(memory, min(begun.round, client.rounds))
    clients[0].dropped = begun.dropped  # only the sum over all clients is ever told
    return begun.round, parts[0], parts[models - 1]
