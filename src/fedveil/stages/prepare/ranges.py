"""From noisy counts on the grid of magnitudes to a range of each column: post-processing, so free of charge.

The window of neighbouring bins, or of magnitudes on both sides of zero, with the strongest count relative to its noise
holds the bulk. A neighbour joins if it holds a fifth of the records; a bin farther away if its count is beyond what
noise makes. Where the range spans many magnitudes, numbers are measured on the scale of the inverse hyperbolic sine,
which is a logarithm far from zero and a straight line near it.
"""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fedveil.core.errors import require
from fedveil.core.values import Indices, Vector

# The public grid on which numbers are counted: zero, and powers of two of either sign.
#
# Bins are in the order of the numbers they hold: negative ones from the largest magnitude down, zero, positive ones
# from the smallest magnitude up, and last the missing values. The grid is the same for every column of every study.

LEAST: Final = -30  # magnitudes below 2**LEAST count as zero
MOST: Final = 50  # those from 2**MOST on count in the last bin
_COUNT: Final = MOST - LEAST
ZERO: Final = _COUNT  # the index of the bin of zero
VALUES: Final = 2 * _COUNT + 1  # bins of numbers
MISSING: Final = VALUES
BINS: Final = VALUES + 1
_POWERS: Vector = np.exp2(np.arange(LEAST, MOST + 1, dtype=np.float64))
EDGES: Vector = np.concatenate([-_POWERS[::-1], _POWERS])  # bin k holds numbers from EDGES[k] to EDGES[k + 1]
EDGES.setflags(write=False)


def bins_of(numbers: NDArray[np.float64]) -> Indices:
    """Return the bin of each number; NaN is a missing value.

    >>> (bins_of(np.array([0.0, 1.5, -1.5, 1e300])) - ZERO).tolist(), int(bins_of(np.array([np.nan]))[0]) == MISSING
    ([0, 31, -31, 80], True)
    """
    gone = np.isnan(numbers)
    size = np.abs(np.where(gone, 0.0, numbers))
    exponent = np.frexp(np.minimum(size, 2.0**MOST))[1].astype(np.int64) - 1  # floor of the logarithm, exactly
    place = np.clip(exponent, LEAST, MOST - 1) - LEAST + 1
    place = np.where(size < 2.0**LEAST, 0, place)
    result = ZERO + np.where(numbers < 0, -place, place)
    return np.asarray(np.where(gone, MISSING, result), dtype=np.int64)


_NEAR_SHARE: Final = 0.2  # of the records: a neighbour with so many joins the bulk, or one side of zero the other
_NEAR: Final = 3.0  # deviations that it must have at least
_FAR_SHARE: Final = 0.005
_FAR: Final = 5.0  # of about a hundred and sixty bins a column, one in ten thousand columns errs
_HINT: Final = 2.0  # deviations from which on a bin beside a target's range joins, and up to which it may be hidden
_OCTAVES: Final = 4  # magnitudes that a target's numbers of the other sign may share
_EMPTY_SHARE: Final = 0.02  # of the records: a bin with fewer counts as empty
_INNER_SHARE: Final = 0.05  # likewise, for zero beside ones, and for all bins between a target's range and zero
_SIDES: Final = 4  # magnitudes on both sides of zero
_LINEAR: Final = 16.0  # ratio of magnitudes up to which a straight scale does
_BULK: Final = (0.1, 0.9)  # of the records with a number other than zero: what lies between decides about the scale
_BENT: Final = 5.0  # octaves of the bulk from which on a bent scale was measured to help


