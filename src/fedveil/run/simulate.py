"""A plan executed in this process: clients and server are simulated, and only the caller sees the last model."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fedveil.checks import require
from fedveil.data.records import Records
from fedveil.plan import Plan
from fedveil.train.deal import deal
from fedveil.train.entropy import Entropy
from fedveil.train.hidden import Rule, State, draw, last_round, model_of, start, step

Vector = NDArray[np.float64]
Watcher = Callable[[State], None]


def simulate(
    plan: Plan,
    records: Records,
    entropy: Entropy,
    *,
    resume: State | None = None,
    watch: Watcher | None = None,
) -> tuple[Vector, State]:
    """The last model and the state it came from.

    ``resume`` continues from a state of the same plan and key: the noise of a round depends on the key and the round
    alone, so what was lost is computed again to the same bytes and no round's noise is ever drawn anew. ``watch`` is
    called after every round; it may keep the state only where nobody else can read it.
    """
    require(records.shape == plan.data, "The data", f"have the plan's shape, {plan.data}", records.shape)
    rule, dealt = Rule.of(plan), deal(plan, records, entropy)
    state = start(plan) if resume is None else resume
    end = last_round(plan, entropy)
    while state.round < end:
        noise = draw(rule, state.round, plan.dimension, entropy)
        state = step(rule, state, dealt.batch(state.round), noise)
        if watch is not None:
            watch(state)
    return model_of(rule, state), state
