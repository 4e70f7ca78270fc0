"""Spreads from noisy counts: how far numbers lie from their mean, on a grid of halvings.

Counts tell a spread of any size to a part of itself. A mean of squares would tell it to a part of the whole range, and
so miss columns that vary little beside their offset, such as years.
"""

import math
from typing import Final

import numpy as np

from fedveil.core.values import Indices, Matrix, Vector
from fedveil.stages.prepare.ranges import Range

LEVELS: Final = 14  # distances from 2 down to 2**-12, and below
_SURE: Final = 3.0  # deviations of the noise that a level must have to count
_SHARE: Final = 0.01
_INSIDE: Final = math.sqrt(0.5)  # of the upper end of a level: what stands for the distances in it
_REACH: Final = 8.0  # spreads on either side of the mean, beyond which numbers are cut
_USUAL: Final = 0.35


def levels_of(centred: Matrix) -> Indices:
    """Return the level of each number's distance from 0, at most 2; ``LEVELS`` where one is missing.

    >>> levels_of(np.array([[2.0, 1.0, 0.6, 0.001, 0.0, np.nan]])).tolist()
    [[0, 0, 1, 10, 13, 14]]
    """
    gone = np.isnan(centred)
    size = np.abs(np.where(gone, 0.0, centred))
    exponent = np.frexp(np.maximum(size, 2.0**-LEVELS))[1].astype(np.int64)  # size lies in [2**(e-1), 2**e)
    return np.where(gone, LEVELS, np.clip(1 - exponent, 0, LEVELS - 1)).astype(np.int64)


def spread_of(counts: Vector, records: float, deviation: float) -> float:
    """Return the root mean square distance, of those levels that stand out of the noise.

    ``records``: how many were counted; ``deviation``: of the noise on each count.
    """
    sure = np.where(counts > max(_SURE * deviation, _SHARE * records), counts, 0.0)
    if not sure.any():
        return _USUAL
    ends = 2.0 ** (1.0 - np.arange(LEVELS))
    return float(math.sqrt(np.sum(sure * (_INSIDE * ends) ** 2) / np.sum(sure)))


def narrowed(given: Range, mean: float, spread: float) -> tuple[Range, float, float]:
    """Return a range that ends some spreads beside the mean, with mean and spread on its scale.

    The same range where it does not reach much farther than that.
    """
    low, high = max(mean - _REACH * spread, -1.0), min(mean + _REACH * spread, 1.0)
    if not high - low < 1.0:
        return given, mean, spread
    ends = given.numbers(np.array([low, high]))
    if not ends[0] < ends[1]:
        return given, mean, spread
    middle, half = (low + high) / 2, (high - low) / 2
    found = Range(float(ends[0]), float(ends[1]), given.unit)
    return found, min(max((mean - middle) / half, -1.0), 1.0), spread / half
