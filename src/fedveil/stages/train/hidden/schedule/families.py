"""Candidate schedules of each kind, their noise shaped for the target, and their expected risk (not yet certified)."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from fedveil.accounting.hidden import lipschitz_of_step
from fedveil.core.values import Vector
from fedveil.privacy.mechanism import LastIterate, Numbers, sensitivity
from fedveil.stages.train.hidden.schedule.criterion import Yardstick, yardstick
from fedveil.stages.train.hidden.schedule.drawn import expected_variance
from fedveil.stages.train.hidden.schedule.noise import energies, need, spread_noise
from fedveil.stages.train.hidden.schedule.problem import Problem, target_mu
from fedveil.stages.train.hidden.schedule.stopped import bias_and_weights, likely_ratio


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
