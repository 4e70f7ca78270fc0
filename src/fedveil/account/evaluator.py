"""A bound as a value: its name, whether it is proved, why it applies or not, and delta as a function of epsilon."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from fedveil.guarantee import Answer, Bound, Status
from fedveil.mechanism import LastIterate
from fedveil.theory.divergence import log_theta
from fedveil.theory.numerics import REPORTED_DELTA, ROUNDING, Vector, log_sum, smallest_epsilon


@dataclass(frozen=True, slots=True)
class Evaluator:
    """A named bound: ``log_delta`` of epsilon where it applies, and the reason where it does not.

    ``epsilon`` of delta, where that is cheaper than inverting ``log_delta``; ``grouped``: the same bound for so many
    records together, where that is known exactly.
    """

    name: str
    status: Status
    reason: str
    log_delta: Callable[[float], float] | None = None
    epsilon: Callable[[float], float] | None = None
    grouped: "Callable[[int], Evaluator] | None" = None


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


def epsilon_of(evaluator: Evaluator, delta: float) -> float:
    """The least epsilon that the bound gives at ``delta``; infinite where it does not apply."""
    if evaluator.epsilon is not None:
        return evaluator.epsilon(delta)
    return smallest_epsilon(evaluator.log_delta, delta, tolerance=1e-7) if evaluator.log_delta is not None else math.inf


def bound_of(evaluator: Evaluator, delta: float | None, epsilon: float | None) -> Bound:
    """What a bound says: epsilon at this delta, or delta at this epsilon."""
    name, status, reason = evaluator.name, evaluator.status, evaluator.reason
    if evaluator.log_delta is None:
        return Bound(name=name, status=status, reason=reason)
    if delta is not None:
        value = epsilon_of(evaluator, delta)
        return Bound(name=name, status=status, reason=reason, epsilon=value)
    least = min(1.0, max(math.exp(min(evaluator.log_delta(epsilon or 0.0), 0.0)), REPORTED_DELTA))
    return Bound(name=name, status=status, reason=reason, epsilon=epsilon, delta=least)


def least_of(bounds: Sequence[Bound], delta: float | None, epsilon: float | None) -> Answer:
    """The least certified bound; nothing certified is an infinite epsilon, or a delta of 1."""
    certified = [bound for bound in bounds if bound.status == "certified"]
    if delta is not None:
        best = min(certified, key=lambda b: math.inf if b.epsilon is None else b.epsilon, default=None)
        value = math.inf if best is None or best.epsilon is None else best.epsilon
        name = best.name if best is not None and value < math.inf else None
        return Answer(epsilon=value, delta=delta, certified_by=name, bounds=tuple(bounds))
    best = min(certified, key=lambda b: 1.0 if b.delta is None else b.delta, default=None)
    least = 1.0 if best is None or best.delta is None else best.delta
    return Answer(epsilon=epsilon or 0.0, delta=least, certified_by=best.name if best else None, bounds=tuple(bounds))
