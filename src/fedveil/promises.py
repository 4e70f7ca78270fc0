"""What a plan promises to each observer: the accountants applied to the plan, the grid's share included."""

import math
from dataclasses import replace
from functools import lru_cache
from typing import get_args

import numpy as np

from fedveil.account.grid import Grid, on_grid
from fedveil.account.hidden import lipschitz_of_step, per_round
from fedveil.account.observers import observe
from fedveil.guarantee import Adversary, Answer
from fedveil.model.rounding import rounding_bound
from fedveil.plan import Plan
from fedveil.theory.numerics import Vector

ADVERSARIES: tuple[Adversary, ...] = get_args(Adversary)
_UNIT = 2.0**-53
_STEP_ROUNDINGS = 40  # the projection (its norm is summed pairwise: train/hidden.py), scaling, stepping


def grid_of(plan: Plan, adversary: Adversary = "final-model") -> Grid:
    """How far the run on the grid may stray from the ideal one, in units of the noise this observer does not know."""
    run = plan.run
    step = per_round(run.step_size, run)
    grid = Grid.of(
        exponent=plan.grid,
        dimension=plan.dimension,
        noise=noise_of(plan),
        lipschitz=lipschitz_of_step(run, step),
        errors=_float_errors(plan, step),
        law=run.noise,
    )
    if adversary in ("final-model", "every-model"):
        return grid
    # The others know part of a round's noise; some unit's share is left, or no guarantee is given at all.
    left = 1 / float(per_round(run.batch, run).max())
    return replace(grid, distance=grid.distance / math.sqrt(left))


def noise_of(plan: Plan) -> Vector:
    """The noise of every round: standard deviation per coordinate, or Laplace scale."""
    run = plan.run
    step, batch, std = (per_round(v, run) for v in (run.step_size, run.batch, run.noise_std))
    return np.asarray(step * std / (1.0 if run.noise == "laplace" else np.sqrt(batch)), dtype=np.float64)


def _float_errors(plan: Plan, step: Vector) -> Vector:
    """How far a step computed in floats is from the exact one: the gradient's rounding, and the step's own."""
    run, data = plan.run, plan.data
    loss, raw = plan.model.loss, plan.model.loss.constants(data.bound, plan.model.clip)
    most = int(per_round(run.batch, run).max()) * (data.largest_client if plan.target.unit == "client" else 1)
    gradient = rounding_bound(
        rows=most,
        features=data.features,
        lipschitz=raw.lipschitz,
        smoothness=raw.smoothness,
        radius=plan.radius,
        outputs=loss.outputs,
    )
    size = plan.radius * (1 + step * plan.model.l2) + step * raw.lipschitz
    return np.asarray(step * gradient + _STEP_ROUNDINGS * _UNIT * size, dtype=np.float64)


@lru_cache(maxsize=64)
def promise(plan: Plan, adversary: Adversary, delta: float | None = None) -> Answer:
    """The smallest epsilon that is proved against this observer, at the target's delta or another."""
    delta = plan.target.delta if delta is None else delta
    grid = grid_of(plan, adversary)
    return on_grid(grid, lambda inner: observe(plan.run, adversary, plan.participation, delta=inner), delta)
