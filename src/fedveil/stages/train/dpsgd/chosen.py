"""DP-SGD whose next segment is chosen by a rule, all clients in step; the budget is asked before every segment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np

from fedveil.core.checks import require
from fedveil.core.errors import BadValue
from fedveil.core.values import Vector
from fedveil.data.records import Records
from fedveil.noise.entropy import Entropy
from fedveil.stages.adding import enough
from fedveil.stages.train.acting import Session
from fedveil.stages.train.choosing import Choice, Purse, plateau
from fedveil.stages.train.dpsgd.answering import contribution, unit_of
from fedveil.stages.train.dpsgd.client import Client
from fedveil.stages.train.dpsgd.method import DpSgd
from fedveil.stages.train.dpsgd.segments import costs_of_segments
from fedveil.stages.train.dpsgd.steps import clients_of, dpsgd_of, released, weights_of
from fedveil.stages.train.projection import project
from fedveil.stages.train.stage import Training
from fedveil.stages.train.trained import Trained

Rule = Callable[[Choice, Sequence[int], Sequence[float], Purse], int | None]


def train_chosen(plan: Training, records: Records, entropy: Entropy, session: Session, rule: Rule = plateau) -> Trained:
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
    return replace(method, client_settings=parts, choice=None)


def _round(
    plan: Training, clients: Sequence[Client], weights: Sequence[float], model: Vector, turn: int, session: Session
) -> Vector:
    unit, turns, least = unit_of(plan), range(turn, turn + 1), plan.trust.least(len(clients))
    parts = {
        client.index: contribution(client, model, turn, turns, weights[client.index], unit, len(clients))
        for client in clients
        if not session.fails(turn, client.index)
    }
    enough(turn, len(parts), least)
    found = session.add_up(turn, parts)
    enough(turn, len(found.survivors), least)
    return project(model - found.total.astype(np.float64) * unit, plan.radius)
