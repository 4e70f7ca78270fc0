"""A bound as a value: its name, whether it is proved, why it applies or not, and delta as a function of epsilon."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fedveil.guarantee import Status
from fedveil.mechanism import LastIterate
from fedveil.theory.divergence import log_theta
from fedveil.theory.numerics import ROUNDING, Vector, log_sum


@dataclass(frozen=True, slots=True)
class Evaluator:
    """A named bound: ``log_delta`` of epsilon where it applies, and the reason where it does not."""

    name: str
    status: Status
    reason: str
    log_delta: Callable[[float], float] | None = None


def withdrawn(name: str, reason: str) -> Evaluator:
    """A bound that does not apply, and why."""
    return Evaluator(name, "does-not-apply", reason)


def mean_theta(mus: tuple[Vector, Vector], epsilon: float) -> float:
    """Logarithm of the weighted mean of Gaussian deltas, for (mus, weights); rounded up."""
    with np.errstate(divide="ignore"):
        return log_sum(log_theta(epsilon, mus[0]) + np.log(mus[1])) + ROUNDING


def needs_gaussian(run: LastIterate, name: str) -> Evaluator | None:
    """The refusal of bounds that are stated for Gaussian noise and one stopping rule; None where they hold."""
    if run.noise == "laplace":
        return withdrawn(name, "stated for Gaussian noise")
    if run.stopping == "random" and run.passes > 1:
        return withdrawn(name, "random stopping is covered for one pass")
    return None


def no_contraction(run: LastIterate) -> str:
    """Why gaps cannot be followed through the steps of this run."""
    if run.smoothness is None:
        return "the loss is not smooth, so a step's Lipschitz constant is unknown"
    return "the steps expand so much that gaps cannot be followed"
