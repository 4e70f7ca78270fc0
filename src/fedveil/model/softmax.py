"""Softmax regression, clipped so that it stays convex.

Cutting a softmax gradient to a norm does *not* give the gradient of a convex loss if there are three classes or more,
and a step along it can drive two models apart. Here the missing probability 1 - p[target] is cut instead. This bounds
the norm as well, and gives the gradient of a convex loss with the same smoothness (docs/theory/losses.md).
"""

import math
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from fedveil.checks import require
from fedveil.model.loss import Constants, check_batch, check_bound, check_clip, clipped_lipschitz
from fedveil.model.rows import row_norms, scores, weighted_sum
from fedveil.values import Matrix, Vector, whole


@final
@dataclass(frozen=True, slots=True)
class Softmax:
    """-ln p[target], p proportional to exp(X @ W); ``w`` is W, features by classes, row after row."""

    classes: int

    kind = "softmax"

    def __post_init__(self) -> None:
        object.__setattr__(self, "classes", whole("Softmax.classes", self.classes))
        hint = "One class leaves nothing to learn; Huber is for regression."
        require(2 <= self.classes <= 1_000_000, "Softmax.classes", "lie between 2 and 1000000", self.classes, hint)

    @property
    def outputs(self) -> int:
        """Number of scores: one per class."""
        return self.classes

    def size(self, features: int) -> int:
        """Return the number of parameters: one per feature and class."""
        return features * self.classes

    def constants(self, bound: float, clip: float | None) -> Constants:
        """Return the constants, from |p - e_target| <= sqrt(2) and diag(p) - p p' <= 1/2."""
        check_bound(bound)
        return Constants(lipschitz=clipped_lipschitz(math.sqrt(2.0) * bound, clip), smoothness=0.5 * bound * bound)

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

        A record's gradient is scaled by min(1, clip / (sqrt(2) (1 - p[target]) |x|)), so its norm is at most ``clip``.
        """
        check_clip(clip)
        check_batch(self.size(X.shape[1]), w, X, y, weights, norms)
        norms = row_norms(X) if norms is None else norms
        with np.errstate(all="ignore"):
            target, known = self._targets(y)
            powers = self._powers(w, X, grain)
            here = np.arange(X.shape[0])
            right = powers[here, target]
            powers[here, target] = 0.0
            wrong = powers.sum(axis=1)  # not total - right, nor 1 - p, which both lose digits by cancellation
            scale = 1.0 / np.maximum(wrong + right, wrong * (norms * (math.sqrt(2.0) / clip)))
            powers *= scale[:, None]
            powers[here, target] = -wrong * scale
            usable = known & np.isfinite(scale) & np.isfinite(norms)
            return weighted_sum(X, powers, usable, weights, grain), X.shape[0] - int(np.count_nonzero(usable))

    def value(self, w: Vector, X: Vector, y: Vector) -> float:
        """Return the mean loss, not clipped; NaN if a target is not a class."""
        check_batch(self.size(X.shape[1]), w, X, y, None, None)
        with np.errstate(all="ignore"):
            target, known = self._targets(y)
            z = X @ w.reshape(X.shape[1], self.classes)
            top = z.max(axis=1)
            logs = np.log(np.exp(z - top[:, None]).sum(axis=1)) + (top - z[np.arange(X.shape[0]), target])
            return float(np.mean(np.where(known, logs, np.nan)))

    def predict(self, w: Vector, X: Vector) -> Vector:
        """Return the class of the largest score."""
        z: Vector = X @ w.reshape(X.shape[1], self.classes)
        return np.asarray(z.argmax(axis=1), dtype=np.float64)

    def scores(self, w: Vector, X: Vector) -> Matrix:
        """Return the score of each class."""
        z: Matrix = X @ w.reshape(X.shape[1], self.classes)
        return z

    def _targets(self, y: Vector) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
        """Return class numbers that are safe as indices, and a mask of the valid ones."""
        known = (y >= 0) & (y < self.classes) & (y == np.floor(y))
        return np.where(known, y, 0.0).astype(np.intp), known

    def _powers(self, w: Vector, X: Vector, grain: float | None) -> Vector:
        """Return exp(score), with each row scaled so that its largest entry is 1."""
        z = scores(X, w.reshape(X.shape[1], self.classes), grain)
        z -= z.max(axis=1, keepdims=True)
        np.exp(z, out=z)
        return z
