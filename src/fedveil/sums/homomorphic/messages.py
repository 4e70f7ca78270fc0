"""Messages of homomorphic sums: a head, the clients included, ciphertexts. Sizes are checked before parsing."""

import hashlib
import struct
from dataclasses import dataclass
from typing import Final, Literal

from fedveil.core.checks import require
from fedveil.core.errors import BadValue
from fedveil.sums.homomorphic.parameters import DEGREE, MOST_VALUES, Parameters

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

    >>> from fedveil.sums.homomorphic.parameters import parameters_for
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
    found = []
    for _ in range(count):
        length = int.from_bytes(given[start : start + 4], "little")
        if start + 4 > len(given) or not 1 <= length <= min(most, len(given) - start - 4):
            raise BadValue(f"A message must hold {count} pieces of at most {most} bytes, and it breaks off or strays.")
        found.append(given[start + 4 : start + 4 + length])
        start += 4 + length
    require(start == len(given), "A message", "end with its last piece", f"{len(given) - start} bytes more")
    return tuple(found)
