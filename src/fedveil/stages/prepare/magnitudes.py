"""The public grid on which numbers are counted: zero, and powers of two of either sign.

Bins are in the order of the numbers they hold: negative ones from the largest magnitude down, zero, positive ones from
the smallest magnitude up, and last the missing values. The grid is the same for every column of every study.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from fedveil.core.values import Indices, Vector

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
    found = ZERO + np.where(numbers < 0, -place, place)
    return np.asarray(np.where(gone, MISSING, found), dtype=np.int64)
