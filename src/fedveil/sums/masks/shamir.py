"""Shamir's secret sharing of 256-bit secrets over a prime field: ``threshold`` shares give the secret, fewer nothing.

[S79] Shamir. How to Share a Secret. Communications of the ACM 22(11), 1979.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Final

from fedveil.core.checks import require

PRIME: Final = 2**256 + 297  # the smallest prime above every 256-bit secret
SECRET_BYTES: Final = 32
SHARE_BYTES: Final = 33
COEFFICIENT_BYTES: Final = 48  # reduced modulo the prime, they are uniform to within 2**-127


def deal(secret: bytes, threshold: int, holders: int, random: bytes) -> list[bytes]:
    """Return shares 1, 2, ...

    ``holders``: values of a random polynomial of degree threshold - 1 that is the secret at 0.

    ``random``: 48 bytes for each coefficient but the first.
    """
    require(len(secret) == SECRET_BYTES, "secret", f"be {SECRET_BYTES} bytes", len(secret))
    require(2 <= threshold <= holders, "threshold", f"lie between 2 and {holders}", threshold)
    needed = COEFFICIENT_BYTES * (threshold - 1)
    require(len(random) == needed, "random", f"be {needed} bytes", len(random))
    pieces = (random[at : at + COEFFICIENT_BYTES] for at in range(0, needed, COEFFICIENT_BYTES))
    coefficients = [int.from_bytes(piece, "little") % PRIME for piece in pieces]
    start = int.from_bytes(secret, "little")
    return [_value(start, coefficients, x).to_bytes(SHARE_BYTES, "little") for x in range(1, holders + 1)]


def _value(start: int, coefficients: Iterable[int], x: int) -> int:
    total = 0
    for coefficient in coefficients:
        total = (total * x + coefficient) % PRIME
    return (total * x + start) % PRIME


def recover(shares: Mapping[int, bytes]) -> bytes | None:
    """Return the secret from ``threshold`` shares by number; None if they do not belong to one 256-bit secret.

    >>> shares = deal(bytes(range(32)), 2, 3, random=bytes(48))
    >>> recover({1: shares[0], 3: shares[2]}) == bytes(range(32))
    True
    """
    numbers = list(shares)
    below = [math.prod(other - x for other in numbers if other != x) for x in numbers]
    common, every = math.prod(below), math.prod(numbers)
    # Bring all fractions to one denominator, so that one inversion is enough.
    total = sum(
        int.from_bytes(shares[x], "little") * (every // x) * (common // part)
        for x, part in zip(numbers, below, strict=True)
    )
    secret = total * pow(common, -1, PRIME) % PRIME
    return secret.to_bytes(SECRET_BYTES, "little") if secret < 2 ** (8 * SECRET_BYTES) else None
