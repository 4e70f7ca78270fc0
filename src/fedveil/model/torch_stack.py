"""Clipped sums of per-record gradients for a plain stack of layers, at the cost of one pass over the batch.

The gradient of a linear layer is an outer product of input and error: its norm is the product of two norms, so it need
not be formed. The gradient of a convolution is small and is formed. Only layers from a fixed list are accepted, called
in a fixed order, and none lets one record see another; a module with its own ``forward`` goes through torch_records.
"""

from typing import Any

from fedveil.model.torch_library import torch
from fedveil.model.torch_records import scales_of

BUDGET = 64 * 2**20  # bytes that inputs, patches and formed gradients may take at once
_ACTIVATIONS = ("ReLU", "LeakyReLU", "ELU", "CELU", "GELU", "SELU", "SiLU", "Mish", "Tanh", "Sigmoid", "Softplus")
_PLAIN = (*_ACTIVATIONS, "Identity", "MaxPool2d", "AvgPool2d")


def layers_of(module: Any) -> list[Any] | None:
    """Return the layers in order, if the module is such a stack and nothing else; otherwise None."""
    nn = torch.nn
    leaves: list[Any] = []

    def walk(part: Any) -> bool:
        if "forward" in vars(part) or any(vars(part)[name] for name in vars(part) if name.endswith("_hooks")):
            return False
        if type(part) is nn.Sequential:
            return all(walk(child) for child in part)
        leaves.append(part)
        return _known(part)

    if not walk(module):
        return None
    given = [value for leaf in leaves for value in leaf.parameters()]
    once = len({id(leaf) for leaf in leaves}) == len(leaves) and len({id(value) for value in given}) == len(given)
    return leaves if once and given and all(value.requires_grad for value in given) else None


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

    def __init__(self, leaves: list[Any], criterion: Any) -> None:
        self.leaves, self.criterion = leaves, criterion

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
        inputs, errors = self._passes(values, rows, targets)
        layers = [leaf for leaf in self.leaves if isinstance(leaf, torch.nn.Linear | torch.nn.Conv2d)]
        kinds = [_layer(leaf, a, e) for leaf, a, e in zip(layers, inputs, errors, strict=True)]
        scales, usable = scales_of(torch.stack([kind.squares() for kind in kinds]).sum(0).sqrt(), clip, weights)
        spoiled = None if bool(usable.all()) else ~usable
        return [value for kind in kinds for value in kind.summed(scales, spoiled)], usable

    def _passes(self, values: list[Any], rows: Any, targets: Any) -> tuple[list[Any], list[Any]]:
        """Return the input of every layer with parameters, and the derivative of the loss in its output."""
        functional, left = torch.nn.functional, list(values)
        inputs, results, here = [], [], rows
        for leaf in self.leaves:
            if not isinstance(leaf, torch.nn.Linear | torch.nn.Conv2d):
                here = leaf(here)
                continue
            inputs.append(here.detach())
            weight, bias = left.pop(0), left.pop(0) if leaf.bias is not None else None
            if isinstance(leaf, torch.nn.Linear):
                here = functional.linear(here, weight, bias)
            else:
                here = functional.conv2d(here, weight, bias, leaf.stride, leaf.padding, leaf.dilation)
            if not here.requires_grad:
                here.requires_grad_(True)  # the first layer's input, because parameters carry no gradient here
            results.append(here)
        total = self.criterion(here.reshape(here.shape[0], -1), targets).sum()
        return inputs, list(torch.autograd.grad(total, results))


def _layer(leaf: Any, given: Any, error: Any) -> Any:
    if isinstance(leaf, torch.nn.Conv2d):
        patches = torch.nn.functional.unfold(given, leaf.kernel_size, leaf.dilation, leaf.padding, leaf.stride)
        error = error.flatten(2)
        return _Formed(error @ patches.transpose(1, 2), error.sum(2) if leaf.bias is not None else None)
    if given.ndim > 2:
        given, error = given.flatten(1, -2), error.flatten(1, -2)
        return _Formed(error.transpose(1, 2) @ given, error.sum(1) if leaf.bias is not None else None)
    return _Outer(given.double(), error.double(), leaf.bias is not None)


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
    """Gradients that are formed for each record."""

    def __init__(self, weight: Any, bias: Any) -> None:
        self.values = [value.flatten(1).double() for value in (weight, bias) if value is not None]

    def squares(self) -> Any:
        return torch.stack([_squares(value) for value in self.values]).sum(0)

    def summed(self, scales: Any, spoiled: Any) -> list[Any]:
        if spoiled is not None:
            self.values = [value.masked_fill(spoiled[:, None], 0.0) for value in self.values]
        return [scales @ value for value in self.values]
