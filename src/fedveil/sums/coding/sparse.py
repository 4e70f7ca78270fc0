"""Keep fewer coordinates: a random set, or the largest. The largest only after the noise, since the choice tells."""

import numpy as np

from fedveil.core.checks import require
from fedveil.core.values import Indices, Vector


def random_k(values: Vector, chosen: Indices) -> Vector:
    """Return the chosen coordinates, scaled up so that a uniformly random choice keeps the mean.

    >>> random_k(np.array([1.0, 2.0, 3.0, 4.0]), np.array([1, 3])).tolist()
    [0.0, 4.0, 0.0, 8.0]
    """
    return only(values, chosen) * (values.size / chosen.size)


def top_k(values: Vector, kept: int) -> Vector:
    """Return the ``kept`` coordinates of largest absolute value; of equal ones the first. Use it after the noise only.

    >>> top_k(np.array([1.0, -5.0, 3.0]), 2).tolist()
    [0.0, -5.0, 3.0]
    """
    require(1 <= kept <= values.size, "kept", f"lie between 1 and {values.size}", kept)
    return only(values, np.argsort(-np.abs(values), kind="stable")[:kept])


def only(values: Vector, chosen: Indices) -> Vector:
    """Return a vector with these coordinates, and zero elsewhere."""
    found = np.zeros_like(values)
    found[chosen] = values[chosen]
    return found
