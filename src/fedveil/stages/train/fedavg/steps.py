"""The arithmetic of federated averaging: local training, clipped updates, exact sums, noise on the sums.

An update is clipped, weighted and cut to whole grid steps towards zero, so its norm never exceeds the bound. Page:
docs/fedavg.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedveil.core.values import Indices, Matrix, Vector
from fedveil.noise.correlated import CorrelatedNoise
from fedveil.noise.entropy import Entropy
from fedveil.noise.grid import rounded_normal
from fedveil.stages.noise_shares import share_deviation
from fedveil.stages.train.base import Training, expected
from fedveil.stages.train.fedavg.local import Held, Local, changes
from fedveil.stages.train.fedavg.method import FedAvg
from fedveil.stages.train.optimiser import OptimiserState, advance, heading, project

_INSIDE = 1 - 2.0**-40  # more than the error of a computed norm of 2**40 numbers, summed pairwise


@dataclass(frozen=True, slots=True, eq=False)
class Averaged:
    """The model, what the server's optimiser keeps, and the present bound on updates."""

    model: Vector
    memory: OptimiserState
    clip: float


def advanced(method: FedAvg, now: Averaged, turn: int, averaged: Vector, radius: float) -> Averaged:
    """Return the server's part of a round: its optimiser, its step, the projection.

    ``averaged``: the noised sum over the divisor. What follows is computed from noised sums alone.
    """
    step, later = read_sum(method, averaged, now.clip, turn)
    memory = advance(method.optimiser, now.memory, step)
    model = project(now.model + method.server_step * heading(method.optimiser, memory), radius)
    return Averaged(model, memory, later)


def share_steps(stage: Training, turn: int) -> float:
    """Return the deviation of a client's share of a round's noise, in grid steps."""
    method = method_of(stage).at(turn)
    return share_deviation(method.noise_std, stage.trust, method.senders(stage.data.clients)) / 2.0**stage.grid


def resends(stage: Training) -> bool:
    """Return whether clients send their updates again, so that the noise of their shares is correlated.

    Where one party draws all of the noise, it correlates the noise itself.
    """
    return method_of(stage).streams and stage.trust.shared


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


def noise_source(method: FedAvg, size: int, unit: float, entropy: Entropy) -> Callable[[int], Vector]:
    """Return the noise of any round in whole grid steps, correlated with that of earlier rounds if the plan says so."""
    correlation = method.correlated
    if not correlation:
        return lambda turn: noise_of(method.at(turn), size, unit, entropy, turn)
    return CorrelatedNoise(correlation.factor, entropy, "noise", method.noise_std / unit, size, method.rounds).at


def read_sum(method: FedAvg, averaged: Vector, clip: float, turn: int) -> tuple[Vector, float]:
    """Return the average update that a noised sum stands for, and the bound of the next round.

    With an adaptive bound the average keeps the length that it has in units of the bound, times the first bound: how
    far the server goes does not depend on how the bound moves.
    """
    rule = method.adaptive
    if not rule:
        return averaged, clip
    later = rule.following(clip, method.update_norm, float(averaged[-1]), (turn + 1) / method.rounds)
    return averaged[:-1] * (method.update_norm / rule.of_sum), later


def summed(
    method: FedAvg,
    local: Local,
    model: Vector,
    held: Held,
    clients: Indices,
    weights: Vector,
    clip: float,
    unit: float,
    entropy: Entropy,
    turn: int,
) -> tuple[Vector, int]:
    """Return the exact sum of the clients' updates in grid steps, and the number of updates dropped as not finite."""
    total, lost = np.zeros(model.size + method.extra_sums), 0
    for group, change in changes(local, model, held, clients, entropy, turn):
        steps, finite = sent_rows(method, change, clip, weights[group], unit)
        total += steps.sum(axis=0)  # whole numbers below 2**53: exact in any order
        lost += group.size - int(np.count_nonzero(finite))
    return total, lost


def clipped(change: Vector, bound: float, weight: float, unit: float) -> Vector | None:
    """Return the update in whole grid steps, of norm at most ``weight * bound``; None if it is not finite.

    >>> clipped(np.array([3.0, 4.0]), 1.0, 1.0, 0.25).tolist(), clipped(np.array([np.nan]), 1.0, 1.0, 0.25)
    ([2.0, 3.0], None)
    """
    steps, norms = _clipped_rows(change[None], bound, np.array([weight]), unit)
    return steps[0] if np.isfinite(norms[0]) else None


def _clipped_rows(changes: Matrix, bound: float, weights: Vector, unit: float) -> tuple[Matrix, Vector]:
    """Return each row in whole grid steps, of norm at most its weight times ``bound``, and the norms before.

    A row whose norm is not finite is zero. Each row is computed by itself: it has the same bits in any company.
    """
    with np.errstate(all="ignore"):
        norms = np.sqrt(np.sum(changes * changes, axis=1))
        factors = weights * bound / np.maximum(norms, bound) * _INSIDE
        steps = changes * (factors / unit)[:, None]
        np.trunc(steps, out=steps)
    steps[~np.isfinite(norms)] = 0.0
    return steps, norms


def sent_steps(method: FedAvg, change: Vector, clip: float, weight: float, unit: float) -> Vector | None:
    """Return what a client adds to a sum in whole grid steps, its vote on an adaptive bound last.

    Update and vote together have norm at most ``weight`` times the method's scale. None: the update is not finite.
    """
    steps, finite = sent_rows(method, change[None], clip, np.array([weight]), unit)
    return steps[0] if finite[0] else None


def sent_rows(
    method: FedAvg, changes: Matrix, clip: float, weights: Vector, unit: float
) -> tuple[Matrix, NDArray[np.bool_]]:
    """Return what each of some clients adds to a sum, a row for each, and whose update is finite.

    The others add zero.
    """
    rule = method.adaptive
    if not rule:
        steps, norms = _clipped_rows(changes, clip, weights, unit)
        return steps, np.isfinite(norms)
    steps, norms = _clipped_rows(changes, clip, weights, unit * clip / rule.of_sum)
    finite = np.isfinite(norms)
    votes = [rule.vote(bool(norm <= clip), float(weight), unit) for norm, weight in zip(norms, weights, strict=True)]
    return np.column_stack([steps, np.where(finite, votes, 0.0)]), finite


def method_of(plan: Training) -> FedAvg:
    """Return the plan's method, which must be federated averaging."""
    return expected(FedAvg, plan.method)
