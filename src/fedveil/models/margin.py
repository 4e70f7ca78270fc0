"""Losses of one linear score z = <w, x>: logistic, smoothed hinge, Huber, Poisson.

The gradient of a record is slope(z) * x, so clipping it to norm c clips the slope to [-c/|x|, c/|x|]. The slope stays
nondecreasing and no steeper, so it is the slope of another convex loss with the same smoothness
(docs/theory/losses.md).

Poisson regression is for counts in a public range, with a rate that cannot exceed the range: an exponential of the
score up to the top of the range, constant beyond. So that loss, too, is convex, smooth and of bounded slope.
"""

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
import scipy
from numpy.typing import NDArray

from fedveil.core.errors import require
from fedveil.core.values import Matrix, Vector, number
from fedveil.models.loss import (
    Constants,
    LinearLoss,
    Link,
    Prediction,
    check_batch,
    check_bound,
    check_clip,
    check_stack,
    clipped_lipschitz,
)
from fedveil.models.rows import row_norms, rows_apart, scores, stacked_sum, weighted_sum

RATE = 0.1


class MarginLoss(LinearLoss):
    """What these losses share; each adds its own slope and height, and the limits of its slope."""

    __slots__ = ()
    outputs = 1

    @abstractmethod
    def _limits(self) -> tuple[float, float]:
        """Return the largest slope, and the largest derivative of the slope."""

    @abstractmethod
    def _slope(self, z: Vector, y: Vector) -> Vector:
        """Return the derivative in z as a new array, accurate to a few units in the last place.

        It is NaN if the target is not a class.
        """

    @abstractmethod
    def _height(self, z: Vector, y: Vector) -> Vector:
        """Return the loss of each record."""

    def constants(self, bound: float, clip: float | None) -> Constants:
        """Return the constants: slope times row norm, and steepness times its square."""
        check_bound(bound)
        slope, steepness = self._limits()
        return Constants(lipschitz=clipped_lipschitz(slope * bound, clip), smoothness=steepness * bound * bound)

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
        """Return the weighted sum of the clipped gradients, and how many records were left out of it."""
        check_clip(clip)
        check_batch(X.shape[1], w, X, y, weights, norms)
        norms = row_norms(X) if norms is None else norms
        with np.errstate(all="ignore"):
            slopes, usable = self._clip_slopes(scores(X, w, grain), y, norms, clip)
            return weighted_sum(X, slopes, usable, weights, grain), X.shape[0] - int(np.count_nonzero(usable))

    def gradients(self, w: Matrix, X: Vector, y: Matrix, *, clip: float, norms: Matrix) -> Matrix:
        """Return the sum of the clipped gradients of each batch, to the same bits as if it were computed alone."""
        check_clip(clip)
        check_stack(X.shape[2], w, X, y, norms)
        with np.errstate(all="ignore"):
            z = np.matmul(X, w[:, :, None])[:, :, 0]
            slopes, usable = self._clip_slopes(z.ravel(), y.ravel(), norms.ravel(), clip)
            return stacked_sum(X, slopes.reshape(y.shape), usable.reshape(y.shape))

    def multipliers(self, z: Matrix, y: Vector, norms: Vector, clip: float) -> Matrix:
        """Return the clipped slope of each record, as a column; zero for a record that is left out."""
        check_clip(clip)
        with np.errstate(all="ignore"):
            slopes, usable = self._clip_slopes(z[:, 0], y, norms, clip)
        return np.where(usable, slopes, 0.0)[:, None]

    def _clip_slopes(self, z: Vector, y: Vector, norms: Vector, clip: float) -> tuple[Vector, NDArray[np.bool_]]:
        """Return the clipped slope of each record by its score, and which records have one; each by itself."""
        limits = clip / norms  # infinite for a row of zeros, which needs no clipping
        slopes = self._slope(z, y)
        np.minimum(slopes, limits, out=slopes)
        np.maximum(slopes, np.negative(limits, out=limits), out=slopes)
        return slopes, np.isfinite(slopes) & np.isfinite(norms) & np.isfinite(y)

    def lengths(self, w: Vector, X: Vector, y: Vector, norms: Vector) -> Vector:
        """Return the norm of each record's gradient before clipping, each computed on its own; NaN if left out."""
        check_batch(X.shape[1], w, X, y, None, norms)
        with np.errstate(all="ignore"):
            lengths: Vector = np.abs(self._slope(rows_apart(X, w), y)) * norms
            return np.where(np.isfinite(y), lengths, np.nan)

    def value(self, w: Vector, X: Vector, y: Vector) -> float:
        """Return the mean loss, not clipped."""
        check_batch(X.shape[1], w, X, y, None, None)
        with np.errstate(all="ignore"):
            return float(np.mean(self._height(X @ w, y)))

    def predict(self, w: Vector, X: Vector) -> Vector:
        """Return the sign of the score as class 0 or 1; for regression the score itself."""
        z: Vector = X @ w
        return (z > 0).astype(np.float64) if self.classes else z

    def scores(self, w: Vector, X: Vector) -> Matrix:
        """Return the score, as a column."""
        z: Vector = X @ w
        return z[:, None]


def _signs(y: Vector) -> Vector:
    """Return -1 for class 0, +1 for class 1, NaN for anything else."""
    signs = 2.0 * y - 1.0
    stray = np.abs(signs) != 1.0
    if stray.any():
        signs[stray] = np.nan
    return signs


