"""How a noised direction becomes a step: plain, with momentum, or by Adam; decay of weights; averages of models.

Everything here is computed from sums that are noised already, so it costs no privacy where all of them are counted as
seen (docs/theory/post-processing.md). Pure: a state and a direction in, a state out.

References:
    Kingma, Ba. Adam: A Method for Stochastic Optimization. ICLR 2015.
    Loshchilov, Hutter. Decoupled Weight Decay Regularization. ICLR 2019.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from fedveil.core.errors import require
from fedveil.core.values import Vector, number

# Projection onto the ball that every model is kept in.


def project(point: Vector, radius: float) -> Vector:
    """Return the nearest point of the ball around zero; for several points, one per row.

    The squares are summed pairwise, so the norm is exact to 2**-53 times (20 + log2(size)/2), which is accounted for.
    """
    norm = np.sqrt(np.sum(point * point, axis=-1, keepdims=True))
    return point if np.all(norm <= radius) else point * (radius / np.maximum(norm, radius))


OptimiserKind = Literal["momentum", "adam"]
BETA2, FLOOR = 0.999, 1e-8  # the usual numbers of Adam


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimiser:
    """``momentum``: weight of the past in the mean direction (Adam's beta 1); 0 for plain steps.

    ``beta2``: weight of the past in the mean of the squares, and ``floor``: what is added to its root;
    only for Adam. ``weight_decay``: the share of the weights, over the step size, that every step takes away; it does
    not pass through momentum or Adam's scaling.
    """

    kind: OptimiserKind = "momentum"
    momentum: float = 0.0
    beta2: float = BETA2
    floor: float = FLOOR
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        kinds = get_args(OptimiserKind)
        require(self.kind in kinds, "algorithm.optimizer", f"be one of {', '.join(kinds)}", self.kind)
        for name in ("momentum", "beta2", "floor", "weight_decay"):
            object.__setattr__(self, name, number(f"algorithm.optimizer.{name}", getattr(self, name)))
        require(0 <= self.momentum < 1, "algorithm.optimizer.momentum", "lie in [0, 1)", self.momentum)
        require(
            0 <= self.beta2 < 1,
            "algorithm.optimizer.beta2",
            "lie in [0, 1)",
            self.beta2,
            "It is the weight of the past in Adam's mean of squares.",
        )
        require(1e-30 <= self.floor < math.inf, "algorithm.optimizer.floor", "be at least 1e-30 and finite", self.floor)
        require(0 <= self.weight_decay <= 1e6, "algorithm.optimizer.weight_decay", "lie in [0, 1e6]", self.weight_decay)
        ordered = self.kind != "adam" or self.momentum <= self.beta2
        require(ordered, "algorithm.optimizer.momentum", f"be at most beta2, {self.beta2}, for adam", self.momentum)

    def longest(self, direction: float, size: int) -> float:
        """Return the norm that no heading exceeds, if no direction exceeds the norm ``direction``.

        Adam's mean is one of the past directions with weights a, its squares one with weights c, both summing to 1. By
        Jensen's inequality the squared mean is at most max(a / c) times the squares, and with momentum at most beta2
        that is at most (1 - momentum) / (1 - beta2), in every coordinate and at every step.
        """
        if self.kind == "adam":
            return math.sqrt(size * (1 - self.momentum) / (1 - self.beta2)) * (1 + 1e-9)
        return direction / (1 - self.momentum)


@dataclass(frozen=True, slots=True, eq=False)
class OptimiserState:
    """``mean``: the velocity, or Adam's mean direction; ``squares``: Adam's mean of squares; ``done``: steps so far."""

    mean: Vector
    squares: Vector | None = None
    done: int = 0


def begin(optimiser: Optimiser, size: int) -> OptimiserState:
    """Return the state before the first step."""
    return OptimiserState(np.zeros(size), np.zeros(size) if optimiser.kind == "adam" else None)


def advance(optimiser: Optimiser, state: OptimiserState, direction: Vector) -> OptimiserState:
    """Return the state after one more noised direction; the given state stays as it is."""
    past = optimiser.momentum
    if state.squares is None:
        return OptimiserState(past * state.mean + direction, None, state.done + 1)
    mean = past * state.mean + (1 - past) * direction
    squares = optimiser.beta2 * state.squares + (1 - optimiser.beta2) * direction**2
    return OptimiserState(mean, squares, state.done + 1)


def heading(optimiser: Optimiser, state: OptimiserState) -> Vector:
    """Return what is multiplied by the step size and subtracted from the model.

    For Adam the two means are first divided by the weight that they have gathered, so that early ones are not short.
    """
    if state.squares is None:
        return state.mean
    mean = state.mean / (1 - optimiser.momentum**state.done)
    squares = state.squares / (1 - optimiser.beta2**state.done)
    result: Vector = mean / (np.sqrt(squares) + optimiser.floor)
    return result


def decayed(optimiser: Optimiser, toward: Vector, weights: Vector) -> Vector:
    """Return the heading with the decay of the weights, which are the parameters themselves."""
    return toward if optimiser.weight_decay == 0 else toward + optimiser.weight_decay * weights


def averaged(weight: float, average: Vector, model: Vector, done: int) -> Vector:
    """Return the moving average of models after ``done`` of them, this one included.

    The past counts with ``weight``, and early with no more than ``(done - 1) / (done + 9)``: the average begins with
    the first model and soon forgets it.
    """
    past = min(weight, (done - 1) / (done + 9))
    result: Vector = past * average + (1 - past) * model
    return result


def check_average(weight: Any) -> None:
    """Refuse a weight of the past that is none; None asks for no average."""
    if weight is not None:
        rule = "lie between 0 and 1, both left out"
        hint = "0.99 averages about the last 100 models."
        require(
            0 < number("algorithm.optimizer.average", weight) < 1, "algorithm.optimizer.average", rule, weight, hint
        )


def to_row(state: OptimiserState) -> Vector:
    """Return the state as one row, which a checkpoint keeps: for plain steps and momentum, the velocity alone."""
    if state.squares is None:
        return state.mean
    return np.concatenate([state.mean, state.squares, [float(state.done)]])


def from_row(optimiser: Optimiser, row: Vector) -> OptimiserState:
    """Return the state that :func:`to_row` wrote; a row of zeros is the beginning."""
    if optimiser.kind != "adam":
        return OptimiserState(row.copy())
    size = row.size // 2
    return OptimiserState(row[:size].copy(), row[size : 2 * size].copy(), int(row[-1]))


def row_length(optimiser: Optimiser, size: int) -> int:
    """Return how long such a row is for a model of so many parameters."""
    return 2 * size + 1 if optimiser.kind == "adam" else size
