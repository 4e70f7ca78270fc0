"""Clipped sums of per-record gradients, in three ways that give the same sums.

:class:`Records` takes any module: each record goes through it separately (``vmap`` of ``grad``), so no record meets
another before it is clipped, whatever the module does.

:class:`Stack` takes a stack of listed layers at the cost of one pass over the batch. The gradient of a linear layer is
an outer product of input and error: its norm is the product of two norms, so it need not be formed. The gradient of a
convolution is small and is formed. Layers are called in a fixed order, and none lets one record see another.

:class:`Linears` takes the built-in generators, whose parameters are all those of linear layers. They are our own code:
they call each layer once, with one row for each record, and do everything between them row by row.

Each way also sums in whole numbers, with each record's part cut on its own (``add_whole``). Gradients that are formed
are cut to whole numbers. An outer product is not formed: its two factors are cut to so few bits that their products are
whole numbers below 2**41, so a matrix product adds them up exactly (docs/torch.md, "Company"). Few calls, since blocks
are small.
"""

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, final

from fedveil.core.errors import BadValue
from fedveil.models.torch.generators import Moments, Pair, Vae
from fedveil.models.torch.library import torch
from fedveil.models.torch.modules import losses_of

_RECORDS_BUDGET = 32 * 2**20  # bytes that per-record gradients may take at once; more would also be slower
_STACK_BUDGET = 64 * 2**20  # bytes that inputs, patches and formed gradients may take at once
_AT_ONCE = 1024  # rows that a generator computes in one pass
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
        return max(1, int(_RECORDS_BUDGET // (size * (row.element_size() + 8))))

    def clipped_sum(
        self, values: list[Any], rows: Any, targets: Any, clip: float, weights: Any
    ) -> tuple[list[Any], Any]:
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
            gradients = self._each(dict(zip(self.names, values, strict=True)), rows, targets)
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            raise BadValue(f"model.module must work record by record (torch.func.vmap): {reason}") from error
        flat = [gradients[name].flatten(1).double() for name in self.names]
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


class Stack:
    """A stack of listed layers; ``leaves`` come from :func:`layers_of`."""

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
        return max(1, _STACK_BUDGET // (8 * numbers))

    def clipped_sum(
        self, values: list[Any], rows: Any, targets: Any, clip: float, weights: Any
    ) -> tuple[list[Any], Any]:
        """Return the weighted sum, by parameter, and which records are in it (those with finite gradients)."""
        return _clipped_sum(self._gradients(values, rows, targets, wide=True), clip, weights)

    def add_whole(
        self, values: list[Any], rows: Any, targets: Any, clip: float, weights: Any, grain: float, sums: list[Any]
    ) -> Any:
        """Add the same sum to ``sums`` in whole grains, each record's part cut alone, and return which are in it.

        A record of weight zero adds nothing.
        """
        return _add_whole(self._gradients(values, rows, targets, wide=False), clip, weights, grain, sums)

    def _gradients(
        self, values: list[Any], rows: Any, targets: Any, *, wide: bool
    ) -> "list[OuterProducts | FormedGradients]":
        """Return the gradients of each layer; ``wide``: in double precision."""
        layers = zip(self._learning, *self._passes(values, rows, targets), strict=True)
        return [_layer(leaf, given, error, wide) for leaf, given, error in layers]

    def _passes(self, values: list[Any], rows: Any, targets: Any) -> tuple[list[Any], list[Any]]:
        """Return the input of every layer with parameters, and the derivative of the loss in its output."""
        nn, functional, left = torch.nn, torch.nn.functional, list(values)
        inputs, results, here = [], [], rows
        for leaf in self.leaves:
            if type(leaf) is not nn.Linear and type(leaf) is not nn.Conv2d:
                here = _max_pool(leaf, here) if type(leaf) is nn.MaxPool2d else leaf(here)
                continue
            weight, bias = left.pop(0), left.pop(0) if leaf.bias is not None else None
            if type(leaf) is nn.Linear:
                inputs.append(here.detach())
                result = here = functional.linear(here, weight, bias)
                if not here.requires_grad:
                    here.requires_grad_(True)  # the first layer's input, because parameters carry no gradient here
            else:
                inputs.append(patches_of(leaf, here.detach()))
                result, here = convolve(leaf, here, inputs[-1], weight, bias)
            results.append(result)
        total = self.criterion(here.reshape(here.shape[0], -1), targets).sum()
        return inputs, list(torch.autograd.grad(total, results))


def _max_pool(leaf: Any, here: Any) -> Any:
    """Return the same maxima, the channels last: torch's kernel for that order takes a fifth of the time."""
    return leaf(here.contiguous(memory_format=torch.channels_last) if here.ndim == 4 else here)


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

    def clipped_sum(
        self, values: list[Any], rows: Any, targets: Any, clip: float, weights: Any
    ) -> tuple[list[Any], Any]:
        """Return the weighted sum, by parameter, and which records are in it (those with finite gradients)."""
        summed, usable = _clipped_sum(self._gradients(values, rows, targets, wide=True), clip, weights)
        rest = values[len(summed) :]  # what no record moves
        return [*summed, *(torch.zeros(value.numel(), dtype=torch.float64) for value in rest)], usable

    def add_whole(
        self, values: list[Any], rows: Any, targets: Any, clip: float, weights: Any, grain: float, sums: list[Any]
    ) -> Any:
        """Add the same sum to ``sums`` in whole grains, each record's part cut alone, and return which are in it."""
        return _add_whole(self._gradients(values, rows, targets, wide=False), clip, weights, grain, sums)

    def _gradients(
        self, values: list[Any], rows: Any, targets: Any, *, wide: bool
    ) -> "list[OuterProducts | FormedGradients]":
        layers = zip(self._passes(values, rows, targets), self._biased, strict=True)
        return [OuterProducts(given, error, biased, wide) for (given, error), biased in layers]

    def _passes(self, values: list[Any], rows: Any, targets: Any) -> list[tuple[Any, Any]]:
        """Return the input of every layer, and the derivative of the losses in its output."""
        inputs, results = [], []

        def note(_layer: Any, given: Any, output: Any) -> None:
            inputs.append(given[0].detach())
            if not output.requires_grad:
                output.requires_grad_(True)  # the first layer's: parameters carry no gradient here
            results.append(output)

        hooks = [layer.register_forward_hook(note) for layer in self.module.learning()]
        try:
            named = dict(zip(self.names, values, strict=True))
            total = torch.func.functional_call(self.module, named, (rows, targets)).sum()
        finally:
            for hook in hooks:
                hook.remove()
        return list(zip(inputs, torch.autograd.grad(total, results), strict=True))


class OuterProducts:
    """A linear layer's gradients: outer products of an error and an input, never formed."""

    def __init__(self, given: Any, error: Any, bias: bool, wide: bool) -> None:
        self.given, self.error, self.bias = (given.double(), error.double(), bias) if wide else (given, error, bias)
        if not wide:  # twice needed, by lengths and by add
            norm = torch.linalg.vector_norm(given, dim=1, dtype=torch.float64)
            self.long = torch.hypot(norm, torch.ones_like(norm)) if bias else norm

    def squares(self) -> Any:
        """Return the squared norm of each record's gradient."""
        return _squares(self.error) * (_squares(self.given) + float(self.bias))

    def weighted_sum(self, scales: Any, spoiled: Any) -> list[Any]:
        """Return the weighted sum by parameter; ``spoiled``: which records count as zero, None if there are none."""
        given, error = self.given, self.error
        if spoiled is not None:  # set and not multiplied: zero times infinity is not zero
            given, error = (value.masked_fill(spoiled[:, None], 0.0) for value in (given, error))
        error = error * scales[:, None]
        return [(error.T @ given).flatten(), *([error.sum(0)] if self.bias else [])]

    def lengths(self) -> Any:
        """Return the norm of each record's gradient."""
        return torch.linalg.vector_norm(self.error, dim=1, dtype=torch.float64) * self.long

    def add(self, factors: Any, nothing: Any, largest: float, sums: Iterator[Any]) -> None:
        """Add the products of inputs and errors, cut towards zero so that none becomes longer.

        ``largest``: the clip, in the same whole numbers; ``nothing``: which rows add nothing, None if there are none.
        """
        bits = math.frexp(largest)[1] // 2
        up = torch.ldexp(torch.ones_like(factors), bits - torch.frexp(self.long).exponent)
        given = (self.given.double() * up[:, None]).int().double()  # whole numbers below 2**23; faster than trunc
        error = (self.error.double() * (factors / up)[:, None]).int().double()
        if nothing is not None:  # set and not multiplied: zero times infinity is not zero
            given[nothing], error[nothing], up[nothing] = 0.0, 0.0, 0.0
        next(sums).view(error.shape[1], given.shape[1]).addmm_(error.T, given)
        if self.bias:
            next(sums).addmv_(error.T, up.trunc_())


class FormedGradients:
    """Gradients that are formed for each record, one tensor for each parameter.

    ``kernel``: the shape of a weight, the first parameter, that has its channels last.
    """

    def __init__(self, values: list[Any], kernel: tuple[int, ...] | None, wide: bool) -> None:
        flat = [value.flatten(1) for value in values]
        self.values, self.kernel = [value.double() for value in flat] if wide else flat, kernel

    def squares(self) -> Any:
        """Return the squared norm of each record's gradient."""
        return torch.stack([_squares(value) for value in self.values]).sum(0)

    def weighted_sum(self, scales: Any, spoiled: Any) -> list[Any]:
        """Return the weighted sum by parameter; ``spoiled``: which records count as zero, None if there are none."""
        if spoiled is not None:
            self.values = [value.masked_fill(spoiled[:, None], 0.0) for value in self.values]
        weight, *bias = (scales @ value for value in self.values)
        return [weight if self.kernel is None else weight.view(self.kernel).permute(0, 3, 1, 2).flatten(), *bias]

    def lengths(self) -> Any:
        """Return the norm of each record's gradient."""
        each = [torch.linalg.vector_norm(value, dim=1, dtype=torch.float64) for value in self.values]
        return torch.hypot(*each) if len(each) == 2 else each[0]

    def add(self, factors: Any, nothing: Any, largest: float, sums: Iterator[Any]) -> None:
        """Add the gradients times their factors, each cut to a whole number towards zero."""
        for index, value in enumerate(self.values):
            total = next(sums)
            if self.kernel is not None and index == 0:
                out, high, wide, channels = self.kernel
                total = total.view(out, channels, high, wide).permute(0, 2, 3, 1)
            add_cut(value, factors, nothing, largest, total)


def _layer(leaf: Any, given: Any, error: Any, wide: bool) -> OuterProducts | FormedGradients:
    if isinstance(leaf, torch.nn.Conv2d) or given.ndim > 2:
        return FormedGradients(_formed(leaf, given, error), kernel_of(leaf), wide)
    return OuterProducts(given, error, leaf.bias is not None, wide)


def _formed(leaf: Any, given: Any, error: Any) -> list[Any]:
    """Return the gradients of each record, of the weight and, if there is one, of the bias.

    The weight of a convolution has its channels last; its input is given as patches.
    """
    if not isinstance(leaf, torch.nn.Conv2d):
        given, error = given.flatten(1, -2), error.flatten(1, -2)
    return [error.transpose(1, 2) @ given, *([error.sum(1)] if leaf.bias is not None else [])]


def _squares(rows: Any) -> Any:
    """Return squared norms, without a second array of that size."""
    return torch.linalg.vector_norm(rows, dim=1).square()


def _clipped_sum(layers: list[OuterProducts | FormedGradients], clip: float, weights: Any) -> tuple[list[Any], Any]:
    """Return the weighted sum of clipped gradients, by parameter, and which records are in it."""
    scales, usable = scales_of(torch.stack([layer.squares() for layer in layers]).sum(0).sqrt(), clip, weights)
    spoiled = None if bool(usable.all()) else ~usable
    return [value for layer in layers for value in layer.weighted_sum(scales, spoiled)], usable


def _add_whole(
    layers: list[OuterProducts | FormedGradients], clip: float, weights: Any, grain: float, sums: list[Any]
) -> Any:
    """Add the clipped gradients to ``sums``, in whole grains; return which are finite, and so in it."""
    norms = torch.linalg.vector_norm(torch.stack([layer.lengths() for layer in layers]), dim=0)
    scales, usable = scales_of(norms, clip, weights)
    nothing = scales == 0
    absent = nothing if bool(nothing.any()) else None
    left = iter(sums)
    for layer in layers:
        layer.add(scales / grain, absent, clip / grain, left)
    return usable


# Convolutions as products of matrices, channels last. The gradient of a record's weight is a product of its errors and
# its patches. The patches are laid out for that anyway, so the convolution is a product of patches and weight too, and
# so is the way back: three products, and no copies between torch's two orders of channels.


def patches_of(leaf: Any, given: Any) -> Any:
    """Return what each place of the result sees: records, places, and (high, wide, channels) in a row."""
    (up, left), (high, wide), (down, right), (over, along) = leaf.padding, leaf.kernel_size, leaf.stride, leaf.dilation
    last = given.permute(0, 2, 3, 1).contiguous()
    last = torch.nn.functional.pad(last, (0, 0, left, left, up, up)) if up or left else last
    count, height, width, channels = last.shape
    rows, columns = _places(leaf, height, width)
    steps = (height * width * channels, down * width * channels, right * channels, over * width * channels)
    view = last.as_strided((count, rows, columns, high, wide, channels), (*steps, along * channels, 1))
    return view.reshape(count, rows * columns, high * wide * channels)


def convolve(leaf: Any, here: Any, patches: Any, weight: Any, bias: Any) -> tuple[Any, Any]:
    """Return the result by records, places and channels, which carries a gradient; and as the next layer takes it."""
    flat = weight.permute(0, 2, 3, 1).flatten(1)
    output = _Product.apply(here, patches, flat, bias, leaf) if here.requires_grad else _product(patches, flat, bias)
    output = output if output.requires_grad else output.requires_grad_(True)
    (up, left), (height, width) = leaf.padding, here.shape[2:]
    places = _places(leaf, height + 2 * up, width + 2 * left)
    return output, output.unflatten(1, places).permute(0, 3, 1, 2)


def kernel_of(leaf: Any) -> tuple[int, ...] | None:
    """Return the shape of a convolution's weight with its channels last; None for another layer."""
    return (leaf.out_channels, *leaf.kernel_size, leaf.in_channels) if isinstance(leaf, torch.nn.Conv2d) else None


def _places(leaf: Any, height: int, width: int) -> tuple[int, int]:
    """Return the rows and columns of the result, for an input of this size, padding included."""
    (high, wide), (down, right), (over, along) = leaf.kernel_size, leaf.stride, leaf.dilation
    return (height - over * (high - 1) - 1) // down + 1, (width - along * (wide - 1) - 1) // right + 1


def _product(patches: Any, flat: Any, bias: Any) -> Any:
    return torch.nn.functional.linear(patches, flat, bias)


class _Product(torch.autograd.Function if torch is not None else object):  # type: ignore[misc]
    """Patches times weight, with the derivative in the layer's input alone: parameters carry no gradient here."""

    @staticmethod
    def forward(ctx: Any, here: Any, patches: Any, flat: Any, bias: Any, leaf: Any) -> Any:
        """Return the product; ``here`` is where the patches were taken from."""
        ctx.flat, ctx.leaf, ctx.shape = flat, leaf, here.shape
        return _product(patches, flat, bias)

    @staticmethod
    def backward(ctx: Any, error: Any) -> tuple[Any, ...]:
        """Return the derivative in the input: what each patch got, added up where patches overlap."""
        leaf, (count, channels, height, width) = ctx.leaf, ctx.shape
        (up, left), (high, wide), (down, right), (over, along) = (
            leaf.padding,
            leaf.kernel_size,
            leaf.stride,
            leaf.dilation,
        )
        whole = error.new_zeros((count, height + 2 * up, width + 2 * left, channels))
        rows, columns = _places(leaf, height + 2 * up, width + 2 * left)
        parts = (error @ ctx.flat).view(count, rows, columns, high, wide, channels)
        for i in range(high):
            for j in range(wide):
                top, side = i * over, j * along
                seen = whole[
                    :, top : top + down * (rows - 1) + 1 : down, side : side + right * (columns - 1) + 1 : right
                ]
                seen += parts[:, :, :, i, j]
        inner = whole[:, up : up + height, left : left + width]
        return inner.permute(0, 3, 1, 2), None, None, None, None