@dataclass(frozen=True, slots=True)
class Range:
    """Numbers from ``low`` to ``high``; ``unit``: where the scale bends into a logarithm, 0 for a straight scale."""

    low: float
    high: float
    unit: float = 0.0

    def __post_init__(self) -> None:
        fine = -math.inf < self.low < self.high < math.inf
        require(fine, "Range", "be finite with low below high", (self.low, self.high))
        require(0 <= self.unit < math.inf, "Range.unit", "be finite, 0 or more", self.unit)

    @property
    def ends(self) -> tuple[float, float]:
        """Low and high as people write them: an end of the grid's bin of zero is zero.

        >>> Range(-(2.0**-30), 4.0).ends, Range(-(2.0**-30), 2.0**-30).ends == (-(2.0**-30), 2.0**-30)
        ((0.0, 4.0), True)
        """
        near = 2.0**LEAST
        low = 0.0 if -near <= self.low < 0 and self.high > near else self.low
        high = 0.0 if 0 < self.high <= near and self.low < -near else self.high
        return low, high

    def scaled(self, numbers: Vector) -> Vector:
        """Numbers on the scale from -1 to 1; what lies outside is cut, and NaN stays."""
        low, high = self._bent(np.array([self.low, self.high]))
        with np.errstate(over="ignore"):
            moved = (self._bent(numbers) - (low / 2 + high / 2)) / (high / 2 - low / 2)
        return np.asarray(np.clip(moved, -1.0, 1.0), dtype=np.float64)

    def numbers(self, scaled: Vector) -> Vector:
        """Numbers from the scale from -1 to 1 back to their own."""
        low, high = self._bent(np.array([self.low, self.high]))
        bent = low / 2 + high / 2 + scaled * (high / 2 - low / 2)
        return np.asarray(bent if self.unit == 0 else self.unit * np.sinh(bent), dtype=np.float64)

    def _bent(self, numbers: Vector) -> Vector:
        if self.unit == 0:
            return numbers
        with np.errstate(over="ignore"):
            return np.asarray(np.arcsinh(np.clip(numbers / self.unit, -1e300, 1e300)), dtype=np.float64)


def range_of(counts: Vector, records: int, deviation: float) -> Range:
    """Return the range that these noisy counts of one column show, bent wherever magnitudes span much.

    ``records``: how many were counted; ``deviation``: of the noise on each count.
    """
    counts = counts[:VALUES]
    low, high, beyond = _seen(counts, records, deviation)
    return Range(float(EDGES[low]), float(EDGES[high + 1]), _unit(low, high, beyond))


def model_range(counts: Vector, records: int, deviation: float) -> Range:
    """Return the same range for a model's column, bent only where the bulk of its numbers spans many magnitudes.

    Numbers that merely begin near zero (an age, a share, a waiting time) have few records in the small magnitudes, and
    a straight line through them says more than one through their logarithms. A column that seems to hold nothing but
    ones is taken for one of zeros and ones unless zeros are surely few: whole numbers have a single value in that bin.
    """
    result = range_of(counts, records, deviation)
    ones = sorted((abs(result.low), abs(result.high))) == [1.0, 2.0]
    if ones and counts[ZERO] > _INNER_SHARE * records - _HINT * deviation:
        return Range(min(result.low, float(EDGES[ZERO])), max(result.high, float(EDGES[ZERO + 1])))
    return (
        result if result.unit == 0 or _octaves(counts[:VALUES], deviation) > _BENT else Range(result.low, result.high)
    )


def _octaves(counts: Vector, deviation: float) -> float:
    """How many doublings lie between the smallest and the largest tenth of the magnitudes other than zero."""
    sizes = counts[ZERO + 1 :] + counts[:ZERO][::-1]
    sure = np.where(sizes > _HINT * math.sqrt(2) * deviation, sizes, 0.0)
    if not sure.any():
        return 0.0
    below = np.concatenate([[0.0], np.cumsum(sure) / sure.sum()])
    first, last = np.interp(_BULK, below, np.arange(below.size))
    return float(last - first)


