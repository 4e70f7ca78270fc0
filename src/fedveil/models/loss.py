"""The interface of a loss: its constants, and the clipped gradient of a whole batch."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import numpy as np

from fedveil.core.errors import BadValue, require
from fedveil.core.values import Indices, Matrix, Vector, number

Prediction = Literal["class", "number", "count", "survival", "row"]
Link = Literal["logistic", "softmax"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """Constants that hold for every record and every pair of parameters.

    Derived in docs/theory/losses.md, never estimated.

    ``lipschitz`` bounds a record's gradient. The gradient map is ``smoothness``-Lipschitz (None: unknown). If
    ``convex``, it is the gradient of a function whose curvature is at least ``strong_convexity``; otherwise it may be
    no gradient at all.
    """

    lipschitz: float
    smoothness: float | None
    strong_convexity: float = 0.0
    convex: bool = True

    def __post_init__(self) -> None:
        least, most = self.strong_convexity, math.inf
        require(0 < self.lipschitz < math.inf, "Constants.lipschitz", "be finite and positive", self.lipschitz)
        if self.smoothness is not None:
            most = self.smoothness
            require(0 <= most < math.inf, "Constants.smoothness", "be finite and non-negative", most)
        require(0 <= least <= most, "Constants.strong_convexity", "lie between 0 and smoothness", least)
        require(self.convex or least == 0, "Constants.convex", "be true when strong_convexity is positive", self.convex)

    @property
    def known_smoothness(self) -> float:
        """The smoothness, for rules that choose step sizes from it.

        If it is unknown, the user has to give the step size.
        """
        if self.smoothness is None:
            raise BadValue("schedule.step_size must be given for a model of unknown smoothness: no rule finds it.")
        return self.smoothness


class Loss(Protocol):
    """What is trained, which must satisfy the laws in tests/property/test_model_laws.py.

    Parameters are one flat vector; a row includes its constant feature, if there is one. Targets are class numbers from
    0, or real numbers.
    """

    @property
    def kind(self) -> str:
        """The name in a study file."""

    @property
    def classes(self) -> int:
        """Number of classes; 0 for regression."""

    @property
    def outputs(self) -> int:
        """Number of scores of a row."""

    @property
    def linear(self) -> bool:
        """Whether the parameters are a table of features by scores; a row of zeros then has no gradient."""

    @property
    def predicts(self) -> Prediction:
        """What a prediction is; a generator predicts rows."""

    @property
    def link(self) -> Link | None:
        """How scores become probabilities; None where they are scores only (a hinge), or a number."""

    @property
    def fixed_clip(self) -> str | None:
        """Why the clip must be stated and cannot adapt to the data; None if it can."""

    @property
    def usual_reach(self) -> float:
        """The spread of the best model's scores that a design assumes: a public guess, the same for all data.

        Classes that can be told apart nine times in ten need logits that spread by about four; a hinge has done its
        work at a margin of one; a target of a regression, scaled to [-1, 1], spreads by about a half, and the logarithm
        of a rate by about two (docs/theory/schedules.md). The logit of two classes is the difference of their scores in
        a softmax, each of which spreads by less.
        """

    @property
    def code(self) -> dict[str, str]:
        """The functions that must be allowed before anything runs, by the keys that name them."""

    def size(self, features: int) -> int:
        """Return the number of parameters."""

    def start(self, features: int) -> Vector:
        """Return the public parameters that the flat vector 0 stands for; training learns the difference from them."""

    def usual_clip(self, bound: float) -> float | None:
        """Return the gradient norm at the zero model, which is the same for all data; None keeps the natural bound.

        Clipping there lowers the influence of a record, and so the noise. Only records that the model gets badly wrong
        are clipped, and the loss stays convex (docs/theory/losses.md).
        """

    def largest_margin(self, w: Vector, features: int, bound: float) -> float:
        """Return the largest margin between two classes that a row of norm at most ``bound`` can have."""

    def check_sampling(self, features: int) -> None:
        """Refuse a model whose gradient of a record depends, to the last bit, on the others in its batch.

        Randomly sampled batches would reveal by it who was drawn.
        """

    def answers(self, features: int) -> bool:
        """Return whether the model adds something to every noised direction by itself: an adversarial pair does."""

    def add_answer(self, w: Vector, direction: Vector, features: int, turn: int, clip: float) -> Vector:
        """Return a noised direction with what the model adds to it, from the parameters and the round alone."""

    def constants(self, bound: float, clip: float | None) -> Constants:
        """Return the constants of the clipped loss, for rows of norm at most ``bound``.

        A ``clip`` of None leaves gradients at their natural bound.
        """

    def gradient(
        self,
        w: Vector,
        X: Vector,
        y: Vector,
        *,
        clip: float,
        weights: Vector | None = None,
        norms: Vector | None = None,
        grain: float | None = None,
    ) -> tuple[Vector, int]:
        """Return the weighted sum of the clipped gradients, and how many records were left out of it.

        Left out: a row, target or gradient that is no finite number, a target that is no class. That count depends on
        the data: it must not be published. ``norms``: the rows' norms, if known; clipping trusts them. With ``grain``,
        a power of two as :func:`fedveil.models.rows.grain_of` gives it, every record's gradient is rounded to multiples
        of it and the sum is exact: what a record adds is the same to the bit, whoever else is in the batch.
        """

    def lengths(self, w: Vector, X: Vector, y: Vector, norms: Vector) -> Vector:
        """Return for each record the norm that clipping compares with the clip; NaN if the record is left out.

        A record's number is the same to the bit, whoever else is in the batch.
        """

    def value(self, w: Vector, X: Vector, y: Vector) -> float:
        """Return the mean loss, not clipped."""

    def predict(self, w: Vector, X: Vector) -> Vector:
        """Return a class number or a real number for each row."""

    def scores(self, w: Vector, X: Vector) -> Matrix:
        """What a prediction is made from: a row of numbers for each row, one or one per class."""


class LinearLoss(ABC):
    """What all losses of linear scores have in common."""

    __slots__ = ()
    linear = True
    link: ClassVar[Link | None] = None
    fixed_clip: ClassVar[str | None] = None
    usual_reach = 0.5

    @property
    @abstractmethod
    def classes(self) -> int:
        """Number of classes; 0 for regression."""

    @property
    @abstractmethod
    def outputs(self) -> int:
        """Number of scores of a row."""

    @property
    def predicts(self) -> Prediction:
        """A class or a number."""
        return "class" if self.classes else "number"

    @property
    def code(self) -> dict[str, str]:
        """None: all of it is our own."""
        return {}

    def size(self, features: int) -> int:
        """Return the number of parameters: one per feature and score."""
        return features * self.outputs

    def start(self, features: int) -> Vector:
        """Return zeros: training begins where the model says nothing."""
        return np.zeros(self.size(features))

    def usual_clip(self, bound: float) -> float | None:
        """Keep the natural bound, which is the gradient norm at the zero model for some record."""
        return None

    def largest_margin(self, w: Vector, features: int, bound: float) -> float:
        """Return the length of the difference of two classes' weights, times the bound."""
        table = w.reshape(features, self.outputs)
        weights = table[:, 0] if self.outputs == 1 else table[:, 1] - table[:, 0]
        return max(float(np.linalg.norm(weights)) * bound * (1 + 1e-9), 1e-9)

    def check_sampling(self, features: int) -> None:  # noqa: B027  there is nothing to refuse
        """Accept: rows are computed one by one wherever it matters (:func:`fedveil.models.rows.rows_apart`)."""

    def answers(self, features: int) -> bool:
        """Return False: a direction is the records' alone."""
        return False

    def add_answer(self, w: Vector, direction: Vector, features: int, turn: int, clip: float) -> Vector:
        """Return the direction as it is."""
        return direction


