r"""Runs that stop at a uniformly random round: their worth on average, and the noise they are likely to need.

What is released is the model after a random number of rounds, so its expected risk is the mean over the stops. For
the bounds it is the same: delta is the mean over the stops. Theory page: schedules.md.
"""

import math

import numpy as np
from scipy.optimize import brentq

from fedveil.core.values import Vector
from fedveil.stages.train.hidden.schedule.criterion import Yardstick
from fedveil.stages.train.hidden.schedule.problem import Problem
from fedveil.theory.divergence import log_theta
from fedveil.theory.numerics import log_sum


def bias_and_weights(
    problem: Problem, model: Yardstick, steps: Vector, kept: Vector | None = None
) -> tuple[float, Vector]:
    """What is not yet learnt, and what a unit of noise variance in each round adds to the risk of what is released."""
    kept = model.kept(steps) if kept is None else kept
    weights = model.weights(kept)
    if problem.stopping == "end":
        return model.bias(steps, kept), weights
    whole = model.curvature + model.ridge
    left = kept[::-1] * (1 - steps[0] * whole)  # row k: of the start, after k + 1 rounds (all steps are alike)
    missed = 1 - model.curvature / whole * (1 - left)
    bias = float(0.5 * np.mean(missed**2 @ (model.count * model.curvature * model.start)))
    return bias, np.asarray(np.cumsum(weights[::-1])[::-1] / steps.size)


def likely_ratio(problem: Problem, shrink: float, rounds: int, passes: int) -> float:
    """Return the gap over a round's noise that just meets the target, for equal rounds that shrink gaps by this factor.

    Each use is closed before the next, by all rounds between them, and the last by the rounds that follow it.
    """
    after = np.arange(rounds, dtype=np.float64)
    with np.errstate(under="ignore", over="ignore"):
        closed = shrink ** (2 * after) / np.cumsum(shrink ** (2 * after))
    energy = np.add.outer(np.arange(passes) * closed[-1], closed).ravel()
    stops = np.arange(rounds * passes)
    places = np.minimum(rounds, rounds * passes - stops) / rounds if problem.order == "secret" else np.ones(stops.size)
    logs = np.log(places / stops.size)

    def excess(log_ratio: float) -> float:
        mus = np.maximum(math.exp(log_ratio) * np.sqrt(energy), 1e-12)
        return log_sum(log_theta(problem.epsilon, mus) + logs) - math.log(problem.delta)

    return float(math.exp(float(brentq(excess, -30.0, 12.0, xtol=1e-6)))) if excess(12.0) > 0 else math.exp(12.0)


def stopping_words(problem: Problem, passes: int) -> str:
    """One sentence for whoever asked for a random stop: what it costs, and what would do better."""
    if problem.stopping == "end" or not problem.hidden:
        return ""
    how = "by the block bound" if passes == 1 else "by optimal shifts"
    return (
        f" Random stopping: risk and privacy are means over the stops, hidden {how}; early stops have learnt little, "
        'so stopping = "end" promises a better model wherever it is allowed.'
    )
