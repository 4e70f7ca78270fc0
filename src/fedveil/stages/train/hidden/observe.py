"""Hidden training as attacks see it: what each observer reads of the first round, made by the real training code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fedveil.core.values import Indices, Vector
from fedveil.data.records import Records
from fedveil.noise.entropy import Entropy
from fedveil.privacy.guarantee import Adversary
from fedveil.stages.train.base import Method, Training
from fedveil.stages.train.draws import Draws
from fedveil.stages.train.hidden.answering import batches_of
from fedveil.stages.train.hidden.deal import LABEL, Batch, drawn_order
from fedveil.stages.train.hidden.method import hidden_of
from fedveil.stages.train.hidden.steps import Rule, State, draw, last_round, model_of, start, step
from fedveil.stages.train.observation import AttackView, DrawnRounds, Observation, Observations, noise_of_client


def _with_noise(plan: Training, factor: float) -> Method:
    """Multiply the noise; a plan always has some, so a factor of 0 is applied when the run is observed."""
    run = hidden_of(plan).run
    noise = np.multiply(run.noise_std, factor or 1.0)
    std = tuple(noise.tolist()) if noise.ndim else float(noise)
    return replace(hidden_of(plan), run=replace(run, noise_std=std))


def _first_round(plan: Training, records: Records, entropy: Entropy) -> Indices:
    return np.sort(_first_dealt(plan, records, entropy))


def _first_dealt(plan: Training, records: Records, entropy: Entropy) -> Indices:
    """Return which records are dealt into round one, by dealing records that hold only their number."""
    count = len(records)
    numbered = replace(records, features=np.arange(count, dtype=np.float64)[:, None] / count, bound=1.0)
    batch = batches_of(plan, numbered, entropy).batch(0)
    return np.rint(batch.features[:, 0] * count).astype(np.int64)


def _observe(
    plan: Training, records: Records, entropy: Entropy, clients: Sequence[int], noiseless: bool
) -> Observations:
    rule, dealt = Rule.of(plan), batches_of(plan, records, entropy)
    if noiseless:
        rule = replace(rule, noise=np.zeros_like(rule.noise))
    planned, size, moved = float(rule.batches[0]), plan.dimension, float(rule.steps[0])
    state = start(plan)
    first = _round(rule, state, dealt.batch(0), size, entropy)
    state = first
    while state.round < last_round(plan, entropy):
        state = _round(rule, state, dealt.batch(state.round), size, entropy)
    seen: dict[Adversary, Vector] = {
        "server-with-secure-aggregation": first.position * rule.unit,
        "every-model": model_of(rule, first),
    }
    shared = [Observation(who, -model * (planned / moved), planned) for who, model in seen.items()]
    shared.append(Observation("final-model", -model_of(rule, state), 0.0))
    own = {} if rule.laplace else _own(plan, rule, records, entropy, clients)
    return Observations(own, tuple(shared))


def _round(rule: Rule, state: State, batch: Batch, size: int, entropy: Entropy) -> State:
    noise = draw(rule, state.round, size, entropy) if rule.noise[state.round] > 0 else np.zeros(size)
    return step(rule, state, batch, noise)


def _own(
    plan: Training, rule: Rule, records: Records, entropy: Entropy, clients: Sequence[int]
) -> dict[int, Observation]:
    """Return a client's part of the first round, by the same step: its units with only their own noise."""
    whole, chosen = batches_of(plan, records, entropy).batch(0), _first_dealt(plan, records, entropy)
    result = {}
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
        scale = float(rule.noise[0]) * np.sqrt(_own_part(plan, units)) * float(rule.batches[0]) / units
        alone = replace(rule, batches=np.full_like(rule.batches, units))
        noise = noise_of_client(entropy, client, scale, plan.dimension)
        after = step(alone, start(plan), part, noise)
        result[client] = Observation("server", -after.position * rule.unit * (units / float(rule.steps[0])), units)
    return result


def _own_part(plan: Training, units: float) -> float:
    """Return the part of the first round's noise variance that a client with so many units in it draws by itself."""
    method = hidden_of(plan)
    batch = int(np.ravel(method.run.batch)[0])
    if not plan.trust.shared:
        return units / batch
    return 1 / plan.trust.charged(method.cohorts(plan.setup)[0], batch, 1)[0]


def _drawn(plan: Training, entropy: Entropy) -> DrawnRounds | None:
    """Return the draws of one client that holds all units: each unit's draws have the same law, whoever holds it."""
    if not hidden_of(plan).run.sampled:
        return None
    draws = Draws(drawn_order(hidden_of(plan).run), {0: plan.units}, entropy, LABEL)
    return DrawnRounds(plan.units, hidden_of(plan).run.rounds, hidden_of(plan).run.rate, draws.joined)


ATTACK_VIEW = AttackView(with_noise=_with_noise, observe=_observe, first_round=_first_round, drawn=_drawn)
