"""From a task to a plan: design a method for the target, put it on its grid, and share one budget among all stages."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from fedveil.accounting.grid import inner_target
from fedveil.core.errors import CannotCertify, require
from fedveil.core.fields import groups_of
from fedveil.core.limits import PARAMETERS
from fedveil.core.tables import filled
from fedveil.data.records import DataShape
from fedveil.models.spec import Curves, ModelPlan
from fedveil.planning.plan import HeldOutRecords, Origin, Plan, check_canaries
from fedveil.planning.promises import grid_of, promise
from fedveil.privacy.passes import COSTS_MORE, NAME
from fedveil.stages.evaluate.statement import Evaluation
from fedveil.stages.prepare.budget import largest_within, left_for_training
from fedveil.stages.sums import NoisySums
from fedveil.stages.train.base import Method
from fedveil.stages.train.registry import DEFAULT, KINDS, AutoRequest, request_type, why_not
from fedveil.stages.train.request import AlgorithmRequest, Draft, Task

_LEAST_EPSILON = 1e-4
_DELTA = 0.998  # of the target's, for training's noise with ideal numbers; the rest is for the grid


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A plan, and the report of how its method was designed."""

    plan: Plan
    draft: Draft


def read_request(given: Mapping[str, Any]) -> AlgorithmRequest:
    """Read the [algorithm] table of a study."""
    values = dict(given)
    kind = values.pop("kind", DEFAULT)
    thin = values.get("noise") in ("arsinh", NAME)
    require(not thin, "algorithm.noise", f"not be {NAME} in training", values.get("noise"), COSTS_MORE)
    words = [*KINDS, AutoRequest.kind]
    require(isinstance(kind, str) and kind in words, "algorithm.kind", f"be one of {', '.join(words)}", kind)
    _check_foreign(kind, values)
    wanted = AutoRequest if kind == AutoRequest.kind else request_type(kind)
    result: AlgorithmRequest = filled(wanted, values, "algorithm")
    return result


def _check_foreign(kind: str, values: Mapping[str, Any]) -> None:
    """Refuse a setting that another algorithm has, and say which one and why."""
    types = {name: {one.name for one in fields(request_type(name))} for name in KINDS}
    own = types.get(kind, set())
    groups = groups_of(request_type(kind)) if kind in KINDS else {}
    inner = {one.name: name for name, group in groups.items() for one in fields(group)}
    for key in values:
        outside = key in own or key not in inner
        hint = f"It belongs to the table [algorithm.{inner.get(key)}]."
        require(outside, f"algorithm.{key}", "stand in its own table", values[key], hint)
        others = [name for name in KINDS if key in types[name] and key not in own]
        reason = "Name the algorithm." if kind == AutoRequest.kind else why_not(kind, key)
        hint = f"It is a setting of {' and '.join(others)}. {reason}".strip()
        require(not others, f"algorithm.{key}", f"be a setting of {kind}", values[key], hint)


def make_plan(
    name: str,
    request: AlgorithmRequest,
    task: Task,
    *,
    seeded: bool = False,
    origin: Origin = Origin(),  # noqa: B008  frozen
    held_out: HeldOutRecords = HeldOutRecords(),  # noqa: B008  frozen
) -> Planned:
    """Return a plan that meets the task's target, together with how it was designed."""
    task.target.check_delta()
    if task.canaries:
        check_canaries(task.canaries, task.data, task.model)
    task = replace(task, model=settle_model(task.model, task.data))
    size = task.model.loss.size(task.data.features)
    hint = "Features times classes, for a linear model; choose fewer of either."
    require(size <= PARAMETERS, "The model", f"have at most {PARAMETERS:g} parameters", size, hint)
    try:
        draft = request.design(task)
    except CannotCertify as error:
        aim = f"epsilon {task.target.epsilon:g} at delta {task.target.delta:g}"
        raise CannotCertify(f"The target, {aim} against {task.target.adversary}, is out of reach: {error}.") from error
    if draft.method.chooses:
        hint = "Add [data.held_out] with public = true: the rule looks at nothing else but released models."
        seen = held_out.records > 0 and held_out.public
        require(seen, "algorithm.choose", "go with held-out records that are public", "none", hint)
    plan = Plan(
        name=name,
        method=draft.method,
        data=task.data,
        model=task.model,
        target=task.target,
        grid=request.grid(draft.method, task),
        seeded=seeded,
        canaries=task.canaries,
        trust=task.trust,
        origin=origin,
        held_out=held_out,
    )
    if not plan.method.noiseless:  # the user asked for no noise by name: for comparison, without any guarantee
        plan = _paid(plan, request, task)
        _check_met(plan, task)
    return Planned(plan=plan, draft=replace(draft, method=plan.method))


