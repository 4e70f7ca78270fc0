"""Schedules of runs whose units draw their own rounds: planned batches, rates, and how steep a round may be."""

import math
from functools import lru_cache

import numpy as np

from fedveil.core.checks import require
from fedveil.core.values import Vector
from fedveil.privacy.mechanism import LastIterate, sensitivity
from fedveil.stages.train.hidden.crowd import steepness, usual_crowd, with_largest_batch
from fedveil.stages.train.hidden.schedule.problem import Problem, target_mu

_FLOOR = 0.02  # no pass has less noise than this share of the mean: others than the last model's reader look on
_LEVELS = 4  # of the noise of passes


def drawn_deal(
    units: int, order: str, rate: float | None, rounds: int | None, batch: int | tuple[int, ...] | None
) -> tuple[int, int | tuple[int, ...]]:
    """Rounds of a pass and the planned batch, where the user states a batch or a rate."""
    hint = f"With order {order} every unit draws its own rounds, so that no batch is given beforehand."
    single = not isinstance(batch, tuple)
    require(single, "schedule.batch", "be one number, not a partition into batches", f"{batch!r}"[:60], hint)
    if rate is not None:
        batch = max(1, round(rate * units))
    size = int(batch) if isinstance(batch, int) else 1
    require(size <= units, "schedule.batch", f"be at most the number of units, {units}", size)
    count = rounds if rounds is not None else max(1, round(units / size))
    if order == "independent":
        require(count <= units, "schedule.rounds", f"be at most the number of units, {units}", count)
        planned = (units // count, -(-units // count))
        rule = f"be what {count} rounds of {units} units expect, {planned[0]}"
        require(size in planned, "schedule.batch", rule, size, "Leave it out, or leave rounds out.")
    return count, size


def rate_of(problem: Problem, batch: int) -> float | None:
    """Return the chance of a coin: as stated, or so that the planned batch is expected; None for independent draws."""
    if problem.order != "poisson":
        return None
    return problem.rate if problem.rate is not None else min(1.0, batch / problem.units)


def planned(problem: Problem, run: LastIterate) -> LastIterate:
    """Return the run with the largest batch that is accounted for."""
    return with_largest_batch(run, problem.delta)


@lru_cache(maxsize=1024)
def steepest_round(problem: Problem, rounds: int, batch: int | tuple[int, ...], total: int) -> float:
    """Return the smoothness that steps are measured by: that of the fullest round that is to be expected."""
    if not problem.sampled or isinstance(batch, tuple):
        return problem.smoothness
    run = LastIterate(
        rounds=rounds,
        passes=total // rounds,
        batch=batch,
        records=problem.units,
        order=problem.order,
        rate=rate_of(problem, batch),
        step_size=1.0,
        lipschitz=1.0,
        smoothness=problem.smoothness,
        strong_convexity=problem.strong_convexity,
        noise_std=1.0,
    )
    return float(steepness(run, float(usual_crowd(run, problem.delta)))[0])


def surcharge(problem: Problem, passes: float, rounds: float, *, contracts: bool) -> float:
    r"""The variance that secret draws are expected to need over the law of least noise, before it is certified.

    Many weak rounds tell as much as one Gaussian of the same second moment of the likelihood ratio. A round of a pass
    of l that is seen has (e^{1/z^2} - 1)/l of it, at multiplier z, where the law pays 1/(l z^2). Where steps contract
    and only the last model is seen, later rounds close a gap at leisure, but for the last pass, which pays about twice
    (theory: schedules.md).
    """
    share = (target_mu(problem) / sensitivity(problem.neighbours)) ** 2 * rounds / passes
    seen = share / math.log1p(share)
    return min(seen, 1 + 1 / passes) if contracts and problem.hidden else seen


def expected_variance(problem: Problem, rounds: int, batch: Vector, steps: Vector, weights: Vector | None) -> Vector:
    """Variances for mu = 1, to be scaled by certified bounds: even noise, or (given ``weights``) the law's by passes.

    Within a pass all rounds have the same noise, so that a draw is among rounds that are alike. Passes have one of a
    few levels, since what differs has to be accounted for one by one.
    """
    gaps = sensitivity(problem.neighbours) * problem.lipschitz * steps / batch
    shape = steps**2 / batch
    if weights is not None:
        best = (steps / np.sqrt(np.maximum(weights, 1e-12 * float(weights.max(initial=1e-300))))).reshape(-1, rounds)
        factor = np.mean(best / steps.reshape(-1, rounds) ** 2, axis=1)
        shape = shape * np.repeat(_few_levels(np.maximum(factor, _FLOOR * float(factor.mean()))), rounds)
    rate = problem.rate if problem.rate is not None else 1 / rounds
    level = float(np.sum((rate * gaps) ** 2 / shape))
    steep = steepest_round(problem, rounds, int(batch[0]), steps.size)
    contracts = bool(steps.max() * steep <= 2 * (1 + 1e-9))
    return shape * level * surcharge(problem, rate * steps.size, 1 / rate, contracts=contracts)


def _few_levels(values: Vector) -> Vector:
    """The same values on a geometric grid of at most ``_LEVELS`` points."""
    logs = np.log(values)
    low, high = float(logs.min()), float(logs.max())
    width = max((high - low) / _LEVELS, 1e-9)
    cells = np.minimum(np.floor((logs - low) / width), _LEVELS - 1)
    return np.asarray(np.exp(low + (cells + 0.5) * width), dtype=np.float64)
