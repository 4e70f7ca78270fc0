"""Keys of pairs of clients, sealed shares of them, and the streams of masks they yield.

All from `cryptography`: X25519, HKDF-SHA256, AES-256 in counter mode as a generator, Ed25519.
"""

import hashlib
import math
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, final

import numpy as np
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from fedveil.core.errors import require
from fedveil.sums.masks.setting import BadEnvelope, BadKey, BadSignature, Setting

KEY_BYTES: Final = 32
SIGNATURE_BYTES: Final = 64

_FIELD: Final = 2**255 - 19
# u-coordinates of the points of order 1, 2, 4 and 8 on the curve and its twist: any exchange with them gives zero.
LOW_ORDER: Final = frozenset(
    {
        0,
        1,
        325606250916557431795983626356110631294008115727848805560023387167927233504,
        39382357235489614581723060781553021112529911719440698176882885853963445705823,
        _FIELD - 1,
    }
)


def derived(secret: bytes, label: bytes, setting: Setting, *numbers: int) -> bytes:
    """Return 32 bytes by HKDF-SHA256; run, round and the numbers (a client or a pair) are part of its info."""
    info = b"fedveil " + label + b":" + setting.address() + struct.pack(f"<{len(numbers)}I", *numbers)
    return HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=None, info=info).derive(secret)


@final
class Draw:
    """The secret bytes of a client in one round, in order: a function of its seed, the setting and its number."""

    __slots__ = ("_stream",)

    def __init__(self, seed: bytes, setting: Setting, client: int) -> None:
        right = isinstance(seed, bytes) and len(seed) == KEY_BYTES
        require(right, "seed", f"be {KEY_BYTES} bytes", type(seed).__name__)  # the message must not show the seed
        key = derived(seed + setting.digest(), b"draw", setting, client)
        self._stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()

    def take(self, count: int) -> bytes:
        """Return the next ``count`` bytes."""
        return self._stream.update(bytes(count))


def check_public(key: bytes, client: int) -> None:
    """Refuse anything but a canonical X25519 key, and points of low order, with which every exchange gives zero."""
    number = int.from_bytes(key, "little")
    if len(key) != KEY_BYTES or number >= _FIELD or number in LOW_ORDER:
        raise BadKey(f"Client {client} gave a public key that is off the curve's list of safe points.")


def agreed(mine: X25519PrivateKey, theirs: bytes, client: int) -> bytes:
    """Return the secret shared with a client; refuse a zero secret."""
    check_public(theirs, client)
    try:
        return mine.exchange(X25519PublicKey.from_public_bytes(theirs))
    except ValueError:
        raise BadKey(f"Client {client} gave a public key of low order.") from None


def envelope_key(shared: bytes, setting: Setting, sender: int, to: int) -> bytes:
    """Return the key of the one message from ``sender`` to ``to`` in this round."""
    return derived(shared, b"envelope", setting, sender, to)


def pair_mask_key(shared: bytes, setting: Setting, one: int, other: int) -> bytes:
    """Return the key of the mask that one of the two adds and the other subtracts."""
    return derived(shared, b"pair mask", setting, min(one, other), max(one, other))


def self_mask_key(seed: bytes, setting: Setting, client: int) -> bytes:
    """Return the key of the mask that a client adds for itself."""
    return derived(seed, b"self mask", setting, client)


def signed(signer: bytes, statement: bytes) -> bytes:
    """Return an Ed25519 signature; ``signer``: the 32 bytes of a private key."""
    return Ed25519PrivateKey.from_private_bytes(signer).sign(statement)


def check_signature(identity: bytes, signature: bytes, statement: bytes, client: int) -> None:
    """Refuse a statement that this client has not signed."""
    try:
        Ed25519PublicKey.from_public_bytes(identity).verify(signature, statement)
    except (InvalidSignature, ValueError):
        raise BadSignature(f"The signature that is said to be client {client}'s is not.") from None


