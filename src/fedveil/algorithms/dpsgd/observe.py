"""DP-SGD as attacks see it: what each observer reads of the first round, and every noised sum that a client sends."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from fedveil.algorithms.dpsgd.batch import Sampler
from fedveil.algorithms.dpsgd.client import Client
from fedveil.algorithms.dpsgd.client_settings import DRAWN
from fedveil.algorithms.dpsgd.messages import Journal
from fedveil.algorithms.dpsgd.method import DpSgd
from fedveil.algorithms.dpsgd.steps import dpsgd_of, train_dpsgd, weights_of
from fedveil.algorithms.observation import AttackView, DrawnRounds, Observation, Observations, Push, Releases
from fedveil.data.records import Records
from fedveil.noise.entropy import Entropy
from fedveil.values import Indices, Vector

if TYPE_CHECKING:
    from fedveil.plan import Plan

_LEAST_NOISE = 1e-6  # that a client may have: over its clip


def _with_noise(plan: Plan, factor: float) -> Plan:
    """Multiply the noise; a factor of 0 leaves the least that is allowed, a millionth of the clip."""
    method = dpsgd_of(plan)
    rows = tuple(replace(p, noise=max(p.noise * factor, _LEAST_NOISE)) for p in method.client_settings)
    return replace(plan, method=replace(method, client_settings=rows))


def _first_round(plan: Plan, records: Records, entropy: Entropy) -> Indices:
    method, (order, starts) = dpsgd_of(plan), records.by_client()
    found = []
    for client in range(records.clients):
        mine = order[starts[client] : starts[client + 1]]
        sampler = Sampler(method.settings(client), method.sampling, mine.size, entropy, client)
        found.append(mine[sampler.batch(0)])
    return np.sort(np.concatenate(found))


def _observe(plan: Plan, records: Records, entropy: Entropy, clients: Sequence[int], noiseless: bool) -> Observations:
    method = dpsgd_of(plan)
    journal = Journal(keep=True)
    last = train_dpsgd(plan, records, entropy, lambda _: None, journal=journal).model
    weights, sizes = weights_of(method, records), records.sizes
    settings = [method.settings(client) for client in range(records.clients)]
    batch = [method.divisor(p, int(n)) for p, n in zip(settings, sizes, strict=True)]
    own = {
        client: Observation(
            "server", journal.updates[client, 0] * (batch[client] / settings[client].step(0)), batch[client]
        )
        for client in clients
    }
    total = np.zeros(plan.dimension)
    for message in journal.finish():
        if message.window == 1:
            total += weights[message.client] * journal.updates[message.client, message.round]
    scale = float(np.mean([w * p.step(0) / b for w, p, b in zip(weights, settings, batch, strict=True)]))
    shared = (
        Observation("server-with-secure-aggregation", total / scale, sum(batch)),
        Observation("every-model", -journal.models[1] / scale, sum(batch)),
        Observation("final-model", -last, 0.0),
    )
    return Observations(own, shared)


def _sums(plan: Plan, records: Records, entropy: Entropy) -> Vector:
    """Return the noised sums that a client sends."""
    client = Client(plan, dpsgd_of(plan), 0, records.features, records.targets, entropy)
    start = np.zeros(plan.dimension)
    return np.stack([client.release(start, turn) * client.divisor for turn in range(client.settings.rounds)])


def _widened(plan: Plan, width: int) -> DpSgd:
    method = dpsgd_of(plan)
    return replace(method, client_settings=method.client_settings[:1], weights=())


def _rows(plan: Plan, width: int) -> int:
    """Return as many rows as a batch needs to have its rate; the other rows are zero.

    Every record draws for itself, whoever else is there (but there are as many as rounds to pick among); a shuffled
    batch is a whole number of records.
    """
    method = dpsgd_of(plan)
    if method.sampling == "independent":
        return math.ceil(method.settings(0).batches_a_pass / width)
    return 1 if method.sampling == "poisson" else math.ceil(20 / (method.settings(0).rate * width))


def _push(plan: Plan, both: float) -> Push:
    method, settings = dpsgd_of(plan), dpsgd_of(plan).settings(0)
    places = settings.batches_a_pass if method.sampling == "independent" else 0
    return Push(both / settings.noise, settings.rate, settings.noise * settings.clip, places)


def _drawn(plan: Plan, entropy: Entropy) -> DrawnRounds | None:
    """Return the sampler of the largest client's records."""
    method, settings = dpsgd_of(plan), dpsgd_of(plan).settings(0)
    if method.sampling not in DRAWN:
        return None
    sampler = Sampler(settings, method.sampling, plan.data.largest_client, entropy, 0)
    rate = settings.rate if method.sampling == "poisson" else None
    return DrawnRounds(plan.data.largest_client, settings.batches_a_pass, rate, sampler.batch)


ATTACK_VIEW = AttackView(
    drawn=_drawn,
    with_noise=_with_noise,
    observe=_observe,
    first_round=_first_round,
    releases=Releases(
        seen_by="server",
        towards=-1.0,
        sums=_sums,
        widened=_widened,
        rows=_rows,
        push=_push,
        clients=False,
        work=lambda plan: 1,
    ),
)
