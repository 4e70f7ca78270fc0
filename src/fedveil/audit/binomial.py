"""The binomial law of scipy.stats, which is loaded when it is first asked: few commands need it, and it takes long."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedveil.core.values import Vector


def at_most(count: ArrayLike, trials: ArrayLike, share: ArrayLike) -> Vector:
    """Return the chance of so many or fewer.

    >>> [round(float(law(1, 2, 0.5)), 12) for law in (at_most, at_least, exactly)]
    [0.75, 0.75, 0.5]
    """
    return np.asarray(_law().cdf(count, trials, share), dtype=np.float64)


def at_least(count: ArrayLike, trials: ArrayLike, share: ArrayLike) -> Vector:
    """Return the chance of so many or more."""
    return np.asarray(_law().sf(np.asarray(count) - 1, trials, share), dtype=np.float64)


def exactly(count: ArrayLike, trials: ArrayLike, share: ArrayLike) -> Vector:
    """Return the chance of just so many."""
    return np.asarray(_law().pmf(count, trials, share), dtype=np.float64)


def _law() -> Any:
    from scipy.stats import binom

    return binom
