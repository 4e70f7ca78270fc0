"""How a contribution is written in few bits: rotated, rounded, thinned and packed.

References:
    [AC09] Ailon, Chazelle. The fast Johnson-Lindenstrauss transform and approximate nearest neighbors. SICOMP, 2009.
    [SYKM17] Suresh, Yu, Kumar, McMahan. Distributed mean estimation with limited communication. ICML 2017.
    [KLS21] Kairouz, Liu, Steinke. The distributed discrete Gaussian mechanism for federated learning with secure
        aggregation. ICML 2021.
"""

import hashlib
import math
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from fedveil.core.errors import require
from fedveil.core.values import Indices, Vector
from fedveil.sums.exact import squared_norm
from fedveil.sums.seam import Whole

# Pack whole numbers into few bits, as bytes, and back; and the size of each kind of message.


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


# Randomness that everybody may know: signs as a function of a seed that is published with the round.
#
# It does not depend on data, so it costs no privacy; it protects nothing either, and is never used for noise.

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


# Random rotation: the randomised Hadamard transform, which spreads a vector evenly over its coordinates.
#
# It is an orthogonal map: norms and distances stay, so clipping before it is the same as clipping after it. A length
# that is not a power of two takes two transforms, of the first and of the last coordinates, without padding. Theory
# page: coding.md.


def rotated(values: Vector, seed: bytes) -> Vector:
    """Return the vector in rotated coordinates; ``seed`` is public.

    >>> turned = rotated(np.array([2.0, 0.0, 0.0, 0.0]), b"round 1")
    >>> np.abs(turned).tolist()
    [1.0, 1.0, 1.0, 1.0]
    """
    result = _checked(values).copy()
    block = block_of(result.size)
    for part in _parts(result.size, block):
        signs = public_signs(seed, f"rotation {part.start}", block)
        result[part] = hadamard(result[part] * signs)
    return result


def rotated_back(values: Vector, seed: bytes) -> Vector:
    """Return the inverse of :func:`rotated`; in floats, to within 2**-50 times the norm for up to 2**28 coordinates."""
    result = _checked(values).copy()
    block = block_of(result.size)
    for part in reversed(_parts(result.size, block)):
        signs = public_signs(seed, f"rotation {part.start}", block)
        result[part] = hadamard(result[part]) * signs
    return result


def hadamard(values: Vector) -> Vector:
    """Multiply by Sylvester's matrix with entries +-1/sqrt(size), which is symmetric and its own inverse."""
    size = values.size
    require(size >= 1 and size & (size - 1) == 0, "The length", "be a power of two", size)
    result, half = values.astype(np.float64), 1
    while half < size:
        pairs = result.reshape(-1, 2, half)
        result = np.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], axis=1).reshape(-1)
        half *= 2
    return np.asarray(result / math.sqrt(size), dtype=np.float64)


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


# Rounding to few levels, and rounding before the noise that keeps the norm within a proved limit.
#
# After the noise, any rounding is post-processing. Before it, rounding may enlarge a vector and so its sensitivity;
# there the limit is part of the promise and is enforced on the rounded vector in exact integers. Theory page:
# coding.md.

Words = NDArray[np.uint64]

_TRIES: Final = 64
_LARGEST: Final = 2.0**52  # whole numbers up to here are exact in float64, with half a step to spare


class Source(Protocol):
    """A source of uniform 64-bit words, each returned once."""

    def words(self, count: int, /) -> Words:
        """Return the next ``count`` words."""


def by_coin(values: Vector, words: Words) -> Vector:
    """Round each number up or down by a random coin that keeps its mean (to 2**-53).

    >>> by_coin(np.array([2.0, -0.5]), np.zeros(2, dtype=np.uint64)).tolist()
    [2.0, 0.0]
    """
    low = np.floor(values)
    up = (words >> np.uint64(11)) * 2.0**-53 < values - low
    return np.asarray(low + up, dtype=np.float64)


def to_levels(values: Vector, levels: int, words: Words | None) -> Vector:
    """Round each number to a multiple of largest / levels, by a coin, or to the nearest if no words are given.

    Use it after the noise only: the largest absolute value is sent along, and before the noise it would reveal data.
    """
    largest = float(np.max(np.abs(values)))
    if largest < 2.0**-900:  # zero, or so small that the scale would overflow
        return np.zeros_like(values)
    scaled = values * (levels / largest)
    result = np.rint(scaled) if words is None else by_coin(scaled, words)
    # Rounding errors may scale the largest to slightly more than levels, and a rare coin to one level too many.
    return np.asarray(np.clip(result, -levels, levels) * (largest / levels), dtype=np.float64)


def norm_limit(bound: float, size: int, failure: float = 0.001) -> int:
    """Return the squared norm to allow after rounding a vector of norm ``bound`` by coins, all in grid steps [KLS21].

    Rounding never exceeds ``(bound + sqrt(size))**2``, and exceeds the smaller limit only with a chance of ``failure``.

    >>> norm_limit(1000.0, 100), norm_limit(1.0, 10_000)
    (1003760, 2690)
    """
    require(0 < bound <= _LARGEST, "bound", "lie between 0 and 2**52 grid steps", bound)
    require(isinstance(size, int) and size >= 1, "size", "be at least 1", size)
    require(0 < failure < 1, "failure", "lie strictly between 0 and 1", failure)
    always = (bound + math.sqrt(size)) ** 2
    mostly = bound**2 + size / 4 + math.sqrt(2 * math.log(1 / failure)) * (bound + math.sqrt(size) / 2)
    return math.floor(min(always, mostly))


def sensitivity(limit: int) -> float:
    """Return the norm, in grid steps, of a vector whose squared norm is at most ``limit``; rounded up."""
    require(isinstance(limit, int) and limit >= 0, "limit", "be a whole number, 0 or more", limit)
    return math.nextafter(math.sqrt(limit), math.inf)


def rounded_within(values: Vector, limit: int, source: Source) -> Whole | None:
    """Round by coins, repeated until the squared norm is at most ``limit``; return None for values that are not finite.

    If no draw fits, the numbers are truncated towards zero; if even that does not fit (they were larger than agreed),
    zeros are returned. So the limit holds for every input, and the sensitivity is a matter of whole numbers.
    """
    if not bool(np.all(np.abs(values) <= _LARGEST)):  # also false for NaN and infinity
        return None
    for _ in range(_TRIES):
        result = by_coin(values, source.words(values.size)).astype(np.int64)
        if squared_norm(result) <= limit:
            return result
    cut = np.trunc(values).astype(np.int64)
    return cut if squared_norm(cut) <= limit else np.zeros_like(cut)


# Keep fewer coordinates: a random set, or the largest. The largest only after the noise, since the choice tells.


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
    result = np.zeros_like(values)
    result[chosen] = values[chosen]
    return result
