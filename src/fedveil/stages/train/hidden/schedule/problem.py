"""What a design starts from: the public constants of the training problem, and the target."""

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, get_args

import numpy as np
from scipy.optimize import brentq, isotonic_regression

from fedveil.core.errors import require
from fedveil.core.values import Indices, Vector, number, whole
from fedveil.privacy.guarantee import Neighbours
from fedveil.stages.train.yardstick import Yardstick as Yardstick
from fedveil.stages.train.yardstick import model_problem
from fedveil.theory.divergence import log_theta
from fedveil.theory.numerics import check_delta

Order = Literal["secret", "public", "poisson", "independent"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Public constants of the training problem, and the target. ``units`` are the protected ones: records or clients.

    ``lipschitz`` is the clip of the data part, ``smoothness`` includes the ridge term, whose strength is
    ``strong_convexity``; ``dimension`` counts parameters; ``diameter`` is twice the projection radius; ``distance`` is
    how far from zero the best model is assumed to lie in each direction; None takes half of lipschitz over smoothness.
    ``outputs``: the scores of a record (softmax has one for each class), among which the parameters are shared.
    ``hidden``: only the last model is seen by those the target is for; otherwise noise is shaped for a reader of every
    model (and the calibrator must be one for that reader). ``rate``: of the coins of a poisson order; None: from the
    batch.
    """

    units: int
    dimension: int
    lipschitz: float
    smoothness: float
    strong_convexity: float = 0.0
    diameter: float | None = None
    distance: float | None = None
    outputs: int = 1
    order: Order = "secret"
    rate: float | None = None
    stopping: Literal["end", "random"] = "end"
    noise: Literal["gaussian", "laplace"] = "gaussian"
    neighbours: Neighbours = "replace-one"
    hidden: bool = True
    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        for name in ("units", "dimension", "outputs"):
            object.__setattr__(self, name, whole(f"The problem's {name}", getattr(self, name)))
            require(
                1 <= getattr(self, name) <= 10**12, f"The problem's {name}", "lie in [1, 1e12]", getattr(self, name)
            )
        require(isinstance(self.hidden, bool), "Problem.hidden", "be true or false", self.hidden)
        for name in ("lipschitz", "smoothness", "strong_convexity", "epsilon", "delta"):
            object.__setattr__(self, name, number(f"The problem's {name}", getattr(self, name)))
        for name in ("lipschitz", "smoothness"):
            hint = "It follows from the feature bound and the loss."
            require(
                1e-6 <= getattr(self, name) <= 1e6,
                f"The problem's {name}",
                "lie in [1e-6, 1e6]",
                getattr(self, name),
                hint,
            )
        ridge = self.strong_convexity
        require(0 <= ridge < self.smoothness, "model.l2", "be non-negative and below smoothness", ridge)
        if self.diameter is not None:
            object.__setattr__(self, "diameter", number("The problem's diameter", self.diameter))
            require(1e-9 <= self.diameter <= 1e9, "The problem's diameter", "lie in [1e-9, 1e9]", self.diameter)
        if self.distance is not None:
            object.__setattr__(self, "distance", number("The problem's distance", self.distance))
            require(1e-9 <= self.distance <= 1e9, "The problem's distance", "lie in [1e-9, 1e9]", self.distance)
        choices = {"order": get_args(Order), "stopping": ("end", "random"), "noise": ("gaussian", "laplace")}
        for name, allowed in (choices | {"neighbours": get_args(Neighbours)}).items():
            right = getattr(self, name) in allowed
            require(right, f"The problem's {name}", f"be one of {', '.join(allowed)}", getattr(self, name))
        flat = self.noise == "gaussian" or self.dimension == 1
        require(flat, "Problem.dimension", "be 1 with Laplace noise", self.dimension, "Use Gaussian noise.")
        require(1e-4 <= self.epsilon <= 1e4, "privacy.epsilon", "lie in [1e-4, 1e4]", self.epsilon)
        check_delta(self.delta)
        self._check_draws()

    @property
    def sampled(self) -> bool:
        """Whether every unit draws its own rounds."""
        return self.order in ("poisson", "independent")

    @property
    def dealt(self) -> "Problem":
        """The same problem of units that are dealt, to which the law of least noise speaks whatever the order."""
        return _dealt(self) if self.sampled else self

    def _check_draws(self) -> None:
        if self.sampled:
            normal = self.noise == "gaussian"
            require(normal, "algorithm.noise", f"be gaussian when the order is {self.order}", self.noise)
        if self.rate is None:
            return
        fits, hint = self.order == "poisson", "Independent draws are one round of each pass; give rounds or batch."
        require(fits, "algorithm.rate", 'go with order = "poisson"', self.rate, hint)
        require(0 < self.rate <= 1, "algorithm.rate", "lie in (0, 1]", self.rate, "Is it a batch size?")
        enough = self.rate * self.units >= 1 - 1e-9
        rule = f"expect at least one of the {self.units} units a round"
        require(enough, "algorithm.rate", rule, self.rate, f"Take at least {1 / self.units:.3g}.")


@lru_cache(maxsize=64)
def _dealt(problem: Problem) -> Problem:
    return replace(problem, order="secret", rate=None)


@lru_cache(maxsize=64)
def target_mu(problem: Problem) -> float:
    """The mu of one Gaussian step that just meets the target: the unit in which noise is first measured."""
    aim = math.log(problem.delta)
    result = brentq(lambda log_mu: float(log_theta(problem.epsilon, math.exp(log_mu))) - aim, -30.0, 12.0)
    return float(math.exp(float(result)))


# The yardstick of the automatic design for a problem: what is expected of its noisy gradient steps.
#
# Theory page: schedules.md.


def yardstick(problem: Problem) -> Yardstick:
    """The model problem of this problem's constants."""
    data = problem.smoothness - problem.strong_convexity
    return model_problem(
        dimension=problem.dimension,
        lipschitz=problem.lipschitz,
        data=data,
        ridge=problem.strong_convexity,
        distance=problem.lipschitz / (2 * data) if problem.distance is None else problem.distance,
        diameter=problem.diameter,
        outputs=problem.outputs,
    )


# How to spread noise over the rounds: the least risk for the same protection of every place.
#
# Noise in round k adds weight_k * variance_k to the risk; place t is protected to mu_t^2 = the energy of its optimal
# shift. Both are convex in the variances; the shapes here are fixed points of the optimality conditions. They are
# shapes only: how much noise is enough is always left to the certified bounds. Theory page: schedules.md.


_TURNS = 24
_PLACES = 24  # number of places that are followed; the others lie between them
# no round falls below this share of the mean, because other observers than the final model's reader exist
_FLOOR = 0.02


@lru_cache(maxsize=256)
def watched(rounds: int) -> tuple[Indices, Vector]:
    """Return some places, denser towards the last, and how many places each stands for."""
    if rounds <= _PLACES:
        return np.arange(rounds), np.ones(rounds)
    back = np.unique(np.round(np.geomspace(1, rounds, _PLACES)).astype(np.intp))
    places = (rounds - back)[::-1]
    return places, np.diff(np.append(-1, places)).astype(np.float64)


def energies(
    gaps: Vector, factors: Vector, variance: Vector, rounds: int, *, hidden: bool = True
) -> tuple[Vector, Vector, Vector]:
    """Return mu^2 of the watched places, the slopes of their shifts, and how many places each stands for.

    If the models are seen (not ``hidden``), every gap must be closed in the round that opens it.
    """
    places, stands_for = watched(rounds)
    clock, arriving = factors**2 * variance, factors * gaps
    slopes = np.zeros((places.size, gaps.size))
    for row, place in enumerate(places):
        opened = np.zeros(gaps.size)
        opened[place::rounds] = arriving[place::rounds]
        rates = opened / clock
        slopes[row] = isotonic_regression(rates, weights=clock).x if hidden else rates
    return np.sum(slopes**2 * clock, axis=1), slopes, stands_for


def need(energy: Vector, stands_for: Vector, *, secret: bool) -> float:
    """Return one mu^2 for all places.

    The worst, or the mean for a secret place (a guess, which calibration replaces).
    """
    return float(energy @ stands_for / stands_for.sum()) if secret else float(energy.max())


def spread_noise(
    gaps: Vector, weights: Vector, factors: Vector, rounds: int, *, secret: bool, hidden: bool = True
) -> tuple[Vector, float]:
    """Return variances (up to scale) of least risk for mu = 1, and that risk; ``rounds`` is the number of places."""
    weights = np.maximum(weights, 1e-12 * float(weights.max(initial=1e-300)))  # a step may erase all noise before it
    if rounds == 1:  # every round uses everybody, so closing a gap later gains nothing
        variance = gaps / np.sqrt(weights)
        variance = variance * float(np.sum(gaps**2 / variance))
        return variance, float(weights @ variance)
    variance = gaps / np.sqrt(weights)
    blame = watched(rounds)[1] / rounds
    best, least = variance, np.inf
    for _ in range(_TURNS):
        variance = floored(variance, gaps)
        energy, slopes, stands_for = energies(gaps, factors, variance, rounds, hidden=hidden)
        scale = need(energy, stands_for, secret=secret)
        variance = variance * scale
        risk = float(weights @ variance)
        if risk < least:
            best, least = variance, risk
        if not secret:
            blame = blame * energy / energy.max()
            blame = blame / blame.sum()
        variance = variance * np.sqrt(blame @ slopes**2 / scale**2 * factors**2 / weights)
    return best, least


def floored(variance: Vector, gaps: Vector) -> Vector:
    """Give every round at least a small share of what even noise would give it."""
    even = gaps**2 / np.sum(gaps**2)
    return np.maximum(variance, _FLOOR * float(variance.sum()) * even)
