"""Clipped sums of per-record gradients for a plain stack of layers, at the cost of one pass over the batch.

The gradient of a linear layer is an outer product of input and error: its norm is the product of two norms, so it need
not be formed. The gradient of a convolution is small and is formed. Only layers from a fixed list are accepted, called
in a fixed order, and none lets one record see another; any other module goes through torch_records.
"""

from typing import Any

from fedveil.model.torch_convolution import convolved, kernel_of, patches_of
from fedveil.model.torch_library import torch
from fedveil.model.torch_records import scales_of
from fedveil.model.torch_trace import Changed, traced
from fedveil.model.torch_whole import Formed, Outer, add_whole

BUDGET = 64 * 2**20  # bytes that inputs, patches and formed gradients may take at once
_ACTIVATIONS = ("ReLU", "LeakyReLU", "ELU", "CELU", "GELU", "SELU", "SiLU", "Mish", "Tanh", "Sigmoid", "Softplus")
_PLAIN = (*_ACTIVATIONS, "Identity", "MaxPool2d", "AvgPool2d")


def layers_of(module: Any) -> list[Any] | None:
    """Return the layers in order, if the module is such a stack and nothing else; otherwise None.

    A module with a ``forward`` of its own is one if a record of that is (torch_trace).
    """
    if any(_changed(part) for part in module.modules()):
        return None
    plain = _in_order(module)
    leaves = plain if all(_known(leaf) for leaf in plain) else traced(module)
    if leaves is None or not all(isinstance(leaf, Changed) or _known(leaf) for leaf in leaves):
        return None
    given = [value for leaf in leaves for value in leaf.parameters()]
    once = len({id(value) for value in given}) == len(given)
    same = [id(value) for value in given] == [id(value) for value in module.parameters()]
    return leaves if once and same and given and all(value.requires_grad for value in given) else None


def _changed(part: Any) -> bool:
    """Return whether someone has put another forward or a hook on a layer."""
    return "forward" in vars(part) or any(vars(part)[name] for name in vars(part) if name.endswith("_hooks"))


def _in_order(module: Any) -> list[Any]:
    """Return the layers of nested sequences, in order."""
    return [leaf for part in module for leaf in _in_order(part)] if type(module) is torch.nn.Sequential else [module]


def _known(leaf: Any) -> bool:
    nn = torch.nn
    if type(leaf) is nn.Conv2d:
        return bool(leaf.groups == 1 and leaf.padding_mode == "zeros" and not isinstance(leaf.padding, str))
    if type(leaf) is nn.Flatten:
        return bool(leaf.start_dim == 1)
    if type(leaf) is nn.Unflatten:
        return isinstance(leaf.dim, int) and leaf.dim >= 1
    return type(leaf) is nn.Linear or type(leaf) in [getattr(nn, name) for name in _PLAIN]


