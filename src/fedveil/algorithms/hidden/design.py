"""Design of hidden training: the schedule of least expected risk, with noise calibrated for the chosen observer."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, get_args

from fedveil.account.evaluator import Evaluator
from fedveil.account.grid import choose_grid
from fedveil.account.observers import calibrate_views
from fedveil.algorithms.base import Method
from fedveil.algorithms.hidden.method import Deal, Hidden
from fedveil.algorithms.hidden.schedule import Calibrator, Designed, Order, Problem, design
from fedveil.algorithms.hidden.stated import stated_run
from fedveil.algorithms.noise_shares import extra_noise
from fedveil.algorithms.request import Draft, Task
from fedveil.algorithms.schedule_request import ScheduleRequest
from fedveil.checks import require
from fedveil.data.records import DataShape
from fedveil.mechanism import LastIterate, Mechanism
from fedveil.model.named import usual_reach
from fedveil.values import number

_EPSILON_SHARE, _DELTA_SHARE = 1e-6, 1e-3  # kept back for what the grid costs


@dataclass(frozen=True, slots=True, kw_only=True)
class HiddenRequest:
    """Which order the units come in, when to stop, which noise; ``deal``: records or whole clients (None: decide).

    With order auto the design weighs full batches, fixed partitions in a secret order, and units that draw their own
    rounds, by expected risk and gradient work. With order poisson every unit joins every round by a coin of its own, of
    chance ``rate`` (None: so that the schedule's batch is expected); with independent it picks one round of each pass.
    """

    order: Order | Literal["auto"] = "auto"
    rate: float | None = None
    stopping: Literal["end", "random"] = "end"
    noise: Literal["gaussian", "laplace"] = "gaussian"
    deal: Deal | None = None

    kind: ClassVar[str] = "hidden"

    def __post_init__(self) -> None:
        choices: dict[str, tuple[str | None, ...]] = {
            "order": ("auto", *get_args(Order)),
            "stopping": ("end", "random"),
            "noise": ("gaussian", "laplace"),
            "deal": (None, *get_args(Deal)),
        }
        for name, words in choices.items():
            given = getattr(self, name)
            shown = ", ".join(word for word in words if word is not None)
            require(given in words, f"algorithm.{name}", f"be one of {shown}", given)
        if self.rate is not None:
            object.__setattr__(self, "rate", number("algorithm.rate", self.rate))
            hint = "Only the coins of a poisson order have one."
            require(self.order == "poisson", "algorithm.rate", 'go with order = "poisson"', self.rate, hint)
            require(0 < self.rate <= 1, "algorithm.rate", "lie in (0, 1]", self.rate, "Is it a batch size?")

    def design(self, task: Task) -> Draft:
        """Design by the schedule's stated criterion."""
        if task.model.constants(task.data.bound).smoothness is None:
            known = self.order in ("auto", "secret", "public")
            hint = "What such a model computes for a record may depend, in its last bits, on who else is in the batch."
            require(known, "algorithm.order", f"be secret or public for a {task.model.kind} model", self.order, hint)
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
        designed = design(problem, task.schedule, calibrate=calibrator, orders=self._others(task, deal))
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
        run = stated_run(
            task,
            order=self._first_order,
            stopping=self.stopping,
            noise=self.noise,
            epsilon=target.epsilon * (1 - _EPSILON_SHARE),
            delta=target.delta * (1 - _DELTA_SHARE),
            calibrate=self._calibrator(task),
        )
        if deal == "clients" and target.unit == "record":
            sizes, each = run.batch if isinstance(run.batch, tuple) else (run.batch,), task.data.largest_client
            fits = all(size % each == 0 for size in sizes)
            require(fits, "schedule.batch", f"be a multiple of a client's {each} records", run.batch)
        reason = "steps and batches as stated: the model's smoothness is unknown, so only the noise was calibrated"
        return Draft(method=Hidden(run=run, deal=deal), reason=reason)

    def grid(self, method: Method, task: Task) -> int:
        """Return the exponent of the finest grid on which float64 holds the state exactly."""
        hidden = _hidden(method)
        noise = hidden.noise()
        largest = float(noise.max()) * math.sqrt(extra_noise(hidden.cohorts(task.data, task.target), task.trust))
        radius = hidden.radius(task.data, task.model)
        if task.trust.shared:  # a client's contribution must be held too, and may be longer than the ball is wide
            longest = float(hidden.longest().max())
            radius = max(radius, longest * 1.001)
        return choose_grid(radius, float(noise.min()), largest)

    def recalibrated(self, method: Method, task: Task, *, epsilon: float, delta: float) -> Hidden:
        """Return the same schedule with its noise scaled."""
        hidden = _hidden(method)
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
        unseen = task.target.adversary != "server" or task.trust.shared
        free = self.order == "auto" and steady and alone and unseen and not dealt and task.canaries is None
        # To calibrate exchanged records that pick one round takes most of a minute: such an order has to be stated.
        if task.target.neighbours == "replace-one":
            return ("poisson",) if free else ()
        return ("independent", "poisson") if free else ()

    def _deal(self, task: Task) -> Deal:
        return self.deal or ("clients" if task.target.unit == "client" else "records")

    def _calibrator(self, task: Task) -> Calibrator:
        deal, target = self._deal(task), task.target

        def seen(run: LastIterate) -> Sequence[Evaluator]:
            return Hidden(run=run, deal=deal).views(target.adversary, task.data, target, task.trust)

        def calibrator(run: Mechanism, /, *, epsilon: float, delta: float) -> tuple[float, Mechanism]:
            require(isinstance(run, LastIterate), "run", "be a hidden run", type(run).__name__)
            return calibrate_views(run, seen, epsilon=epsilon, delta=delta)  # type: ignore[arg-type]

        return calibrator

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
            dimension=self._check_noise(task) - task.model.loss.size(task.canaries or 0),  # no record meets a canary's
            lipschitz=constants.lipschitz,
            smoothness=constants.known_smoothness,
            strong_convexity=constants.strong_convexity,
            diameter=None if radius is None else 2 * radius,
            distance=usual_reach(task.model.loss) / task.data.bound,
            order=self._first_order,
            rate=self.rate,
            stopping=self.stopping,
            noise=self.noise,
            neighbours=target.neighbours,
            epsilon=target.epsilon * (1 - _EPSILON_SHARE),
            delta=target.delta * (1 - _DELTA_SHARE),
            hidden=target.adversary in ("final-model", "curious-client"),
        )


def _hidden(method: Method) -> Hidden:
    if not isinstance(method, Hidden):
        raise TypeError("a hidden method was expected")
    return method


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