# Shamir's secret sharing of 256-bit secrets over a prime field: ``threshold`` shares give the secret, fewer nothing.
#
# [S79] Shamir. How to Share a Secret. Communications of the ACM 22(11), 1979.

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


# Shares in transit: a public commitment to each, and an envelope that only its holder can open.

SALT_BYTES: Final = 16
COMMITMENT_BYTES: Final = 32
OPENING_BYTES: Final = SHARE_BYTES + SALT_BYTES
TAG_BYTES: Final = 16
ENVELOPE_BYTES: Final = 2 * OPENING_BYTES + TAG_BYTES

SELF_MASK: Final = b"self"  # what is shared: the seed of the self-mask ...
PAIR_KEY: Final = b"pair"  # ... or the private key of the pair masks


@final
@dataclass(frozen=True, slots=True)
class Held:
    """The two openings (share, then salt) of one owner's secrets at one holder; at most one of them is revealed."""

    self_mask: bytes
    pair_key: bytes


def commitment(opening: bytes, kind: bytes, digest: bytes, owner: int, holder: int) -> bytes:
    """Return a hash that binds a share to the round (``digest``: of its setting), the owner and the holder.

    The salt keeps the share secret.
    """
    return hashlib.sha256(b"fedveil share" + kind + digest + struct.pack("<II", owner, holder) + opening).digest()


def commitments(held: Held, digest: bytes, owner: int, holder: int) -> bytes:
    """Return the commitments to both shares of one holder."""
    first = commitment(held.self_mask, SELF_MASK, digest, owner, holder)
    return first + commitment(held.pair_key, PAIR_KEY, digest, owner, holder)


def seal(held: Held, committed: bytes, key: bytes, digest: bytes, owner: int, holder: int) -> bytes:
    """Return an envelope that only the holder can open. Its key is used for one message, so the nonce may be zero."""
    known = digest + struct.pack("<II", owner, holder) + committed
    return ChaCha20Poly1305(key).encrypt(bytes(12), held.self_mask + held.pair_key, known)


def unseal(envelope: bytes, committed: bytes, key: bytes, digest: bytes, owner: int, holder: int) -> Held:
    """Open an envelope, and check that its content is what the owner committed to."""
    known = digest + struct.pack("<II", owner, holder) + committed
    try:
        inside = ChaCha20Poly1305(key).decrypt(bytes(12), envelope, known)
    except InvalidTag:
        raise BadEnvelope(f"The shares from client {owner} were changed on the way, or sealed wrongly.") from None
    held = Held(inside[:OPENING_BYTES], inside[OPENING_BYTES:])
    if commitments(held, digest, owner, holder) != committed:
        raise BadEnvelope(f"The shares from client {owner} are not those it committed to.")
    return held


# Masks: streams of AES-256 in counter mode, read as integers, added or subtracted modulo 2**64.

Ring = NDArray[np.uint64]

WORD: Final = np.dtype("<u8")  # little-endian, for the same integers on every machine
_BLOCK: Final = 2**14  # in words, so that the sum, the zeros and the stream stay in the processor's cache
_ZEROS: Final = bytes(8 * _BLOCK)


def add_masks(values: Ring, masks: Iterable[tuple[bytes, bool]]) -> None:
    """Add each mask in place, or subtract it if its flag says so.

    A key has one mask, so counters start at 0.
    """
    streams = [(Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor(), off) for key, off in masks]
    room = bytearray(8 * _BLOCK)
    words: Ring = np.frombuffer(room, dtype=WORD)
    for start in range(0, values.size, _BLOCK):
        part = values[start : start + _BLOCK]
        zeros, these = (_ZEROS, words) if part.size == _BLOCK else (_ZEROS[: 8 * part.size], words[: part.size])
        for stream, off in streams:
            stream.update_into(zeros, room)
            if off:
                np.subtract(part, these, out=part)
            else:
                np.add(part, these, out=part)
