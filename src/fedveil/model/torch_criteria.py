"""The loss of one record: functions of (outputs, targets) that return one number for each row.

A module may give the loss itself, as a generator does: it is called with rows and targets, and there are no outputs.
"""

from typing import Any

from fedveil.importing import named
from fedveil.model.torch import OWN
from fedveil.model.torch_library import torch


def outputs_of(criterion: str, classes: int) -> int | None:
    """Return how many outputs the module must have; None if the user's own criterion decides."""
    if ":" in criterion:
        return None
    if criterion == OWN:
        return 1
    return classes if criterion == "cross-entropy" else 1


def criterion_of(name: str) -> Any:
    """Return the function of this name; None where the module gives the loss itself."""
    if name == OWN:
        return None
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


def losses_of(module: Any, values: dict[str, Any], criterion: Any, rows: Any, targets: Any) -> Any:
    """Return the loss of each record, with these parameters in place of the module's own."""
    if criterion is None:
        return torch.func.functional_call(module, values, (rows, targets))
    found = torch.func.functional_call(module, values, (rows,))
    return criterion(found.reshape(found.shape[0], -1), targets)
