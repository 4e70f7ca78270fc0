"""95% intervals for shares, means and the area under the ROC curve.

They cover the chance by which these records and no others were held out; they do not cover the noise of training.

References:
    [W27] Wilson. Probable Inference, the Law of Succession, and Statistical Inference. JASA 22(158), 1927.
    [DDC88] DeLong, DeLong, Clarke-Pearson. Comparing the Areas under Two or More Correlated Receiver Operating
        Characteristic Curves: A Nonparametric Approach. Biometrics 44(3), 1988.
"""

import math

import numpy as np
from numpy.typing import NDArray

from fedveil.core.values import Vector

Interval = tuple[float, float]
Z = 1.959963984540054  # of the normal law, for 95%


def wilson(share: float, count: int, z: float = Z) -> Interval:
    """Wilson's interval for a share seen in ``count`` trials [W27].

    >>> tuple(round(v, 4) for v in wilson(0.9, 100))
    (0.8256, 0.9448)
    """
    centre = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return max(0.0, centre - half), min(1.0, centre + half)


def around(value: float, influence: Vector, low: float = -math.inf, high: float = math.inf) -> Interval | None:
    """Return the normal interval of a number whose error is the mean of each record's ``influence``.

    Returns None for a single record, which says nothing about its own error.
    """
    if influence.size < 2:
        return None
    half = Z * float(np.std(influence, ddof=1)) / math.sqrt(influence.size)
    return max(low, value - half), min(high, value + half)


def area(scores: Vector, positive: NDArray[np.bool_]) -> tuple[float, Vector]:
    """Return the area under the ROC curve, and each record's influence on it [DDC88].

    Both kinds of record must occur.
    """
    ours, others = scores[positive], scores[~positive]
    ranks = _ranks(scores)
    above = (ranks[positive] - _ranks(ours)) / others.size  # the share of the others that lie below
    below = 1.0 - (ranks[~positive] - _ranks(others)) / ours.size
    value = float(above.mean())
    influence = np.empty(scores.size)
    influence[positive] = (above - value) * (scores.size / ours.size)
    influence[~positive] = (below - value) * (scores.size / others.size)
    return value, influence


def _ranks(values: Vector) -> Vector:
    """Return ranks from 1 on; equal values share the mean of theirs. (scipy.stats has this, and takes long to load.)

    >>> _ranks(np.array([5.0, 2.0, 5.0])).tolist()
    [2.5, 1.0, 2.5]
    """
    if np.isnan(values).any():
        return np.full(values.shape, np.nan)
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(counts) - (counts - 1) / 2)[place], dtype=np.float64)
