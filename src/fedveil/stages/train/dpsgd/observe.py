"""DP-SGD as attacks see it: what each observer reads of the first round, and every noised sum that a client sends."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fedveil.core.fields import check_exclusions
from fedveil.core.values import Indices, Vector
from fedveil.data.records import Records
from fedveil.noise.entropy import Entropy
from fedveil.stages.protocol import Consortium
from fedveil.stages.train.acting import Session
from fedveil.stages.train.base import Method, Training
from fedveil.stages.train.dpsgd.acts import ACTS
from fedveil.stages.train.dpsgd.client import Client, Sampler
from fedveil.stages.train.dpsgd.clock import Journal
from fedveil.stages.train.dpsgd.method import DpSgd
from fedveil.stages.train.dpsgd.mixing import factor_of, mixture
from fedveil.stages.train.dpsgd.settings import DRAWN, Network, class_rate
from fedveil.stages.train.dpsgd.shared import SharedAnswering, SharedAsking, noising_of
from fedveil.stages.train.dpsgd.steps import dpsgd_of, train_dpsgd, weights_of
from fedveil.stages.train.observation import (
    ATTACKED,
    GAME,
    AttackView,
    DrawnRounds,
    Observation,
    Observations,
    Push,
    Releases,
    noise_of_client,
)
from fedveil.stages.train.optimiser import Optimiser
from fedveil.stages.train.rounds import rounds

_LEAST_NOISE = 1e-6  # that a client may have: over its clip


def _with_noise(plan: Training, factor: float) -> Method:
    """Multiply the noise; a factor of 0 leaves the least that is allowed, a millionth of the clip."""
    method = _planned_rounds(plan)
    rows = tuple(replace(p, noise=max(p.noise * factor, _LEAST_NOISE)) for p in method.client_settings)
    return replace(method, client_settings=rows)


def _planned_rounds(plan: Training) -> DpSgd:
    """Return the method, whose rounds must be known before they run."""
    method = dpsgd_of(plan)
    check_exclusions(method, "", ATTACKED)
    return method


def _first_round(plan: Training, records: Records, entropy: Entropy) -> Indices:
    method, (order, starts) = _planned_rounds(plan), records.by_client()
    result = []
    for client in range(records.clients):
        mine = order[starts[client] : starts[client + 1]]
        sampler = Sampler(method.settings(client), method.sampling, mine.size, entropy, client, classes=method.classes)
        result.append(mine[sampler.batch(0)])
    return np.sort(np.concatenate(result))


def _observe(
    plan: Training, records: Records, entropy: Entropy, clients: Sequence[int], noiseless: bool
) -> Observations:
    method = _planned_rounds(plan)
    if not method.local(plan.setup):
        return _observe_shared(plan, method, records, entropy, clients)
    journal, plain = Journal(keep=True), _plain(plan)
    last = train_dpsgd(plain, records, entropy, lambda _: None, journal=journal).model
    if plain is not plan:
        last = train_dpsgd(plan, records, entropy, lambda _: None).model
    weights, sizes = weights_of(method, records), records.sizes
    settings = [method.settings(client) for client in range(records.clients)]
    batch = [method.divisor(p, int(n)) for p, n in zip(settings, sizes, strict=True)]
    own = {
        client: Observation(
            "server", journal.updates[client, 0] * (batch[client] / method.first_step(client)), batch[client]
        )
        for client in clients
    }
    total = np.zeros(plan.dimension)
    for message in journal.finish():
        if message.window == 1:
            total += weights[message.client] * journal.updates[message.client, message.round]
    steps = [method.first_step(client) for client in range(records.clients)]
    scale = float(np.mean([w * step / b for w, step, b in zip(weights, steps, batch, strict=True)]))
    shared = (
        Observation("server-with-secure-aggregation", total / scale, sum(batch)),
        Observation("every-model", -journal.models[1] / scale, sum(batch)),
        Observation("final-model", -last, 0.0),
    )
    return Observations(own, shared)


def _observe_shared(
    plan: Training, method: DpSgd, records: Records, entropy: Entropy, clients: Sequence[int]
) -> Observations:
    """Return what is seen of a run under one noise, with each client's own sum as if it had added its share."""
    unit, size, setup = 2.0**plan.grid, plan.dimension, plan.setup
    asking = SharedAsking.make(plan, Consortium.here(records), entropy)
    answering = SharedAnswering(plan, records, tuple(range(records.clients)), entropy)
    question = asking.question(asking.start())
    if question is None:
        raise TypeError("a question to everybody is never empty")
    parts, whole = answering.parts(0, question), noising_of(plan, method, entropy).whole(0)
    share = mixture(method, setup).noise / math.sqrt(plan.trust.honest(records.clients)) / unit
    clip, rule = method.client_settings[0].clip, method.adaptive
    length = unit if not rule else unit * clip / rule.of_sum
    batch = [method.divisor(method.settings(k), int(n)) for k, n in enumerate(records.sizes)]
    own = {}
    for client in clients:
        factor = factor_of(method, setup, client, int(records.sizes[client]), 0)
        seen = parts[client][:size] + noise_of_client(entropy, client, share, size)
        own[client] = Observation("server", seen * (length / factor), batch[client])
    total = (np.sum(list(parts.values()), axis=0) + whole)[:size] * length
    train = ACTS.own(plan) or (lambda *given: rounds(ACTS, *given))
    last = train(plan, records, entropy, Session()).model
    shared = (
        Observation("server-with-secure-aggregation", total, sum(batch)),
        Observation("every-model", total, sum(batch)),
        Observation("final-model", -last, 0.0),
    )
    return Observations(own, shared)


