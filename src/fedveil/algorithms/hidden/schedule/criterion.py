r"""The criterion of the automatic design: expected excess risk of noisy gradient steps on a quadratic model problem.

It uses public constants only. Theory page: schedules.md.
"""

from dataclasses import dataclass

import numpy as np

from fedveil.algorithms.hidden.schedule.problem import Problem
from fedveil.values import Vector

_BINS = 48  # curvatures that hardly differ are one
_HEAD = 0.5  # share of the curvature in one direction: features are rarely centred


@dataclass(frozen=True, slots=True, eq=False)
class Yardstick:
    """Directions of the model problem: curvature of the data part, how many directions share it, the ridge term.

    ``start``: squared distance of the optimum from zero, per direction; ``spread``: variance of one unit's gradient per
    curvature.
    """

    curvature: Vector
    count: Vector
    ridge: float
    start: float
    spread: float

    def kept(self, steps: Vector) -> Vector:
        """Return (rounds, directions): what remains at the end of a unit of noise added after each round's step."""
        factors = 1 - steps[:, None] * (self.curvature + self.ridge)[None, :]
        with np.errstate(over="ignore", under="ignore"):  # steps far above 2/smoothness run away
            later = np.clip(np.cumprod(factors[:0:-1], axis=0)[::-1], -1e60, 1e60)
        return np.concatenate([later, np.ones((1, self.curvature.size))])

    def weights(self, kept: Vector) -> Vector:
        """Return what a unit of noise variance (per coordinate) in each round adds to the final risk."""
        return np.asarray(0.5 * (kept**2) @ (self.count * self.curvature), dtype=np.float64)

    def bias(self, steps: Vector, kept: Vector) -> float:
        """Return the risk that is left because the steps have not arrived, or the ridge term pulls them back."""
        whole = self.curvature + self.ridge
        arrived = self.curvature / whole * (1 - kept[0] * (1 - steps[0] * whole))
        return float(0.5 * np.sum(self.count * self.curvature * self.start * (1 - arrived) ** 2))

    def sampling(self, steps: Vector, kept: Vector, batch: Vector, units: int | None) -> float:
        """Risk from dealing: a batch's mean is not the mean of all, though over a whole pass it evens out.

        Without ``units`` every unit draws its own rounds: then nothing evens out.
        """
        rounds = batch.size
        if units is None:
            apart = np.sum((steps[:, None] * kept) ** 2 / np.tile(batch, steps.size // rounds)[:, None], axis=0)
            return float(0.5 * self.spread * np.sum(self.count * self.curvature**2 * apart))
        share = (steps[:, None] * kept).reshape(-1, rounds, self.curvature.size).sum(axis=0)
        variance = np.sum(share**2 / batch[:, None], axis=0) - np.sum(share, axis=0) ** 2 / units
        risk = 0.5 * self.spread * np.sum(self.count * self.curvature**2 * np.maximum(variance, 0.0))
        return float(risk)


def yardstick(problem: Problem) -> Yardstick:
    """Return the model problem.

    Half the curvature in one direction, the rest falling as 1/i, the optimum alike in all.
    """
    data = problem.smoothness - problem.strong_convexity
    start = (problem.lipschitz / (2 * data)) ** 2
    if problem.diameter is not None:
        start = min(start, (problem.diameter / 2) ** 2 / problem.dimension)
    spread = problem.lipschitz**2 / (4 * data)
    if problem.dimension == 1:
        return Yardstick(np.array([data]), np.ones(1), problem.strong_convexity, start, spread)
    tail = problem.dimension - 1
    edges = np.unique(np.round(np.geomspace(1, tail + 1, min(_BINS, tail + 1))).astype(np.int64))
    count = np.diff(edges).astype(np.float64)
    harmonic = np.log((edges[1:] - 0.5) / (edges[:-1] - 0.5))  # close to the sum of 1/i over the bin
    curvature = np.append(_HEAD, (1 - _HEAD) * harmonic / harmonic.sum() / count) * data
    return Yardstick(curvature, np.append(1.0, count), problem.strong_convexity, start, spread)
