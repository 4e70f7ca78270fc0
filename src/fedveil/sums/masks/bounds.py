"""Bounds on a client's vector, checked in exact integers before masking, because nobody can check it afterwards."""

from dataclasses import dataclass
from typing import final

import numpy as np

from fedveil.core.checks import require
from fedveil.sums.exact import LIMIT, largest, squared_norm
from fedveil.sums.masks.refusals import OutOfBounds
from fedveil.sums.seam import Whole


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Bounds on a vector of ``length`` whole numbers: on each absolute value, and on the norm if one is given."""

    length: int
    largest: int = LIMIT
    squared_norm: int | None = None

    def __post_init__(self) -> None:
        require(self.length >= 1, "Bounds.length", "be at least 1", self.length)
        require(0 <= self.largest <= LIMIT, "Bounds.largest", f"lie between 0 and {LIMIT}", self.largest)
        right = self.squared_norm is None or self.squared_norm >= 0
        require(right, "Bounds.squared_norm", "be non-negative", self.squared_norm)


def admit(values: object, bounds: Bounds) -> Whole:
    """Return the vector if it keeps its bounds; otherwise raise, and the client counts as a dropout.

    >>> admit(np.array([0.5, float("nan")]), Bounds(length=2))
    Traceback (most recent call last):
    fedveil.sums.masks.refusals.OutOfBounds: An input must be a vector of int64, got float64.
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
