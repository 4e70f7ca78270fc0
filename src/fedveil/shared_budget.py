"""One target for preparation, training and evaluation: what the noisy sums leave of it goes to training."""

import math
from collections.abc import Callable
from dataclasses import replace

from fedveil.algorithms.base import Method
from fedveil.algorithms.request import AlgorithmRequest, Task
from fedveil.checks import require
from fedveil.design import Planned
from fedveil.evaluate.statement import Evaluation
from fedveil.plan import Plan
from fedveil.prepare.budget import largest_within, left_for_training
from fedveil.promises import promise
from fedveil.stages.sums import NoisySums

_LEAST_EPSILON = 1e-4
_DELTA = 0.998  # of the target's, for training's noise with ideal numbers; the rest is for the grid


def shared_budget(
    request: AlgorithmRequest,
    task: Task,
    preparation: NoisySums | None,
    designed: Callable[[Task], Planned],
    evaluation: Evaluation | None = None,
) -> Planned:
    """Return the plan whose preparation, training and evaluation, composed exactly, meet the task's target.

    ``evaluation``: on the records that train the model. ``designed`` plans training alone. The method is designed once,
    for about what is left; then its noise is set so that the whole meets the target.
    """
    target = task.target
    stated = task.schedule.noise_std is not None or getattr(request, "noise_multiplier", None) is not None
    share = math.fsum(sums.share for sums in _shared(preparation, evaluation))
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
        lower = f"lower {_named(preparation, evaluation)}.share"
        hint = f"Raise privacy.epsilon, {lower}, or leave the noise out to have it calibrated."
        rule = f"be enough, with the {_what(preparation, evaluation)}, for epsilon {target.epsilon:g}"
        require(found <= target.epsilon, "The stated noise", rule, f"epsilon {found:.6g}", hint)
    else:
        plan = largest_within(target.epsilon, first, at)
    return Planned(plan=plan, draft=replace(planned.draft, method=plan.method))


def _shared(preparation: NoisySums | None, evaluation: Evaluation | None) -> list[NoisySums]:
    return [one for one in (preparation, None if evaluation is None else evaluation.sums) if one is not None]


def _named(preparation: NoisySums | None, evaluation: Evaluation | None) -> str:
    """The table of a study whose share can be lowered."""
    return "evaluation" if preparation is None and evaluation is not None else "prepare"


def _what(preparation: NoisySums | None, evaluation: Evaluation | None) -> str:
    """What takes a part of the budget beside training."""
    if preparation is None:
        return "evaluation"
    return "preparation" if evaluation is None else "preparation and the evaluation"
