"""Pack whole numbers into few bits, as bytes, and back; and the size of each kind of message."""

import math

import numpy as np
from numpy.typing import NDArray

from fedveil.core.checks import require

Whole = NDArray[np.int64]


def bits_for(levels: int) -> int:
    """Return the number of bits of a number from -levels to levels.

    >>> bits_for(1), bits_for(127), bits_for(128)
    (2, 8, 9)
    """
    return (2 * levels).bit_length()


def packed(codes: Whole, levels: int) -> bytes:
    """Return numbers from -levels to levels as bytes, each in :func:`bits_for` bits.

    >>> packed(np.array([-1, 0, 1]), 1).hex()
    '18'
    """
    inside = codes.size == 0 or bool(np.all(np.abs(codes) <= levels))
    require(inside, "codes", f"lie between -{levels} and {levels}", "others")
    shifted, bits = (codes + levels).astype(np.uint64), bits_for(levels)
    places = np.arange(bits - 1, -1, -1, dtype=np.uint64)
    return np.packbits(((shifted[:, None] >> places) & np.uint64(1)).astype(np.uint8)).tobytes()


def unpacked(given: bytes, levels: int, size: int) -> Whole:
    """Return the numbers that :func:`packed` wrote; refuse another length, and codes without a meaning."""
    bits = bits_for(levels)
    require(len(given) == -(-size * bits // 8), "A packed message", f"hold {size} numbers of {bits} bits", len(given))
    spread = np.unpackbits(np.frombuffer(given, dtype=np.uint8), count=size * bits).reshape(size, bits)
    shifted = spread.astype(np.int64) @ (np.int64(1) << np.arange(bits - 1, -1, -1, dtype=np.int64))
    require(bool(np.all(shifted <= 2 * levels)), "A packed message", f"hold numbers up to {levels} only", "others")
    return np.asarray(shifted - levels, dtype=np.int64)


def kept_of(keep: float, size: int) -> int:
    """Return how many of ``size`` coordinates a share of ``keep`` is."""
    return max(1, math.floor(keep * size))


def message_bytes(compression: str, size: int, *, keep: float, levels: int) -> int:
    """Return the bytes of one update: eight for a number, four for a place, eight for the seed of chosen places.

    >>> [message_bytes(kind, 1000, keep=0.1, levels=127) for kind in ("none", "random-k", "top-k", "quantised")]
    [8000, 808, 1200, 1008]
    """
    match compression:
        case "random-k":
            return 8 * kept_of(keep, size) + 8
        case "top-k":
            return 12 * kept_of(keep, size)
        case "quantised":
            return math.ceil(size * bits_for(levels) / 8) + 8
        case "rotated":  # the seed is sent with the scale
            return math.ceil(size * bits_for(levels) / 8) + 16
        case _:
            return 8 * size
