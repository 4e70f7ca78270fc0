"""Parameters of homomorphic sums, and the messages between their roles.

References:
    [FV12] Fan, Vercauteren. Somewhat practical fully homomorphic encryption. IACR ePrint 2012/144.
    [HES18] Albrecht et al. Homomorphic Encryption Security Standard. HomomorphicEncryption.org, 2018.
"""

import hashlib
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from fedveil.core.errors import BadValue, require

# Encryption parameters that hold the sum of so many clients exactly: chosen and proved in whole numbers.
#
# One plaintext modulus holds fewer than 64 bits, so a value is encrypted as its residues modulo several primes, and the
# sum is put together by the Chinese remainder theorem. Theory page: homomorphic-sums.md.

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


CIPHERTEXT_MOST: Final = 2 * 2 * DEGREE * 8 + 1024  # two polynomials, two primes, eight bytes each, and SEAL's headers
CONTEXT_MOST: Final = (2 + 1) * 3 * DEGREE * 8 + 4096  # public and secret key at the three key primes
# typical size after SEAL's Zstandard compression; single ones differ by some dozen bytes
CIPHERTEXT_BYTES: Final = 88_600
PUBLIC_BYTES: Final = 134_200  # typical size of a public context, likewise
LAST_TURN: Final = 2**63 - 1
MOST_NUMBER: Final = 2**32 - 1  # of a client

_HEAD: Final = struct.Struct("<4sBBQII32s")
_KEYS: Final = struct.Struct("<4sBBBIQ")
_DIGEST: Final = 32
_MAGIC: Final = b"fvhe"
_VERSION: Final = 1
_KINDS: Final[dict[str, int]] = {"part": 1, "sum": 2}
_SHARED: Final[dict[str, int]] = {"public": 3, "secret": 4}

