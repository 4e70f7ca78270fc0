"""A plan executed in this process: clients and server are simulated, and only the caller sees the last model."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fedveil.checks import require
from fedveil.data.records import Records
from fedveil.plan import Plan
from fedveil.run.summing import summing_of
from fedveil.summing import Summing, Whole
from fedveil.train.deal import deal
from fedveil.train.entropy import Entropy
from fedveil.train.hidden import Rule, State, draw, last_round, model_of, start, step
from fedveil.train.hidden_parts import advance, contribution, laid_out, share_steps
from fedveil.train.parts import Fails, gathered, message, nobody_fails, share
from fedveil.trust import Trust

Vector = NDArray[np.float64]
Watcher = Callable[[State], None]


def simulate(
    plan: Plan,
    records: Records,
    entropy: Entropy,
    *,
    resume: State | None = None,
    watch: Watcher | None = None,
    add_up: Summing | None = None,
    fails: Fails = nobody_fails,
) -> tuple[Vector, State]:
    """The last model and the state it came from.

    ``resume`` continues from a state of the same plan and key: the noise of a round depends on the key and the round
    alone, so what was lost is computed again to the same bytes and no round's noise is ever drawn anew. ``watch`` is
    called after every round; it may keep the state only where nobody else can read it. ``add_up`` and ``fails`` are for
    plans by parts: what adds up a round (None: as the plan's trust says), and who fails to answer.
    """
    require(records.shape == plan.data, "The data", f"have the plan's shape, {plan.data}", records.shape)
    rule = Rule.of(plan)
    if plan.trust is None:
        one = _whole(plan, rule, records, entropy)
    else:
        add_up = summing_of(plan, entropy) if add_up is None else add_up
        one = _by_parts(plan, plan.trust, rule, records, entropy, add_up, fails)
    state = start(plan) if resume is None else resume
    end = last_round(plan, entropy)
    while state.round < end:
        state = one(state)
        if watch is not None:
            watch(state)
    return model_of(rule, state), state


def _whole(plan: Plan, rule: Rule, records: Records, entropy: Entropy) -> Callable[[State], State]:
    """A round in one piece: the sum of all clients, and the sum of their noise drawn at once."""
    dealt = deal(plan, records, entropy)

    def one(state: State) -> State:
        noise = draw(rule, state.round, plan.dimension, entropy)
        return step(rule, state, dealt.batch(state.round), noise)

    return one


def _by_parts(
    plan: Plan, trust: Trust, rule: Rule, records: Records, entropy: Entropy, add_up: Summing, fails: Fails
) -> Callable[[State], State]:
    """A round as clients and server run it: every client sends its own part with its own share of the noise."""
    laid = laid_out(plan, records, entropy)

    def one(state: State) -> State:
        turn, model = state.round, model_of(rule, state)
        cohort = laid.cohort(turn)
        steps = share_steps(plan, turn, len(cohort))

        def answer(client: int) -> Whole | None:
            part = contribution(rule, turn, model, laid.part(turn, client))
            return message(part, share(entropy, client, turn, steps, model.size))

        found = gathered(turn, cohort, answer, add_up, trust.least(len(cohort)), fails)
        return advance(rule, state, found.total)

    return one
