"""Federated averaging as attacks see it: the first round as each observer reads it, and every noised sum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from fedveil.algorithms.fedavg.method import FedAvg
from fedveil.algorithms.fedavg.steps import (
    Held,
    Local,
    clipped,
    cohort_of,
    method_of,
    noise_of,
    summed,
    train_fedavg,
    trained,
    weights_of,
)
from fedveil.algorithms.observation import AttackView, Observation, Observations, Push, Releases, noise_of_client
from fedveil.algorithms.projection import project
from fedveil.data.records import Records
from fedveil.noise.entropy import Entropy
from fedveil.values import Indices, Vector

if TYPE_CHECKING:
    from fedveil.plan import Plan


def _with_noise(plan: Plan, factor: float) -> Plan:
    method = method_of(plan)
    if method.noiseless or factor == 0:
        return replace(plan, method=replace(method, noise="none", noise_multiplier=0.0))
    return replace(plan, method=replace(method, noise_multiplier=method.noise_multiplier * factor))


def _first_round(plan: Plan, records: Records, entropy: Entropy) -> Indices:
    asked = cohort_of(method_of(plan), records.clients, entropy, 0)
    return np.flatnonzero(np.isin(records.owner, asked)).astype(np.int64)


def _observe(plan: Plan, records: Records, entropy: Entropy, clients: Sequence[int], noiseless: bool) -> Observations:
    method = method_of(plan)
    local = Local.of(plan)
    held, weights, sizes = Held.of(records), weights_of(method, records.sizes), records.sizes
    unit, zero, asked = 2.0**plan.grid, np.zeros(plan.dimension), cohort_of(method, records.clients, entropy, 0)
    once = method.local_step * method.local_epochs
    share = method.noise_std / np.sqrt(method.cohort) / unit if method.noise == "shared" else 0.0
    own = {}
    for client in clients:
        change = trained(local, zero, held, client, entropy, 0)
        steps = clipped(change, method.update_norm, float(weights[client]), unit)
        if steps is not None:
            noised = (steps + noise_of_client(entropy, client, share, plan.dimension)) * unit
            rows = float(sizes[client])
            own[client] = Observation("server", -noised * (rows / (once * float(weights[client]))), rows)
    total, _ = summed(local, zero, held, asked, weights, method.update_norm, unit, entropy, 0)
    noise = noise_of(method, plan.dimension, unit, entropy, 0)
    rows, each = float(sizes[asked].sum()), float(sizes.mean()) / once
    model = project((total + noise) * (unit * method.server_step / method.divisor(plan.data)), plan.radius)
    told = total + noise if method.noise == "shared" else total  # central noise is the server's own
    back = method.divisor(plan.data) / method.server_step
    last = train_fedavg(plan, records, entropy, lambda _: None).model
    shared = (
        Observation("server-with-secure-aggregation", -told * (unit * each), rows),
        Observation("every-model", -model * (back * each), rows),
        Observation("final-model", -last, 0.0),
    )
    return Observations(own, shared)


def _sums(plan: Plan, records: Records, entropy: Entropy) -> Vector:
    """Return the noised sums of the clients' updates, round by round."""
    method, local = method_of(plan), Local.of(plan)
    held, weights, unit = Held.of(records), weights_of(method, records.sizes), 2.0**plan.grid
    start, found = np.zeros(plan.dimension), []
    for turn in range(method.rounds):
        clients = cohort_of(method, plan.data.clients, entropy, turn)
        total, _ = summed(local, start, held, clients, weights, method.update_norm, unit, entropy, turn)
        found.append((total + noise_of(method, plan.dimension, unit, entropy, turn)) * unit)
    return np.stack(found)


def _widened(plan: Plan, width: int) -> FedAvg:
    method = method_of(plan)
    return replace(method, cohort=method.cohort / plan.data.clients * width)


def _push(plan: Plan, both: float) -> Push:
    method = method_of(plan)
    rate = min(1.0, method.cohort / plan.data.clients)
    return Push(both / method.noise_multiplier, rate, method.noise_std)


ATTACK_VIEW = AttackView(
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
        work=lambda plan: method_of(plan).local_epochs,
        shortened=lambda plan, rounds: replace(plan, method=replace(method_of(plan), rounds=rounds)),
    ),
)
