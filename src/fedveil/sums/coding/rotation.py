"""Random rotation: the randomised Hadamard transform, which spreads a vector evenly over its coordinates.

It is an orthogonal map: norms and distances stay, so clipping before it is the same as clipping after it. A length that
is not a power of two takes two transforms, of the first and of the last coordinates, without padding. Theory page:
coding.md.

References:
    [AC09] Ailon, Chazelle. The fast Johnson-Lindenstrauss transform and approximate nearest neighbors. SICOMP, 2009.
    [SYKM17] Suresh, Yu, Kumar, McMahan. Distributed mean estimation with limited communication. ICML 2017.
"""

import math

import numpy as np

from fedveil.core.checks import require
from fedveil.core.values import Vector
from fedveil.sums.coding.public import public_signs


def rotated(values: Vector, seed: bytes) -> Vector:
    """Return the vector in rotated coordinates; ``seed`` is public.

    >>> turned = rotated(np.array([2.0, 0.0, 0.0, 0.0]), b"round 1")
    >>> np.abs(turned).tolist()
    [1.0, 1.0, 1.0, 1.0]
    """
    found = _checked(values).copy()
    block = block_of(found.size)
    for part in _parts(found.size, block):
        signs = public_signs(seed, f"rotation {part.start}", block)
        found[part] = hadamard(found[part] * signs)
    return found


def rotated_back(values: Vector, seed: bytes) -> Vector:
    """Return the inverse of :func:`rotated`; in floats, to within 2**-50 times the norm for up to 2**28 coordinates."""
    found = _checked(values).copy()
    block = block_of(found.size)
    for part in reversed(_parts(found.size, block)):
        signs = public_signs(seed, f"rotation {part.start}", block)
        found[part] = hadamard(found[part]) * signs
    return found


def hadamard(values: Vector) -> Vector:
    """Multiply by Sylvester's matrix with entries +-1/sqrt(size), which is symmetric and its own inverse."""
    size = values.size
    require(size >= 1 and size & (size - 1) == 0, "The length", "be a power of two", size)
    found, half = values.astype(np.float64), 1
    while half < size:
        pairs = found.reshape(-1, 2, half)
        found = np.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], axis=1).reshape(-1)
        half *= 2
    return np.asarray(found / math.sqrt(size), dtype=np.float64)


def block_of(size: int) -> int:
    """Return how many coordinates one transform mixes: the largest power of two that fits, so more than half of them.

    >>> block_of(64), block_of(100)
    (64, 64)
    """
    return int(1 << (size.bit_length() - 1))


def _parts(size: int, block: int) -> tuple[slice, ...]:
    first = slice(0, block)
    return (first,) if block == size else (first, slice(size - block, size))


def _checked(values: Vector) -> Vector:
    right = isinstance(values, np.ndarray) and values.dtype == np.float64 and values.ndim == 1 and values.size >= 1
    require(right, "values", "be a vector of float64", getattr(values, "dtype", type(values).__name__))
    require(bool(np.all(np.isfinite(values))), "values", "be finite", "others")
    return values
