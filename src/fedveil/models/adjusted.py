"""A loss whose classes weigh differently, or whose decision is not taken at one half.

Weights are relative: the largest counts as 1, and every record's clipped gradient is multiplied by its class's weight,
which is then at most 1. So norm, smoothness and convexity keep their bounds (docs/theory/losses.md), and a certificate
holds as without weights. The threshold is used for predictions alone: training never sees it.
"""

import math
from dataclasses import dataclass
from typing import final

import numpy as np
import scipy

from fedveil.core.errors import require
from fedveil.core.values import Indices, Matrix, Vector, number
from fedveil.models.loss import Constants, Link, Loss, Prediction, UnclippedLoss


@final
@dataclass(frozen=True, slots=True)
class Adjusted:
    """``of`` with ``class_weights`` (empty: all alike) and with ``threshold``, a probability (None: one half).

    >>> from fedveil.models.margin import Logistic
    >>> Adjusted(Logistic(), class_weights=(1.0, 4.0)).class_weights
    (0.25, 1.0)
    """

    of: Loss
    class_weights: tuple[float, ...] = ()
    threshold: float | None = None

    def __post_init__(self) -> None:
        weights = check_class_weights(self.class_weights)
        fits = not weights or len(weights) == self.of.classes
        rule = f"be one for each of the {self.of.classes} classes"
        require(fits, "model.class_weights", rule, self.class_weights)
        largest = max(weights, default=1.0)
        object.__setattr__(self, "class_weights", tuple(min(weight / largest, 1.0) for weight in weights))
        if self.threshold is not None:
            hint = "Others have no probability of a second class."
            alike = self.of.kind == "logistic"
            require(alike, "model.decision_threshold", "go with the kind logistic alone", self.of.kind, hint)
            object.__setattr__(self, "threshold", check_threshold(self.threshold))

    @property
    def kind(self) -> str:
        """The name in a study file."""
        return self.of.kind

    @property
    def classes(self) -> int:
        """Number of classes; 0 for regression."""
        return self.of.classes

    @property
    def outputs(self) -> int:
        """Number of scores of a row."""
        return self.of.outputs

    @property
    def linear(self) -> bool:
        """Whether the parameters are a table of features by scores."""
        return self.of.linear

    @property
    def predicts(self) -> Prediction:
        """What a prediction is."""
        return self.of.predicts

    @property
    def link(self) -> Link | None:
        """How scores become probabilities."""
        return self.of.link

    @property
    def fixed_clip(self) -> str | None:
        """Why the clip cannot adapt to the data."""
        return self.of.fixed_clip

    @property
    def usual_reach(self) -> float:
        """The spread of the best model's scores that a design assumes."""
        return self.of.usual_reach

    @property
    def code(self) -> dict[str, str]:
        """The functions that must be allowed before anything runs."""
        return self.of.code

    def size(self, features: int) -> int:
        """Return the number of parameters."""
        return self.of.size(features)

    def start(self, features: int) -> Vector:
        """Return the public parameters that the flat vector 0 stands for."""
        return self.of.start(features)

    def usual_clip(self, bound: float) -> float | None:
        """Return the usual clip of the loss without weights."""
        return self.of.usual_clip(bound)

    def largest_margin(self, w: Vector, features: int, bound: float) -> float:
        """Return the largest margin, which neither weights nor threshold change."""
        return self.of.largest_margin(w, features, bound)

    def check_sampling(self, features: int) -> None:
        """Refuse what the loss without weights refuses."""
        self.of.check_sampling(features)

    def answers(self, features: int) -> bool:
        """Return whether the model adds something to every noised direction by itself."""
        return self.of.answers(features)

    def add_answer(self, w: Vector, direction: Vector, features: int, turn: int, clip: float) -> Vector:
        """Return a noised direction with what the model adds to it."""
        return self.of.add_answer(w, direction, features, turn, clip)

    def constants(self, bound: float, clip: float | None) -> Constants:
        """Return the constants of the loss without weights, which hold for weights of at most 1."""
        return self.of.constants(bound, clip)

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
        """Return the weighted sum of the clipped gradients, each times the weight of its class."""
        own = self._weights(y)
        if own is not None:
            weights = own if weights is None else weights * own
        return self.of.gradient(w, X, y, clip=clip, weights=weights, norms=norms, grain=grain)

    def total(self, w: Vector, X: Vector, y: Vector, weights: Vector | None = None) -> Vector:
        """Return the weighted sum of the gradients, not clipped, each times the weight of its class."""
        require(isinstance(self.of, UnclippedLoss), "The loss", "have gradients that are not clipped", self.of.kind)
        own = self._weights(y)
        if own is not None:
            weights = own if weights is None else weights * own
        total: Vector = self.of.total(w, X, y, weights)  # type: ignore[attr-defined]
        return total

    def lengths(self, w: Vector, X: Vector, y: Vector, norms: Vector) -> Vector:
        """Return the norms that clipping compares with the clip: those before the weights."""
        return self.of.lengths(w, X, y, norms)

    def value(self, w: Vector, X: Vector, y: Vector) -> float:
        """Return the mean of the weighted losses, not clipped."""
        own = self._weights(y)
        if own is None:
            return self.of.value(w, X, y)
        parts = [(y == kind, weight) for kind, weight in enumerate(self.class_weights)]
        sums = [weight * int(mine.sum()) * self.of.value(w, X[mine], y[mine]) for mine, weight in parts if mine.any()]
        known = math.fsum(int(mine.sum()) for mine, _ in parts) == y.size
        return math.fsum(sums) / y.size if known else math.nan

    def predict(self, w: Vector, X: Vector) -> Vector:
        """Return a class number or a real number for each row."""
        if self.threshold is None:
            return self.of.predict(w, X)
        return np.asarray(self.scores(w, X)[:, 0] > score_at(self.threshold), dtype=np.float64)

    def scores(self, w: Vector, X: Vector) -> Matrix:
        """Return the scores, which neither weights nor threshold change."""
        return self.of.scores(w, X)

    def _weights(self, y: Vector) -> Vector | None:
        """Return the weight of each record; 0 for a target that is no class, which every loss leaves out."""
        if not self.class_weights:
            return None
        weights = np.zeros(y.size)
        for kind, weight in enumerate(self.class_weights):
            weights[y == kind] = weight
        return weights


