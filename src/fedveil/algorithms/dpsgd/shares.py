"""DP-SGD in windows that wait for all clients: updates that are already noised, in whole steps, added up.

Every update carries its client's own noise, enough for itself. What is done here is post-processing: rounding, adding
up, and leaving clients out cost no privacy.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from fedveil.algorithms.acting import Session
from fedveil.algorithms.dpsgd.client import Client
from fedveil.algorithms.dpsgd.interim import continued, interim, models_of
from fedveil.algorithms.dpsgd.steps import clients_of, dpsgd_of, released, weights_of
from fedveil.algorithms.projection import project
from fedveil.algorithms.shares import LARGEST_PART, gathered
from fedveil.algorithms.trained import Trained
from fedveil.checks import require
from fedveil.data.records import Records
from fedveil.noise.entropy import Entropy
from fedveil.sums.seam import Whole
from fedveil.values import Vector

if TYPE_CHECKING:
    from fedveil.plan import Plan

_FINE = 44  # bits of the ball's radius: finer than any noise on the model


def unit_of(plan: Plan) -> float:
    """Return the grid step of the windows' sums: a power of two, from the radius of the ball only."""
    return 2.0 ** (math.ceil(math.log2(plan.radius)) - _FINE)


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


def advance(model: Vector, total: Whole, unit: float, radius: float) -> Vector:
    """Return the model after the server's part of a window."""
    return project(model - total.astype(np.float64) * unit, radius)


def train_windows(plan: Plan, records: Records, entropy: Entropy, session: Session) -> Trained:
    """Train in windows and return the model after the last one; a run that was stopped goes on with its next window."""
    method = dpsgd_of(plan)
    require(records.shape == plan.data, "The records", f"have the plan's shape, {plan.data}", records.shape)
    clients, weights = clients_of(plan, method, records, entropy), weights_of(method, records)
    unit, width = unit_of(plan), int(method.network.window)
    done, model, average = continued(plan, method, clients, session.begun)
    while done < method.total:
        first, window = done, done // width  # only the last window may be shorter than the others
        cohort = [client.index for client in clients if client.rounds > first]

        def answer(index: int, window: int = window, first: int = first, model: Vector = model) -> Whole:
            turns = range(first, min(first + width, clients[index].rounds))
            return contribution(clients[index], model, window, turns, weights[index], unit, len(clients))

        found = gathered(window, cohort, answer, session.add_up, plan.trust.least(len(cohort)), session.fails)
        model, done = advance(model, found.total, unit, plan.radius), min(first + width, method.total)
        average = released(method, average, model, window + 1)
        session.watch(interim(clients, done, *models_of(method, model, average)))
    sent = sum(-(-client.rounds // width) for client in clients)  # a client answers in every window of its rounds
    dropped, size = sum(client.dropped for client in clients), 8 * plan.dimension
    return Trained(model=average, dropped=dropped, bytes_up=sent * size, bytes_down=sent * size)
