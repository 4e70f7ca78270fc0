"""DP-SGD whose next segment is chosen by a rule, all clients in step; the budget is asked before every segment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from fedveil.algorithms.acting import Session
from fedveil.algorithms.choosing import Choice, Purse, plateau
from fedveil.algorithms.dpsgd.client import Client
from fedveil.algorithms.dpsgd.method import DpSgd
from fedveil.algorithms.dpsgd.segments import costs_of_segments
from fedveil.algorithms.dpsgd.shares import advance, contribution, unit_of
from fedveil.algorithms.dpsgd.steps import clients_of, dpsgd_of, released, weights_of
from fedveil.algorithms.shares import gathered
from fedveil.algorithms.trained import Trained
from fedveil.checks import require
from fedveil.data.records import Records
from fedveil.errors import BadValue
from fedveil.noise.entropy import Entropy
from fedveil.sums.seam import Whole
from fedveil.values import Vector

if TYPE_CHECKING:
    from fedveil.plan import Plan

Rule = Callable[[Choice, Sequence[int], Sequence[float], Purse], int | None]


def train_chosen(plan: Plan, records: Records, entropy: Entropy, session: Session, rule: Rule = plateau) -> Trained:
    """Train segment by segment, as the rule chooses, until it ends the run or nothing is affordable.

    A segment that would overspend is refused before any of its rounds uses a record, whatever the rule.
    """
    method, public = dpsgd_of(plan), session.public_loss
    choice = method.choice
    if choice is None or public is None:
        raise BadValue("algorithm.choose must go with held-out records that are public (data.held_out.public = true).")
    require(records.shape == plan.data, "The records", f"have the plan's shape, {plan.data}", records.shape)
    clients, weights = list[Client](), weights_of(method, records)
    purse = Purse(costs=costs_of_segments(method), left=Fraction(choice.budget))
    model, chosen, done = np.zeros(plan.dimension), list[int](), 0
    average, losses = model, [public(model)]
    while (found := rule(choice, tuple(chosen), tuple(losses), purse)) is not None:
        purse = purse.after(found)
        chosen.append(found)
        so_far = _run_so_far(method, chosen)
        clients = clients or clients_of(plan, so_far, records, entropy)
        for client in clients:
            client.method = so_far
        for turn in range(done, done + method.client_settings[found].rounds):
            model = _round(plan, clients, weights, model, turn, session)
            average = released(method, average, model, turn + 1)
            session.tick(turn + 1)
        done += method.client_settings[found].rounds
        losses.append(public(average))
    size = 8 * plan.dimension * done * records.clients
    return Trained(
        model=average,
        dropped=sum(client.dropped for client in clients),
        bytes_up=size,
        bytes_down=size,
        chosen=tuple(chosen),
    )


def _run_so_far(method: DpSgd, chosen: Sequence[int]) -> DpSgd:
    """The method with the chosen segments, in the order in which they were chosen, as if they had been planned."""
    parts = tuple(method.client_settings[index] for index in chosen)
    return replace(method, client_settings=parts, choose=None, choose_gain=None, choose_budget=None)


def _round(
    plan: Plan, clients: Sequence[Client], weights: Sequence[float], model: Vector, turn: int, session: Session
) -> Vector:
    unit, cohort = unit_of(plan), [client.index for client in clients]

    def answer(index: int) -> Whole:
        turns = range(turn, turn + 1)
        return contribution(clients[index], model, turn, turns, weights[index], unit, len(clients))

    least = plan.trust.least(len(cohort))
    found = gathered(turn, cohort, answer, session.add_up, least, session.fails)
    return advance(model, found.total, unit, plan.radius)
