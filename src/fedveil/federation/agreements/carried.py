"""The plans that sites carry out together: of training, of a generator, or of any stage of noisy sums."""

from fedveil.planning.plan import Plan
from fedveil.stages.measured.plan import MeasuredPlan
from fedveil.stages.synthesise.plan import SynthesisPlan

Carried = Plan | SynthesisPlan | MeasuredPlan


def seeded(plan: Carried) -> bool:
    """Return whether a public seed decides the noise; that of a generator is always secret."""
    return isinstance(plan, Plan) and plan.seeded


def private(plan: Carried) -> bool:
    """Return whether secret noise covers everything that leaves the clients, as it always does for a generator."""
    return plan.private if isinstance(plan, Plan) else True