def settle_model(model: ModelPlan, shape: DataShape) -> ModelPlan:
    """Fill in what the shape of the data decides. If no clip is given, use the gradient norm bound at the zero model.

    Without a wish, clipped at the zero model's gradient norm.
    """
    hint = "Its curves are made of columns: name a source in [data], or leave shape out."
    require(
        not model.additive or model.curves.knots,
        "model.shape",
        "be linear where records come as rows",
        "additive",
        hint,
    )
    if not model.additive:
        model = replace(model, curves=Curves())
    model = model.for_data(shape.classes, shape.features)
    return model if model.clip is not None else replace(model, clip=model.loss.usual_clip(shape.bound))


def _paid(plan: Plan, request: AlgorithmRequest, task: Task) -> Plan:
    """Calibrate the noise again if the grid costs more privacy than was set aside for it."""
    target = plan.target
    if task.schedule.noise_std is not None or promise(plan, target.adversary).epsilon <= target.epsilon:
        return plan
    epsilon, delta = inner_target(grid_of(plan, target.adversary), target.epsilon, target.delta)
    again = request.recalibrated(
        plan.method, task, epsilon=epsilon * (1 - 1e-5), delta=min(delta, 0.989 * target.delta)
    )
    return replace(plan, method=again)


def _check_met(plan: Plan, task: Task) -> None:
    target = plan.target
    found = promise(plan, target.adversary).epsilon
    if found <= target.epsilon:
        return
    if task.schedule.noise_std is not None:
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


def shared_budget(
    request: AlgorithmRequest,
    task: Task,
    preparation: NoisySums,
    designed: Callable[[Task], Planned],
    evaluation: Evaluation,
) -> Planned:
    """Return the plan whose preparation, training and evaluation, composed exactly, meet the task's target.

    ``evaluation``: on the records that train the model. ``designed`` plans training alone. The method is designed once,
    for about what is left; then its noise is set so that the whole meets the target.
    """
    target = task.target
    stated = task.schedule.noise_std is not None or getattr(request, "noise_multiplier", None) is not None
    share = preparation.share + evaluation.sums.share
    hint = "Lower prepare.share or evaluation.share."
    require(share < 1, "prepare.share and evaluation.share", "leave a part of the budget to training", share, hint)
    first = target.epsilon if stated else max(left_for_training(target, share), _LEAST_EPSILON)
    records = target.of_records  # persons: a mechanism of records, with as much noise as its groups need
    planned = designed(replace(task, target=replace(records, epsilon=first)))
    settled = replace(task, model=planned.plan.model, target=records)

    def whole(method: Method) -> Plan:
        return replace(
            planned.plan,
            target=target,
            method=method,
            grid=request.grid(method, settled),
            preparation=preparation,
            evaluation=evaluation,
        )

    def at(inner: float) -> tuple[Plan, float]:
        method = planned.plan.method
        if inner != first:
            method = request.recalibrated(method, settled, epsilon=inner, delta=_DELTA * target.delta)
        plan = whole(method)
        return plan, promise(plan, target.adversary).epsilon

    if planned.plan.method.noiseless:
        plan = whole(planned.plan.method)
    elif stated:
        plan, found = at(first)
        lower = f"lower {'prepare' if preparation else 'evaluation'}.share"
        hint = f"Raise privacy.epsilon, {lower}, or leave the noise out to have it calibrated."
        beside = _what(preparation, evaluation)
        rule = f"be enough{f', with the {beside},' * bool(beside)} for epsilon {target.epsilon:g}"
        require(found <= target.epsilon, "The stated noise", rule, f"epsilon {found:.6g}", hint)
    else:
        plan = largest_within(target.epsilon, first, at)
    return Planned(plan=plan, draft=replace(planned.draft, method=plan.method))


def _what(preparation: NoisySums, evaluation: Evaluation) -> str:
    """What takes a part of the budget beside training."""
    parts = {"preparation": preparation, "evaluation": evaluation}
    return " and the ".join(name for name, part in parts.items() if part)
