"""Candidate schedules of each kind, their noise shaped for the target, and their expected risk (not yet certified)."""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.optimize import brentq

from fedveil.accounting.hidden import lipschitz_of_step
from fedveil.core.errors import require
from fedveil.core.values import Vector
from fedveil.privacy.mechanism import LastIterate, Numbers, sensitivity
from fedveil.stages.train.hidden.method import steepness, usual_crowd, with_largest_batch
from fedveil.stages.train.hidden.schedule.problem import (
    Problem,
    Yardstick,
    energies,
    need,
    spread_noise,
    target_mu,
    yardstick,
)
from fedveil.theory.divergence import log_theta
from fedveil.theory.numerics import log_sum

# Schedules of runs whose units draw their own rounds: planned batches, rates, and how steep a round may be.


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


# Runs that stop at a uniformly random round: their worth on average, and the noise they are likely to need.
#
# What is released is the model after a random number of rounds, so its expected risk is the mean over the stops. For
# the bounds it is the same: delta is the mean over the stops. Theory page: schedules.md.


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


@dataclass(frozen=True, slots=True)
class Frame:
    """Everything of a schedule but its noise; ``steps`` is one number or one per round of all passes."""

    kind: str
    passes: int
    rounds: int
    batch: int | tuple[int, ...]
    steps: Numbers

    @property
    def total(self) -> int:
        """Number of rounds of all passes together."""
        return self.passes * self.rounds

    @property
    def step_sizes(self) -> Vector:
        """The step size of every round of all passes."""
        return _tiled(self.steps, self.rounds, self.total)

    @property
    def batches(self) -> Vector:
        """The batch of every round of all passes."""
        return _tiled(self.batch, self.rounds, self.total)


@dataclass(frozen=True, slots=True, eq=False)
class Shape:
    """A frame with noise (standard deviation per unit, as in ``LastIterate``) and the parts of its expected risk.

    ``order``: how units come to the frame's rounds. ``learnable``: the risk of the zero model.
    """

    frame: Frame
    noise_std: Numbers
    bias: float
    sampling: float
    injected: float
    order: str = "secret"
    learnable: float = 0.0

    @property
    def risk(self) -> float:
        """The expected excess risk on the model problem."""
        return self.bias + self.sampling + self.injected


