"""What one run of a plan costs each observer, and whether its promises hold at all; decided only here.

What is charged is a plan: of a run, or of a profile, a generator or a model's evaluation, which measure and train
nothing.
"""

import math

from fedveil.ledger.budget import Cost
from fedveil.planning.plan import Plan, read_plan, write_plan
from fedveil.planning.promises import promise
from fedveil.privacy.guarantee import Adversary, Answer
from fedveil.stages.evaluate.plan import EvaluationPlan
from fedveil.stages.measured.plan import MeasuredPlan
from fedveil.stages.prepare.alone import AlonePlan
from fedveil.stages.profile.plan import ProfilePlan
from fedveil.stages.synthesise.plan import SynthesisPlan

Chargeable = Plan | AlonePlan
_ALONE: tuple[type[AlonePlan], ...] = (ProfilePlan, EvaluationPlan, SynthesisPlan, MeasuredPlan)


def covered(plan: Chargeable) -> bool:
    """Return whether the guarantees hold for what a run of this plan releases."""
    return not plan.unprotected


def promised(plan: Chargeable, adversary: Adversary, delta: float | None = None) -> Answer:
    """Return the smallest epsilon that is proved against this observer, at the target's delta or another."""
    return promise(plan, adversary, delta) if isinstance(plan, Plan) else plan.promise(adversary, delta)


def cost_of(plan: Chargeable, adversary: Adversary) -> Cost:
    """Return the cost of one run against this observer; infinite if something leaves without noise."""
    answer, target = promised(plan, adversary), plan.target
    return Cost(
        adversary=adversary,
        unit=target.unit,
        neighbours=target.neighbours,
        epsilon=answer.epsilon if covered(plan) else math.inf,
        delta=answer.delta,
    )


def written(plan: Chargeable) -> str:
    """Return the text of a plan, whose SHA-256 names it."""
    return write_plan(plan) if isinstance(plan, Plan) else plan.text()


def rounds_of(plan: Chargeable) -> int:
    """Return how many rounds are charged; what trains nothing counts as one."""
    return plan.charged_rounds if isinstance(plan, Plan) else 1


def read_charged(text: str) -> Chargeable:
    """Return the plan, of whichever kind, that a charge holds."""
    found = next((kind.read(text) for kind in _ALONE if kind.describes(text)), None)
    return read_plan(text) if found is None else found
