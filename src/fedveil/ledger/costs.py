"""What one run of a plan costs each observer, and whether its promises hold at all; decided only here."""

import math

from fedveil.guarantee import Adversary
from fedveil.ledger.budget import Cost
from fedveil.plan import Plan
from fedveil.promises import promise


def covered(plan: Plan) -> bool:
    """Return whether the guarantees hold for what a run of this plan releases."""
    return not plan.unprotected


def cost_of(plan: Plan, adversary: Adversary) -> Cost:
    """Return the cost of one run against this observer; infinite if something leaves without noise."""
    answer, target = promise(plan, adversary), plan.target
    return Cost(
        adversary=adversary,
        unit=target.unit,
        neighbours=target.neighbours,
        epsilon=answer.epsilon if covered(plan) else math.inf,
        delta=answer.delta,
    )
