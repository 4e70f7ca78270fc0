r"""The yardstick of every design: expected excess risk of noisy gradient steps on a quadratic model problem.

It knows public constants only: what it assumes of the data is the same for all data. Theory page: schedules.md.
"""

from dataclasses import dataclass

import numpy as np

from fedveil.core.values import Vector
from fedveil.stages.train.request import Task

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

    @property
    def learnable(self) -> float:
        """The risk of the zero model: all that there is to learn."""
        return float(0.5 * np.sum(self.count * self.curvature) * self.start)

    def kept(self, steps: Vector) -> Vector:
        """(rounds, directions): what is left at the end of a unit of noise added after each round's step."""
        factors = 1 - steps[:, None] * (self.curvature + self.ridge)[None, :]
        with np.errstate(over="ignore", under="ignore"):  # steps far above 2/smoothness run away
            later = np.clip(np.cumprod(factors[:0:-1], axis=0)[::-1], -1e60, 1e60)
        return np.concatenate([later, np.ones((1, self.curvature.size))])

    def weights(self, kept: Vector) -> Vector:
        """What a unit of noise variance (per coordinate) in each round adds to the final risk."""
        return np.asarray(0.5 * (kept**2) @ (self.count * self.curvature), dtype=np.float64)

    def bias(self, steps: Vector, kept: Vector) -> float:
        """Risk left because the steps have not arrived yet, or because the ridge term pulls them back."""
        whole = self.curvature + self.ridge
        arrived = self.curvature / whole * (1 - kept[0] * (1 - steps[0] * whole))
        return float(0.5 * np.sum(self.count * self.curvature * self.start * (1 - arrived) ** 2))

    def sampling(self, steps: Vector, kept: Vector, batch: Vector, units: int, *, order: str) -> float:
        """Risk from dealing: a batch's mean is not the mean of all.

        Over a whole pass that evens out, if every unit takes part once: dealt once for all passes (secret, public), the
        same batches err again in every pass; with a new pick in every pass (independent) errors of passes are
        independent; with coins (poisson) those of all rounds are.
        """
        rounds = batch.size
        moved = (steps[:, None] * kept).reshape(-1, rounds, self.curvature.size)
        if order == "poisson":
            variance = np.sum(moved**2 / batch[:, None], axis=(0, 1)) * (1 - float(batch[0]) / units)
        else:
            passes = moved if order == "independent" else moved.sum(axis=0, keepdims=True)
            apart = np.sum(passes**2 / batch[:, None], axis=1) - np.sum(passes, axis=1) ** 2 / units
            variance = np.sum(np.maximum(apart, 0.0), axis=0)
        return float(0.5 * self.spread * np.sum(self.count * self.curvature**2 * variance))


def model_problem(
    *,
    dimension: int,
    lipschitz: float,
    data: float,
    ridge: float,
    distance: float,
    diameter: float | None,
    outputs: int = 1,
) -> Yardstick:
    """Half the curvature in one direction, the rest falling as 1/i; the optimum ``distance`` away in all of them.

    ``data``: the smoothness of the data part. ``outputs``: the scores of a record, among which the parameters are
    shared. With two or more (softmax) only differences of scores count, so each direction of the features has one less
    direction of parameters; and at the zero model, where all classes are alike, the loss bends less than it does at
    worst, by 2 over the number of classes.
    """
    start = distance**2
    if diameter is not None:
        start = min(start, (diameter / 2) ** 2 / dimension)
    spread = lipschitz**2 / (4 * data)
    features, copies = max(1, dimension // outputs), max(1, outputs - 1)
    steepest = data * 2 / outputs if outputs > 1 else data
    if features == 1:
        return Yardstick(np.array([steepest]), np.full(1, float(copies)), ridge, start, spread)
    tail = features - 1
    edges = np.unique(np.round(np.geomspace(1, tail + 1, min(_BINS, tail + 1))).astype(np.int64))
    count = np.diff(edges).astype(np.float64)
    harmonic = np.log((edges[1:] - 0.5) / (edges[:-1] - 0.5))  # close to the sum of 1/i over the bin
    curvature = np.append(_HEAD, (1 - _HEAD) * harmonic / harmonic.sum() / count) * steepest
    return Yardstick(curvature, np.append(1.0, count) * copies, ridge, start, spread)


def yardstick_of(task: Task) -> Yardstick:
    """The model problem of a task whose loss has a known smoothness."""
    constants, radius = task.model.constants(task.data.bound), task.model.radius
    return model_problem(
        dimension=task.model.loss.size(task.data.features),
        lipschitz=constants.lipschitz,
        data=constants.known_smoothness - constants.strong_convexity,
        ridge=constants.strong_convexity,
        distance=task.model.loss.usual_reach / task.data.bound,
        diameter=None if radius is None else 2 * radius,
        outputs=task.model.loss.outputs,
    )


def risk_with_momentum(
    model: Yardstick,
    steps: Vector,
    *,
    momentum: float,
    noise: float,
    dealing: float = 0.0,
    gain: Vector | float = 1.0,
    longest: float = np.inf,
    private: float = 0.0,
) -> float:
    """The expected risk of steps along a running sum of noisy updates.

    An update is ``gain`` times the gradient in each direction, with ``noise`` (a variance) in every coordinate and
    ``dealing`` times the curvature on top. Updates are cut to the norm ``longest`` before they are averaged, each with
    the variance ``private`` of its own: cutting slows all directions alike.
    """
    whole, curvature = model.curvature + model.ridge, model.curvature
    mean = np.full_like(curvature, np.sqrt(model.start))
    optimum, speed = mean.copy(), np.zeros_like(mean)
    far, both, fast = np.zeros_like(mean), np.zeros_like(mean), np.zeros_like(mean)  # covariances of model and speed
    fresh = noise + dealing * curvature
    with np.errstate(over="ignore", invalid="ignore"):
        for step in steps.tolist():
            pull = gain * (whole * mean - model.ridge * optimum)
            norm = float(np.sqrt(np.sum(model.count * pull**2) + private))
            cut = min(1.0, longest / norm) if norm > 0 else 1.0
            back = cut * gain * whole
            speed = momentum * speed + cut * pull
            mean = mean - step * speed
            fast, both = (
                momentum**2 * fast + 2 * momentum * back * both + back**2 * far + fresh,
                (momentum * both + back * far),
            )
            far, both = far - 2 * step * both + step**2 * fast, both - step * fast
        result = float(0.5 * np.sum(model.count * curvature * (mean**2 + far)))
    return result if np.isfinite(result) else np.inf