def _tiled(values: Numbers | int | tuple[int, ...], rounds: int, total: int) -> Vector:
    array = np.atleast_1d(np.asarray(values, dtype=np.float64))
    return np.array(np.broadcast_to(np.tile(array, total // rounds) if array.size == rounds else array, (total,)))


def deal(units: int, rounds: int) -> tuple[int, int]:
    """Return the rounds of a pass and the batch, with as few units as possible left over."""
    batch = units // rounds
    more = units // batch
    return (rounds, batch) if units - rounds * batch <= units - more * batch else (more, batch)


def growing(units: int, rounds: int) -> tuple[int, ...] | None:
    """Batches like 1/sqrt(rounds left): with even noise every place is equally hidden. None if one would be empty."""
    ideal = 1 / np.sqrt(np.arange(rounds, 0, -1))
    sizes = np.floor(ideal / ideal.sum() * units).astype(int)
    return tuple(int(m) for m in sizes) if sizes.min() >= 1 else None


def decay(first: float, total: int, power: float) -> Numbers:
    """Return steps that fall like a power of the rounds left, down to a hundredth at most."""
    if power == 0 or total == 1:
        return first
    return tuple((first * np.maximum((np.arange(total, 0, -1) / total) ** power, 0.01)).tolist())


def law_risk(problem: Problem, steps: Numbers, rounds: int, total: int) -> float:
    """Risk with the noise of a run that uses all units in every round: no way to deal them needs less."""
    bias, noise = law_parts(problem.dealt, steps, rounds, total)
    return bias + noise


@lru_cache(maxsize=2048)
def law_parts(problem: Problem, steps: Numbers, rounds: int, total: int) -> tuple[float, float]:
    """The same in its parts: what is not yet learnt, and what the noise brings."""
    sizes, model = _tiled(steps, rounds, total), _model(problem)
    bias, weights = bias_and_weights(problem, model, sizes)
    gaps = sensitivity(problem.neighbours) * problem.lipschitz * sizes / problem.units
    root = float(np.sum(gaps * np.sqrt(weights)))
    return bias, (root / target_mu(problem)) ** 2


@lru_cache(maxsize=4)
def _model(problem: Problem) -> Yardstick:
    return yardstick(problem)


def steepest_direction(problem: Problem) -> float:
    """The largest curvature of the model problem, ridge term included."""
    model = _model(problem)
    return float(model.curvature.max()) + model.ridge


def later_factors(problem: Problem, steps: Vector) -> Vector:
    """Return products of the Lipschitz constants of the later rounds, never too small for a float."""
    probe = LastIterate(
        rounds=1,
        step_size=1.0,
        noise_std=1.0,
        lipschitz=problem.lipschitz,
        smoothness=problem.smoothness,
        strong_convexity=problem.strong_convexity,
    )
    logs = np.log(np.maximum(lipschitz_of_step(probe, steps), 1e-12))
    later = np.append(np.cumsum(logs[:0:-1])[::-1], 0.0)
    return np.asarray(np.exp(np.clip(later, -80.0, 80.0)), dtype=np.float64)


def shaped(problem: Problem, frame: Frame, noise_std: Numbers | None = None) -> Shape:
    """Return the frame with noise of its kind that should meet the target, or with the given noise; and the risk."""
    model, steps, batch = _model(problem), frame.step_sizes, frame.batches
    kept = model.kept(steps)
    bias, weights = bias_and_weights(problem, model, steps, kept)
    if noise_std is None:
        variance = _variance(problem, frame, weights) / target_mu(problem) ** 2
        noise_std = _tidy(np.sqrt(variance * batch) / steps, even=frame.kind != "decaying")
    sampling = model.sampling(steps, kept, batch[: frame.rounds], problem.units, order=problem.order)
    noise = _injected(problem, frame, noise_std, weights)
    return Shape(frame, noise_std, bias, sampling, noise, problem.order, model.learnable)


def injected(problem: Problem, frame: Frame, noise_std: Numbers) -> float:
    """Return the risk from this noise."""
    return _injected(problem, frame, noise_std, bias_and_weights(problem, _model(problem), frame.step_sizes)[1])


def _injected(problem: Problem, frame: Frame, noise_std: Numbers, weights: Vector) -> float:
    scale = frame.step_sizes * _tiled(noise_std, frame.rounds, frame.total) / np.sqrt(frame.batches)
    spare = 2.0 if problem.noise == "laplace" else 1.0  # Laplace: variance 2 * scale**2
    return spare * float(weights @ scale**2)


def noise_on_average(frame: Frame, noise_std: Numbers) -> float:
    """Return the noise on the averaged gradient of a round, root mean square, weighted by squared steps."""
    noise = _tiled(noise_std, frame.rounds, frame.total) / np.sqrt(frame.batches)
    return float(np.sqrt(np.average(noise**2, weights=frame.step_sizes**2)))


def _variance(problem: Problem, frame: Frame, weights: Vector) -> Vector:
    """Return variances of the rounds for mu = 1 (for a secret order, on average over the places)."""
    steps, secret = frame.step_sizes, problem.order == "secret"
    if problem.sampled:
        # Coins of unequal rounds take long to account for, so only the passes of independent draws differ in noise.
        spread = weights if frame.kind == "decaying" and problem.order == "independent" else None
        return expected_variance(problem, frame.rounds, frame.batches, steps, spread)
    gaps = sensitivity(problem.neighbours) * problem.lipschitz * steps / frame.batches
    factors = later_factors(problem, steps)
    if problem.stopping == "random" and problem.hidden and frame.passes > 1:  # rounds of one kind, Gaussian noise
        shrink = float(factors[-2]) if factors.size > 1 else 1.0
        return (gaps / likely_ratio(problem, shrink, frame.rounds, frame.passes) * target_mu(problem)) ** 2
    if frame.kind == "decaying":
        return spread_noise(gaps, weights, factors, frame.rounds, secret=secret, hidden=problem.hidden)[0]
    even = np.ones(frame.total) if frame.kind == "growing-batches" else steps**2 / frame.batches
    energy, _, stands_for = energies(gaps, factors, even, frame.rounds, hidden=problem.hidden)
    return even * need(energy, stands_for, secret=secret)


def _tidy(noise: Vector, *, even: bool) -> Numbers:
    """Return one number if all rounds agree."""
    if even and float(noise.max()) <= float(noise.min()) * (1 + 1e-9):
        return float(noise[0])
    return tuple(float(value) for value in noise)