def covering_range(counts: Vector, records: int, deviation: float) -> Range:
    """Return a range that misses few numbers even where noise hides some: of a number to predict.

    A feature that is cut loses a little; a target that is cut is learned wrongly. So bins beside the bulk join as soon
    as they stand out of the noise at all; numbers of the other sign and like magnitudes join together, since each of
    their bins may be hidden; one more bin joins at either end unless it is surely empty; and last all down to zero,
    unless that is.
    """
    counts = counts[:VALUES]
    low, high, beyond = _seen(counts, records, deviation)
    least = max(_FAR_SHARE * records, _HINT * deviation)

    def joined(low: int, high: int) -> tuple[int, int]:
        while low > 0 and counts[low - 1] > least:
            low -= 1
        while high < VALUES - 1 and counts[high + 1] > least:
            high += 1
        return low, high

    low, high = joined(low, high)
    for sign in (1, -1):
        top = high - ZERO if sign == 1 else ZERO - low  # the largest magnitude on this side
        mirrored = [ZERO - sign * size for size in range(max(top - _OCTAVES + 1, 1), top + 1)]
        sure = max(_FAR_SHARE * records, _NEAR * deviation * math.sqrt(len(mirrored)))
        if mirrored and counts[mirrored].sum() > sure:
            low, high = joined(min(low, *mirrored), max(high, *mirrored))
    doubtful = _EMPTY_SHARE * records - _HINT * deviation
    low -= low > 0 and counts[low - 1] > doubtful
    high += high < VALUES - 1 and counts[high + 1] > doubtful
    for inner in (range(ZERO, low), range(high + 1, ZERO + 1)):  # between zero and numbers of one sign
        near = [ZERO, *[place for place in inner if min(abs(place - low), abs(place - high)) <= _OCTAVES]]
        if inner and counts[near].sum() > _INNER_SHARE * records - _HINT * deviation * math.sqrt(len(near)):
            low, high = min(low, ZERO), max(high, ZERO)  # at most twice as wide
    return Range(float(EDGES[low]), float(EDGES[high + 1]), _unit(low, high, beyond))


def _seen(
    counts: Vector, records: int, deviation: float
) -> "tuple[int, int, np.ndarray[tuple[int], np.dtype[np.intp]]]":
    """The first and the last bin of the bulk, and all bins that stand out for certain."""
    low, high = _bulk(counts)
    near = max(_NEAR_SHARE * records, _NEAR * deviation)
    if low > 0 and counts[low - 1] > near:
        low -= 1
    if high < VALUES - 1 and counts[high + 1] > near:
        high += 1
    beyond = np.flatnonzero(counts > max(_FAR_SHARE * records, _FAR * deviation))
    if beyond.size:
        low, high = min(low, int(beyond[0])), max(high, int(beyond[-1]))
    return low, high, beyond


def _bulk(counts: Vector) -> tuple[int, int]:
    """The first and last bin of the strongest window, each window's count measured against its own noise.

    A window is a bin, a pair of neighbours, or the largest one to four magnitudes on both sides of zero: numbers that
    are centred have half of their records on each side, and no single bin with many of them.
    """
    alone, pair = int(np.argmax(counts)), counts[:-1] + counts[1:]
    first = int(np.argmax(pair))
    result, strength = (alone, alone), float(counts[alone])
    if pair[first] / math.sqrt(2) > strength:
        result, strength = (first, first + 1), float(pair[first]) / math.sqrt(2)
    above, below = counts[ZERO + 1 :], counts[:ZERO][::-1]  # by magnitude
    for many in range(1, _SIDES + 1):
        sides = [np.convolve(side, np.ones(many), "valid") for side in (above, below)]
        both = sides[0] + sides[1]
        even = np.minimum(*sides) > _NEAR_SHARE * both
        strengths = np.where(even, both / math.sqrt(2 * many), -math.inf)
        best = int(np.argmax(strengths))
        if strengths[best] > strength:
            result, strength = (ZERO - best - many, ZERO + best + many), float(strengths[best])
    return result


def _unit(low: int, high: int, shown: "np.ndarray[tuple[int], np.dtype[np.intp]]") -> float:
    """0 where the magnitudes that are surely there span little; else the least of them."""
    sizes = np.abs([place - ZERO for place in {low, high, *shown.tolist()} if place != ZERO])
    if not sizes.size:
        return 0.0
    least, most = int(sizes.min()), int(sizes.max())
    ratio = 2.0 ** (most - least + 1)
    return 0.0 if ratio <= _LINEAR else 2.0 ** (LEAST + least - 1)
