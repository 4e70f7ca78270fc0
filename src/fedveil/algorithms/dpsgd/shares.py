"""DP-SGD in windows that wait for all clients: updates that are already noised, in whole steps, added up.

Every update carries its client's own noise, enough for itself. What is done here is post-processing: rounding, adding
up, and leaving clients out cost no privacy.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from fedveil.algorithms.dpsgd.client import Client
from fedveil.algorithms.dpsgd.steps import clients_of, dpsgd_of, weights_of
from fedveil.algorithms.projection import project
from fedveil.algorithms.shares import LARGEST_PART, Fails, gathered
from fedveil.algorithms.trained import Tick, Trained
from fedveil.checks import require
from fedveil.data.records import Records
from fedveil.noise.entropy import Entropy
from fedveil.sums.seam import Summing, Whole
from fedveil.values import Vector

if TYPE_CHECKING:
    from fedveil.plan import Plan

_FINE = 44  # bits of the ball's radius: finer than any noise on the model


def unit_of(plan: Plan) -> float:
    """Return the grid step of the windows' sums: a power of two, from the radius of the ball only."""
    return 2.0 ** (math.ceil(math.log2(plan.radius)) - _FINE)


def contribution(client: Client, model: Vector, turns: range, weight: float, unit: float, clients: int) -> Whole:
    """Return a client's noised updates of one window, weighted, in whole steps; cut so that no sum exceeds 64 bits.

    The client continues from its own model within the window, as it does if clients do not wait.
    """
    total, radius = np.zeros_like(model), client.plan.radius
    for turn in turns:
        update = client.update(model, turn)
        model = project(model - update, radius)
        total += update
    most = min(LARGEST_PART, 2**62 // clients)
    return np.clip(np.rint(total * (weight / unit)), -most, most).astype(np.int64)


def advance(model: Vector, total: Whole, unit: float, radius: float) -> Vector:
    """Return the model after the server's part of a window."""
    return project(model - total.astype(np.float64) * unit, radius)


def train_windows(plan: Plan, records: Records, entropy: Entropy, tick: Tick, add_up: Summing, fails: Fails) -> Trained:
    """Train in windows and return the model after the last one."""
    method = dpsgd_of(plan)
    require(records.shape == plan.data, "The records", f"have the plan's shape, {plan.data}", records.shape)
    clients, weights = clients_of(plan, method, records, entropy), weights_of(method, records)
    model, unit, width = np.zeros(plan.dimension), unit_of(plan), int(method.network.window)
    sent = 0
    for window, first in enumerate(range(0, method.total, width)):
        cohort = [client.index for client in clients if client.settings.rounds > first]

        def answer(index: int, first: int = first, model: Vector = model) -> Whole:
            turns = range(first, min(first + width, clients[index].settings.rounds))
            return contribution(clients[index], model, turns, weights[index], unit, len(clients))

        found = gathered(window, cohort, answer, add_up, plan.trust.least(len(cohort)), fails)
        model = advance(model, found.total, unit, plan.radius)
        sent += len(cohort)
        tick(min(first + width, method.total))
    dropped, size = sum(client.dropped for client in clients), 8 * plan.dimension
    return Trained(model=model, dropped=dropped, bytes_up=sent * size, bytes_down=sent * size)