def _plain(plan: Training) -> Training:
    """Return the plan with steps from which a noised sum is read off: those who see a client's updates are counted as
    seeing its sums, whatever Adam or a decay made of them.
    """
    method = dpsgd_of(plan)
    plain = Optimiser(momentum=method.optimiser.momentum)
    return replace(plan, method=replace(method, optimiser=plain, average=None))


def _sums(plan: Training, records: Records, entropy: Entropy) -> Vector:
    """Return the noised sums that a client sends."""
    client = Client(plan, dpsgd_of(plan), 0, records.features, records.targets, entropy)
    start, rule, turns = np.zeros(plan.dimension), client.adaptive, range(client.rounds)
    if not rule:
        return np.stack([client.release(start, turn) * client.divisor for turn in turns])
    return np.stack([client.noised_units(rule, start, turn)[:-1] for turn in turns])  # at the first clip


def _widened(plan: Training, width: int) -> DpSgd:
    method = _planned_rounds(plan)
    check_exclusions(method, "", GAME)
    # A client's sums at a given model do not depend on when they are sent, nor on who else is there.
    first = method.client_settings[:1]
    return replace(method, client_settings=first, weights=(), clip_limits=method.clip_limits[:1], network=Network())


def _rows(plan: Training, width: int) -> int:
    """Return as many rows as a batch needs to have its rate; the other rows are zero.

    Every record draws for itself, whoever else is there (but there are as many as rounds to pick among); a shuffled
    batch is a whole number of records.
    """
    method = dpsgd_of(plan)
    if method.sampling == "independent":
        return math.ceil(method.settings(0).batches_a_pass / width)
    return 1 if method.sampling == "poisson" else math.ceil(20 / (method.settings(0).rate * width))


def _push(plan: Training, both: float) -> Push:
    method, settings = dpsgd_of(plan), dpsgd_of(plan).settings(0)
    places = settings.batches_a_pass if method.sampling == "independent" else 0
    if found := method.correlated:
        cyclic, column = method.sampling == "cyclic", tuple(found.factor.coefficients(settings.rounds).tolist())
        rate = 1.0 if cyclic else class_rate(settings.rate, found.separation)
        turns = settings.batches_a_pass if cyclic else found.separation
        return Push(both / settings.noise, rate, settings.noise * settings.clip, turns, column)
    part = method.adaptive.of_sum
    return Push(both * part / settings.noise, settings.rate, settings.noise * method.scale(settings), places)


def _drawn(plan: Training, entropy: Entropy) -> DrawnRounds | None:
    """Return the sampler of the largest client's records."""
    method, settings = dpsgd_of(plan), dpsgd_of(plan).settings(0)
    if method.sampling not in DRAWN or method.correlated:  # within classes, units do not join alike
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
