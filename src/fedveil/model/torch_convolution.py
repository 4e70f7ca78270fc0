"""Convolutions as products of matrices, channels last, for a stack of layers whose per-record gradients are wanted.

The gradient of a record's weight is a product of its errors and its patches. The patches are laid out for that anyway,
so the convolution is a product of patches and weight too, and so is the way back: three products, and no copies between
torch's two orders of channels.
"""

from typing import Any

from fedveil.model.torch_library import torch


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


def convolved(leaf: Any, here: Any, patches: Any, weight: Any, bias: Any) -> tuple[Any, Any]:
    """Return the result by records, places and channels, which carries a gradient; and as the next layer takes it."""
    flat = weight.permute(0, 2, 3, 1).flatten(1)
    found = _Product.apply(here, patches, flat, bias, leaf) if here.requires_grad else _product(patches, flat, bias)
    found = found if found.requires_grad else found.requires_grad_(True)
    (up, left), (height, width) = leaf.padding, here.shape[2:]
    places = _places(leaf, height + 2 * up, width + 2 * left)
    return found, found.unflatten(1, places).permute(0, 3, 1, 2)


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
