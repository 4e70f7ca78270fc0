"""Projection onto the ball that every model is kept in."""

import numpy as np

from fedveil.core.values import Vector


def project(point: Vector, radius: float) -> Vector:
    """Return the nearest point of the ball around zero; for several points, one per row.

    The squares are summed pairwise, so the norm is exact to 2**-53 times (20 + log2(size)/2), which is accounted for.
    """
    norm = np.sqrt(np.sum(point * point, axis=-1, keepdims=True))
    return point if np.all(norm <= radius) else point * (radius / np.maximum(norm, radius))