@runtime_checkable
class NetworkLoss(Protocol):
    """A loss of a network: a module that attacks search in, exports walk through, and generators draw rows from."""

    def module_at(self, w: Vector, features: int) -> Any:
        """Return the module with the parameters that ``w`` stands for."""

    def sampler(self, w: Vector, features: int) -> Callable[[Indices, int], Matrix]:
        """Return what draws rows of given classes, with a seed: of a generator."""

    def losses(self, w: Vector, X: Vector, y: Vector) -> Vector:
        """Return the loss of each record, not clipped; NaN if a target is not a class."""


@runtime_checkable
class StackedLoss(Protocol):
    """A loss that works on many batches of one size at once, each with parameters of its own."""

    def gradients(self, w: Matrix, X: Vector, y: Matrix, *, clip: float, norms: Matrix) -> Matrix:
        """Return the sum of the clipped gradients of each batch, a row for each.

        A row has the same bits as :meth:`Loss.gradient` of that batch alone, whatever the other batches are. ``w``: a
        row of parameters for each batch; ``X``: batches by rows by features; ``y``, ``norms``: batches by rows.
        """


@runtime_checkable
class ScoredLoss(Protocol):
    """A loss of linear scores, whose gradient is a record's features times what follows from its scores."""

    def multipliers(self, z: Matrix, y: Vector, norms: Vector, clip: float) -> Matrix:
        """Return what multiplies each record's features in its clipped gradient; zero for a record that is left out.

        ``z``: a row of scores for each record, which may be overwritten. Each row is computed by itself.
        """


