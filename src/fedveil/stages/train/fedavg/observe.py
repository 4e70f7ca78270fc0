"""Federated averaging as attacks see it: the first round as each observer reads it, and every noised sum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fedveil.core.errors import BadValue
from fedveil.core.fields import check_exclusions
from fedveil.core.values import Indices, Vector
from fedveil.data.records import Records
from fedveil.noise.entropy import Entropy
from fedveil.stages.train.acting import Session
from fedveil.stages.train.base import Method, Training
from fedveil.stages.train.correlation import INDEPENDENT_NOISE
from fedveil.stages.train.fedavg.acts import ACTS, cohorts_of
from fedveil.stages.train.fedavg.local import Held, Local, trained
from fedveil.stages.train.fedavg.method import FedAvg, groups_of
from fedveil.stages.train.fedavg.steps import (
    method_of,
    noise_of,
    noise_source,
    read_sum,
    sent_steps,
    summed,
    weights_of,
)
from fedveil.stages.train.observation import (
    GAME,
    AttackView,
    DrawnRounds,
    Observation,
    Observations,
    Push,
    Releases,
    noise_of_client,
)
from fedveil.stages.train.optimiser import project
from fedveil.stages.train.rounds import rounds


def _with_noise(plan: Training, factor: float) -> Method:
    method = method_of(plan)
    rows = method.segments
    if method.noiseless or factor == 0:
        rows = tuple((*row[:3], 0.0, row[4]) for row in rows)
        return replace(method, noise="none", noise_multiplier=0.0, segments=rows, correlated=INDEPENDENT_NOISE)
    rows = tuple((*row[:3], row[3] * factor, row[4]) for row in rows)
    return replace(method, noise_multiplier=method.noise_multiplier * factor, segments=rows)


def _first_round(plan: Training, records: Records, entropy: Entropy) -> Indices:
    asked = cohorts_of(method_of(plan), records.clients, entropy)(0)
    return np.flatnonzero(np.isin(records.owner, asked)).astype(np.int64)


def _observe(
    plan: Training, records: Records, entropy: Entropy, clients: Sequence[int], noiseless: bool
) -> Observations:
    method = method_of(plan).at(0)
    local = Local.of(plan)
    held, weights, sizes = Held.of(records), weights_of(method, records.sizes), records.sizes
    unit, zero, asked = (
        2.0**plan.grid,
        np.zeros(plan.dimension),
        cohorts_of(method_of(plan), records.clients, entropy)(0),
    )
    once = method.local.step * method.local.epochs
    share = method.noise_std / np.sqrt(method.senders(records.clients)) / unit if method.noise == "shared" else 0.0
    own = {}
    for client in clients:
        change = trained(local, zero, held, client, entropy, 0)
        steps = sent_steps(method, change, method.update_norm, float(weights[client]), unit)
        if steps is not None:
            told = (steps + noise_of_client(entropy, client, share, plan.sum_length)) * unit
            noised = read_sum(method, told, method.update_norm, 0)[0]
            rows = float(sizes[client])
            own[client] = Observation("server", -noised * (rows / (once * float(weights[client]))), rows)
    total, _ = summed(method, local, zero, held, asked, weights, method.update_norm, unit, entropy, 0)
    noise = noise_of(method, plan.sum_length, unit, entropy, 0)
    rows, each = float(sizes[asked].sum()), float(sizes.mean()) / once
    step = read_sum(method, (total + noise) * unit, method.update_norm, 0)[0]
    # Adam's first step tells less than the sum that it is computed from, so the sum is shown in its place.
    model = project(step * (method.server_step / method.divisor(plan.data)), plan.radius)
    # central noise is the server's own
    told = step if method.noise == "shared" else read_sum(method, total * unit, method.update_norm, 0)[0]
    back = method.divisor(plan.data) / method.server_step
    last = rounds(ACTS, plan, records, entropy, Session()).model
    shared = (
        Observation("server-with-secure-aggregation", -told * each, rows),
        Observation("every-model", -model * (back * each), rows),
        Observation("final-model", -last, 0.0),
    )
    return Observations(own, shared)


def _sums(plan: Training, records: Records, entropy: Entropy) -> Vector:
    """Return the noised sums of the clients' updates, round by round."""
    method, local = method_of(plan), Local.of(plan)
    held, weights, unit = Held.of(records), weights_of(method, records.sizes), 2.0**plan.grid
    start, result, joined = np.zeros(plan.dimension), [], cohorts_of(method, plan.data.clients, entropy)
    noise = noise_source(method, plan.sum_length, unit, entropy)
    for turn in range(method.rounds):
        total, _ = summed(method, local, start, held, joined(turn), weights, method.update_norm, unit, entropy, turn)
        noised = (total + noise(turn)) * unit
        result.append(noised[: plan.dimension])  # with an adaptive bound: all at the first one
    return np.stack(result)


def _widened(plan: Training, width: int) -> FedAvg:
    method = method_of(plan)
    check_exclusions(method, "", GAME)
    if method.sampling == "cyclic":  # as many groups
        return replace(method, cohort=-(-width // groups_of(method, plan.data.clients)))
    return replace(method, cohort=method.cohort / plan.data.clients * width)


def _push(plan: Training, both: float) -> Push:
    method = method_of(plan)
    rate = min(1.0, method.cohort / plan.data.clients)
    both *= method.adaptive.of_sum
    if found := method.correlated:
        column = tuple(found.factor.coefficients(method.rounds).tolist())
        groups = groups_of(method, plan.data.clients)
        return Push(both / method.noise_multiplier, 1.0, method.noise_std, groups, column)
    return Push(both / method.noise_multiplier, rate, method.noise_std, method.picks)


def _shortened(plan: Training, rounds: int) -> Method:
    """Return the method of the first so many rounds alone, which are whole passes where clients pick."""
    method = method_of(plan)
    if method.picks and rounds % method.picks:
        raise BadValue("algorithm.sampling must not be independent in this game: it looks at parts of a pass.")
    return replace(method, rounds=rounds, correlated=method.correlated.shortened(rounds))


def _drawn(plan: Training, entropy: Entropy) -> DrawnRounds | None:
    """Return the sampler of the clients, where each joins by draws of its own."""
    method, clients = method_of(plan), plan.data.clients
    if method.sampling not in ("poisson", "independent") or method.segments:
        return None
    rate = None if method.picks else method.cohort / clients
    return DrawnRounds(clients, method.picks or 1, rate, cohorts_of(method, clients, entropy))


ATTACK_VIEW = AttackView(
    drawn=_drawn,
    with_noise=_with_noise,
    observe=_observe,
    first_round=_first_round,
    releases=Releases(
        seen_by="every-model",
        towards=1.0,
        sums=_sums,
        widened=_widened,
        rows=lambda plan, width: plan.data.largest_client,
        push=_push,
        clients=True,
        work=lambda plan: method_of(plan).local.epochs,
        shortened=_shortened,
    ),
)