Kind = Literal["part", "sum"]
Shared = Literal["public", "secret"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """Ciphertexts of a vector of ``size`` values, chunk by chunk, and prime by prime within a chunk.

    ``senders``: whose values are in it, ascending; ``key``: the fingerprint of the public key used.
    """

    kind: Kind
    turn: int
    size: int
    senders: tuple[int, ...]
    key: bytes
    ciphertexts: tuple[bytes, ...]

    def __post_init__(self) -> None:
        require(self.kind in _KINDS, "Message.kind", "be part or sum", self.kind)
        require(0 <= self.turn <= LAST_TURN, "Message.turn", "lie between 0 and 2**63 - 1", self.turn)
        require(1 <= self.size <= MOST_VALUES, "Message.size", f"lie between 1 and {MOST_VALUES}", self.size)
        named = all(0 <= number <= MOST_NUMBER for number in self.senders)
        ascending = all(a < b for a, b in zip(self.senders, self.senders[1:], strict=False))
        require(named and ascending, "Message.senders", "be client numbers in ascending order", self.senders)
        count = len(self.senders)
        fits = count == 1 if self.kind == "part" else count >= 1
        require(fits, "Message.senders", "name one client in a part, at least one in a sum", count)


def fingerprint(public: bytes) -> bytes:
    """Return the fingerprint of a public key in the form that is sent."""
    return hashlib.sha256(public).digest()


def write_message(message: Message) -> bytes:
    """Return the message as bytes."""
    head = _HEAD.pack(
        _MAGIC, _VERSION, _KINDS[message.kind], message.turn, message.size, len(message.senders), message.key
    )
    who = struct.pack(f"<{len(message.senders)}I", *message.senders)
    body = head + who + b"".join(len(text).to_bytes(4, "little") + text for text in message.ciphertexts)
    return (
        body + hashlib.sha256(body).digest()
    )  # detects damage, which otherwise only the key holder would notice; it is not a signature


def most_bytes(parameters: Parameters, size: int, senders: int) -> int:
    """Return an upper bound on the bytes of a message for so many values."""
    return _HEAD.size + 4 * senders + parameters.ciphertexts(size) * (4 + CIPHERTEXT_MOST) + _DIGEST


def typical_bytes(parameters: Parameters, size: int) -> int:
    """Return the approximate bytes of one client's message.

    >>> from fedveil.sums.homomorphic.messages import parameters_for
    >>> typical_bytes(parameters_for(50), 100_000) / 100_000
    44.3029
    """
    return _HEAD.size + 4 + parameters.ciphertexts(size) * (4 + CIPHERTEXT_BYTES) + _DIGEST


def typical_key_bytes(parameters: Parameters) -> int:
    """Return the approximate bytes of the public key, which a client receives once."""
    return _KEYS.size + len(parameters.primes) * (4 + PUBLIC_BYTES)


def read_message(given: bytes, *, kind: Kind, parameters: Parameters, size: int, turn: int, key: bytes) -> Message:
    """Read a message; refuse unless it has this kind, round, length and key."""
    require(isinstance(given, bytes), "A ciphertext message", "be bytes", type(given).__name__)
    most = most_bytes(parameters, size, parameters.clients)
    fits = _HEAD.size + _DIGEST <= len(given) <= most
    require(fits, "A ciphertext message", f"have a whole head and at most {most} bytes", len(given))
    magic, version, number, its_turn, its_size, count, its_key = _HEAD.unpack_from(given)
    right = magic == _MAGIC and version == _VERSION and number == _KINDS[kind]
    require(right, "A ciphertext message", f"be a {kind} of version {_VERSION}", (magic, version, number))
    require(its_key == key, "A ciphertext message", "be encrypted under this run's key", its_key.hex()[:16])
    require(its_turn == turn, "A ciphertext message", f"be of round {turn}", its_turn)
    require(its_size == size, "A ciphertext message", f"hold {size} values", its_size)
    require(1 <= count <= parameters.clients, "Senders", f"number 1 to {parameters.clients}", count)
    body, start = given[:-_DIGEST], _HEAD.size + 4 * count
    whole = hashlib.sha256(body).digest() == given[-_DIGEST:] and len(body) >= start
    require(whole, "A ciphertext message", "arrive whole and unchanged", f"{len(given)} bytes with another digest")
    senders = struct.unpack_from(f"<{count}I", body, _HEAD.size)
    texts = _pieces(body, start, parameters.ciphertexts(size), CIPHERTEXT_MOST)
    return Message(kind=kind, turn=turn, size=size, senders=senders, key=key, ciphertexts=texts)


def write_keys(what: Shared, parameters: Parameters, contexts: tuple[bytes, ...]) -> bytes:
    """Return public or secret key material as bytes."""
    head = _KEYS.pack(_MAGIC, _VERSION, _SHARED[what], len(contexts), parameters.clients, parameters.bound)
    return head + b"".join(len(text).to_bytes(4, "little") + text for text in contexts)


def read_keys(given: bytes, what: Shared, parameters: Parameters) -> tuple[bytes, ...]:
    """Return one context for each prime; refuse keys that were made for other parameters."""
    require(isinstance(given, bytes), f"A {what} key", "be bytes", type(given).__name__)
    primes = len(parameters.primes)
    most = _KEYS.size + primes * (4 + CONTEXT_MOST)
    require(_KEYS.size <= len(given) <= most, f"A {what} key", f"have at most {most} bytes, whole", len(given))
    magic, version, kind, count, clients, bound = _KEYS.unpack_from(given)
    right = magic == _MAGIC and version == _VERSION and kind == _SHARED[what] and count == primes
    # The message never shows the input, which may be the secret key.
    require(right, f"A {what} key", f"be one of version {_VERSION} with {primes} primes", f"{len(given)} other bytes")
    wanted = (parameters.clients, parameters.bound)
    require((clients, bound) == wanted, f"A {what} key", f"be for clients and bound {wanted}", (clients, bound))
    return _pieces(given, _KEYS.size, primes, CONTEXT_MOST)


def _pieces(given: bytes, start: int, count: int, most: int) -> tuple[bytes, ...]:
    """Return exactly so many pieces, each stored after its length; refuse anything that follows them."""
    result = []
    for _ in range(count):
        length = int.from_bytes(given[start : start + 4], "little")
        if start + 4 > len(given) or not 1 <= length <= min(most, len(given) - start - 4):
            raise BadValue(f"A message must hold {count} pieces of at most {most} bytes, and it breaks off or strays.")
        result.append(given[start + 4 : start + 4 + length])
        start += 4 + length
    require(start == len(given), "A message", "end with its last piece", f"{len(given) - start} bytes more")
    return tuple(result)
