"""Hidden training of a model whose smoothness is unknown: schedules cannot be ranked, so the user states one.

Only the noise remains to be found. Without smoothness a gap cannot be followed through the steps; a record is hidden
because the model is kept in a ball while noise is added (docs/torch.md), and by the secret order.
"""

from fedveil.core.checks import require
from fedveil.core.errors import CannotCertify
from fedveil.models.loss import Constants
from fedveil.privacy.mechanism import LastIterate
from fedveil.stages.train.hidden.schedule import Calibrator
from fedveil.stages.train.hidden.schedule.drawn import drawn_deal
from fedveil.stages.train.request import Task
from fedveil.stages.train.schedule_request import ScheduleRequest


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
