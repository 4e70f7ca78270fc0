"""What a study says about the steps of DP-SGD: the optimiser, the shape of its step sizes, the average of models.

All of it is computed from noised sums (docs/theory/post-processing.md), so it changes no guarantee.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedveil.algorithms.correlated_request import KEYS as CORRELATED_KEYS
from fedveil.algorithms.optimiser import check_average, optimiser_of
from fedveil.algorithms.step_shapes import check_shape
from fedveil.checks import require

if TYPE_CHECKING:
    from fedveil.algorithms.dpsgd.design import DpSgdRequest

USUAL_MOMENTUM = 0.9
LATER = (
    *("optimizer", "beta2", "weight_decay", "average", "step_decay", "warm_up"),
    *("noise", *CORRELATED_KEYS, "choose", "choose_gain"),
)


def check_optimising(request: DpSgdRequest) -> None:
    """Refuse what no optimiser is, and a shape of steps beside segments, which state their own."""
    _ = fields_of(request)
    check_shape(request.step_decay, request.warm_up)
    for name in ("step_decay", "warm_up"):
        given = getattr(request, name)
        free = given is None or request.segments is None
        require(free, f"algorithm.{name}", "be left out with segments", given, "A segment states its step.")


def fields_of(request: DpSgdRequest) -> dict[str, Any]:
    """Return the fields of the method that the request states.

    Plain steps and momentum are written as they always were, by the momentum alone; only Adam is written by its name.
    """
    kind, momentum = request.optimizer, request.momentum
    if momentum is None:
        momentum = 0.0 if kind == "sgd" else USUAL_MOMENTUM
    hint = 'Say optimizer = "adam".'
    known = request.beta2 is None or kind == "adam"
    require(known, "algorithm.beta2", "be left out unless the optimizer is adam", request.beta2, hint)
    _ = optimiser_of(kind, momentum, request.beta2, request.weight_decay)
    check_average(request.average)
    return {
        "momentum": momentum,
        "optimizer": "adam" if kind == "adam" else None,
        "beta2": request.beta2,
        "weight_decay": request.weight_decay,
        "average": request.average,
    }


def later_of(request: DpSgdRequest) -> dict[str, Any]:
    """Return what is stated under keys that studies of earlier versions did not have."""
    return {name: getattr(request, name) for name in LATER if getattr(request, name) is not None}
