"""The plans that sites carry out together: one of training, or one of a generator, which trains nothing."""

from fedveil.plan import Plan
from fedveil.prepare.synthesis.plan import SynthesisPlan

Carried = Plan | SynthesisPlan


def seeded(plan: Carried) -> bool:
    """Return whether a public seed decides the noise; that of a generator is always secret."""
    return isinstance(plan, Plan) and plan.seeded


def private(plan: Carried) -> bool:
    """Return whether secret noise covers everything that leaves the clients, as it always does for a generator."""
    return plan.private if isinstance(plan, Plan) else True
