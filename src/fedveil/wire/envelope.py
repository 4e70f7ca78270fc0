"""Sealed envelopes: only the receiver can read one, and it proves who sent it, in which run and for which round.

The head is readable (the relay may count rounds) and is bound to the rest. The body is encrypted to the receiver's
X25519 key with a key that is used once (HKDF-SHA256, ChaCha20-Poly1305), and everything is signed by the sender's
Ed25519 key. The signature is checked before anything is decrypted. Both names are in the signed head, so an envelope
can neither be signed again by another party nor passed on to another receiver. Any deviation is refused.
"""

import hashlib
import json
import re
from dataclasses import asdict, dataclass
from typing import Any, Final

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedveil.core.errors import FedveilError, require
from fedveil.core.limits import ENVELOPE
from fedveil.core.strict_json import read_object
from fedveil.wire.keys import Card, Identity, check_name

MAGIC: Final = b"fedveil envelope 1\n"
RUN: Final = re.compile(r"[0-9a-f]{32}")
_HASH: Final = re.compile(r"([0-9a-f]{64})?")
_KIND: Final = re.compile(r"[a-z][a-z-]{0,31}")
_LARGEST_HEAD: Final = 1024
LARGEST: Final = ENVELOPE  # in bytes
_AROUND: Final = len(MAGIC) + 2 + _LARGEST_HEAD + 32 + 16 + 64  # bytes of an envelope around its body


class Refused(FedveilError):
    """An envelope is refused; the code says why, and the message says nothing more."""

    def __init__(self, code: str) -> None:
        super().__init__(f"The message is refused: {code}.")
        self.code = code


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The readable head: who sends what to whom.

    ``number`` rises from instruction to instruction; ``answers`` is the digest of the envelope that this one answers.
    """

    run: str
    sender: str
    receiver: str
    kind: str
    round: int
    number: int
    answers: str = ""

    def __post_init__(self) -> None:
        check_name(self.sender)
        check_name(self.receiver)
        for field, pattern in (("run", RUN), ("kind", _KIND), ("answers", _HASH)):
            value = getattr(self, field)
            require(isinstance(value, str) and pattern.fullmatch(value), f"Head.{field}", "be plain", str(value)[:80])
        for field in ("round", "number"):
            value = getattr(self, field)
            require(type(value) is int and 0 <= value < 2**63, f"Head.{field}", "be a whole number", value)

    def text(self) -> bytes:
        """Return the head as bytes; there is exactly one way to write it."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":")).encode("ascii")

    @classmethod
    def read(cls, data: bytes) -> "Head":
        """Read exactly what :meth:`text` wrote; refuse anything else."""
        try:
            head = cls(**read_object(data, "head"))
        except (ValueError, TypeError, RecursionError) as error:
            raise Refused("malformed") from error
        if head.text() != data:  # two ways to write the same head could be signed differently
            raise Refused("malformed")
        return head


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """The content of an envelope that passed all checks; an answer refers to it by ``digest``."""

    head: Head
    body: bytes
    digest: str


def seal(head: Head, body: bytes, sender: Identity, receiver: Card, once: bytes) -> bytes:
    """Return the sealed envelope; ``once``: 32 random bytes that are used for nothing else."""
    require(head.sender == sender.name, "Head.sender", f"be {sender.name}", head.sender)
    require(head.receiver == receiver.name, "Head.receiver", f"be {receiver.name}", head.receiver)
    require(isinstance(once, bytes) and len(once) == 32, "once", "be 32 random bytes", type(once).__name__)
    most = LARGEST - _AROUND
    hint = "The model, or the number of clients at one site, is too large to be sent."
    require(len(body) <= most, "A message", f"have at most {most} bytes", len(body), hint)
    passing = X25519PrivateKey.from_private_bytes(once)
    public, text = passing.public_key().public_bytes_raw(), head.text()
    key = _key(passing.exchange(receiver.sealer), public, receiver.seal, text)
    # The nonce may be constant, because the key is derived from bytes that are used once.
    sealed = ChaCha20Poly1305(key).encrypt(bytes(12), body, text)
    signed = MAGIC + len(text).to_bytes(2, "big") + text + public + sealed
    return signed + sender.signer.sign(signed)


def peek(data: bytes) -> Head:
    """Return the readable head, not yet verified; use it for sorting only."""
    return _parts(data)[0]


def unseal(data: bytes, receiver: Identity, sender: Card) -> Opened:
    """Return what the sender wrote, after checking the signature; refuse anything else."""
    head, signed, signature, public, sealed, text = _parts(data)
    if head.sender != sender.name or head.receiver != receiver.name:
        raise Refused("wrong-party")
    try:
        sender.verifier.verify(signature, signed)
    except InvalidSignature as error:
        raise Refused("bad-signature") from error
    try:
        secret = receiver.opener.exchange(X25519PublicKey.from_public_bytes(public))
        body = ChaCha20Poly1305(_key(secret, public, receiver.card.seal, text)).decrypt(bytes(12), sealed, text)
    except (InvalidTag, ValueError) as error:
        raise Refused("not-for-me") from error
    return Opened(head=head, body=body, digest=hashlib.sha256(data).hexdigest())


def _parts(data: Any) -> tuple[Head, memoryview, bytes, bytes, memoryview, bytes]:
    """Split an envelope without copying its long parts.

    Return the head, what is signed, the signature, the one-time public key, the sealed body, and the bytes of the head.
    """
    start = len(MAGIC) + 2
    if not isinstance(data, bytes) or len(data) > LARGEST or not data.startswith(MAGIC):
        raise Refused("malformed")
    size = int.from_bytes(data[len(MAGIC) : start], "big")
    if size > _LARGEST_HEAD or len(data) < start + size + 32 + 16 + 64:
        raise Refused("malformed")
    text, whole, rest = data[start : start + size], memoryview(data), start + size
    return Head.read(text), whole[:-64], data[-64:], data[rest : rest + 32], whole[rest + 32 : -64], text


def _key(shared: bytes, passing: bytes, receiver: bytes, head: bytes) -> bytes:
    """Derive the encryption key, bound to both public keys and to the head."""
    info = b"fedveil envelope key" + passing + receiver + hashlib.sha256(head).digest()
    return HKDF(algorithm=SHA256(), length=32, salt=None, info=info).derive(shared)
