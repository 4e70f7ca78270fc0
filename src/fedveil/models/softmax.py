"""Softmax regression, clipped so that it stays convex.

Cutting a softmax gradient to a norm does *not* give the gradient of a convex loss if there are three classes or more,
and a step along it can drive two models apart. Here the missing probability 1 - p[target] is cut instead. This bounds
the norm as well, and gives the gradient of a convex loss with the same smoothness (docs/theory/losses.md).
"""

import math
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
from numpy.typing import NDArray

from fedveil.core.errors import require
from fedveil.core.values import Matrix, Vector, whole
from fedveil.models.loss import (
    Constants,
    LinearLoss,
    Link,
    check_batch,
    check_bound,
    check_clip,
    check_stack,
    clipped_lipschitz,
)
from fedveil.models.rows import row_norms, rows_apart, scores, stacked_sum, weighted_sum

_FEW = 64


@final
@dataclass(frozen=True, slots=True)
class Softmax(LinearLoss):
    """-ln p[target], p proportional to exp(X @ W); ``w`` is W, features by classes, row after row."""

    classes: int

    kind = "softmax"
    link: ClassVar[Link | None] = "softmax"
    usual_reach = 4.0 / math.sqrt(2)

    def __post_init__(self) -> None:
        object.__setattr__(self, "classes", whole("Softmax.classes", self.classes))
        hint = "One class leaves nothing to learn; Huber is for regression."
        require(2 <= self.classes <= 1_000_000, "Softmax.classes", "lie between 2 and 1000000", self.classes, hint)

    @property
    def outputs(self) -> int:
        """Number of scores: one per class."""
        return self.classes

    def usual_clip(self, bound: float) -> float | None:
        """Return the gradient norm where all classes are equally likely, for the longest row."""
        return bound * math.sqrt(1 - 1 / self.classes)

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
            powers, usable = self._clip_powers(self._powers(w, X, apart=grain is not None), y, norms, clip)
            return weighted_sum(X, powers, usable, weights, grain), X.shape[0] - int(np.count_nonzero(usable))

    def gradients(self, w: Matrix, X: Vector, y: Matrix, *, clip: float, norms: Matrix) -> Matrix:
        """Return the sum of the clipped gradients of each batch, to the same bits as if it were computed alone."""
        check_clip(clip)
        check_stack(self.size(X.shape[2]), w, X, y, norms)
        with np.errstate(all="ignore"):
            z = np.matmul(X, w.reshape(w.shape[0], X.shape[2], self.classes)).reshape(-1, self.classes)
            powers, usable = self._clip_powers(_scaled_powers(z), y.ravel(), norms.ravel(), clip)
            return stacked_sum(X, powers.reshape(*y.shape, self.classes), usable.reshape(y.shape))

    def multipliers(self, z: Matrix, y: Vector, norms: Vector, clip: float) -> Matrix:
        """Return what multiplies each record's features in its clipped gradient; zero for a record that is left out."""
        check_clip(clip)
        with np.errstate(all="ignore"):
            powers, usable = self._clip_powers(_scaled_powers(z), y, norms, clip)
        if not usable.all():
            powers[~usable] = 0.0
        return powers

    def _clip_powers(self, powers: Vector, y: Vector, norms: Vector, clip: float) -> tuple[Vector, NDArray[np.bool_]]:
        """Return what multiplies each row in its clipped gradient, and which rows have one; each by itself.

        Overwrites ``powers``.
        """
        target, known = self._targets(y)
        here = np.arange(y.size)
        right = powers[here, target]
        powers[here, target] = 0.0
        wrong = powers.sum(axis=1)  # not total - right, nor 1 - p, which both lose digits by cancellation
        scale = 1.0 / np.maximum(wrong + right, wrong * (norms * (math.sqrt(2.0) / clip)))
        powers *= scale[:, None]
        powers[here, target] = -wrong * scale
        return powers, known & np.isfinite(scale) & np.isfinite(norms)

    def lengths(self, w: Vector, X: Vector, y: Vector, norms: Vector) -> Vector:
        """Return what clipping compares for each record, sqrt(2) (1 - p[target]) |x|; NaN if it is left out.

        Each is computed on its own.
        """
        check_batch(self.size(X.shape[1]), w, X, y, None, norms)
        with np.errstate(all="ignore"):
            target, known = self._targets(y)
            powers = self._powers(w, X, apart=True)
            here = np.arange(X.shape[0])
            right = powers[here, target]
            powers[here, target] = 0.0
            wrong = powers.sum(axis=1)
            return np.where(known, wrong / (wrong + right) * (norms * math.sqrt(2.0)), np.nan)

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

    def _powers(self, w: Vector, X: Vector, *, apart: bool) -> Vector:
        """Return exp(score), with each row scaled so that its largest entry is 1."""
        table = w.reshape(X.shape[1], self.classes)
        return _scaled_powers(rows_apart(X, table) if apart else scores(X, table))


def _scaled_powers(z: Vector) -> Vector:
    """Return exp(score), in the same place, with each row scaled so that its largest entry is 1."""
    top = z.max(axis=1) if z.shape[1] > _FEW else z[:, 0].copy()
    for column in range(1, z.shape[1] if z.shape[1] <= _FEW else 0):  # the same, several times faster for few classes
        np.maximum(top, z[:, column], out=top)
    z -= top[:, None]
    np.exp(z, out=z)
    return z
