"""Schedules of runs whose units draw their own rounds: planned batches, rates, and how steep a round may be."""

import math

import numpy as np

from fedveil.algorithms.hidden.crowd import steepness, usual_crowd, with_largest_batch
from fedveil.algorithms.hidden.schedule.problem import Problem
from fedveil.checks import require
from fedveil.mechanism import LastIterate, sensitivity
from fedveil.values import Vector


def drawn_deal(
    problem: Problem, rounds: int | None, batch: int | tuple[int, ...] | None
) -> tuple[int, int | tuple[int, ...]]:
    """Rounds of a pass and the planned batch, where the user states a batch or a rate."""
    units, order = problem.units, problem.order
    hint = f"With order {order} every unit draws its own rounds, so that no batch is given beforehand."
    single = not isinstance(batch, tuple)
    require(single, "schedule.batch", "be one number, not a partition into batches", f"{batch!r}"[:60], hint)
    if problem.rate is not None:
        hint = "The planned batch is the rate times the number of units."
        require(batch is None, "schedule.batch", "be left out beside algorithm.rate", batch, hint)
        batch = max(1, round(problem.rate * units))
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


def expected_variance(problem: Problem, batch: Vector, steps: Vector, even: Vector) -> Vector:
    """Variances for mu = 1, to be scaled by certified bounds: many rounds cost what linear losses make of them.

    Their limit is mu^2 = sum of (rate * gap / noise)^2 where only the last model is seen (sampled-shift.md). Every
    model seen adds what one gap tells by itself, for which the noise is never taken below a third of the gap.
    """
    gaps = sensitivity(problem.neighbours) * problem.lipschitz * steps / batch
    rate = problem.rate if problem.rate is not None else batch / problem.units
    level = float(np.sum((rate * gaps) ** 2 / even))
    least = float(np.max(gaps**2 / even)) / 9
    return even * max(level, least if not problem.hidden else math.ldexp(least, -2))
