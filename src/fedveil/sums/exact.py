"""Exact norms of vectors of whole numbers of any size."""

import math
from typing import Final

import numpy as np

from fedveil.sums.seam import Whole

_LIMB: Final = 21  # bits of a limb; three limbs hold 63 bits
_CHUNK: Final = 2**20  # a product of two limbs is below 2**42, so a sum of this many stays below 2**62
LIMIT: Final = 2**63 - 1


def largest(values: Whole) -> int:
    """Return the exact largest absolute value, also for -2**63, where numpy's own fails.

    >>> largest(np.array([3, -(2**63)])) == 2**63
    True
    """
    return max(int(values.max()), -int(values.min()))


def squared_norm(values: Whole) -> int:
    """Return the exact sum of squares, for any values.

    Absolute values are cut into limbs of 21 bits; sums of products of limbs over a chunk cannot overflow.

    >>> squared_norm(np.array([2**62, -(2**62)])) == 2**125
    True
    """
    top = largest(values) if values.size else 0
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
