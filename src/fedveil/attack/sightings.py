"""What each observer sees of the first round, made by the real training code, as the gradient it reads out of it.

The first round is the attacker's best: the model before it is public (zero, or a module's starting parameters), every
record still has a large gradient, and nobody has to guess anything but the noise. Who sees what: observers.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedveil.checks import require
from fedveil.data.records import Records
from fedveil.errors import BadValue
from fedveil.guarantee import Adversary
from fedveil.method.dpsgd import DpSgd
from fedveil.method.fedavg import FedAvg
from fedveil.method.hidden import Hidden
from fedveil.plan import Plan
from fedveil.train.deal import Batch, deal
from fedveil.train.dpsgd import train_dpsgd, weights_of
from fedveil.train.dpsgd_batch import Sampler
from fedveil.train.entropy import Entropy
from fedveil.train.fedavg import Held, Local, clipped, cohort_of, noise_of, summed, train_fedavg, trained
from fedveil.train.fedavg import weights_of as fedavg_weights
from fedveil.train.hidden import Rule, State, draw, last_round, model_of, project, start, step
from fedveil.train.messages import Journal
from fedveil.train.noise import rounded_normal

Vector = NDArray[np.float64]
Indices = NDArray[np.int64]
_LEAST_NOISE = 1e-6  # that a posture of dpsgd may have: over its clip


@dataclass(frozen=True, slots=True, eq=False)
class Sighting:
    """A sum of records' gradients as an observer reads it, noise and all; ``records``: planned in it (0: unknown)."""

    adversary: Adversary
    gradient: Vector
    records: float


@dataclass(frozen=True, slots=True, eq=False)
class Sightings:
    """``own``: the server's, by client (where its noise is its own); ``shared``: of those who see sums or models."""

    own: dict[int, Sighting]
    shared: tuple[Sighting, ...]

    def of_client(self, client: int) -> tuple[Sighting, ...]:
        """All that is seen of a client, by whoever sees most first."""
        mine = self.own.get(client)
        return self.shared if mine is None else (mine, *self.shared)


def with_noise(plan: Plan, factor: float) -> Plan:
    """The plan with its noise multiplied; 0 leaves none (dpsgd: the least that it takes, a millionth of the clip).

    Hidden plans have no form without noise: theirs is taken away in :func:`sightings`.
    """
    require(0 <= factor < np.inf, "factor", "be finite and non-negative", factor)
    match plan.method:
        case DpSgd() as method:
            rows = tuple(replace(p, noise=max(p.noise * factor, _LEAST_NOISE)) for p in method.postures)
            return replace(plan, method=replace(method, postures=rows))
        case FedAvg() as method:
            if method.noiseless or factor == 0:
                return replace(plan, method=replace(method, noise="none", noise_multiplier=0.0))
            return replace(plan, method=replace(method, noise_multiplier=method.noise_multiplier * factor))
        case Hidden(run=run) as method:
            noise = np.multiply(run.noise_std, factor or 1.0)
            std = tuple(noise.tolist()) if noise.ndim else float(noise)
            return replace(plan, method=replace(method, run=replace(run, noise_std=std)))
    raise _unknown(plan)


def sightings(plan: Plan, records: Records, entropy: Entropy, clients: Sequence[int], *, noiseless: bool) -> Sightings:
    """What is seen of a run of this plan; ``clients``: whose own messages are wanted."""
    require(records.shape == plan.data, "The records", f"have the plan's shape, {plan.data}", records.shape)
    match plan.method:
        case Hidden():
            return _hidden(plan, records, entropy, clients, noiseless)
        case DpSgd() as method:
            return _dpsgd(plan, method, records, entropy, clients)
        case FedAvg() as method:
            return _fedavg(plan, method, records, entropy, clients)
    raise _unknown(plan)


def first_round(plan: Plan, records: Records, entropy: Entropy) -> Indices:
    """The records that the first round uses; at the server they are sorted by client."""
    match plan.method:
        case Hidden():
            return np.sort(_first_dealt(plan, records, entropy))
        case DpSgd() as method:
            order, starts = records.by_client()
            found = []
            for client in range(records.clients):
                mine = order[starts[client] : starts[client + 1]]
                sampler = Sampler(method.posture(client), method.sampling, mine.size, entropy, client)
                found.append(mine[sampler.batch(0)])
            return np.sort(np.concatenate(found))
        case FedAvg() as method:
            asked = cohort_of(method, records.clients, entropy, 0)
            return np.flatnonzero(np.isin(records.owner, asked)).astype(np.int64)
    raise _unknown(plan)


def _first_dealt(plan: Plan, records: Records, entropy: Entropy) -> Indices:
    """Which records are dealt into round one: the same deal, of records that hold nothing but their number."""
    count = len(records)
    numbered = replace(records, features=np.arange(count, dtype=np.float64)[:, None] / count, bound=1.0)
    batch = deal(plan, numbered, entropy).batch(0)
    return np.rint(batch.features[:, 0] * count).astype(np.int64)


def _hidden(plan: Plan, records: Records, entropy: Entropy, clients: Sequence[int], noiseless: bool) -> Sightings:
    rule, dealt = Rule.of(plan), deal(plan, records, entropy)
    if noiseless:
        rule = replace(rule, noise=np.zeros_like(rule.noise))
    planned, size, moved = float(rule.batches[0]), plan.dimension, float(rule.steps[0])
    state = start(plan)
    first = _hidden_round(rule, state, dealt.batch(0), size, entropy)
    state = first
    while state.round < last_round(plan, entropy):
        state = _hidden_round(rule, state, dealt.batch(state.round), size, entropy)
    seen: dict[Adversary, Vector] = {
        "server-with-secure-aggregation": first.position * rule.unit,
        "every-model": model_of(rule, first),
    }
    shared = [Sighting(who, -model * (planned / moved), planned) for who, model in seen.items()]
    shared.append(Sighting("final-model", -model_of(rule, state), 0.0))
    own = {} if rule.laplace else _hidden_own(plan, rule, records, entropy, clients)
    return Sightings(own, tuple(shared))


