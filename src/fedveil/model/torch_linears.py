"""Clipped sums of per-record gradients for the built-in generators, whose parameters are all those of linear layers.

Such a module is our own code: it calls each layer once, with one row for each record, and does everything between them
row by row. So the gradient of a layer is an outer product of its input and its error, as in a plain stack, and one pass
over the batch is enough. Modules of users go through torch_records.
"""

from typing import Any, final

from fedveil.model.torch_library import torch
from fedveil.model.torch_moments import Moments
from fedveil.model.torch_pair import Pair
from fedveil.model.torch_records import scales_of
from fedveil.model.torch_vae import Vae
from fedveil.model.torch_whole import Outer, add_whole

_AT_ONCE = 1024


def linears_of(module: Any, names: tuple[str, ...]) -> "Linears | None":
    """Return the fast way for a module of ours, and None for any other."""
    return Linears(module, names) if type(module) in (Moments, Pair, Vae) else None


@final
class Linears:
    """A module with ``learning()``, its linear layers in the order of their calls and of their parameters.

    Parameters after those are moved by no record.
    """

    reads_unset = False  # our modules read no memory before it is set

    def __init__(self, module: Any, names: tuple[str, ...]) -> None:
        self.module, self.names = module, names
        self._biased = [layer.bias is not None for layer in module.learning()]

    def rows_at_once(self, _row: Any) -> int:
        """Return how many rows are computed in one pass."""
        return _AT_ONCE

    def clipped(self, values: list[Any], rows: Any, targets: Any, clip: float, weights: Any) -> tuple[list[Any], Any]:
        """Return the weighted sum, by parameter, and which records are in it (those with finite gradients)."""
        layers = [(given.double(), error.double()) for given, error in self._passes(values, rows, targets)]
        squares = [
            _squares(error) * (_squares(given) + biased)
            for (given, error), biased in zip(layers, self._biased, strict=True)
        ]
        scales, usable = scales_of(torch.stack(squares).sum(0).sqrt(), clip, weights)
        summed = []
        for layer, biased in zip(layers, self._biased, strict=True):
            # set to zero and not multiplied: zero times infinity is not zero
            given, error = (value.masked_fill(~usable[:, None], 0.0) for value in layer)
            error = error * scales[:, None]
            summed += [(error.T @ given).flatten(), *([error.sum(0)] if biased else [])]
        rest = values[len(summed) :]  # what no record moves
        return [*summed, *(torch.zeros(value.numel(), dtype=torch.float64) for value in rest)], usable

    def add_whole(
        self, values: list[Any], rows: Any, targets: Any, clip: float, weights: Any, grain: float, sums: list[Any]
    ) -> Any:
        """Add the same sum to ``sums`` in whole grains, each record's part cut alone, and return which are in it."""
        layers = zip(self._passes(values, rows, targets), self._biased, strict=True)
        return add_whole([Outer(given, error, biased) for (given, error), biased in layers], clip, weights, grain, sums)

    def _passes(self, values: list[Any], rows: Any, targets: Any) -> list[tuple[Any, Any]]:
        """Return the input of every layer, and the derivative of the losses in its output."""
        inputs, results = [], []

        def note(_layer: Any, given: Any, found: Any) -> None:
            inputs.append(given[0].detach())
            if not found.requires_grad:
                found.requires_grad_(True)  # the first layer's: parameters carry no gradient here
            results.append(found)

        hooks = [layer.register_forward_hook(note) for layer in self.module.learning()]
        try:
            named = dict(zip(self.names, values, strict=True))
            total = torch.func.functional_call(self.module, named, (rows, targets)).sum()
        finally:
            for hook in hooks:
                hook.remove()
        return list(zip(inputs, torch.autograd.grad(total, results), strict=True))


def _squares(rows: Any) -> Any:
    return torch.linalg.vector_norm(rows, dim=1).square()
