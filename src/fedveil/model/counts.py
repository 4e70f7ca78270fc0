"""Poisson regression for counts in a public range, with a rate that cannot exceed the range.

The rate is an exponential of the score up to the top of the range and stays there, so that the loss is convex, smooth
and of bounded slope whatever the model is (docs/theory/losses.md).
"""

import math
from dataclasses import dataclass
from typing import final

import numpy as np

from fedveil.checks import require
from fedveil.model.loss import Constants
from fedveil.model.margin import MarginLoss
from fedveil.values import Matrix, Vector, number

RATE = 0.1


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
        return np.asarray(self._rates(z) - shares(y))

    def _height(self, z: Vector, y: Vector) -> Vector:
        """Below the top of the range the rate itself, and a straight line from there."""
        top = -math.log(self.rate)
        return np.asarray(self._rates(z) + np.maximum(z - top, 0.0) - shares(y) * z)

    def predict(self, w: Vector, X: Vector) -> Vector:
        """Return the expected count, from -1 (none) to 1 (the top of the range)."""
        return np.asarray(2.0 * self._rates(X @ w) - 1.0)

    def scores(self, w: Vector, X: Vector) -> Matrix:
        """Return the same, as a column."""
        return self.predict(w, X)[:, None]


def shares(y: Vector) -> Vector:
    """Counts as shares of their range, cut to it; NaN stays."""
    return np.asarray(np.clip((y + 1.0) / 2.0, 0.0, 1.0))


def deviance(counts: Vector, expected: Vector) -> float:
    """Return the mean Poisson deviance, as scikit-learn defines it; infinite if a count was not expected at all."""
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.where(counts > 0, counts * np.log(counts / expected), 0.0)
    return float(2.0 * np.mean(logs - counts + expected))