def _hidden_round(rule: Rule, state: State, batch: Batch, size: int, entropy: Entropy) -> State:
    noise = draw(rule, state.round, size, entropy) if rule.noise[state.round] > 0 else np.zeros(size)
    return step(rule, state, batch, noise)


def _hidden_own(
    plan: Plan, rule: Rule, records: Records, entropy: Entropy, clients: Sequence[int]
) -> dict[int, Sighting]:
    """A client's part of the first round, by the same step: its units, with their own noise and no one else's."""
    whole, chosen = deal(plan, records, entropy).batch(0), _first_dealt(plan, records, entropy)
    found = {}
    for client in clients:
        mine = records.owner[chosen] == client
        if not mine.any():
            continue
        units = 1.0 if plan.target.unit == "client" else float(np.count_nonzero(mine))
        weights = None if whole.weights is None else whole.weights[mine]
        part = replace(
            whole,
            features=whole.features[mine],
            targets=whole.targets[mine],
            norms=whole.norms[mine],
            weights=weights,
        )
        scale = float(rule.noise[0]) * np.sqrt(float(rule.batches[0]) / units)
        alone = replace(rule, batches=np.full_like(rule.batches, units))
        noise = _drawn(entropy, client, scale, plan.dimension)
        after = step(alone, start(plan), part, noise)
        found[client] = Sighting("server", -after.position * rule.unit * (units / float(rule.steps[0])), units)
    return found


def _drawn(entropy: Entropy, client: int, scale: float, size: int) -> Vector:
    """A client's own noise in whole grid steps: words of its own address, so that no two clients share any."""
    if scale == 0:
        return np.zeros(size)
    return rounded_normal(entropy.stream(f"noise of client {client}", 0), scale, size).astype(np.float64)


def _dpsgd(plan: Plan, method: DpSgd, records: Records, entropy: Entropy, clients: Sequence[int]) -> Sightings:
    journal = Journal(keep=True)
    last = train_dpsgd(plan, records, entropy, lambda _: None, journal=journal).model
    weights, sizes = weights_of(method, records), records.sizes
    posture = [method.posture(client) for client in range(records.clients)]
    batch = [method.divisor(p, int(n)) for p, n in zip(posture, sizes, strict=True)]
    own = {
        client: Sighting(
            "server", journal.updates[client, 0] * (batch[client] / posture[client].step(0)), batch[client]
        )
        for client in clients
    }
    total = np.zeros(plan.dimension)
    for message in journal.finish():
        if message.window == 1:
            total += weights[message.client] * journal.updates[message.client, message.round]
    scale = float(np.mean([w * p.step(0) / b for w, p, b in zip(weights, posture, batch, strict=True)]))
    shared = (
        Sighting("server-with-secure-aggregation", total / scale, sum(batch)),
        Sighting("every-model", -journal.models[1] / scale, sum(batch)),
        Sighting("final-model", -last, 0.0),
    )
    return Sightings(own, shared)


def _fedavg(plan: Plan, method: FedAvg, records: Records, entropy: Entropy, clients: Sequence[int]) -> Sightings:
    local = Local(
        plan.model.loss,
        plan.constants.lipschitz,
        plan.model.l2,
        method.local_step,
        method.local_epochs,
        method.local_batch,
    )
    held, weights, sizes = Held.of(records), fedavg_weights(method, records.sizes), records.sizes
    unit, zero, asked = 2.0**plan.grid, np.zeros(plan.dimension), cohort_of(method, records.clients, entropy, 0)
    once = method.local_step * method.local_epochs
    share = method.noise_std / np.sqrt(method.cohort) / unit if method.noise == "shared" else 0.0
    own = {}
    for client in clients:
        change = trained(local, zero, held, client, entropy, 0)
        steps = clipped(change, method.update_norm, float(weights[client]), unit)
        if steps is not None:
            noised = (steps + _drawn(entropy, client, share, plan.dimension)) * unit
            rows = float(sizes[client])
            own[client] = Sighting("server", -noised * (rows / (once * float(weights[client]))), rows)
    total, _ = summed(local, zero, held, asked, weights, method.update_norm, unit, entropy, 0)
    noise = noise_of(method, plan.dimension, unit, entropy, 0)
    rows, each = float(sizes[asked].sum()), float(sizes.mean()) / once
    model = project((total + noise) * (unit * method.server_step / method.divisor(plan.data)), plan.radius)
    told = total + noise if method.noise == "shared" else total  # central noise is the server's own
    back = method.divisor(plan.data) / method.server_step
    last = train_fedavg(plan, records, entropy, lambda _: None).model
    shared = (
        Sighting("server-with-secure-aggregation", -told * (unit * each), rows),
        Sighting("every-model", -model * (back * each), rows),
        Sighting("final-model", -last, 0.0),
    )
    return Sightings(own, shared)


def _unknown(plan: Plan) -> BadValue:
    return BadValue(
        f"The leakage attack must be given a hidden, dpsgd or fedavg plan, and this one is for {plan.method.kind}: "
        "its messages are no gradients of a known round."
    )
