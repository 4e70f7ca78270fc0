"""Federated averaging with shared noise: a client's clipped update in whole grid steps, and the server's step."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from fedveil.algorithms.fedavg.method import FedAvg
from fedveil.algorithms.fedavg.steps import Held, Local, clipped, cohort_of, method_of, trained, weights_of
from fedveil.algorithms.noise_shares import share_deviation
from fedveil.algorithms.projection import project
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
class State:
    """The model and the server's velocity after ``round`` rounds."""

    round: int
    model: Vector
    speed: Vector


@dataclass(frozen=True, slots=True, eq=False)
class Rule:
    """What every round needs, computed once from the plan; ``share``: grid steps of one client's noise."""

    method: FedAvg
    local: Local
    unit: float
    divisor: float
    radius: float
    share: float
    least: int

    @classmethod
    def of(cls, plan: Plan) -> Rule:
        """Return the rule that a plan states."""
        method, trust, unit = method_of(plan), plan.trust, 2.0**plan.grid
        cohort = int(method.cohort)
        deviation = share_deviation(method.noise_std, trust, cohort) / unit
        return cls(method, Local.of(plan), unit, method.divisor(plan.data), plan.radius, deviation, trust.least(cohort))


def contribution(
    rule: Rule, turn: int, model: Vector, held: Held, client: int, weight: float, entropy: Entropy
) -> Whole | None:
    """Return a client's update, clipped, weighted and cut to whole grid steps; its norm is checked in exact integers.

    An update that is not finite counts as zero, and is sent with its noise like any other, because silence would tell
    the server about the client's records. None: the result exceeds its bound, so it was not computed as planned.
    """
    change = trained(rule.local, model, held, client, entropy, turn) - model
    steps = clipped(change, rule.method.update_norm, weight, rule.unit)
    limit = Fraction(weight) * Fraction(rule.method.update_norm) / Fraction(rule.unit)
    return bounded(np.zeros(model.size) if steps is None else steps, limit)


def advance(rule: Rule, state: State, total: Whole) -> State:
    """Return the state after the server's part of a round: its velocity, its step, the projection."""
    method = rule.method
    speed = method.momentum * state.speed + total.astype(np.float64) * (rule.unit / rule.divisor)
    return State(state.round + 1, project(state.model + method.server_step * speed, rule.radius), speed)


def train_shares(plan: Plan, records: Records, entropy: Entropy, tick: Tick, add_up: Summing, fails: Fails) -> Trained:
    """Train with shared noise and return the model after the last round."""
    require(records.shape == plan.data, "The data", f"have the plan's shape, {plan.data}", records.shape)
    rule, held = Rule.of(plan), Held.of(records)
    weights = weights_of(rule.method, records.sizes)
    state = State(0, np.zeros(plan.dimension), np.zeros(plan.dimension))
    while state.round < rule.method.rounds:
        turn, model = state.round, state.model

        def answer(client: int, turn: int = turn, model: Vector = model) -> Whole | None:
            part = contribution(rule, turn, model, held, client, float(weights[client]), entropy)
            return message(part, share(entropy, client, turn, rule.share, model.size))

        cohort = cohort_of(rule.method, plan.data.clients, entropy, turn).tolist()
        state = advance(rule, state, gathered(turn, cohort, answer, add_up, rule.least, fails).total)
        tick(state.round)
    sent = round(rule.method.rounds * rule.method.cohort) * plan.dimension * 8
    return Trained(model=state.model, bytes_up=sent, bytes_down=sent)
