"""Clipped sums of per-record gradients, each record through the module separately (``vmap`` of ``grad``).

No record meets another before it is clipped, whatever the module does, because it sees batches of one.
"""

import math
from itertools import pairwise
from typing import Any

from fedveil.errors import BadValue
from fedveil.model.torch_criteria import losses_of
from fedveil.model.torch_library import torch

BUDGET = 32 * 2**20  # bytes that per-record gradients may take at once; more would also be slower
_BITS = 25  # of a clipped gradient that is formed
SHRUNK = 1 - 1e-6  # of the clip: covers the rounding of norms and scales, for up to 2**32 parameters


class Records:
    """Any module that ``torch.func`` can differentiate record by record."""

    reads_unset = True  # perhaps: the module is the user's

    def __init__(self, module: Any, criterion: Any, names: tuple[str, ...]) -> None:
        self.module, self.criterion, self.names = module, criterion, names
        self._each = torch.func.vmap(torch.func.grad(self._loss), in_dims=(None, 0, 0))

    def rows_at_once(self, row: Any) -> int:
        """Return how many rows fit the budget, in the module's precision and once more in float64."""
        size = sum(value.numel() for value in self.module.parameters() if value.requires_grad)
        return max(1, int(BUDGET // (size * (row.element_size() + 8))))

    def clipped(self, values: list[Any], rows: Any, targets: Any, clip: float, weights: Any) -> tuple[list[Any], Any]:
        """Return the weighted sum, by parameter, and which records are in it (those with finite gradients)."""
        flat, scales, usable = self._formed(values, rows, targets, clip, weights)
        if not bool(usable.all()):
            flat = [value.masked_fill(~usable[:, None], 0.0) for value in flat]
        return [scales @ value for value in flat], usable

    def add_whole(
        self, values: list[Any], rows: Any, targets: Any, clip: float, weights: Any, grain: float, sums: list[Any]
    ) -> Any:
        """Add the same sum to ``sums`` in whole grains, each record's part cut alone, and return which are in it.

        A record of weight zero adds nothing.
        """
        flat, scales, usable = self._formed(values, rows, targets, clip, weights)
        for one, value in zip(sums, flat, strict=True):
            add_cut(value, scales / grain, scales == 0, clip / grain, one)
        return usable

    def _formed(
        self, values: list[Any], rows: Any, targets: Any, clip: float, weights: Any
    ) -> tuple[list[Any], Any, Any]:
        """Return the gradient of each record, by parameter; its factor; and whether it is finite."""
        try:
            found = self._each(dict(zip(self.names, values, strict=True)), rows, targets)
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            raise BadValue(f"model.module must work record by record (torch.func.vmap): {reason}") from error
        flat = [found[name].flatten(1).double() for name in self.names]
        norms = torch.stack([torch.linalg.vector_norm(value, dim=1) for value in flat]).square().sum(0).sqrt()
        return flat, *scales_of(norms, clip, weights)

    def _loss(self, values: dict[str, Any], row: Any, target: Any) -> Any:
        return losses_of(self.module, values, self.criterion, row[None], target[None]).sum()


def scales_of(norms: Any, clip: float, weights: Any) -> tuple[Any, Any]:
    """Return the factor of each record's gradient, zero if its norm is not finite; and which norms are finite."""
    usable = torch.isfinite(norms)
    scales = torch.where(norms > clip * SHRUNK, clip * SHRUNK / norms, 1.0) * weights
    return torch.where(usable, scales, 0.0), usable


def add_cut(formed: Any, factors: Any, nothing: Any, largest: float, total: Any) -> None:
    """Add the rows times their factors to ``total``, each product cut to a whole number; overwrites ``formed``.

    Cut towards zero, so that no row becomes longer, to multiples of a power of two: no more than 2**25 of them make the
    longest row, ``largest``, and whole numbers of 32 bits hold the sum of 32 such rows. Rows that add ``nothing`` (None
    if there are none) are set to zero, whatever is in them: zero times infinity is not zero.
    """
    multiple = 2.0 ** max(0, math.frexp(largest)[1] - _BITS)
    cut = formed.mul_((factors / multiple).to(formed.dtype)[:, None]).int()  # faster than trunc
    if nothing is not None:
        cut[nothing] = 0
    total.add_(cut.sum(0, dtype=torch.int32).view(total.shape), alpha=multiple)


def parts(count: int, size: int) -> list[slice]:
    """Return slices of nearly equal length, at most ``size``."""
    pieces = max(1, math.ceil(count / size))
    edges = [count * i // pieces for i in range(pieces + 1)]
    return [slice(a, b) for a, b in pairwise(edges) if b > a]
