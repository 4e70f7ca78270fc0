"""Design of hidden training: the schedule of least expected risk, with noise calibrated for the chosen observer."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from operator import attrgetter
from typing import Any, ClassVar, Final, Literal

import numpy as np

from fedveil.accounting.evaluator import Evaluator
from fedveil.accounting.grid import choose_grid
from fedveil.accounting.observers import calibrate_views
from fedveil.accounting.sampled import least_epsilon
from fedveil.core.errors import CannotCertify, require
from fedveil.core.fields import check_fields, real, word
from fedveil.core.tables import known, table
from fedveil.core.values import number
from fedveil.data.records import DataShape
from fedveil.models.loss import Constants
from fedveil.privacy.mechanism import LastIterate, Mechanism, Numbers
from fedveil.stages.noise_shares import extra_noise
from fedveil.stages.train.base import Method, expected
from fedveil.stages.train.hidden.method import NOISING, Deal, Hidden
from fedveil.stages.train.hidden.schedule import Calibrator, Designed, Order, Problem, design, least_risk
from fedveil.stages.train.hidden.schedule.families import drawn_deal
from fedveil.stages.train.request import Asked, Draft, ScheduleRequest, Task, beside, check_beside
from fedveil.stages.train.settings import rounds_of

# Rounds of hidden training in segments: another way to state a schedule with one step and one noise for each round.


_KEYS: Final = ("rounds", "noise", "step")
_WHY: Final = {
    "clip": "One Lipschitz constant must hold in all rounds, so that later rounds hide what earlier ones used.",
    "rate": "Who takes part is dealt for whole passes: [schedule] batch, or [algorithm] rate, says it for all rounds.",
}


def with_segments(task: Task, given: Any) -> Task:
    """Return the task with the steps and the noise of its segments written into the schedule, round by round."""
    if given is None:
        return task
    name, schedule = "algorithm.segments", task.schedule
    listed = isinstance(given, list | tuple) and len(given) >= 1
    require(listed, name, "list at least one segment", given, "Each is a table, [[algorithm.segments]].")
    parts = [_part(table(part, name)) for part in given]
    total, counted = sum(int(part["rounds"]) for part in parts), isinstance(schedule.rounds, int)
    hint = "It says how many rounds a pass has; the segments part the rounds of all passes."
    require(counted, "schedule.rounds", "be a number beside the segments of hidden training", schedule.rounds, hint)
    planned = (schedule.rounds if isinstance(schedule.rounds, int) else 0) * (schedule.passes or 1)
    require(total == planned, f"{name}.rounds", f"add up to the schedule's rounds of all passes, {planned}", total)
    steps, noise = _each_round(parts, "step", schedule.step_size), _each_round(parts, "noise", schedule.noise_std)
    return replace(task, schedule=replace(schedule, passes=schedule.passes or 1, step_size=steps, noise_std=noise))


def _part(given: Mapping[str, Any]) -> dict[str, float]:
    for key, why in _WHY.items():
        rule = "be left out of the segments of hidden training"
        require(key not in given, f"algorithm.segments.{key}", rule, given.get(key), why)
    known(given, _KEYS, "a segment")
    result: dict[str, float] = {"rounds": rounds_of(given)}
    return result | {key: number(f"algorithm.segments.{key}", given[key]) for key in _KEYS[1:] if key in given}


def _each_round(parts: Sequence[Mapping[str, float]], key: str, listed: Numbers | None) -> Numbers | None:
    """Return one number for each round; if no segment states it, what the schedule says (``listed``)."""
    stated = sum(key in part for part in parts)
    rule = f"be stated in all {len(parts)} segments or in none"
    require(stated in (0, len(parts)), f"algorithm.segments.{key}", rule, stated)
    if not stated:
        return listed
    return tuple(part[key] for part in parts for _ in range(int(part["rounds"])))


# Hidden training of a model whose smoothness is unknown: schedules cannot be ranked, so the user states one.
#
# Only the noise remains to be found. Without smoothness a gap cannot be followed through the steps; a record is hidden
# because the model is kept in a ball while noise is added (docs/torch.md), and by the secret order.


def stated_run(
    task: Task,
    *,
    order: str,
    rate: float | None = None,
    stopping: str,
    noise: str,
    epsilon: float,
    delta: float,
    calibrate: Calibrator,
) -> LastIterate:
    """Return the user's schedule with the least certified noise, or with the user's own noise if that is enough."""
    constants, schedule = task.model.constants(task.data.bound), task.schedule
    units = task.data.clients if task.target.unit == "client" else task.data.records
    run = _unscaled(task, constants, units, order=order, rate=rate, stopping=stopping, noise=noise)
    factor, calibrated = calibrate(run, epsilon=epsilon, delta=delta)
    if schedule.noise_std is not None:
        hint = f"It takes {factor:.4g} times this noise; leave noise_std out to have it calibrated."
        rule = f"meet epsilon {task.target.epsilon:g} at delta {task.target.delta:g}"
        require(factor <= 1, "schedule.noise_std", rule, schedule.noise_std, hint)
        return run
    if not isinstance(calibrated, LastIterate):
        raise CannotCertify("the calibrator returned something else than the hidden run it was given")
    return calibrated


def _unscaled(
    task: Task, constants: Constants, units: int, *, order: str, rate: float | None, stopping: str, noise: str
) -> LastIterate:
    schedule, radius = task.schedule, task.model.radius
    hint = 'Hidden training has no rule for a model of unknown smoothness; [algorithm] kind = "dpsgd" has one.'
    require(schedule.step_size is not None, "schedule.step_size", f"be given for a {task.model.kind} model", None, hint)
    hint = "The kind auto takes the step_size and batch you state."
    require(schedule.kind in ("auto", "constant"), "schedule.kind", "be auto or constant here", schedule.kind, hint)
    rounds, batch = _deal(schedule, units) if order in ("public", "secret") else _drawn(schedule, units, order, rate)
    chance = min(1.0, batch / units) if rate is None and isinstance(batch, int) else rate
    return LastIterate(
        rounds=rounds,
        passes=schedule.passes or 1,
        batch=batch,
        records=units,
        order=order,  # type: ignore[arg-type]
        stopping=stopping,  # type: ignore[arg-type]
        step_size=schedule.step_size or 0.0,
        lipschitz=constants.lipschitz,
        smoothness=None,
        convex=constants.convex,
        diameter=None if radius is None else 2 * radius,
        noise=noise,  # type: ignore[arg-type]
        noise_std=constants.lipschitz if schedule.noise_std is None else schedule.noise_std,
        neighbours=task.target.neighbours,
        rate=chance if order == "poisson" else None,
    )


def _drawn(schedule: ScheduleRequest, units: int, order: str, rate: float | None) -> tuple[int, int | tuple[int, ...]]:
    """Return the rounds of a pass, and the planned batch, where every unit draws its own rounds."""
    batch, rounds = schedule.batch, schedule.rounds
    require(rounds != "converged", "schedule.rounds", "be a number for a model of unknown smoothness", rounds)
    count = rounds if isinstance(rounds, int) else None
    if batch is None and rate is None:
        require(count is not None, "schedule.batch", "be given (or rounds)", None)
        batch = max(1, units // (count or 1))
    return drawn_deal(units, order, rate, count, batch)


def _deal(schedule: ScheduleRequest, units: int) -> tuple[int, int | tuple[int, ...]]:
    """Return the rounds of a pass, and their batch."""
    batch, rounds = schedule.batch, schedule.rounds
    require(rounds != "converged", "schedule.rounds", "be a number for a model of unknown smoothness", rounds)
    require(batch is not None or rounds is not None, "schedule.batch", "be given (or rounds)", None)
    if isinstance(batch, tuple):
        return len(batch), batch
    count = rounds if isinstance(rounds, int) else units // (batch or 1)
    require(1 <= count <= units, "schedule.rounds", f"lie between 1 and the number of units, {units}", count)
    size = batch if batch is not None else units // count
    require(count * size <= units, "schedule.batch", f"leave every one of {units} units in one round of a pass", size)
    return count, size


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


_NO_GAIN: Final = 1.01  # times the target: less is not worth a word


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
        chosen, method = designed.chosen, Hidden(run=designed.mechanism, deal=deal)
        return Draft(
            method=method,
            reason=reason + _worth_of_hiding(method, task),
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


def _worth_of_hiding(method: Hidden, task: Task) -> str:
    """Return in a sentence what it is worth that nobody sees the models along the way (docs/when-hiding-pays.md)."""
    target = task.target
    if target.adversary != "final-model" or method.run.noise != "gaussian" or method.run.sampled:
        return ""  # drawn orders: the table of observers says it, and working it out once more takes long
    seen = method.answer("every-model", task.setup, target.delta).epsilon
    if seen <= target.epsilon * _NO_GAIN:
        return " Hiding the models buys nothing here: with every model seen, the same noise promises as much."
    said = "no guarantee" if seen == math.inf else f"epsilon {seen:.3g}"
    return f" With every model seen, the same noise would promise {said}: that nobody sees them is what protects here."


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