def check_class_weights(given: object) -> tuple[float, ...]:
    """Return class weights as numbers; refuse what is none, as a word that would have to be learned."""
    hint = "They are stated, as [1.0, 3.0]: the balance of private records is not public."
    listed = isinstance(given, list | tuple)
    require(listed, "model.class_weights", "be a list of numbers, one for each class", given, hint)
    weights = tuple(number("model.class_weights", value) for value in given)  # type: ignore[attr-defined]
    fine = all(1e-6 <= weight <= 1e6 for weight in weights)
    require(fine, "model.class_weights", "lie in [1e-6, 1e6]", given)
    return weights


def check_threshold(given: object) -> float:
    """Return a decision threshold; refuse what is no probability strictly between 0 and 1."""
    threshold = number("model.decision_threshold", given)
    require(1e-6 <= threshold <= 1 - 1e-6, "model.decision_threshold", "lie in [1e-6, 1 - 1e-6]", given)
    return threshold


def score_at(threshold: float) -> float:
    """Return the logistic score of this probability.

    >>> score_at(0.5)
    0.0
    """
    return math.log(threshold) - math.log1p(-threshold)


# From scores to classes: the likeliest, the margin between two, and probabilities where a loss's scores mean that.


def probabilities(loss: Loss, scores: Matrix) -> Matrix | None:
    """One column a class, rows that add up to 1; None where the loss gives scores only."""
    match loss.link:
        case "logistic":
            return np.column_stack([scipy.special.expit(-scores[:, 0]), scipy.special.expit(scores[:, 0])])
        case "softmax":
            return np.asarray(scipy.special.softmax(scores, axis=1))
        case _:
            return None


def likeliest(scores: Matrix, threshold: float | None = None) -> Indices:
    """Return the class number that the scores speak for, as the losses' ``predict`` has it.

    ``threshold``: the probability above which it is the second of two classes; None: one half.
    """
    if scores.shape[1] == 1:
        return (scores[:, 0] > (0.0 if threshold is None else score_at(threshold))).astype(np.int64)
    return np.asarray(scores.argmax(axis=1), dtype=np.int64)


def margins(scores: Matrix) -> Vector:
    """Return one number for each record that ranks two classes: above 0 the second is the likelier one.

    >>> margins(np.array([[1.0, 3.0], [2.0, 0.5]])).tolist(), margins(np.array([[0.5], [-1.0]])).tolist()
    ([2.0, -1.5], [0.5, -1.0])
    """
    return np.ascontiguousarray(scores[:, 0] if scores.shape[1] == 1 else scores[:, 1] - scores[:, 0])
