"""Federated averaging in this process: local training, clipped updates, exact sums, noise on the sums.

An update is clipped, weighted and cut to whole grid steps towards zero, so its norm never exceeds the bound. Page:
docs/fedavg.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedveil.algorithms.fedavg.method import FedAvg
from fedveil.algorithms.projection import project
from fedveil.algorithms.trained import Tick, Trained
from fedveil.checks import require
from fedveil.data.records import Records
from fedveil.errors import BadValue
from fedveil.model.loss import Loss
from fedveil.noise.entropy import Entropy, permutation
from fedveil.noise.grid import rounded_normal
from fedveil.values import Indices, Vector

if TYPE_CHECKING:
    from fedveil.plan import Plan

_INSIDE = 1 - 2.0**-40  # more than the error of a computed norm of 2**40 numbers, summed pairwise


@dataclass(frozen=True, slots=True, eq=False)
class Local:
    """What a client needs to train; ``batch`` 0 takes all its records at once."""

    loss: Loss
    clip: float
    l2: float
    step: float
    epochs: int
    batch: int

    @classmethod
    def of(cls, plan: Plan) -> Local:
        """Return what a plan states for every client."""
        method = method_of(plan)
        return cls(
            plan.model.loss,
            plan.constants.lipschitz,
            plan.model.l2,
            method.local_step,
            method.local_epochs,
            method.local_batch,
        )


@dataclass(frozen=True, slots=True, eq=False)
class Held:
    """Records laid out client after client; client c holds rows ``starts[c]`` up to ``starts[c + 1]``."""

    features: Vector
    targets: Vector
    norms: Vector
    starts: Indices

    @classmethod
    def of(cls, records: Records) -> Held:
        """Return the records in the order of their clients."""
        order, starts = records.by_client()
        features = records.features[order]
        return cls(features, records.targets[order], np.sqrt(np.vecdot(features, features)), starts)


def train_fedavg(plan: Plan, records: Records, entropy: Entropy, tick: Tick) -> Trained:
    """Train and return the model after the last round."""
    require(records.shape == plan.data, "The data", f"have the plan's shape, {plan.data}", records.shape)
    method, local = method_of(plan), Local.of(plan)
    held, weights = Held.of(records), weights_of(method, records.sizes)
    unit, divisor = 2.0**plan.grid, method.divisor(plan.data)
    model, speed = np.zeros(plan.dimension), np.zeros(plan.dimension)
    dropped = 0
    for turn in range(method.rounds):
        clients = cohort_of(method, plan.data.clients, entropy, turn)
        total, lost = summed(local, model, held, clients, weights, method.update_norm, unit, entropy, turn)
        total += noise_of(method, plan.dimension, unit, entropy, turn)
        speed = method.momentum * speed + total * (unit / divisor)
        model = project(model + method.server_step * speed, plan.radius)
        dropped += lost
        tick(turn + 1)
    # as planned, because who really took part is secret
    sent = round(method.rounds * method.cohort) * plan.dimension * 8
    return Trained(model=model, dropped=dropped, bytes_up=sent, bytes_down=sent)


def cohort_of(method: FedAvg, clients: int, entropy: Entropy, turn: int) -> Indices:
    """Return who takes part in a round, possibly nobody: a function of the run's key and the round."""
    match method.sampling:
        case "all":
            return np.arange(clients, dtype=np.int64)
        case "poisson":
            words = entropy.words("cohort", turn, clients)
            # rounded down, so that nobody takes part more often than planned
            limit = int(method.cohort / clients * 2**64)
            return np.flatnonzero(words < np.uint64(min(limit, 2**64 - 1))).astype(np.int64)
        case _:
            return np.sort(permutation(entropy, clients, f"cohort {turn}")[: int(method.cohort)])


def weights_of(method: FedAvg, sizes: Indices) -> Vector:
    """Return the weight of each client, at most 1."""
    if method.weights == "uniform":
        return np.ones(sizes.size)
    return np.minimum(sizes, method.most_records) / method.most_records


def noise_of(method: FedAvg, size: int, unit: float, entropy: Entropy, turn: int) -> Vector:
    """Return the noise of a round in whole grid steps; shares of clients are drawn at once, as their sum."""
    if method.noiseless:
        return np.zeros(size)
    return rounded_normal(entropy.stream("noise", turn), method.noise_std / unit, size).astype(np.float64)


def summed(
    local: Local,
    model: Vector,
    held: Held,
    clients: Indices,
    weights: Vector,
    bound: float,
    unit: float,
    entropy: Entropy,
    turn: int,
) -> tuple[Vector, int]:
    """Return the exact sum of the clients' updates in grid steps, and the number of updates dropped as not finite."""
    total, lost = np.zeros(model.size), 0
    for client in clients.tolist():
        change = trained(local, model, held, client, entropy, turn) - model
        steps = clipped(change, bound, float(weights[client]), unit)
        if steps is None:
            lost += 1
        else:
            total += steps
    return total, lost


def clipped(change: Vector, bound: float, weight: float, unit: float) -> Vector | None:
    """Return the update in whole grid steps, of norm at most ``weight * bound``; None if it is not finite.

    >>> clipped(np.array([3.0, 4.0]), 1.0, 1.0, 0.25).tolist(), clipped(np.array([np.nan]), 1.0, 1.0, 0.25)
    ([2.0, 3.0], None)
    """
    with np.errstate(all="ignore"):
        norm = float(np.sqrt(np.sum(change * change)))
    if not np.isfinite(norm):
        return None
    factor = weight * bound / max(norm, bound) * _INSIDE
    return np.trunc(change * (factor / unit))


def trained(local: Local, model: Vector, held: Held, client: int, entropy: Entropy, turn: int) -> Vector:
    """Return a client's model after its local epochs, from the global one."""
    start, end = int(held.starts[client]), int(held.starts[client + 1])
    features, targets, norms = held.features[start:end], held.targets[start:end], held.norms[start:end]
    found = model
    with np.errstate(all="ignore"):  # an overflow is dropped when it is clipped
        for part in _parts(local, end - start, entropy, turn, client):
            mine = (features, targets, norms) if part is None else (features[part], targets[part], norms[part])
            rows, wanted, lengths = mine
            total, _ = local.loss.gradient(found, rows, wanted, clip=local.clip, norms=lengths)
            change = total / wanted.size if local.l2 == 0 else total / wanted.size + local.l2 * found
            found = found - local.step * change
    return found


def _parts(local: Local, size: int, entropy: Entropy, turn: int, client: int) -> Iterator[Indices | None]:
    """Yield the records of each local step: all (None), or batches of a new order in every epoch."""
    if local.batch == 0 or local.batch >= size:
        yield from [None] * local.epochs
        return
    words = entropy.stream(f"local {client}", turn)
    for _ in range(local.epochs):
        order = np.argsort(words.words(size)).astype(np.int64)
        for first in range(0, size, local.batch):
            yield order[first : first + local.batch]


def method_of(plan: Plan) -> FedAvg:
    """Return the plan's method, which must be federated averaging."""
    if not isinstance(plan.method, FedAvg):
        raise BadValue(f"The plan must be for fedavg here, and it is for {plan.method.kind}.")
    return plan.method
