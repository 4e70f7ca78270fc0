"""One target for preparation, training and evaluation: what the noisy sums leave of it goes to training."""

from collections.abc import Callable
from dataclasses import replace

from fedveil.core.checks import require
from fedveil.planning.design import Planned
from fedveil.planning.plan import Plan
from fedveil.planning.promises import promise
from fedveil.stages.evaluate.statement import Evaluation
from fedveil.stages.prepare.budget import largest_within, left_for_training
from fedveil.stages.sums import NoisySums
from fedveil.stages.train.base import Method
from fedveil.stages.train.request import AlgorithmRequest, Task

_LEAST_EPSILON = 1e-4
_DELTA = 0.998  # of the target's, for training's noise with ideal numbers; the rest is for the grid


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
    planned = designed(replace(task, target=replace(target, epsilon=first)))
    settled = replace(task, model=planned.plan.model)

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
        rule = f"be enough, with the {_what(preparation, evaluation)}, for epsilon {target.epsilon:g}"
        require(found <= target.epsilon, "The stated noise", rule, f"epsilon {found:.6g}", hint)
    else:
        plan = largest_within(target.epsilon, first, at)
    return Planned(plan=plan, draft=replace(planned.draft, method=plan.method))


def _what(preparation: NoisySums, evaluation: Evaluation) -> str:
    """What takes a part of the budget beside training."""
    parts = {"preparation": preparation, "evaluation": evaluation}
    return " and the ".join(name for name, part in parts.items() if part)
