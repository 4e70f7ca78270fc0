"""The recursive filter of scipy.signal, which is loaded when it is first called.

Loading it takes longer than all of the rest of a command's start, and few commands filter anything.
"""

from collections.abc import Sequence

import numpy as np

from fedveil.core.values import Vector


def lfilter(above: Vector | Sequence[float], below: Vector | Sequence[float], values: Vector, axis: int = -1) -> Vector:
    """Return the values after the filter with these coefficients of numerator and denominator.

    >>> lfilter([1.0], [1.0, -0.5], np.array([1.0, 0.0, 0.0]))
    array([1.  , 0.5 , 0.25])
    """
    from scipy.signal import lfilter as filtered

    return np.asarray(filtered(above, below, values, axis=axis), dtype=np.float64)
