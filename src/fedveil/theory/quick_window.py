"""Where a sum of independent variables on a grid lies, up to a small probability, found quickly.

The same bound as ``likely_window`` of allocation.py, which tells every grid point apart; here neighbouring points are
put together first, each time where they count for more, so that the bound is valid and hardly wider.
"""

import math

import numpy as np
from numpy.typing import NDArray

from fedveil.core.values import Vector

_ATOMS = 250  # points of a summand that are told apart
_Atoms = tuple[NDArray[np.intp], Vector, int]  # places in rising order, their masses, and the number of such summands


def quick_window(pieces: list[tuple[Vector, int]], log_outside: float) -> tuple[int, int]:
    """Return a grid range outside which the sum has at most ``exp(log_outside)`` on either side, by Chernoff.

    ``pieces``: the masses of a summand at the grid points 0, 1, ..., and the number of summands that are like it.
    """
    sparse = [(np.flatnonzero(mass > 0), mass[mass > 0], count) for mass, count in pieces]
    left: list[_Atoms] = []
    right: list[_Atoms] = []
    mean, spread = 0.0, 0.0
    for at, mass, count in sparse:
        first = np.unique(np.linspace(0, at.size, min(at.size, _ATOMS), endpoint=False, dtype=np.intp))
        together = np.add.reduceat(mass, first)
        left.append((at[first], together, count))
        right.append((at[np.append(first[1:], at.size) - 1], together, count))
        centre = float(np.sum(mass * at))
        mean, spread = mean + count * centre, spread + count * (float(np.sum(mass * at * at)) - centre * centre)
    largest, wide = max(int(at[-1]) for at, _, _ in sparse), math.sqrt(max(spread, 1.0))
    falling = np.geomspace(0.3, 30.0, 8) / wide
    rising = np.geomspace(min(0.3 / wide, 3.0 / max(largest, 1)), 30.0 / wide, 14)
    low = max(0.0, float(np.max(-(_log_moments(left, -falling) - log_outside) / falling)))
    most = float(sum(count * int(at[-1]) for at, _, count in sparse))
    high = min(most, float(np.min((_log_moments(right, rising) - log_outside) / rising)))
    return math.floor(min(low, mean)) - 1, math.ceil(max(high, mean)) + 1


def _log_moments(pieces: list[_Atoms], tilts: Vector) -> Vector:
    """Return the logarithm of the sum's exponential moment at each tilt; all tilts have one sign."""
    total = np.zeros_like(tilts)
    for at, mass, count in pieces:
        top = tilts * float(at[-1] if tilts[0] > 0 else at[0])
        with np.errstate(under="ignore"):
            moments = np.sum(mass * np.exp(np.multiply.outer(tilts, at) - top[:, None]), axis=1)
        total += count * (top + np.log(np.maximum(moments, 1e-300)))
    return total
