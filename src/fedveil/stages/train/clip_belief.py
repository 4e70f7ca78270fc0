"""Where the quantile of the norms lies, as far as noisy votes tell: the belief that moves a client's adaptive clip.

A noisy binary search: all votes so far count, whichever clips they were cast at, and none moves the clip by more than
it tells. Everything here is post-processing of noised counts. Theory page: adaptive-clip.md.
"""

import math
from typing import Final

import numpy as np
from scipy.special import ndtr, ndtri

from fedveil.core.values import Vector

PLACES: Final[Vector] = np.arange(-100, 101) / 10  # where it may lie: logarithms, over the level at which votes began
PLACES.setflags(write=False)
_SPREAD: Final = 0.6  # of the logarithms of the norms, as assumed; a wrong one makes the search slower, not wrong
_UNSURE: Final = math.log(100)  # how far off the start may usually be
_LEAN: Final = 0.3  # quantile of the belief that is used: too small a clip does less harm than too large a one


def no_belief() -> Vector:
    """Return the belief before any vote."""
    return np.zeros(PLACES.size)


def moved(belief: Vector, level: float, share: float, deviation: float, quantile: float, weight: float = 1.0) -> Vector:
    """Return the belief after one noisy vote.

    ``level``: the logarithm of where it was cast, over where votes began; ``share``: the noisy share of the norms
    within it, of this ``deviation``; ``weight``: what the vote counts, from 0 to 1.
    """
    expected = ndtr((level - PLACES) / _SPREAD + float(ndtri(quantile)))
    found = belief - weight * (share - expected) ** 2 / (2 * deviation**2)
    return np.asarray(found - found.max(), dtype=np.float64)


def believed(belief: Vector) -> float:
    """Return the logarithm of where the quantile lies, over where votes began, leaning to the smaller side.

    >>> believed(no_belief()), believed(moved(no_belief(), 0.0, 0.5, 0.01, 0.5))
    (-2.3, 0.0)
    """
    weight = np.exp(belief - PLACES**2 / (2 * _UNSURE**2))
    known = np.cumsum(weight)
    return float(PLACES[int(np.searchsorted(known, _LEAN * known[-1]))])


def vote_deviation(noise: float, of_count: float, batch: float) -> float:
    """Return the deviation of a noisy share: of its noise, and of who happened to be in the batch."""
    return math.hypot(noise / (2 * of_count * batch), 0.5 / math.sqrt(batch))
