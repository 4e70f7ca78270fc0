"""What a plan promises to each observer: the accountants applied to the plan, including the cost of the grid."""

from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import get_args

from fedveil.account.evaluator import Evaluator, bound_of, least_of
from fedveil.account.grid import Grid, delta_on_grid, on_grid
from fedveil.guarantee import Adversary, Answer
from fedveil.plan import Plan

ADVERSARIES: tuple[Adversary, ...] = get_args(Adversary)


def grid_of(plan: Plan, adversary: Adversary = "final-model") -> Grid:
    """Return the grid's bound on how far a run may differ from the ideal one, in units of noise unknown to the
    observer.
    know.
    """
    return plan.method.grid(plan.grid, adversary, plan.data, plan.model, plan.target, plan.trust)


def ideal(plan: Plan, adversary: Adversary, delta: float) -> Answer:
    """Return the smallest epsilon that is proved against this observer for ideal, real-valued noise."""
    return plan.method.answer(adversary, plan.data, plan.target, delta, plan.trust)


def hidden_views(plan: Plan, adversary: Adversary) -> Sequence[Evaluator]:
    """Return all bounds on what this observer learns from a hidden run, for ideal noise."""
    return plan.hidden.views(adversary, plan.data, plan.target, plan.trust)


@lru_cache(maxsize=64)
def promise(plan: Plan, adversary: Adversary, delta: float | None = None) -> Answer:
    """Return the smallest epsilon that is proved against this observer, at the target's delta or another."""
    delta = plan.target.delta if delta is None else delta
    return on_grid(grid_of(plan, adversary), lambda inner: ideal(plan, adversary, inner), delta)


def promised_delta(plan: Plan, adversary: Adversary, epsilon: float) -> float:
    """Return the smallest delta proved for a hidden run at this epsilon.

    It is several times cheaper than searching for it with :func:`promise`.
    """
    return promise_at(plan, adversary, epsilon).delta


def promise_at(plan: Plan, adversary: Adversary, epsilon: float, among: Collection[str] = ()) -> Answer:
    """Return what is proved of a hidden run at this epsilon.

    ``among``: names of the only bounds to compute, to save time. Each bound holds alone, so delta can only be larger.
    """
    seen = [view for view in hidden_views(plan, adversary) if not among or view.name in among]

    def ideal_at(inner: float) -> Answer:
        return least_of([bound_of(view, None, inner) for view in seen], None, inner)

    return delta_on_grid(grid_of(plan, adversary), ideal_at, epsilon)
