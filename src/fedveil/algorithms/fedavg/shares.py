"""Federated averaging with shared noise: a client's clipped update in whole grid steps, and the server's step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from fedveil.algorithms.fedavg.drawing import cohorts_of, senders_of
from fedveil.algorithms.fedavg.local import Held, Local, trained
from fedveil.algorithms.fedavg.method import FedAvg
from fedveil.algorithms.fedavg.resending import Resending, nothing_past, taken_off
from fedveil.algorithms.fedavg.segments import segments_of
from fedveil.algorithms.fedavg.steps import State, advanced, method_of, sent_steps, weights_of
from fedveil.algorithms.noise_shares import share_deviation
from fedveil.algorithms.shares import Fails, bounded, gathered, message, share
from fedveil.algorithms.trained import Tick, Trained
from fedveil.checks import require
from fedveil.data.records import Records
from fedveil.noise.entropy import Entropy
from fedveil.sums.seam import Summing, Whole
from fedveil.values import Vector

if TYPE_CHECKING:
    from fedveil.plan import Plan


@dataclass(frozen=True, slots=True, eq=False)
class Rule:
    """What a round needs, computed once for each segment of the plan; ``share``: grid steps of a client's noise."""

    method: FedAvg
    local: Local
    unit: float
    divisor: float
    radius: float
    share: float
    least: int

    @classmethod
    def of(cls, plan: Plan) -> Rule:
        """Return the rule that a plan states for its first segment."""
        return cls._of(plan, method_of(plan).at(0))

    @classmethod
    def each(cls, plan: Plan) -> Callable[[int], Rule]:
        """Return the rule of each round, counted from 0."""
        method = method_of(plan)
        found = {part: cls._of(plan, part) for part in segments_of(method).parts}
        return lambda turn: found[method.at(turn)]

    @classmethod
    def _of(cls, plan: Plan, method: FedAvg) -> Rule:
        trust, unit = plan.trust, 2.0**plan.grid
        cohort = method.senders(plan.data.clients)
        deviation = share_deviation(method.noise_std, trust, cohort) / unit
        return cls(method, Local.of(plan), unit, method.divisor(plan.data), plan.radius, deviation, trust.least(cohort))


def nothing(rule: Rule, model: Vector) -> Whole:
    """Return what a client contributes that did not draw the round: it sends its noise alone."""
    return np.zeros(model.size + rule.method.extra_sums, dtype=np.int64)


def contribution(
    rule: Rule, turn: int, model: Vector, clip: float, held: Held, client: int, weight: float, entropy: Entropy
) -> Whole | None:
    """Return a client's update, clipped, weighted and cut to whole grid steps; its norm is checked in exact integers.

    An update that is not finite counts as zero, and is sent with its noise like any other, because silence would tell
    the server about the client's records. None: the result exceeds its bound, so it was not computed as planned.
    """
    change, method = trained(rule.local, model, held, client, entropy, turn) - model, rule.method
    clip = clip if method.adaptive is not None else method.update_norm
    steps = sent_steps(method, change, clip, weight, rule.unit)
    return bounded(np.zeros(model.size + method.extra_sums) if steps is None else steps, limit_of(rule, weight))


def limit_of(rule: Rule, weight: float) -> Fraction:
    """Return the bound on what a client of this weight contributes, in grid steps."""
    return Fraction(weight) * Fraction(rule.method.scale) / Fraction(rule.unit)


def resending_of(method: FedAvg, clients: int) -> Resending | None:
    """Return an empty memory of updates that are sent again; None where no update is."""
    return Resending.begin(method.correlated, clients) if method.streams and method.correlated is not None else None


def sent_again(
    rule: Rule, resending: Resending | None, turn: int, client: int, weight: float, part: Whole | None, new: bool
) -> Whole | None:
    """Return what a client sends besides its noise: ``part``, or with correlated noise its last update, weighted.

    ``new``: the part is an update of this round, to be kept for the rounds to come.
    """
    if resending is None or part is None:
        return part
    if new:
        resending.keep(turn, client, part)
    return resending.due(turn, client, part.size, limit_of(rule, weight))


def advance(rule: Rule, state: State, total: Whole) -> State:
    """Return the state after the server's part of a round."""
    past = nothing_past(rule.method, total.size) if state.past is None else state.past
    own, past = taken_off(rule.method, past, total)
    found = advanced(rule.method, state, own * (rule.unit / rule.divisor), state.clip, rule.radius)
    return replace(found, past=past)


def train_shares(plan: Plan, records: Records, entropy: Entropy, tick: Tick, add_up: Summing, fails: Fails) -> Trained:
    """Train with shared noise and return the model after the last round."""
    require(records.shape == plan.data, "The data", f"have the plan's shape, {plan.data}", records.shape)
    method, rules, held, clients = method_of(plan), Rule.each(plan), Held.of(records), plan.data.clients
    weights, joined = weights_of(method, records.sizes), cohorts_of(method, clients, entropy)
    state, resending = State.begin(plan, method), resending_of(method, clients)
    while state.round < method.rounds:
        turn, rule = state.round, rules(state.round)
        active = set(joined(turn).tolist())

        def answer(
            client: int, turn: int = turn, now: State = state, rule: Rule = rule, active: set[int] = active
        ) -> Whole | None:
            part: Whole | None = nothing(rule, now.model)
            if client in active:
                part = contribution(rule, turn, now.model, now.clip, held, client, float(weights[client]), entropy)
            part = sent_again(rule, resending, turn, client, float(weights[client]), part, client in active)
            return message(part, share(entropy, client, turn, rule.share, plan.sum_length))

        cohort = senders_of(method, clients, entropy, turn).tolist()
        state = advance(rule, state, gathered(turn, cohort, answer, add_up, rule.least, fails).total)
        tick(state.round)
    sent = method.traffic(plan.setup, together=False)[0] * plan.sum_length * 8
    return Trained(model=state.model, bytes_up=sent, bytes_down=sent)
