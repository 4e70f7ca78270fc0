"""Federated averaging in this process: local training, clipped updates, exact sums, noise on the sums.

An update is clipped, weighted and cut to whole grid steps towards zero, so its norm never exceeds the bound. Page:
docs/fedavg.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedveil.algorithms.acting import Interim, Session
from fedveil.algorithms.base import expected
from fedveil.algorithms.correlation import Attendance
from fedveil.algorithms.fedavg.drawing import cohorts_of
from fedveil.algorithms.fedavg.local import Held, Local, changes
from fedveil.algorithms.fedavg.method import FedAvg
from fedveil.algorithms.optimiser import OptimiserState, advance, begin, from_row, heading, row_length, to_row
from fedveil.algorithms.projection import project
from fedveil.algorithms.trained import Tick, Trained
from fedveil.checks import require
from fedveil.data.records import Records
from fedveil.noise.correlated import CorrelatedNoise
from fedveil.noise.entropy import Entropy
from fedveil.noise.grid import rounded_normal
from fedveil.values import Indices, Matrix, Vector

if TYPE_CHECKING:
    from fedveil.plan import Plan

_INSIDE = 1 - 2.0**-40  # more than the error of a computed norm of 2**40 numbers, summed pairwise


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """The model, what the server's optimiser keeps, and the present bound on updates after ``round`` rounds.

    ``past``: what is taken off the sums to come, where clients send their updates again.
    """

    round: int
    model: Vector
    memory: OptimiserState
    clip: float
    past: Matrix | None = None

    @classmethod
    def begin(cls, plan: Plan, method: FedAvg) -> State:
        """Return a model of zeros, before the first round."""
        return cls(0, np.zeros(plan.dimension), begin(method.optimiser, plan.dimension), method.update_norm)


def advanced(method: FedAvg, state: State, averaged: Vector, clip: float, radius: float) -> State:
    """Return the state after the server's part of a round: its optimiser, its step, the projection.

    ``averaged``: the noised sum over the divisor; ``clip``: the bound that its updates had. What follows is computed
    from noised sums alone.
    """
    step, later = read_sum(method, averaged, clip, state.round)
    memory = advance(method.optimiser, state.memory, step)
    model = project(state.model + method.server_step * heading(method.optimiser, memory), radius)
    return State(state.round + 1, model, memory, later)


def train_fedavg(plan: Plan, records: Records, entropy: Entropy, tick: Tick) -> Trained:
    """Train from the beginning and return the model after the last round."""
    return train_rounds(plan, records, entropy, Session(watch=lambda done: tick(done.round)))


def train_rounds(plan: Plan, records: Records, entropy: Entropy, session: Session) -> Trained:
    """Train, or go on after the last round that was kept, and return the model after the last round."""
    require(records.shape == plan.data, "The data", f"have the plan's shape, {plan.data}", records.shape)
    method, local = method_of(plan), Local.of(plan)
    held, weights = Held.of(records), weights_of(method, records.sizes)
    unit, joined = 2.0**plan.grid, cohorts_of(method, plan.data.clients, entropy)
    noise, attendance = noise_source(method, plan.sum_length, unit, entropy), attendance_of(method, records.clients)
    state, dropped = continued(plan, method, session.begun)
    if attendance is not None:
        for turn in range(state.round):
            attendance.note(turn, joined(turn))
    for turn in range(state.round, method.rounds):
        now, clients = method.at(turn), joined(turn)
        if attendance is not None:
            attendance.note(turn, clients)
        clip = state.clip if now.adaptive is not None else now.update_norm
        total, lost = summed(now, local, state.model, held, clients, weights, clip, unit, entropy, turn)
        total += noise(turn)
        state = advanced(now, state, total * (unit / now.divisor(plan.data)), clip, plan.radius)
        dropped += lost
        session.watch(Interim(turn + 1, (state.model, to_row(state.memory), np.array([state.clip])), dropped))
    # as planned, because who really took part is secret
    sent = method.traffic(plan.setup, together=False)[0] * plan.sum_length * 8
    return Trained(model=state.model, dropped=dropped, bytes_up=sent, bytes_down=sent)


def continued(plan: Plan, method: FedAvg, begun: Any) -> tuple[State, int]:
    """Return the state to go on from and the updates dropped so far; ``begun``: what was kept, or None."""
    if begun is None:
        return State.begin(plan, method), 0
    size = plan.dimension
    model, memory, clip = begun.parts([size, row_length(method.optimiser, size), 1])
    return State(begun.round, model, from_row(method.optimiser, memory), float(clip[0])), begun.dropped


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
    found = method.correlated
    if found is None:
        return lambda turn: noise_of(method.at(turn), size, unit, entropy, turn)
    return CorrelatedNoise(found.factor, entropy, "noise", method.noise_std / unit, size, method.rounds).at


def attendance_of(method: FedAvg, clients: int) -> Attendance | None:
    """Return what watches over the pattern of participations; None where no pattern is promised."""
    return None if method.correlated is None else Attendance(method.correlated, clients)


def read_sum(method: FedAvg, averaged: Vector, clip: float, turn: int) -> tuple[Vector, float]:
    """Return the average update that a noised sum stands for, and the bound of the next round.

    With an adaptive bound the average keeps the length that it has in units of the bound, times the first bound: how
    far the server goes does not depend on how the bound moves.
    """
    rule = method.adaptive
    if rule is None:
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
    if rule is None:
        steps, norms = _clipped_rows(changes, clip, weights, unit)
        return steps, np.isfinite(norms)
    steps, norms = _clipped_rows(changes, clip, weights, unit * clip / rule.of_sum)
    finite = np.isfinite(norms)
    votes = [rule.vote(bool(norm <= clip), float(weight), unit) for norm, weight in zip(norms, weights, strict=True)]
    return np.column_stack([steps, np.where(finite, votes, 0.0)]), finite


def method_of(plan: Plan) -> FedAvg:
    """Return the plan's method, which must be federated averaging."""
    return expected(FedAvg, plan.method)
