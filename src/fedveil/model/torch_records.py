"""Clipped sums of per-record gradients, each record through the module separately (``vmap`` of ``grad``).

No record meets another before it is clipped, whatever the module does, because it sees batches of one.
"""

import math
from itertools import pairwise
from typing import Any

from fedveil.errors import BadValue
from fedveil.model.torch_library import torch

BUDGET = 32 * 2**20  # bytes that per-record gradients may take at once; more would also be slower
SHRUNK = 1 - 1e-6  # of the clip: covers the rounding of norms and scales, for up to 2**32 parameters


class Records:
    """Any module that ``torch.func`` can differentiate record by record."""

    def __init__(self, module: Any, criterion: Any, names: tuple[str, ...]) -> None:
        self.module, self.criterion, self.names = module, criterion, names
        self._each = torch.func.vmap(torch.func.grad(self._loss), in_dims=(None, 0, 0))

    def rows_at_once(self, row: Any) -> int:
        """Return how many rows fit the budget, in the module's precision and once more in float64."""
        size = sum(value.numel() for value in self.module.parameters() if value.requires_grad)
        return max(1, int(BUDGET // (size * (row.element_size() + 8))))

    def clipped(self, values: list[Any], rows: Any, targets: Any, clip: float, weights: Any) -> tuple[list[Any], Any]:
        """Return the weighted sum, by parameter, and which records are in it (those with finite gradients)."""
        try:
            found = self._each(dict(zip(self.names, values, strict=True)), rows, targets)
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            raise BadValue(f"model.module must work record by record (torch.func.vmap): {reason}") from error
        flat = [found[name].flatten(1).double() for name in self.names]
        norms = torch.stack([torch.linalg.vector_norm(value, dim=1) for value in flat]).square().sum(0).sqrt()
        scales, usable = scales_of(norms, clip, weights)
        if not bool(usable.all()):
            flat = [value.masked_fill(~usable[:, None], 0.0) for value in flat]
        return [scales @ value for value in flat], usable

    def _loss(self, values: dict[str, Any], row: Any, target: Any) -> Any:
        outputs = torch.func.functional_call(self.module, values, (row[None],))
        return self.criterion(outputs.reshape(1, -1), target[None]).sum()


def scales_of(norms: Any, clip: float, weights: Any) -> tuple[Any, Any]:
    """Return the factor of each record's gradient, zero if its norm is not finite; and which norms are finite."""
    usable = torch.isfinite(norms)
    scales = torch.where(norms > clip * SHRUNK, clip * SHRUNK / norms, 1.0) * weights
    return torch.where(usable, scales, 0.0), usable


def parts(count: int, size: int) -> list[slice]:
    """Return slices of nearly equal length, at most ``size``."""
    pieces = max(1, math.ceil(count / size))
    edges = [count * i // pieces for i in range(pieces + 1)]
    return [slice(a, b) for a, b in pairwise(edges) if b > a]
