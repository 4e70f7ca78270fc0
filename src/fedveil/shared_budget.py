"""One target for preparation and training together: what the measurements leave of it goes to training."""

from collections.abc import Callable
from dataclasses import replace

from fedveil.algorithms.base import Method
from fedveil.algorithms.request import AlgorithmRequest, Task
from fedveil.checks import require
from fedveil.design import Planned
from fedveil.plan import Plan
from fedveil.prepare.budget import largest_within, left_for_training
from fedveil.prepare.statement import Preparation
from fedveil.promises import promise

_LEAST_EPSILON = 1e-4
_DELTA = 0.998  # of the target's, for training's noise with ideal numbers; the rest is for the grid


def shared_budget(
    request: AlgorithmRequest, task: Task, preparation: Preparation, designed: Callable[[Task], Planned]
) -> Planned:
    """Return the plan whose preparation and training, composed exactly, meet the task's target.

    ``designed`` plans training alone. The method is designed once, for about what is left; then its noise is set so
    that the whole meets the target.
    """
    target = task.target
    stated = task.schedule.noise_std is not None or getattr(request, "noise_multiplier", None) is not None
    first = target.epsilon if stated else max(left_for_training(target, preparation.share), _LEAST_EPSILON)
    planned = designed(replace(task, target=replace(target, epsilon=first)))
    settled = replace(task, model=planned.plan.model)

    def whole(method: Method) -> Plan:
        return replace(
            planned.plan,
            target=target,
            method=method,
            grid=request.grid(method, settled),
            preparation=preparation,
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
        hint = "Raise privacy.epsilon, lower prepare.share, or leave the noise out to have it calibrated."
        rule = f"be enough, with the preparation, for epsilon {target.epsilon:g}"
        require(found <= target.epsilon, "The stated noise", rule, f"epsilon {found:.6g}", hint)
    else:
        plan = largest_within(target.epsilon, first, at)
    return Planned(plan=plan, draft=replace(planned.draft, method=plan.method))
