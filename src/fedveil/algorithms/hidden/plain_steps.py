"""Why hidden training takes plain steps and releases the last model: what else is asked for is refused, with a reason.

Later rounds hide what earlier ones used only if two runs that take the same step come no farther apart. A plain
gradient step of a smooth convex loss is such a map of the model alone. Page: docs/theory/post-processing.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedveil.checks import require
from fedveil.values import number

if TYPE_CHECKING:
    from fedveil.algorithms.hidden.design import HiddenRequest

_ELSEWHERE = 'kind = "dpsgd" has it'
_WHY = {
    "adam": "Adam divides by its own past, so two runs that take the same step may come farther apart, and later "
    f"rounds are not proved to hide earlier ones: {_ELSEWHERE}.",
    "momentum": "A velocity remembers earlier gradients, so the model alone does not contract, and later rounds are "
    f"not proved to hide earlier ones: {_ELSEWHERE}.",
    "average": "An average is computed from models that must stay hidden, and the bounds are proved for the last model "
    f"alone: {_ELSEWHERE}.",
    "weight_decay": "For plain steps it is an l2 penalty, whose contraction the bounds use: state model.l2.",
    "steps": 'State one step for each round in schedule.step_size, segments, or schedule.kind = "decaying".',
}


def refuse_optimising(request: HiddenRequest) -> None:
    """Refuse everything but plain steps and the last model."""
    asked = request.optimizer
    why = _WHY.get(asked, "") if isinstance(asked, str) else ""
    require(asked in (None, "sgd"), "algorithm.optimizer", "be sgd or left out for hidden training", asked, why)
    still = request.momentum is None or number("algorithm.momentum", request.momentum) == 0
    require(still, "algorithm.momentum", "be 0 or left out for hidden training", request.momentum, _WHY["momentum"])
    whys = {
        "beta2": _WHY["adam"],
        "average": _WHY["average"],
        "weight_decay": _WHY["weight_decay"],
        "step_decay": _WHY["steps"],
        "warm_up": _WHY["steps"],
    }
    for name, reason in whys.items():
        given = getattr(request, name)
        require(given is None, f"algorithm.{name}", "be left out for hidden training", given, reason)
