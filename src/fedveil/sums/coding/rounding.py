"""Rounding to few levels, and rounding before the noise that keeps the norm within a proved limit.

After the noise, any rounding is post-processing. Before it, rounding may enlarge a vector and so its sensitivity; there
the limit is part of the promise and is enforced on the rounded vector in exact integers. Theory page: coding.md.

References:
    [KLS21] Kairouz, Liu, Steinke. The distributed discrete Gaussian mechanism for federated learning with secure
        aggregation. ICML 2021.
    [SYKM17] Suresh, Yu, Kumar, McMahan. Distributed mean estimation with limited communication. ICML 2017.
"""

import math
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from fedveil.core.checks import require
from fedveil.core.values import Vector
from fedveil.sums.exact import squared_norm
from fedveil.sums.seam import Whole

Words = NDArray[np.uint64]

_TRIES: Final = 64
_LARGEST: Final = 2.0**52  # whole numbers up to here are exact in float64, with half a step to spare


class Source(Protocol):
    """A source of uniform 64-bit words, each returned once."""

    def words(self, count: int, /) -> Words:
        """Return the next ``count`` words."""


def by_coin(values: Vector, words: Words) -> Vector:
    """Round each number up or down by a random coin that keeps its mean (to 2**-53).

    >>> by_coin(np.array([2.0, -0.5]), np.zeros(2, dtype=np.uint64)).tolist()
    [2.0, 0.0]
    """
    low = np.floor(values)
    up = (words >> np.uint64(11)) * 2.0**-53 < values - low
    return np.asarray(low + up, dtype=np.float64)


def to_levels(values: Vector, levels: int, words: Words | None) -> Vector:
    """Round each number to a multiple of largest / levels, by a coin, or to the nearest if no words are given.

    Use it after the noise only: the largest absolute value is sent along, and before the noise it would reveal data.
    """
    largest = float(np.max(np.abs(values)))
    if largest < 2.0**-900:  # zero, or so small that the scale would overflow
        return np.zeros_like(values)
    scaled = values * (levels / largest)
    found = np.rint(scaled) if words is None else by_coin(scaled, words)
    # Rounding errors may scale the largest to slightly more than levels, and a rare coin to one level too many.
    return np.asarray(np.clip(found, -levels, levels) * (largest / levels), dtype=np.float64)


def norm_limit(bound: float, size: int, failure: float = 0.001) -> int:
    """Return the squared norm to allow after rounding a vector of norm ``bound`` by coins, all in grid steps [KLS21].

    Rounding never exceeds ``(bound + sqrt(size))**2``, and exceeds the smaller limit only with a chance of ``failure``.

    >>> norm_limit(1000.0, 100), norm_limit(1.0, 10_000)
    (1003760, 2690)
    """
    require(0 < bound <= _LARGEST, "bound", "lie between 0 and 2**52 grid steps", bound)
    require(isinstance(size, int) and size >= 1, "size", "be at least 1", size)
    require(0 < failure < 1, "failure", "lie strictly between 0 and 1", failure)
    always = (bound + math.sqrt(size)) ** 2
    mostly = bound**2 + size / 4 + math.sqrt(2 * math.log(1 / failure)) * (bound + math.sqrt(size) / 2)
    return math.floor(min(always, mostly))


def sensitivity(limit: int) -> float:
    """Return the norm, in grid steps, of a vector whose squared norm is at most ``limit``; rounded up."""
    require(isinstance(limit, int) and limit >= 0, "limit", "be a whole number, 0 or more", limit)
    return math.nextafter(math.sqrt(limit), math.inf)


def rounded_within(values: Vector, limit: int, source: Source) -> Whole | None:
    """Round by coins, repeated until the squared norm is at most ``limit``; return None for values that are not finite.

    If no draw fits, the numbers are truncated towards zero; if even that does not fit (they were larger than agreed),
    zeros are returned. So the limit holds for every input, and the sensitivity is a matter of whole numbers.
    """
    if not bool(np.all(np.abs(values) <= _LARGEST)):  # also false for NaN and infinity
        return None
    for _ in range(_TRIES):
        found = by_coin(values, source.words(values.size)).astype(np.int64)
        if squared_norm(found) <= limit:
            return found
    cut = np.trunc(values).astype(np.int64)
    return cut if squared_norm(cut) <= limit else np.zeros_like(cut)
