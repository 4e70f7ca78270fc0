"""A plan carried out in this process and kept in memory: whoever calls this holds the data and decides what leaves."""

import numpy as np

from fedveil.account.hidden import per_round
from fedveil.data.records import Records
from fedveil.method.hidden import Hidden
from fedveil.method.parts import cohorts
from fedveil.plan import Plan
from fedveil.run.simulate import simulate
from fedveil.run.trainers import train_plan
from fedveil.train.entropy import Entropy
from fedveil.train.trained import Trained

_NUMBER = 8  # bytes


def train(plan: Plan, records: Records, entropy: Entropy) -> Trained:
    """The last model of a plan, by whichever method, and what clients sent and received."""
    if isinstance(plan.method, Hidden):
        model, state = simulate(plan, records, entropy)
        sent = messages(plan) * plan.dimension * _NUMBER
        return Trained(model=model, dropped=state.dropped, bytes_up=sent, bytes_down=sent)
    return train_plan(plan, records, entropy, lambda _: None)


def messages(plan: Plan) -> int:
    """At most so many are sent in a hidden run: a client answers once a round, for all of its units in the batch.

    By parts, clients without a unit in the batch send their share of the noise.
    """
    if plan.trust is not None:
        return sum(cohorts(plan.method, plan.data, plan.target))
    return int(np.minimum(per_round(plan.run.batch, plan.run), plan.data.clients).sum())
