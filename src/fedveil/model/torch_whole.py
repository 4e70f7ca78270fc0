"""Sums of a stack's per-record gradients in whole numbers, each record's part cut on its own.

Gradients of convolutions are formed and cut to whole numbers. The gradient of a linear layer is an outer product, which
is not formed: its two factors are cut to so few bits that their products are whole numbers below 2**41, so a matrix
product adds them up exactly (docs/torch.md, "Company"). Few calls, since blocks are small.
"""

import math
from collections.abc import Iterator
from typing import Any

from fedveil.model.torch_library import torch
from fedveil.model.torch_records import add_cut, scales_of


class Outer:
    """A linear layer's gradients: outer products of an error and an input, never formed."""

    def __init__(self, given: Any, error: Any, bias: bool) -> None:
        self.given, self.error, self.bias = given, error, bias
        norm = torch.linalg.vector_norm(given, dim=1, dtype=torch.float64)
        self.long = torch.hypot(norm, torch.ones_like(norm)) if bias else norm

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


class Formed:
    """Gradients that are formed for each record, one tensor for each parameter.

    ``kernel``: the shape of a weight, the first parameter, that has its channels last.
    """

    def __init__(self, values: list[Any], kernel: tuple[int, ...] | None) -> None:
        self.values, self.kernel = [value.flatten(1) for value in values], kernel

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


def add_whole(kinds: list[Outer | Formed], clip: float, weights: Any, grain: float, sums: list[Any]) -> Any:
    """Add the clipped gradients to ``sums``, in whole grains; return which are finite, and so in it."""
    norms = torch.linalg.vector_norm(torch.stack([kind.lengths() for kind in kinds]), dim=0)
    scales, usable = scales_of(norms, clip, weights)
    nothing = scales == 0
    absent = nothing if bool(nothing.any()) else None
    left = iter(sums)
    for kind in kinds:
        kind.add(scales / grain, absent, clip / grain, left)
    return usable
