"""Design of SimFL: rounds and step by defaults that do not look at data, noise calibrated for the chosen observer."""

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Final

from fedveil.accounting.calibrate import calibrate
from fedveil.accounting.grid import choose_grid
from fedveil.core.errors import require
from fedveil.core.values import number
from fedveil.stages.train.base import Method, expected
from fedveil.stages.train.request import Draft, Task, beside, check_beside
from fedveil.stages.train.simfl.method import SimFL

_EPSILON_SHARE, _DELTA_SHARE = 1e-6, 1e-3  # reserved for the cost of the grid
_ROUNDS = 100
_MOMENTUM = 0.9
_SCORE_NOISE = 0.8  # on the score of the longest row at the end; see algorithms/fedavg/design.py


BESIDE: Final = (
    beside("schedule.passes", "simfl", "Give rounds."),
    beside("schedule.batch", "simfl", "Give algorithm.rate."),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimFLRequest:
    """``rate``: the share of records that join a round, by secret coins; ``momentum``: of the leaders' steps."""

    rate: float = 1.0
    momentum: float = _MOMENTUM

    kind: ClassVar[str] = "simfl"

    def __post_init__(self) -> None:
        for name in ("rate", "momentum"):
            object.__setattr__(self, name, number(f"algorithm.{name}", getattr(self, name)))
        require(1e-9 <= self.rate <= 1, "algorithm.rate", "lie in (0, 1]", self.rate, "Is it a batch size?")
        require(0 <= self.momentum < 1, "algorithm.momentum", "lie in [0, 1)", self.momentum)

    def design(self, task: Task) -> Draft:
        """Set defaults first, then the noise that meets the target, then a step that the noise allows."""
        schedule, data, target = task.schedule, task.data, task.target
        check_beside(self, task, BESIDE)
        _check_schedule(task)
        constants = task.model.constants(data.bound)
        plain = SimFL(
            rounds=schedule.rounds if isinstance(schedule.rounds, int) else _ROUNDS,
            step_size=1 / (constants.smoothness or 1.0),
            momentum=self.momentum,
            rate=self.rate,
            clip=constants.lipschitz,
            noise_multiplier=1.0,
        )
        plain.check(task.setup)
        if isinstance(schedule.noise_std, float):
            method = replace(plain, noise_multiplier=schedule.noise_std / plain.clip)
        else:
            epsilon, delta = target.epsilon * (1 - _EPSILON_SHARE), target.delta * (1 - _DELTA_SHARE)
            method = self.recalibrated(plain, task, epsilon=epsilon, delta=delta)
        step = float(schedule.step_size) if isinstance(schedule.step_size, float) else _step(method, task)
        reason = f"{method.rounds} rounds led in turn by {data.clients} parties"
        return Draft(method=replace(method, step_size=step), reason=reason, passes=method.rounds * method.rate)

    def grid(self, method: Method, task: Task) -> int:
        """Return the exponent of the finest grid on which float64 holds the sum of all records' gradients exactly."""
        result = expected(SimFL, method)
        most = result.noise_std * math.sqrt(task.data.clients)
        return choose_grid(task.data.records * result.clip, result.noise_std, most)

    def recalibrated(self, method: Method, task: Task, *, epsilon: float, delta: float) -> SimFL:
        """Return the same rounds with the noise for another target."""
        result, target = expected(SimFL, method), task.target
        seen = replace(result, noise_multiplier=1.0).mechanism(target.adversary, task.data.clients, target.neighbours)
        factor, _ = calibrate(seen, epsilon=epsilon, delta=delta)
        return replace(result, noise_multiplier=factor)


def _step(method: SimFL, task: Task) -> float:
    """Return the longest step that the loss and the noise allow; noise on a score adds in quadrature over rounds."""
    spread = math.sqrt(method.rounds * task.data.clients) * method.noise_std * task.data.bound
    bearable = _SCORE_NOISE * (1 - method.momentum) * method.divisor(task.data) / spread
    return min(method.step_size, bearable)


def _check_schedule(task: Task) -> None:
    """Refuse schedule entries other than rounds, step_size and noise_std (of one party's sum)."""
    schedule = task.schedule
    counted = schedule.rounds is None or isinstance(schedule.rounds, int)
    require(counted, "schedule.rounds", "be a whole number for simfl", schedule.rounds)
    require(schedule.kind in ("auto", "constant"), "schedule.kind", "be auto or constant for simfl", schedule.kind)
    for name in ("step_size", "noise_std"):
        given = getattr(schedule, name)
        require(not isinstance(given, tuple), f"schedule.{name}", "be one number for simfl", given)


REQUEST = SimFLRequest
REFUSED = {"choose": "It has no segments."}  # settings of other algorithms, and why this one has none of them
