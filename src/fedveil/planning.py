"""From a study to a plan: the schedule is designed for the target, from public quantities only."""

import math
from dataclasses import dataclass, replace

from fedveil.account.grid import choose_grid, inner_target
from fedveil.account.observers import Participation, calibrate_for
from fedveil.checks import require
from fedveil.data.records import DataShape
from fedveil.errors import CannotCertify
from fedveil.mechanism import LastIterate, Mechanism
from fedveil.model.named import usual_clip
from fedveil.plan import Deal, ModelPlan, Plan
from fedveil.promises import grid_of, noise_of, promise
from fedveil.schedule import Calibrator, Designed, Problem, Wishes, design
from fedveil.study import Study

_EPSILON_SHARE, _DELTA_SHARE = 1e-6, 1e-3  # kept back for what the grid costs


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """The plan, and how its schedule was chosen."""

    plan: Plan
    designed: Designed


def make_plan(study: Study, shape: DataShape, test_records: int = 0, test_public: bool = True) -> Planned:
    """The plan that meets the study's target with the least harm to the model, by the schedule's stated criterion."""
    study = replace(study, model=settled_model(study.model, shape))
    deal: Deal = study.algorithm.deal or ("clients" if study.target.unit == "client" else "records")
    if deal == "clients" and study.target.unit == "record":
        even, sizes = (
            shape.largest_client == shape.smallest_client,
            f"{shape.smallest_client} to {shape.largest_client}",
        )
        hint = 'Deal records, or protect clients (privacy.unit = "client").'
        require(even, "Clients", "be of one size when they are dealt whole but records are protected", sizes, hint)
    problem, participation = _problem(study, shape, deal), _participation(study, shape, deal)
    adversary = study.target.adversary

    def calibrator(run: Mechanism, /, *, epsilon: float, delta: float) -> tuple[float, Mechanism]:
        require(isinstance(run, LastIterate), "run", "be a hidden run", type(run).__name__)
        return calibrate_for(run, adversary, participation, epsilon=epsilon, delta=delta)  # type: ignore[arg-type]

    try:
        designed = design(problem, study.wishes, calibrate=calibrator)
    except CannotCertify as error:
        aim = f"epsilon {study.target.epsilon:g} at delta {study.target.delta:g}"
        raise CannotCertify(f"The target, {aim} against {adversary}, is out of reach: {error}.") from error
    if deal == "clients" and study.target.unit == "record":
        wishes = _whole_clients(designed, study.wishes, shape)
        designed = designed if wishes is study.wishes else design(problem, wishes, calibrate=calibrator)
    plan = Plan(
        name=study.name,
        data=shape,
        model=study.model,
        target=study.target,
        deal=deal,
        run=designed.mechanism,
        grid=0,
        seeded=study.seed is not None,
        test_records=test_records,
        test_public=test_public,
        training_public=study.training_public,
        baselines=study.baselines,
    )
    plan = _on_grid(plan, study.wishes, calibrator)
    _check_met(plan, study.wishes)
    return Planned(plan=plan, designed=designed)


def _on_grid(plan: Plan, wishes: Wishes, calibrator: Calibrator) -> Plan:
    """The plan on a grid; where the grid costs more than was kept back for it, the noise is calibrated again."""
    noise = noise_of(plan)
    plan = replace(plan, grid=choose_grid(plan.radius, float(noise.min()), float(noise.max())))
    target = plan.target
    if wishes.noise_std is not None or promise(plan, target.adversary).epsilon <= target.epsilon:
        return plan
    epsilon, delta = inner_target(grid_of(plan, target.adversary), target.epsilon, target.delta)
    _, run = calibrator(plan.run, epsilon=epsilon * (1 - 1e-5), delta=min(delta, 0.989 * target.delta))
    return replace(plan, run=run) if isinstance(run, LastIterate) else plan


def settled_model(model: ModelPlan, shape: DataShape) -> ModelPlan:
    """The model with what the data's shape decides; without a wish, clipped at the zero model's gradient norm."""
    model = replace(model, classes=shape.classes)
    return model if model.clip is not None else replace(model, clip=usual_clip(model.loss, shape.bound))


def _problem(study: Study, shape: DataShape, deal: Deal) -> Problem:
    constants, target = study.model.constants(shape.bound), study.target
    dimension = study.model.loss.size(shape.features)
    if study.algorithm.noise == "laplace":
        hint = "Use one feature without intercept, or Gaussian noise."
        require(dimension == 1, "algorithm.noise", "be gaussian for more than one parameter", f"{dimension}", hint)
    radius = study.model.radius
    return Problem(
        units=shape.clients if target.unit == "client" else shape.records,
        dimension=dimension,
        lipschitz=constants.lipschitz,
        smoothness=constants.smoothness,
        strong_convexity=constants.strong_convexity,
        diameter=None if radius is None else 2 * radius,
        order=study.algorithm.order,
        stopping=study.algorithm.stopping,
        noise=study.algorithm.noise,
        neighbours=target.neighbours,
        epsilon=target.epsilon * (1 - _EPSILON_SHARE),
        delta=target.delta * (1 - _DELTA_SHARE),
        hidden=target.adversary in ("final-model", "curious-client"),
    )


def _participation(study: Study, shape: DataShape, deal: Deal) -> Participation:
    held = 1 if study.target.unit == "client" else shape.largest_client
    return Participation(largest_client=held, clients=shape.clients, every_round=deal == "records" and held > 1)


def _whole_clients(designed: Designed, wishes: Wishes, shape: DataShape) -> Wishes:
    """Wishes whose batches hold whole clients."""
    size, batch = shape.largest_client, designed.mechanism.batch
    if isinstance(batch, tuple):
        fits = all(count % size == 0 for count in batch)
        require(fits, "schedule.batch", f"be multiples of a client's {size} records", batch)
        return wishes
    if batch % size == 0:
        return wishes
    require(wishes.batch is None, "schedule.batch", f"be a multiple of a client's {size} records", batch)
    if isinstance(wishes.rounds, int):  # the rounds were wished for: as many whole clients as fit in each
        return replace(wishes, batch=max(1, batch // size) * size)
    return replace(wishes, batch=max(1, round(batch / size)) * size)


def _check_met(plan: Plan, wishes: Wishes) -> None:
    target = plan.target
    found = promise(plan, target.adversary).epsilon
    if found <= target.epsilon:
        return
    if wishes.noise_std is not None:
        least = "no finite epsilon" if math.isinf(found) else f"epsilon {found:.6g}"
        require(
            False,
            "schedule.noise_std",
            f"be enough for epsilon {target.epsilon:g}",
            f"noise that gives {least}",
            "Raise privacy.epsilon, or leave noise_std out to have it calibrated.",
        )
    raise CannotCertify(
        f"The target epsilon {target.epsilon:g} at delta {target.delta:g} is out of reach for {target.adversary}: "
        f"the best schedule found gives {found:.6g}. Raise epsilon or delta."
    )
