"""Randomness that everybody may know: signs as a function of a seed that is published with the round.

It does not depend on data, so it costs no privacy; it protects nothing either, and is never used for noise.
"""

import hashlib
from typing import Final

import numpy as np

from fedveil.core.checks import require
from fedveil.core.values import Vector

_MOST: Final = 2**28


def public_signs(seed: bytes, label: str, size: int) -> Vector:
    """Return ``size`` random signs, plus or minus one.

    >>> public_signs(b"round 7", "rotation", 4).tolist()
    [-1.0, 1.0, -1.0, 1.0]
    """
    _check(size)
    bits = np.unpackbits(np.frombuffer(_stream(seed, label, -(-size // 8)), dtype=np.uint8), count=size)
    return np.asarray(1.0 - 2.0 * bits, dtype=np.float64)


def _stream(seed: bytes, label: str, length: int) -> bytes:
    right = isinstance(seed, bytes) and 1 <= len(seed) <= 64
    require(right, "seed", "be 1 to 64 public bytes", type(seed).__name__)
    name = label.encode()
    head = b"fedveil public" + bytes([len(seed)]) + seed + name  # the length separates seed and label
    return hashlib.shake_128(head).digest(length)


def _check(size: int) -> None:
    require(1 <= size <= _MOST, "size", f"lie between 1 and {_MOST}", size)