@runtime_checkable
class UnclippedLoss(Protocol):
    """A loss whose gradients can also be had as they are, for units that are clipped as a whole."""

    def total(self, w: Vector, X: Vector, y: Vector, weights: Vector | None = None) -> Vector:
        """Return the weighted sum of the records' gradients, not clipped; it may be no finite number."""


def with_l2(constants: Constants, l2: float) -> Constants:
    """Return the constants of a round that adds ``l2 * w`` to the averaged gradient.

    ``lipschitz`` stays: that term is the same on neighbouring data sets.

    >>> with_l2(Constants(lipschitz=1.0, smoothness=0.25), 0.01)
    Constants(lipschitz=1.0, smoothness=0.26, strong_convexity=0.01, convex=True)
    """
    l2 = number("l2", l2)
    require(0 <= l2 < math.inf, "l2", "be finite and non-negative", l2)
    return Constants(
        lipschitz=constants.lipschitz,
        smoothness=None if constants.smoothness is None else constants.smoothness + l2,
        strong_convexity=constants.strong_convexity + l2 if constants.convex else 0.0,
        convex=constants.convex,
    )


def clipped_lipschitz(natural: float, clip: float | None) -> float:
    """Return the bound that clipping enforces: no larger than what holds without it."""
    if clip is None:
        return natural
    check_clip(clip)
    return min(clip, natural)


def check_bound(bound: float) -> None:
    """Refuse a bound on the rows' norms that is not positive and finite."""
    require(0 < bound < math.inf, "bound", "be finite and positive", bound, "It bounds the norm of every row.")


def check_clip(clip: float) -> None:
    """Refuse a clipping norm that is not positive and finite."""
    require(1e-100 <= clip <= 1e100, "clip", "lie in [1e-100, 1e100]", clip, "It bounds each record's gradient.")


def check_batch(size: int, w: Vector, X: Vector, y: Vector, weights: Vector | None, norms: Vector | None) -> None:
    """Refuse arrays whose shapes do not fit; broadcasting would hide the mistake."""
    require(w.shape == (size,), "w", f"be a flat vector of {size} parameters", w.shape)
    rows = (X.shape[0],)
    for name, given in (("y", y), ("weights", weights), ("norms", norms)):
        if given is not None:
            require(given.shape == rows, name, f"have one entry per row, {rows[0]}", given.shape)
    if weights is not None:
        require(math.isfinite(weights.sum()), "weights", "be finite", "a weight that is not")


def check_stack(size: int, w: Matrix, X: Vector, y: Matrix, norms: Matrix) -> None:
    """Refuse stacks of batches whose shapes do not fit."""
    require(w.shape == (X.shape[0], size), "w", f"have a row of {size} parameters for each batch", w.shape)
    for name, given in (("y", y), ("norms", norms)):
        require(given.shape == X.shape[:2], name, f"have one entry per row, {X.shape[:2]}", given.shape)
