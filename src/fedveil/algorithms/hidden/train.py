"""Hidden training in this process: clients and server are simulated, and only the caller sees the last model."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from fedveil.account.hidden import per_round
from fedveil.algorithms.acting import Session
from fedveil.algorithms.hidden.deal import Dealt, deal
from fedveil.algorithms.hidden.drawn import Drawn
from fedveil.algorithms.hidden.shares import advance, contribution, laid_out, share_steps
from fedveil.algorithms.hidden.steps import Rule, State, draw, last_round, model_of, start, step
from fedveil.algorithms.shares import gathered, message, share
from fedveil.algorithms.trained import Trained
from fedveil.checks import require
from fedveil.data.records import Records
from fedveil.noise.entropy import Entropy
from fedveil.sums.seam import Whole

if TYPE_CHECKING:
    from fedveil.plan import Plan

_NUMBER = 8  # bytes


def train(plan: Plan, records: Records, entropy: Entropy, session: Session) -> Trained:
    """Train where one party draws the noise: a round is the sum of all clients, and the sum of their noise, at once."""
    rule, dealt = Rule.of(plan), batches_of(plan, records, entropy)

    def one(state: State) -> State:
        noise = draw(rule, state.round, plan.dimension, entropy)
        return step(rule, state, dealt.batch(state.round), noise)

    return _rounds(plan, rule, records, entropy, session, one)


def train_shares(plan: Plan, records: Records, entropy: Entropy, session: Session) -> Trained:
    """Train as clients and server do: each client sends its part with its share of noise."""
    rule, laid = Rule.of(plan), laid_out(plan, records, entropy)

    def one(state: State) -> State:
        turn, model = state.round, model_of(rule, state)
        cohort = laid.cohort(turn)
        steps = share_steps(plan, turn, len(cohort))

        def answer(client: int) -> Whole | None:
            part = contribution(rule, turn, model, laid.part(turn, client))
            return message(part, share(entropy, client, turn, steps, model.size))

        least = plan.trust.least(len(cohort))
        found = gathered(turn, cohort, answer, session.add_up, least, session.fails)
        return advance(rule, state, found.total)

    return _rounds(plan, rule, records, entropy, session, one)


def _rounds(
    plan: Plan, rule: Rule, records: Records, entropy: Entropy, session: Session, one: Callable[[State], State]
) -> Trained:
    """Return the last model and the state it came from.

    The noise of a round depends on the key and the round alone, so what was lost is computed again to the same bytes
    and no round's noise is ever drawn anew.
    """
    require(records.shape == plan.data, "The data", f"have the plan's shape, {plan.data}", records.shape)
    state = start(plan) if session.begun is None else session.begun
    end = last_round(plan, entropy)
    while state.round < end:
        state = one(state)
        session.watch(state)
    sent = _messages(plan) * plan.dimension * _NUMBER
    return Trained(model=model_of(rule, state), state=state, dropped=state.dropped, bytes_up=sent, bytes_down=sent)


def batches_of(plan: Plan, records: Records, entropy: Entropy) -> Dealt | Drawn:
    """Return the batch of every round: dealt before the first one, or drawn by each unit."""
    if plan.run.sampled:
        return Drawn(plan, records, range(records.clients), entropy)
    return deal(plan, records, entropy)


def _messages(plan: Plan) -> int:
    """At most so many are sent: a client answers once a round, for all of its units in the batch.

    In shares, clients without a unit in the batch send their noise too; and nobody says who drew which round.
    """
    if plan.trust.all_send or plan.run.sampled:
        return sum(plan.method.cohorts(plan.setup))
    return int(np.minimum(per_round(plan.run.batch, plan.run), plan.data.clients).sum())
