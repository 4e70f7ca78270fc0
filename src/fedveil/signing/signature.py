"""The signature of a certificate: a file beside it, made over exactly its bytes.

The certificate names the plan's hash, the model's hash and the hash of the run's last entry in the books, so whoever
signs it signs these with it. Metrics and report are not covered. The file is one line: a word, the signer's public key
and the signature, both in hexadecimal digits.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from fedveil.core.errors import BadValue, CannotCertify, require
from fedveil.core.files import read_file
from fedveil.signing.keys import Signer, SigningKey

FILE: Final = "certificate.sig"
_LINE: Final = re.compile(rb"fedveil-signature-1 ([0-9a-f]{64}) ([0-9a-f]{128})\n")


@dataclass(frozen=True, slots=True)
class Signature:
    """The content of ``certificate.sig``: the public key of the signer, and the signature."""

    signer: Signer
    value: bytes

    def __post_init__(self) -> None:
        require(isinstance(self.value, bytes) and len(self.value) == 64, "Signature.value", "be 64 bytes", "others")

    @classmethod
    def of(cls, certificate: bytes, key: SigningKey) -> "Signature":
        """Sign the bytes of a certificate."""
        return cls(key.signer, key.sign(certificate))

    def fits(self, certificate: bytes) -> bool:
        """Return whether the named key has signed exactly these bytes."""
        try:
            Ed25519PublicKey.from_public_bytes(self.signer.public).verify(self.value, certificate)
        except (InvalidSignature, ValueError):
            return False
        return True

    def text(self) -> bytes:
        """Return the line of the file."""
        return f"fedveil-signature-1 {self.signer.public.hex()} {self.value.hex()}\n".encode("ascii")

    @classmethod
    def read(cls, data: bytes) -> "Signature":
        """Read a signature from the line of the file."""
        found = _LINE.fullmatch(data)
        if found is None:
            raise BadValue(f"{FILE} must be one line that begins with fedveil-signature-1, and it is something else.")
        public, value = (bytes.fromhex(group.decode("ascii")) for group in found.groups())
        return cls(Signer(public), value)


def signature_in(folder: Path) -> Signature | None:
    """Return the signature in a run's folder, not yet checked; None if there is none."""
    try:
        return Signature.read(read_file(folder / FILE))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise BadValue(f"The run's record {FILE} must be readable: {error.strerror}.") from error


def check_signature(folder: Path, certificate: bytes, wanted: Signer | None = None) -> Signature | None:
    """Return the signature in a run's folder, after checking that it fits the certificate and is by the ``wanted``
    signer.

    Without a wanted signer, a missing signature is accepted; one that does not fit is always refused.
    """
    found = signature_in(folder)
    if found is None:
        if wanted is None:
            return None
        raise CannotCertify(
            f"The certificate in {folder} must be signed by {wanted.fingerprint}, and it is not signed."
        )
    if wanted is not None and found.signer != wanted:
        raise CannotCertify(
            f"The certificate in {folder} must be signed by {wanted.fingerprint}, and its signature names "
            f"{found.signer.fingerprint}."
        )
    if not found.fits(certificate):
        raise CannotCertify(
            f"{FILE} in {folder} does not fit certificate.json: one of them was changed after the signature of "
            f"{found.signer.fingerprint}."
        )
    return found
