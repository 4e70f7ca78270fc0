"""Encryption parameters that hold the sum of so many clients exactly: chosen and proved in whole numbers.

One plaintext modulus holds fewer than 64 bits, so a value is encrypted as its residues modulo several primes, and the
sum is put together by the Chinese remainder theorem. Theory page: homomorphic-sums.md.

References:
    [FV12] Fan, Vercauteren. Somewhat practical fully homomorphic encryption. IACR ePrint 2012/144.
    [HES18] Albrecht et al. Homomorphic Encryption Security Standard. HomomorphicEncryption.org, 2018.
"""

import hashlib
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from fedveil.core.checks import require

DEGREE: Final = 4096  # degree of the ring; one ciphertext holds this many numbers
# SEAL's own choice for this degree at 128 bits of security [HES18: at most 109 bits]; the last is for keys only.
KEY_PRIMES: Final = (68719403009, 68719230977, 137438822401)
MODULUS: Final = KEY_PRIMES[0] * KEY_PRIMES[1]
PER_CIPHERTEXT: Final = DEGREE - 1  # the last place counts the clients
LARGEST: Final = 2**63
MOST_CLIENTS: Final = 2**16
MOST_VALUES: Final = 2**28

_ERROR: Final = 21  # the largest coefficient of SEAL's noise (centred binomial of 21 coins; clipped normals: 19.2)
# -e u + e1 + e2 s with u, s of coefficients -1, 0, 1 [FV12]; leaving the key prime adds at most (DEGREE + 1) / 2 + 1.
FRESH_NOISE: Final = 2 * DEGREE * _ERROR + _ERROR + (DEGREE + 1) // 2 + 2
_MOST_PRIMES: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """Parameters for up to ``clients`` values of absolute value at most ``bound``.

    ``primes`` are the plaintext moduli.
    """

    clients: int
    bound: int
    primes: tuple[int, ...]

    def __post_init__(self) -> None:
        _check(self.clients, self.bound)
        some = 1 <= len(self.primes) <= _MOST_PRIMES and len(set(self.primes)) == len(self.primes)
        require(some, "Parameters.primes", f"be 1 to {_MOST_PRIMES} different primes", self.primes)
        for prime in self.primes:
            right = prime % (2 * DEGREE) == 1 and is_prime(prime)
            require(right, "Parameters.primes", f"be primes of the form 1 + k * {2 * DEGREE}", prime)
            fits = prime <= largest_prime_allowed(self.clients)
            require(fits, "Parameters.primes", "leave room for the noise of all clients", prime)
        wide = math.prod(self.primes) > 2 * self.clients * self.bound
        require(wide, "Parameters.primes", "multiply to more than the sum's whole range", self.primes)

    @property
    def product(self) -> int:
        """The product of the primes; sums are exact modulo this."""
        return math.prod(self.primes)

    def ciphertexts(self, size: int) -> int:
        """Return how many ciphertexts a vector needs.

        >>> parameters_for(clients=10).ciphertexts(4095), parameters_for(clients=10).ciphertexts(4096)
        (2, 4)
        """
        right = isinstance(size, int) and 1 <= size <= MOST_VALUES
        require(right, "size", f"lie between 1 and {MOST_VALUES}", size)
        return len(self.primes) * -(-size // PER_CIPHERTEXT)


def parameters_for(clients: int, bound: int = LARGEST) -> Parameters:
    """Return the fewest and then the largest primes that hold the sum; refuse if no primes can hold it.

    >>> [prime.bit_length() for prime in parameters_for(clients=50).primes]
    [47, 47]
    >>> len(parameters_for(clients=50, bound=2**40).primes)
    1
    """
    _check(clients, bound)
    primes: list[int] = []
    candidate = largest_prime_allowed(clients) + 1
    while math.prod(primes) <= 2 * clients * bound:
        candidate = _prime_below(candidate)
        primes.append(candidate)
    return Parameters(clients=clients, bound=bound, primes=tuple(primes))


def largest_prime_allowed(clients: int) -> int:
    """Return the largest plaintext prime with which decryption is exact.

    Decryption rounds ``t/q`` times the noise away while that is below 1/2 [FV12]; here it is at most 1/4. The other
    half is reserved for SEAL's decryption by residues, which is exact only up to a small part of 1/2.
    """
    return MODULUS // (4 * clients * FRESH_NOISE)


def seal_name(prime: int, moduli: Sequence[int]) -> list[int]:
    """Return the name SEAL gives to a set of parameters.

    It is the BLAKE2b hash of the scheme (1 is BFV), the degree and the moduli, as four words.
    """
    text = struct.pack(f"<{len(moduli) + 3}Q", 1, DEGREE, *moduli, prime)
    return list(struct.unpack("<4Q", hashlib.blake2b(text, digest_size=32).digest()))


def is_prime(number: int) -> bool:
    """Return whether a number is prime, by Miller and Rabin's test with the first twelve primes.

    The test is exact below 3.3e24 (Sorenson and Webster, Strong pseudoprimes to twelve prime bases, 2017).

    >>> [n for n in range(30) if is_prime(n)]
    [2, 3, 5, 7, 11, 13, 17, 19, 23, 29]
    """
    bases = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)
    if number < 2 or any(number % base == 0 for base in bases):
        return number in bases
    twos = (number - 1 & 1 - number).bit_length() - 1
    return all(_passes(number, base, (number - 1) >> twos, twos) for base in bases)


def _passes(number: int, base: int, odd: int, twos: int) -> bool:
    power = pow(base, odd, number)
    if power in (1, number - 1):
        return True
    for _ in range(twos - 1):
        power = power * power % number
        if power == number - 1:
            return True
    return False


def _prime_below(limit: int) -> int:
    step = 2 * DEGREE
    candidate = (limit - 2) // step * step + 1
    while candidate > step and not is_prime(candidate):
        candidate -= step
    require(candidate > step, "clients", "leave room for a plaintext modulus", limit)
    return candidate


def _check(clients: int, bound: int) -> None:
    counted = isinstance(clients, int) and not isinstance(clients, bool) and 1 <= clients <= MOST_CLIENTS
    require(counted, "clients", f"be a whole number from 1 to {MOST_CLIENTS}", clients)
    whole = isinstance(bound, int) and not isinstance(bound, bool) and 1 <= bound <= LARGEST
    require(whole, "bound", "be a whole number from 1 to 2**63", bound)
