"""Bounds before masks: what a client checks in exact integers, since nobody can look behind a mask."""

import math
from dataclasses import dataclass
from typing import Final, final

import numpy as np

from fedveil.checks import require
from fedveil.secure.refusals import OutOfBounds
from fedveil.summing import Whole
from fedveil.theory.headroom import DEVIATIONS, MODULUS, require_headroom, widest

__all__ = ["DEVIATIONS", "MODULUS", "Bounds", "admit", "largest", "require_headroom", "squared_norm", "widest"]

_LIMB: Final = 21  # bits; three limbs hold 63
_CHUNK: Final = 2**20  # products of two limbs are below 2**42, so so many of them stay below 2**62
LIMIT: Final = 2**63 - 1


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """On a vector of ``length`` whole numbers: none beyond ``largest`` in size; the norm, where one is given."""

    length: int
    largest: int = LIMIT
    squared_norm: int | None = None

    def __post_init__(self) -> None:
        require(self.length >= 1, "Bounds.length", "be at least 1", self.length)
        require(0 <= self.largest <= LIMIT, "Bounds.largest", f"lie between 0 and {LIMIT}", self.largest)
        right = self.squared_norm is None or self.squared_norm >= 0
        require(right, "Bounds.squared_norm", "be non-negative", self.squared_norm)


def largest(values: Whole) -> int:
    """The largest absolute value, exactly: numpy's own has none for -2**63.

    >>> largest(np.array([3, -(2**63)])) == 2**63
    True
    """
    return max(int(values.max()), -int(values.min()))


def squared_norm(values: Whole) -> int:
    """The sum of squares, exactly, whatever the values.

    Absolute values are cut into limbs of 21 bits; sums of products of limbs over a chunk cannot overflow.

    >>> squared_norm(np.array([2**62, -(2**62)])) == 2**125
    True
    """
    top = largest(values)
    if top > LIMIT:  # -2**63 has no absolute value in 64 bits
        return sum(int(value) ** 2 for value in values)
    count = max(1, math.ceil(top.bit_length() / _LIMB))
    total = 0
    for start in range(0, values.size, _CHUNK):
        rest = np.abs(values[start : start + _CHUNK])
        limbs = [(rest >> (_LIMB * at)) & (2**_LIMB - 1) for at in range(count)] if count > 1 else [rest]
        for a in range(count):
            for b in range(count):
                total += int(np.dot(limbs[a], limbs[b])) << (_LIMB * (a + b))
    return total


def admit(values: object, bounds: Bounds) -> Whole:
    """The vector, if it keeps its bounds; a client that has none to offer is a dropout.

    >>> admit(np.array([0.5, float("nan")]), Bounds(length=2))
    Traceback (most recent call last):
    fedveil.secure.refusals.OutOfBounds: An input must be a vector of int64, got float64.
    """
    if not isinstance(values, np.ndarray) or values.dtype != np.int64 or values.ndim != 1:
        got = values.dtype if isinstance(values, np.ndarray) else type(values).__name__
        shape = f" of {values.ndim} dimensions" if isinstance(values, np.ndarray) and values.ndim != 1 else ""
        raise OutOfBounds(f"An input must be a vector of int64, got {got}{shape}.")
    if values.size != bounds.length:
        raise OutOfBounds(f"An input must have {bounds.length} values, got {values.size}.")
    if not largest(values) <= bounds.largest:
        raise OutOfBounds(f"An input's values must not exceed {bounds.largest} in absolute value.")
    if bounds.squared_norm is not None and not squared_norm(values) <= bounds.squared_norm:
        raise OutOfBounds("An input's norm exceeds its bound.")  # by how much is the client's secret
    return values
