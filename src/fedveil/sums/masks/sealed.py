"""Shares in transit: a public commitment to each, and an envelope that only its holder can open."""

import hashlib
import struct
from dataclasses import dataclass
from typing import Final, final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from fedveil.sums.masks.refusals import BadEnvelope
from fedveil.sums.masks.shamir import SHARE_BYTES

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
