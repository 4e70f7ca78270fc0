"""What a plan promises to each observer: the accountants applied to the plan, the grid's share included."""

from functools import lru_cache
from typing import get_args

from fedveil.account.grid import Grid, on_grid
from fedveil.guarantee import Adversary, Answer
from fedveil.plan import Plan

ADVERSARIES: tuple[Adversary, ...] = get_args(Adversary)


def grid_of(plan: Plan, adversary: Adversary = "final-model") -> Grid:
    """How far the run on the grid may stray from the ideal one, in units of the noise this observer does not know."""
    return plan.method.grid(plan.grid, adversary, plan.data, plan.model, plan.target)


@lru_cache(maxsize=64)
def promise(plan: Plan, adversary: Adversary, delta: float | None = None) -> Answer:
    """The smallest epsilon that is proved against this observer, at the target's delta or another."""
    delta = plan.target.delta if delta is None else delta
    return on_grid(
        grid_of(plan, adversary), lambda inner: plan.method.answer(adversary, plan.data, plan.target, inner), delta
    )
