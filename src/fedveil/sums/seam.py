"""The interface between training and adding up: clients' whole-number vectors in, their sum out.

A trusted server, masked sums and homomorphic encryption all return the same integers, bit for bit.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedveil.core.errors import require

Whole = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Summed:
    """The sum over ``survivors`` (client numbers, ascending), modulo 2**64 and read as signed."""

    total: Whole
    survivors: tuple[int, ...]

    def __post_init__(self) -> None:
        right = isinstance(self.total, np.ndarray) and self.total.dtype == np.int64 and self.total.ndim == 1
        require(right, "Summed.total", "be a vector of int64", type(self.total).__name__)
        ascending = all(a < b for a, b in zip(self.survivors, self.survivors[1:], strict=False))
        require(ascending, "Summed.survivors", "be in ascending order, each once", self.survivors)


class Summing(Protocol):
    """Adds up one round. ``parts``: the vectors of the clients that answered, by client number."""

    def __call__(self, turn: int, parts: Mapping[int, Whole], /) -> Summed:
        """Return the sum of round ``turn``, and the clients in it."""
        ...