@final
@dataclass(frozen=True, slots=True)
class Logistic(MarginLoss):
    """ln(1 + exp(-z)) for class 1, ln(1 + exp(z)) for class 0."""

    kind = "logistic"
    classes = 2
    link: ClassVar[Link | None] = "logistic"
    usual_reach = 4.0

    def usual_clip(self, bound: float) -> float | None:
        """Return the slope at 0, one half, times the bound.

        >>> Logistic().usual_clip(2.0), Huber().usual_clip(2.0)
        (1.0, None)
        """
        return bound / 2

    def _limits(self) -> tuple[float, float]:
        return 1.0, 0.25

    def _slope(self, z: Vector, y: Vector) -> Vector:
        against = -_signs(y)
        slope: Vector = scipy.special.expit(against * z)  # accurate at both ends, unlike expit(z) - 1
        slope *= against
        return slope

    def _height(self, z: Vector, y: Vector) -> Vector:
        return np.logaddexp(0.0, -_signs(y) * z)


@final
@dataclass(frozen=True, slots=True)
class SmoothedHinge(MarginLoss):
    """max(0, 1 - margin), with the corner replaced by a parabola over the last ``smoothing`` before margin 1."""

    smoothing: float = 1.0

    kind = "smoothed-hinge"
    classes = 2
    usual_reach = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "smoothing", number("SmoothedHinge.smoothing", self.smoothing))
        hint = "At 0 the hinge is not smooth and nothing is hidden."
        require(1e-9 <= self.smoothing <= 1e9, "SmoothedHinge.smoothing", "lie in [1e-9, 1e9]", self.smoothing, hint)

    def _limits(self) -> tuple[float, float]:
        return 1.0, 1.0 / self.smoothing

    def _slope(self, z: Vector, y: Vector) -> Vector:
        signs = _signs(y)
        slope = np.clip((1.0 - signs * z) / self.smoothing, 0.0, 1.0)
        slope *= -signs
        return slope

    def _height(self, z: Vector, y: Vector) -> Vector:
        short = np.maximum(1.0 - _signs(y) * z, 0.0)
        reached = np.minimum(short, self.smoothing)
        return np.asarray(reached / self.smoothing * (short - reached / 2))


@final
@dataclass(frozen=True, slots=True)
class Huber(MarginLoss):
    """Half the squared error up to ``threshold``, growing linearly beyond."""

    threshold: float = 1.0

    kind = "huber"
    classes = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "threshold", number("Huber.threshold", self.threshold))
        hint = "Beyond it an error counts linearly."
        require(1e-9 <= self.threshold <= 1e9, "Huber.threshold", "lie in [1e-9, 1e9]", self.threshold, hint)

    def _limits(self) -> tuple[float, float]:
        return self.threshold, 1.0

    def _slope(self, z: Vector, y: Vector) -> Vector:
        return np.clip(z - y, -self.threshold, self.threshold)

    def _height(self, z: Vector, y: Vector) -> Vector:
        error = np.abs(z - y)
        reached = np.minimum(error, self.threshold)
        return np.asarray(reached * (error - reached / 2))


@final
@dataclass(frozen=True, slots=True)
class Poisson(MarginLoss):
    """rate(z) - u z, for a count u as a share of its range, and the rate ``rate * exp(z)`` up to 1.

    ``rate``: what the zero model predicts, as a share of the range: a public guess of the usual count. Targets are
    given as elsewhere, from -1 (no count) to 1 (the top of the range).
    """

    rate: float = RATE

    kind = "poisson"
    classes = 0
    predicts: ClassVar[Prediction] = "count"
    fixed_clip: ClassVar[str | None] = "Its rounding is proved for a clip of at least half of the bound."
    usual_reach = 2.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "rate", number("Poisson.rate", self.rate))
        hint = "It is the share of the range that is predicted at the start."
        require(1e-6 <= self.rate <= 1, "Poisson.rate", "lie in [1e-6, 1]", self.rate, hint)

    def constants(self, bound: float, clip: float | None) -> Constants:
        """Return the constants. Clips below half of the natural bound are refused: their rounding is not proved."""
        enough = clip is None or clip >= bound / 2
        hint = "The rate's rounding is counted against the clip; scale the features instead."
        require(enough, "model.clip", f"be at least {bound / 2:.6g}, half of the bound, for counts", clip, hint)
        return MarginLoss.constants(self, bound, clip)

    def _limits(self) -> tuple[float, float]:
        return 1.0, 1.0

    def _rates(self, z: Vector) -> Vector:
        with np.errstate(over="ignore"):
            return np.asarray(np.minimum(self.rate * np.exp(z), 1.0))

    def _slope(self, z: Vector, y: Vector) -> Vector:
        return np.asarray(self._rates(z) - count_shares(y))

    def _height(self, z: Vector, y: Vector) -> Vector:
        """Below the top of the range the rate itself, and a straight line from there."""
        top = -math.log(self.rate)
        return np.asarray(self._rates(z) + np.maximum(z - top, 0.0) - count_shares(y) * z)

    def predict(self, w: Vector, X: Vector) -> Vector:
        """Return the expected count, from -1 (none) to 1 (the top of the range)."""
        return np.asarray(2.0 * self._rates(X @ w) - 1.0)

    def scores(self, w: Vector, X: Vector) -> Matrix:
        """Return the same, as a column."""
        return self.predict(w, X)[:, None]


def count_shares(y: Vector) -> Vector:
    """Counts as shares of their range, cut to it; NaN stays."""
    return np.asarray(np.clip((y + 1.0) / 2.0, 0.0, 1.0))
