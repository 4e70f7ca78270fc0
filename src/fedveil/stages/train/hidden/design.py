"""Design of hidden training: the schedule of least expected risk, with noise calibrated for the chosen observer."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from operator import attrgetter
from typing import Any, ClassVar, Final, Literal

import numpy as np

from fedveil.accounting.evaluator import Evaluator
from fedveil.accounting.grid import choose_grid
from fedveil.accounting.observers import calibrate_views
from fedveil.accounting.sampled import least_epsilon
from fedveil.core.checks import require
from fedveil.core.fields import check_fields, real, word
from fedveil.data.records import DataShape
from fedveil.privacy.mechanism import LastIterate, Mechanism
from fedveil.stages.noise_shares import extra_noise
from fedveil.stages.train.base import Method, expected
from fedveil.stages.train.hidden.method import NOISING, Deal, Hidden
from fedveil.stages.train.hidden.schedule import Calibrator, Designed, Order, Problem, design, least_risk
from fedveil.stages.train.hidden.segments import with_segments
from fedveil.stages.train.hidden.stated import stated_run
from fedveil.stages.train.request import Asked, Draft, Task, beside, check_beside
from fedveil.stages.train.schedule_request import ScheduleRequest

_EPSILON_SHARE, _DELTA_SHARE = 1e-6, 1e-3  # kept back for what the grid costs
Stopping = Literal["end", "random"]
NoiseKind = Literal["gaussian", "laplace"]
# Settings of other algorithms, and why hidden training has none of them. Later rounds hide what earlier ones used only
# if two runs that take the same step come no farther apart, which is proved for plain steps (docs/theory/
# post-processing.md).
REFUSED: Final = {
    "clip": "A clip that follows earlier models makes the update map depend on data, and it contracts no more: hiding "
    "proves nothing then. State model.clip.",
    "optimizer": "Momentum and Adam remember earlier gradients, so the model alone does not contract, and an average "
    "is computed from models that must stay hidden. For weight decay state model.l2, for falling steps "
    "schedule.step_size.",
    "choose": "Its promise is for rounds that are fixed beforehand and models that nobody sees: a rule sees them.",
}


def _states(key: str) -> Callable[[Asked], bool]:
    return lambda asked: any(key in part for part in asked.request.segments or ())


BESIDE: Final = (
    beside(
        "schedule.batch",
        "algorithm.rate",
        "The planned batch is the rate times the number of units.",
        attrgetter("request.rate"),
    ),
    beside("schedule.step_size", "steps of segments", "A segment states it.", _states("step")),
    beside("schedule.noise_std", "noise of segments", "A segment states it.", _states("noise")),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HiddenRequest:
    """Which order the units come in, when to stop, which noise; ``deal``: records or whole clients (None: decide).

    With order auto the design weighs full batches, fixed partitions in a secret order, and units that draw their own
    rounds, by expected risk and gradient work. With order poisson every unit joins every round by a coin of its own, of
    chance ``rate`` (None: so that the schedule's batch is expected); with independent it picks one round of each pass.
    ``segments``: rounds, step and noise of consecutive segments of the rounds of all passes.
    """

    order: Order | Literal["auto"] = word(Literal["auto", Order], default="auto")
    rate: float | None = real(0, 1, open_low=True, hint="Is it a batch size?")
    stopping: Stopping = word(Stopping, default="end")
    noise: NoiseKind = word(NoiseKind, default="gaussian")
    deal: Deal | None = word(Deal)
    segments: Any = None

    kind: ClassVar[str] = "hidden"

    def __post_init__(self) -> None:
        check_fields(self, "algorithm")
        coins = self.rate is None or self.order == "poisson"
        hint = "Only the coins of a poisson order have one."
        require(coins, "algorithm.rate", 'go with order = "poisson"', self.rate, hint)

    def design(self, task: Task) -> Draft:
        """Design by the schedule's stated criterion; equal tasks, such as folds of the same data, are designed once."""
        whole = with_segments(task, self.segments)
        check_beside(self, task, BESIDE)
        return _drafted(replace(self, segments=None), whole)

    def least_risk(self, task: Task) -> float | None:
        """Return a risk that the design for this task does not undercut, found without certifying any noise.

        None where it is not known.
        """
        known = task.model.constants(task.data.bound).smoothness is not None
        if not known or task.target.unit != "client" or self.segments is not None:
            return None
        return least_risk(self._problem(task), task.schedule, self._others(task, self._deal(task)))

    def _designed(self, task: Task) -> Draft:
        if task.model.constants(task.data.bound).smoothness is None:
            return self._stated(task)
        deal, problem, calibrator = self._deal(task), self._problem(task), self._calibrator(task)
        if deal == "clients" and task.target.unit == "record":
            data = task.data
            even, sizes = (
                data.largest_client == data.smallest_client,
                f"{data.smallest_client} to {data.largest_client}",
            )
            hint = 'Deal records, or protect clients (privacy.unit = "client").'
            require(even, "Clients", "be of one size when they are dealt whole but records are protected", sizes, hint)
        designed = design(
            problem,
            task.schedule,
            calibrate=calibrator,
            orders=self._others(task, deal),
            misses=self._misses(task, problem),
        )
        if deal == "clients" and task.target.unit == "record":
            schedule = _whole_clients(designed, task.schedule, task.data)
            designed = designed if schedule is task.schedule else design(problem, schedule, calibrate=calibrator)
        reason = designed.reason
        if task.target.unit == "client":
            reason += ' Where whole clients are protected, kind = "auto" weighs fedavg as well.'
        chosen = designed.chosen
        return Draft(
            method=Hidden(run=designed.mechanism, deal=deal),
            reason=reason,
            designed=designed,
            risk=chosen.risk,
            passes=float(chosen.passes),
        )

    def _stated(self, task: Task) -> Draft:
        """Take the schedule as the user states it, since a model of unknown smoothness has no criterion."""
        self._check_noise(task)
        deal, target = self._deal(task), task.target

        def stated(order: Order) -> LastIterate:
            return stated_run(
                task,
                order=order,
                rate=self.rate,
                stopping=self.stopping,
                noise=self.noise,
                epsilon=target.epsilon * (1 - _EPSILON_SHARE),
                delta=target.delta * (1 - _DELTA_SHARE),
                calibrate=self._calibrator(task),
            )

        others = self._others(task, deal) if task.schedule.noise_std is None else ()
        run = min((stated(order) for order in (self._first_order, *others)), key=_round_noise)
        if run.sampled:
            task.model.loss.check_sampling(task.data.features)
        if deal == "clients" and target.unit == "record":
            sizes, each = run.batch if isinstance(run.batch, tuple) else (run.batch,), task.data.largest_client
            fits = all(size % each == 0 for size in sizes)
            require(fits, "schedule.batch", f"be a multiple of a client's {each} records", run.batch)
        reason = "steps and batches as stated: the model's smoothness is unknown, so only the noise was calibrated"
        if others:
            reason += f"; order {run.order}, which takes the least"
        return Draft(method=Hidden(run=run, deal=deal), reason=reason, passes=float(run.passes))

    def grid(self, method: Method, task: Task) -> int:
        """Return the exponent of the finest grid on which float64 holds the state exactly."""
        hidden = expected(Hidden, method)
        noise = hidden.noise()
        largest = float(noise.max()) * math.sqrt(extra_noise(hidden.cohorts(task.setup), task.trust))
        reach = NOISING[task.trust.noise].reach(hidden, task.setup)
        return choose_grid(reach, float(noise.min()), largest)

    def recalibrated(self, method: Method, task: Task, *, epsilon: float, delta: float) -> Hidden:
        """Return the same schedule with its noise scaled."""
        hidden = expected(Hidden, method)
        _, run = self._calibrator(task)(hidden.run, epsilon=epsilon, delta=delta)
        return replace(hidden, run=run) if isinstance(run, LastIterate) else hidden

    @property
    def _first_order(self) -> Order:
        """As wished; without a wish a partition (full batches are one of one batch), weighed against the others."""
        return "secret" if self.order == "auto" else self.order

    def _others(self, task: Task, deal: Deal) -> tuple[Order, ...]:
        """The orders that a design without a wish may take instead: draws of its own by every unit, where that runs."""
        schedule = task.schedule
        both = schedule.batch is not None and schedule.rounds is not None
        # Then a partition is asked for.
        dealt = both or isinstance(schedule.batch, tuple) or schedule.kind == "growing-batches"
        steady = self.noise == "gaussian" and self.stopping == "end"
        alone = deal == "records" or task.target.unit == "client"
        # Who sees single updates sees the draws, unless all clients send always: then every round counts.
        unseen = task.target.adversary != "server" or task.trust.all_send
        free = self.order == "auto" and steady and alone and unseen and not dealt and not task.canaries
        return ("independent", "poisson") if free else ()

    def _deal(self, task: Task) -> Deal:
        return self.deal or ("clients" if task.target.unit == "client" else "records")

    def _calibrator(self, task: Task) -> Calibrator:
        deal, adversary, setup = self._deal(task), task.target.adversary, task.setup

        def seen(run: LastIterate) -> Sequence[Evaluator]:
            return Hidden(run=run, deal=deal).views(adversary, setup)

        def calibrator(run: Mechanism, /, *, epsilon: float, delta: float) -> tuple[float, Mechanism]:
            require(isinstance(run, LastIterate), "run", "be a hidden run", type(run).__name__)
            return calibrate_views(run, seen, epsilon=epsilon, delta=delta)  # type: ignore[arg-type]

        return calibrator

    def _misses(self, task: Task, problem: Problem) -> Callable[[LastIterate], bool]:
        """Return whether a run promises the target's observer less than is wanted."""
        deal, adversary, setup = self._deal(task), task.target.adversary, task.setup

        def misses(run: LastIterate) -> bool:
            bounds = Hidden(run=run, deal=deal).views(adversary, setup)
            return least_epsilon(bounds, problem.delta) > problem.epsilon

        return misses

    def _check_noise(self, task: Task) -> int:
        """Return the number of parameters; refuse noise that does not fit it."""
        dimension = task.model.loss.size(task.data.features)
        if self.noise == "laplace":
            hint = "Use one feature without intercept, or Gaussian noise."
            require(dimension == 1, "algorithm.noise", "be gaussian for more than one parameter", f"{dimension}", hint)
        return dimension

    def _problem(self, task: Task) -> Problem:
        constants, target, shape = task.model.constants(task.data.bound), task.target, task.data
        radius = task.model.radius
        return Problem(
            units=shape.clients if target.unit == "client" else shape.records,
            dimension=self._check_noise(task) - task.canary_parameters,  # no real record meets those
            lipschitz=constants.lipschitz,
            smoothness=constants.known_smoothness,
            strong_convexity=constants.strong_convexity,
            diameter=None if radius is None else 2 * radius,
            distance=task.model.loss.usual_reach / task.data.bound,
            outputs=task.model.loss.outputs,
            order=self._first_order,
            rate=self.rate,
            stopping=self.stopping,
            noise=self.noise,
            neighbours=target.neighbours,
            epsilon=target.epsilon * (1 - _EPSILON_SHARE),
            delta=target.delta * (1 - _DELTA_SHARE),
            hidden=target.adversary in ("final-model", "curious-client"),
        )


def _round_noise(run: LastIterate) -> float:
    """Return the noise of a round over its step and one unit's reach, to compare orders of the same schedule."""
    batch = run.batch if isinstance(run.batch, int) else min(run.batch)
    return float(np.max(run.noise_std)) / math.sqrt(batch)


@lru_cache(maxsize=64)
def _drafted(request: HiddenRequest, task: Task) -> Draft:
    return request._designed(task)


def _whole_clients(designed: Designed, schedule: ScheduleRequest, shape: DataShape) -> ScheduleRequest:
    """Return the schedule with batches that hold whole clients."""
    size, batch = shape.largest_client, designed.mechanism.batch
    if isinstance(batch, tuple):
        fits = all(count % size == 0 for count in batch)
        require(fits, "schedule.batch", f"be multiples of a client's {size} records", batch)
        return schedule
    if batch % size == 0:
        return schedule
    require(schedule.batch is None, "schedule.batch", f"be a multiple of a client's {size} records", batch)
    if isinstance(schedule.rounds, int):  # the rounds were wished for: as many whole clients as fit in each
        return replace(schedule, batch=max(1, batch // size) * size)
    return replace(schedule, batch=max(1, round(batch / size)) * size)


REQUEST = HiddenRequest
WEIGHED_FOR = ("record", "client")  # the units for which kind = "auto" weighs it
