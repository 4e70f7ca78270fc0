"""Identities: each party has a signing key (Ed25519) and a sealing key (X25519); others hold the public keys.

The private keys are one line in a file that only the owner can read; the public keys are one line for anyone.
"""

import re
from dataclasses import dataclass
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from fedveil.core.errors import require

NAME: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
AGGREGATOR: Final = "aggregator"
_PUBLIC: Final = "fedveil-public-1"
_PRIVATE: Final = "fedveil-private-1"
_BYTES: Final = 32


def check_name(name: object) -> str:
    """Return a party's name, after checking that it can stand in a file name, a unit name and a certificate."""
    right = isinstance(name, str) and NAME.fullmatch(name) is not None
    hint = "Small letters, digits and hyphens, at most 63."
    require(right, "A party's name", "be short and plain", str(name)[:80], hint)
    return str(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """The public keys of a party: one checks its signatures, the other seals envelopes for it."""

    name: str
    verify: bytes
    seal: bytes

    def __post_init__(self) -> None:
        check_name(self.name)
        for field in ("verify", "seal"):
            value = getattr(self, field)
            require(isinstance(value, bytes) and len(value) == _BYTES, f"Card.{field}", "be 32 bytes", len(value))

    @property
    def verifier(self) -> Ed25519PublicKey:
        """The key that checks this party's signatures."""
        return Ed25519PublicKey.from_public_bytes(self.verify)

    @property
    def sealer(self) -> X25519PublicKey:
        """The key that seals for this party."""
        return X25519PublicKey.from_public_bytes(self.seal)

    def text(self) -> str:
        """Return the public keys as one line of text."""
        return f"{_PUBLIC} {self.name} {self.verify.hex()} {self.seal.hex()}\n"

    @classmethod
    def read(cls, text: str) -> "Card":
        """Read the public keys from one line of text."""
        name, first, second = _line(text, _PUBLIC, "A public key")
        return cls(name=name, verify=first, seal=second)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Identity:
    """The private keys of a party; its text form does not show them."""

    name: str
    sign: bytes
    unseal: bytes

    def __post_init__(self) -> None:
        check_name(self.name)
        for field in ("sign", "unseal"):
            value = getattr(self, field)
            right = isinstance(value, bytes) and len(value) == _BYTES
            # the message must not show the key
            require(right, f"Identity.{field}", "be 32 bytes", type(value).__name__)

    def __repr__(self) -> str:
        return f"Identity(name={self.name!r})"

    @property
    def signer(self) -> Ed25519PrivateKey:
        """The key that signs."""
        return Ed25519PrivateKey.from_private_bytes(self.sign)

    @property
    def opener(self) -> X25519PrivateKey:
        """The key that opens what was sealed for this party."""
        return X25519PrivateKey.from_private_bytes(self.unseal)

    @property
    def card(self) -> Card:
        """The public keys that belong to these private keys."""
        verify = self.signer.public_key().public_bytes_raw()
        return Card(name=self.name, verify=verify, seal=self.opener.public_key().public_bytes_raw())

    def text(self) -> str:
        """Return the private keys as one line of text, for the owner only."""
        return f"{_PRIVATE} {self.name} {self.sign.hex()} {self.unseal.hex()}\n"

    @classmethod
    def read(cls, text: str) -> "Identity":
        """Read the private keys from one line of text."""
        name, first, second = _line(text, _PRIVATE, "A private key")
        return cls(name=name, sign=first, unseal=second)

    @classmethod
    def make(cls, name: str, secret: bytes) -> "Identity":
        """Derive an identity from 64 secret random bytes."""
        right = isinstance(secret, bytes) and len(secret) == 2 * _BYTES
        require(right, "secret", "be 64 random bytes", type(secret).__name__)
        return cls(name=name, sign=secret[:_BYTES], unseal=secret[_BYTES:])


def _line(text: str, form: str, what: str) -> tuple[str, bytes, bytes]:
    words = text.split()
    right = len(words) == 4 and words[0] == form and all(re.fullmatch("[0-9a-f]{64}", word) for word in words[2:])
    hint = "Was the public half given for the private one?"
    require(right, what, f"be one line that begins with {form}", words[:1], hint)
    return words[1], bytes.fromhex(words[2]), bytes.fromhex(words[3])
