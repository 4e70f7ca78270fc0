"""A model of a number: what each record adds to five sums, and what the noisy sums say of its errors.

Errors are measured with the prediction cut to the target's public range, so none is larger than the range; a study may
state a smaller one that larger errors count as. With ``a`` the error as a share of that and ``t`` the target from -1 to
1, a record adds (1, a, a**2, t/2, t**2): see docs/theory/evaluation.md for the norms and the intervals.
"""

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from fedveil.core.values import Indices, Vector
from fedveil.models.intervals import Interval, Z
from fedveil.privacy.target import Target
from fedveil.stages.sums import STEPS, Sums, root_up
from fedveil.sums.seam import Whole

SIZE: Final = 5
_BOTH: Final = 2.2414  # of a normal number, 97.5% lie within: two intervals hold together in 95% of all cases


def contribution(target: Target) -> float:
    """Return the bound of what one unit adds, so that it moves a sum by at most as much as the plan is charged for.

    A unit that is left out moves the sums by at most sqrt(17)/2, and so does one that is exchanged, which is charged as
    twice the bound.
    """
    return root_up(17) / 2 if target.neighbours == "zero-out" else root_up(17) / 4


def error_sums(predicted: Vector, targets: Vector, largest: float = 1.0) -> Sums:
    """Each record adds its five numbers, cut toward zero onto the grid.

    ``largest``: what a larger error counts as, as a share of the range.
    """
    truth = np.clip(targets, -1.0, 1.0)
    share = np.clip(np.abs(np.clip(predicted, -1.0, 1.0) - truth) / (2 * largest), 0.0, 1.0)
    rows = np.column_stack([np.ones_like(truth), share, share * share, truth / 2, truth * truth])
    # A prediction that is no number counts as the largest error.
    rows[:, 1:3] = np.where(np.isfinite(rows[:, 1:3]), rows[:, 1:3], 1.0)
    steps = np.trunc(rows * STEPS).astype(np.int64)

    def add_up(chosen: Indices) -> Whole:
        return np.asarray(steps[chosen].sum(axis=0), dtype=np.int64)

    return add_up


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Errors:
    """The five noisy sums, the deviation of the noise on each, and the range of the target in its own unit.

    ``largest``: what a larger error counts as, as a share of the range.
    """

    values: Vector
    deviation: float
    span: tuple[float, float]
    largest: float = 1.0

    def metrics(self) -> dict[str, Any]:
        """Return the errors in the target's own unit and R2, with 95% intervals, beside always answering the mean."""
        count, first, second, _, _ = self.values.tolist()
        width = (self.span[1] - self.span[0]) * self.largest
        part = 4 * self.largest**2  # from squared shares to squares on the scale of the targets
        squares, wide = self._mean(second, None, Z), self._mean(second, None, _BOTH)
        sizes = self._mean(first, squares[1], Z)
        spread, inside = self._variance(_BOTH)
        told: dict[str, Any] = {"mae": None, "rmse": None, "r2": None}
        ranges: dict[str, Any] = {"mae": [width * end for end in sizes]}
        ranges["rmse"] = [width * math.sqrt(end) for end in squares]
        ranges["r2"] = None
        constant: dict[str, Any] = {"kind": "mean", "rmse": None, "r2": 0.0}
        if count > 0:
            told["mae"] = width * min(max(first / count, 0.0), 1.0)
            told["rmse"] = width * math.sqrt(min(max(second / count, 0.0), 1.0))
            if spread > 0:
                told["r2"] = 1.0 - part * min(max(second / count, 0.0), 1.0) / spread
                constant["rmse"] = (self.span[1] - self.span[0]) / 2 * math.sqrt(spread)
            if inside[0] > 0:
                ranges["r2"] = [1.0 - part * wide[1] / inside[0], min(1.0, 1.0 - part * wide[0] / inside[1])]
        return {**told, "largest_error": width, "baseline": constant, "intervals": ranges}

    def _mean(self, total: float, second: float | None, z: float) -> Interval:
        """Return the interval of the mean of numbers from 0 to 1, by Fieller's idea.

        ``second``: an upper bound of the mean of their squares; None: they are at most the numbers themselves.
        """
        count, noise = float(self.values[0]), self.deviation**2
        if not count > z * self.deviation:
            return 0.0, 1.0
        lead = count * count - z * z * noise + z * z * count
        if second is None:
            middle, rest = total * count + z * z * count / 2, total * total - z * z * noise
        else:
            middle, rest = total * count, total * total - z * z * (noise + count * second)
        root = math.sqrt(max(middle * middle - lead * rest, 0.0))
        low, high = (middle - root) / lead, (middle + root) / lead
        return min(max(low, 0.0), 1.0), min(max(high, 0.0), 1.0)

    def _variance(self, z: float) -> tuple[float, Interval]:
        """Return the variance of the targets from -1 to 1, and its interval."""
        count = float(self.values[0])
        if not count > z * self.deviation:
            return 0.0, (0.0, 1.0)
        mean = min(max(2 * float(self.values[3]) / count, -1.0), 1.0)
        square = min(max(float(self.values[4]) / count, 0.0), 1.0)
        result = square - mean * mean
        value = min(max(result, 0.0), 1.0)
        drawn = max(value * ((1 + abs(mean)) ** 2 - value), 0.0) / count
        noise = (self.deviation / count) ** 2 * (1 + 16 * mean * mean + (2 * mean * mean - square) ** 2)
        half = z * math.sqrt(drawn + noise)
        return value, (max(result - half, 0.0), min(max(result + half, 0.0), 1.0))
