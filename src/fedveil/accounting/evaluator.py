"""A bound as a value: its name, whether it is proved, why it applies or not, and delta as a function of epsilon."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedveil.core.errors import FedveilError
from fedveil.core.values import Vector
from fedveil.privacy.guarantee import Answer, Bound, Moves, Status
from fedveil.privacy.mechanism import LastIterate
from fedveil.theory.composition import Uses, group_curve
from fedveil.theory.concentrated import group_epsilon_delta
from fedveil.theory.divergence import log_theta
from fedveil.theory.loss import LossLaw
from fedveil.theory.numerics import LEAST, REPORTED_DELTA, ROUNDING, log_sum, smallest_epsilon

_DISTINCT_MOVES = 32  # most different moves of a run that are kept


@dataclass(frozen=True, slots=True)
class Pairs:
    """What dominates a run: independent uses in both directions of zero-out, or of an exchange.

    ``disclosed_mu``: of the Gaussian pair that dominates the run if everybody knew the record's draws; in a composition
    whichever promises more counts.
    """

    forward: tuple[tuple[LossLaw, int], ...]
    backward: tuple[tuple[LossLaw, int], ...]
    disclosed_mu: float | None = None

    @property
    def alternatives(self) -> list[Uses]:
        """Return the directions that differ."""
        return [self.forward] if self.forward == self.backward else [self.forward, self.backward]


@dataclass(frozen=True, slots=True)
class Evaluator:
    """A named bound: ``log_delta`` as a function of epsilon if it applies, and the reason if it does not.

    ``moves``: as in :class:`~fedveil.privacy.guarantee.Bound`. ``epsilon``: as a function of delta, if cheaper than
    inverting ``log_delta``; ``grouped``: the same bound for so many records together, if that is known exactly.
    ``pairs``: the dominating pairs that the bound is worked out from, where they are known (else it returns None): with
    them a run enters a composition exactly.
    """

    name: str
    status: Status
    reason: str
    log_delta: Callable[[float], float] | None = None
    moves: Moves | None = None
    epsilon: Callable[[float], float] | None = None
    grouped: "Callable[[int], Evaluator] | None" = None
    pairs: Callable[[], Pairs | None] | None = None


def withdrawn(name: str, reason: str) -> Evaluator:
    """Return a bound that does not apply, with the reason."""
    return Evaluator(name, "does-not-apply", reason)


def nothing_left() -> Evaluator:
    """Return the bound of a run after which some round begins with nothing of the model before it."""
    why = "the further rounds begin anew, with nothing of the model before them"
    return Evaluator("shift", "certified", why, lambda epsilon: LEAST, grouped=lambda size: nothing_left())


def mean_theta(mus: tuple[Vector, Vector], epsilon: float) -> float:
    """Return the logarithm of the weighted mean of Gaussian deltas, for (mus, weights); rounded up."""
    with np.errstate(divide="ignore"):
        return log_sum(log_theta(epsilon, mus[0]) + np.log(mus[1])) + ROUNDING


def needs_gaussian(run: LastIterate, name: str) -> Evaluator | None:
    """Return a refusal if a bound that needs Gaussian noise and one stopping rule does not apply; otherwise None."""
    if run.noise == "laplace":
        return withdrawn(name, "stated for Gaussian noise")
    if run.stopping == "random" and run.passes > 1:
        return withdrawn(name, "random stopping is covered for one pass")
    return None


def no_contraction(run: LastIterate) -> str:
    """Return why gaps cannot be followed through the steps of this run."""
    if run.smoothness is None:
        return "the loss is not smooth, so a step's Lipschitz constant is unknown"
    return "the steps expand so much that gaps cannot be followed"


def epsilon_of(evaluator: Evaluator, delta: float) -> float:
    """Return the least epsilon of the bound at ``delta``; infinite if it does not apply."""
    if evaluator.epsilon is not None:
        return evaluator.epsilon(delta)
    return smallest_epsilon(evaluator.log_delta, delta, tolerance=1e-7) if evaluator.log_delta is not None else math.inf


def for_group(evaluator: Evaluator, size: int) -> Evaluator:
    """Return the bound for so many records together: exactly if the bound knows it, otherwise hop by hop."""
    if size == 1 or evaluator.log_delta is None:
        return evaluator
    if evaluator.grouped is not None:
        return evaluator.grouped(size)
    together = group_log_delta(evaluator.log_delta, size)
    return replace(evaluator, epsilon=None, log_delta=together, moves=None, pairs=None)


def group_log_delta(log_delta: Callable[[float], float], group: int) -> Callable[[float], float]:
    """Return log delta for groups of any mechanism: the trade-off functions of as many hops composed.

    Taking all hops at one epsilon never promises more, but is exact where the table of composed hops is coarse.
    """
    if group == 1:
        return log_delta
    hops = group_curve(log_delta, group)
    return lambda epsilon: min(even_hops(log_delta, group, epsilon), hops(epsilon))


def even_hops(log_delta: Callable[[float], float], group: int, epsilon: float) -> float:
    """Return the rule for groups with all hops at one epsilon: (g eps, delta (e^{g eps} - 1)/(e^eps - 1))."""
    once = math.exp(min(log_delta(epsilon / group), 0.0))
    return math.log(max(group_epsilon_delta(epsilon / group, once, group)[1], 1e-300))


def bound_of(evaluator: Evaluator, delta: float | None, epsilon: float | None) -> Bound:
    """Return the bound at a point: epsilon at this delta, or delta at this epsilon."""
    name, status, reason, moves = evaluator.name, evaluator.status, evaluator.reason, evaluator.moves
    if evaluator.log_delta is None:
        return Bound(name=name, status=status, reason=reason)
    try:
        if delta is not None:
            value = epsilon_of(evaluator, delta)
            return Bound(name=name, status=status, reason=reason, epsilon=value, moves=moves)
        least = min(1.0, max(math.exp(min(evaluator.log_delta(epsilon or 0.0), 0.0)), REPORTED_DELTA))
        return Bound(name=name, status=status, reason=reason, epsilon=epsilon, delta=least, moves=moves)
    except NOT_COMPUTED as error:
        if status == "certified":
            raise
        return not_computed(name, error)


NOT_COMPUTED = (FedveilError, ValueError, ArithmeticError)  # what a bound outside its range may raise


def not_computed(name: str, error: Exception) -> Bound:
    """Return a withdrawn bound with the reason why it could not be computed; the answer is left to the others.

    >>> not_computed("central-limit", OverflowError("math range error")).reason
    'it cannot be computed here: math range error'
    """
    return Bound(name=name, status="does-not-apply", reason=f"it cannot be computed here: {error}")


def moves_of(ratios: Iterable[tuple[float, int]]) -> Moves:
    """Return moves with their counts; the largest are kept apart, all others are charged at the largest of the rest.

    >>> moves_of([(0.5, 2), (2.0, 1), (0.5, 1)])
    ((2.0, 1), (0.5, 3))
    """
    counts: dict[float, int] = {}
    for move, count in ratios:
        counts[move] = counts.get(move, 0) + count
    ordered = sorted(counts.items(), reverse=True)
    if len(ordered) > _DISTINCT_MOVES:
        rest = ordered[_DISTINCT_MOVES:]
        ordered = [*ordered[:_DISTINCT_MOVES], (rest[0][0], sum(count for _, count in rest))]
    return tuple(ordered)


def least_of(bounds: Sequence[Bound], delta: float | None, epsilon: float | None) -> Answer:
    """Return the least certified bound; if none is certified, epsilon is infinite or delta is 1."""
    certified = [bound for bound in bounds if bound.status == "certified"]
    if delta is not None:
        best = min(certified, key=lambda b: math.inf if b.epsilon is None else b.epsilon, default=None)
        value = math.inf if best is None or best.epsilon is None else best.epsilon
        name = best.name if best is not None and value < math.inf else None
        return Answer(epsilon=value, delta=delta, certified_by=name, bounds=tuple(bounds))
    best = min(certified, key=lambda b: 1.0 if b.delta is None else b.delta, default=None)
    least = 1.0 if best is None or best.delta is None else best.delta
    return Answer(epsilon=epsilon or 0.0, delta=least, certified_by=best.name if best else None, bounds=tuple(bounds))
