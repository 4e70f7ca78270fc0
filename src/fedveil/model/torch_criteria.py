"""The loss of one record: functions of (outputs, targets) that return one number for each row."""

from typing import Any

from fedveil.importing import named
from fedveil.model.torch_library import torch


def outputs_of(criterion: str, classes: int) -> int | None:
    """Return how many outputs the module must have; None if the user's own criterion decides."""
    if ":" in criterion:
        return None
    return classes if criterion == "cross-entropy" else 1


def criterion_of(name: str) -> Any:
    """Return the function of this name."""
    functional = torch.nn.functional

    def cross_entropy(outputs: Any, targets: Any) -> Any:
        return functional.cross_entropy(outputs, targets.long(), reduction="none")

    def logistic(outputs: Any, targets: Any) -> Any:
        return functional.softplus((1 - 2 * targets) * outputs[:, 0])

    def mse(outputs: Any, targets: Any) -> Any:
        return (outputs[:, 0] - targets).square()

    def huber(outputs: Any, targets: Any) -> Any:
        return functional.huber_loss(outputs[:, 0], targets, reduction="none")

    known = {"cross-entropy": cross_entropy, "logistic": logistic, "mse": mse, "huber": huber}
    return known[name] if name in known else named(name, "model.criterion")
