"""What a plan promises to each observer: the accountants applied to the plan, including the cost of the grid."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import get_args

from fedveil.account.evaluator import Evaluator, bound_of, least_of, withdrawn
from fedveil.account.grid import Grid, delta_on_grid, on_grid
from fedveil.guarantee import Adversary, Answer
from fedveil.mechanism import Gaussian
from fedveil.plan import Plan

ADVERSARIES: tuple[Adversary, ...] = get_args(Adversary)
_ALL_KNOWN = "it knows all of the preparation's noise, or there is no other client"


def grid_of(plan: Plan, adversary: Adversary = "final-model") -> Grid:
    """Return how far the run on its grid may differ from the ideal one, in units of noise unknown to the observer."""
    found = plan.method.grid(plan.grid, adversary, plan.data, plan.model, plan.target, plan.trust)
    if plan.preparation is None:
        return found
    # Contributions to the preparation are whole numbers of steps, so nothing is displaced: docs/theory/preparation.md.
    variation = found.total_variation + plan.preparation.total_variation(plan.data, plan.trust)
    mishap = found.mishap + plan.preparation.mishap(adversary, plan.trust)
    return replace(found, total_variation=min(1.0, variation), mishap=min(1.0, mishap))


def ideal(plan: Plan, adversary: Adversary, delta: float) -> Answer:
    """Return the smallest epsilon that is proved against this observer for ideal, real-valued noise."""
    if plan.preparation is None:
        return plan.method.answer(adversary, plan.data, plan.target, delta, plan.trust)
    beside = heard(plan, adversary)
    if beside is None:
        return least_of([bound_of(withdrawn("loss-distribution", _ALL_KNOWN), delta, None)], delta, None)
    return plan.method.answer(adversary, plan.data, plan.target, delta, plan.trust, beside)


def heard(plan: Plan, adversary: Adversary) -> Gaussian | None:
    """What this observer hears of the preparation; None where there is none, or where it knows all of the noise."""
    if plan.preparation is None:
        return None
    return plan.preparation.heard(adversary, plan.data, plan.target, plan.trust)


def hidden_views(plan: Plan, adversary: Adversary) -> Sequence[Evaluator]:
    """Every bound on what this observer learns from a hidden run (and its preparation), with ideal noise."""
    beside = heard(plan, adversary)
    if plan.preparation is not None and beside is None:
        return [withdrawn("loss-distribution", _ALL_KNOWN)]
    return plan.hidden.views(adversary, plan.data, plan.target, plan.trust, beside)


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
