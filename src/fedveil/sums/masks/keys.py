"""Keys of a masked sum: what a client derives from its seed, what two clients agree on, and signatures.

All from `cryptography`: X25519, HKDF-SHA256, AES-256 in counter mode as a generator, Ed25519.
"""

import struct
from typing import Final, final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedveil.core.checks import require
from fedveil.sums.masks.refusals import BadKey, BadSignature
from fedveil.sums.masks.setting import Setting

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
