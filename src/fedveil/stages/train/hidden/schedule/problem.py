"""What a design starts from: the public constants of the training problem, and the target."""

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, get_args

from scipy.optimize import brentq

from fedveil.core.checks import require
from fedveil.core.values import number, whole
from fedveil.privacy.guarantee import Neighbours
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
    found = brentq(lambda log_mu: float(log_theta(problem.epsilon, math.exp(log_mu))) - aim, -30.0, 12.0)
    return float(math.exp(float(found)))