class Stack:
    """A plain stack; ``leaves`` come from :func:`layers_of`."""

    reads_unset = False  # none of the listed layers reads memory before it is set

    def __init__(self, leaves: list[Any], criterion: Any) -> None:
        self.leaves, self.criterion = leaves, criterion
        self._learning = [leaf for leaf in leaves if type(leaf) in (torch.nn.Linear, torch.nn.Conv2d)]

    def rows_at_once(self, row: Any) -> int:
        """Return how many rows fit the budget for inputs, patches and formed gradients."""
        numbers, here = 0, row[None]
        with torch.no_grad():
            for leaf in self.leaves:
                after = leaf(here)
                numbers += after.numel() + here.numel()
                if type(leaf) is torch.nn.Conv2d:
                    numbers += 3 * leaf.weight.numel() + leaf.weight[0].numel() * after[0, 0].numel()
                elif here.ndim > 2:
                    numbers += 3 * sum(value.numel() for value in leaf.parameters())
                here = after
        return max(1, BUDGET // (8 * numbers))

    def clipped(self, values: list[Any], rows: Any, targets: Any, clip: float, weights: Any) -> tuple[list[Any], Any]:
        """Return the weighted sum, by parameter, and which records are in it (those with finite gradients)."""
        kinds, scales, usable = self._scaled(values, rows, targets, clip, weights)
        spoiled = None if bool(usable.all()) else ~usable
        return [value for kind in kinds for value in kind.summed(scales, spoiled)], usable

    def add_whole(
        self, values: list[Any], rows: Any, targets: Any, clip: float, weights: Any, grain: float, sums: list[Any]
    ) -> Any:
        """Add the same sum to ``sums`` in whole grains, each record's part cut alone, and return which are in it.

        A record of weight zero adds nothing.
        """
        inputs, errors = self._passes(values, rows, targets)
        layers = zip(self._learning, inputs, errors, strict=True)
        return add_whole([_whole(leaf, a, e) for leaf, a, e in layers], clip, weights, grain, sums)

    def _scaled(
        self, values: list[Any], rows: Any, targets: Any, clip: float, weights: Any
    ) -> tuple[list[Any], Any, Any]:
        """Return the layers' gradients; the factor of each record; and whether its gradient is finite."""
        inputs, errors = self._passes(values, rows, targets)
        layers = zip(self._learning, inputs, errors, strict=True)
        kinds = [_layer(leaf, a, e) for leaf, a, e in layers]
        return kinds, *scales_of(torch.stack([kind.squares() for kind in kinds]).sum(0).sqrt(), clip, weights)

    def _passes(self, values: list[Any], rows: Any, targets: Any) -> tuple[list[Any], list[Any]]:
        """Return the input of every layer with parameters, and the derivative of the loss in its output."""
        nn, functional, left = torch.nn, torch.nn.functional, list(values)
        inputs, results, here = [], [], rows
        for leaf in self.leaves:
            if type(leaf) is not nn.Linear and type(leaf) is not nn.Conv2d:
                here = _pooled(leaf, here) if type(leaf) is nn.MaxPool2d else leaf(here)
                continue
            weight, bias = left.pop(0), left.pop(0) if leaf.bias is not None else None
            if type(leaf) is nn.Linear:
                inputs.append(here.detach())
                result = here = functional.linear(here, weight, bias)
                if not here.requires_grad:
                    here.requires_grad_(True)  # the first layer's input, because parameters carry no gradient here
            else:
                inputs.append(patches_of(leaf, here.detach()))
                result, here = convolved(leaf, here, inputs[-1], weight, bias)
            results.append(result)
        total = self.criterion(here.reshape(here.shape[0], -1), targets).sum()
        return inputs, list(torch.autograd.grad(total, results))


def _pooled(leaf: Any, here: Any) -> Any:
    """Return the same maxima, the channels last: torch's kernel for that order takes a fifth of the time."""
    return leaf(here.contiguous(memory_format=torch.channels_last) if here.ndim == 4 else here)


def _formed(leaf: Any, given: Any, error: Any) -> list[Any]:
    """Return the gradients of each record, of the weight and, if there is one, of the bias.

    The weight of a convolution has its channels last; its input is given as patches.
    """
    if not isinstance(leaf, torch.nn.Conv2d):
        given, error = given.flatten(1, -2), error.flatten(1, -2)
    return [error.transpose(1, 2) @ given, *([error.sum(1)] if leaf.bias is not None else [])]


def _layer(leaf: Any, given: Any, error: Any) -> Any:
    if isinstance(leaf, torch.nn.Conv2d) or given.ndim > 2:
        return _Formed(_formed(leaf, given, error), kernel_of(leaf))
    return _Outer(given.double(), error.double(), leaf.bias is not None)


def _whole(leaf: Any, given: Any, error: Any) -> Outer | Formed:
    if isinstance(leaf, torch.nn.Conv2d) or given.ndim > 2:
        return Formed(_formed(leaf, given, error), kernel_of(leaf))
    return Outer(given, error, leaf.bias is not None)


def _squares(rows: Any) -> Any:
    """Return squared norms, without a second array of that size."""
    return torch.linalg.vector_norm(rows, dim=1).square()


class _Outer:
    """Gradients that are outer products of an error and an input, never formed."""

    def __init__(self, given: Any, error: Any, bias: bool) -> None:
        self.given, self.error, self.bias = given, error, bias

    def squares(self) -> Any:
        return _squares(self.error) * (_squares(self.given) + float(self.bias))

    def summed(self, scales: Any, spoiled: Any) -> list[Any]:
        given, error = self.given, self.error
        if spoiled is not None:  # zero times infinity is not zero
            given, error = (value.masked_fill(spoiled[:, None], 0.0) for value in (given, error))
        error = error * scales[:, None]
        return [(error.T @ given).flatten(), *([error.sum(0)] if self.bias else [])]


class _Formed:
    """Gradients that are formed for each record; ``kernel``: the shape of a weight that has its channels last."""

    def __init__(self, values: list[Any], kernel: tuple[int, ...] | None) -> None:
        self.values, self.kernel = [value.flatten(1).double() for value in values], kernel

    def squares(self) -> Any:
        return torch.stack([_squares(value) for value in self.values]).sum(0)

    def summed(self, scales: Any, spoiled: Any) -> list[Any]:
        if spoiled is not None:
            self.values = [value.masked_fill(spoiled[:, None], 0.0) for value in self.values]
        weight, *bias = (scales @ value for value in self.values)
        return [weight if self.kernel is None else weight.view(self.kernel).permute(0, 3, 1, 2).flatten(), *bias]
