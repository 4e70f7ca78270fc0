"""Keys of people and organisations, and the signatures that they put under a certificate."""

import base64
import hashlib
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from fedveil.core.errors import BadValue, CannotCertify, require
from fedveil.core.files import open_file, read_file

# Keys that sign certificates: Ed25519, a private file for the owner and a public file that may be sent to anyone.
#
# Both are PEM files, so that any tool can check a signature. A private key is written once, readable by its owner only,
# and refused if others could have read it.

_PRIVATE: Final = b"-----BEGIN PRIVATE KEY-----"
_PUBLIC: Final = b"-----BEGIN PUBLIC KEY-----"
_MOST: Final = 10_000  # largest size of a key file, in bytes
_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class Signer:
    """The identity of a signer, as far as a machine can know it: a public key."""

    public: bytes

    def __post_init__(self) -> None:
        require(isinstance(self.public, bytes) and len(self.public) == _BYTES, "Signer.public", "be 32 bytes", "others")

    @property
    def fingerprint(self) -> str:
        """A short name of the key, to be compared with what its owner published.

        >>> Signer(bytes(32)).fingerprint
        'SHA256:Zmh6rfhivXdsj8GLjp+OIAiXFIVu4jOzkCpZHQ1fKSU'
        """
        return "SHA256:" + base64.b64encode(hashlib.sha256(self.public).digest()).decode("ascii").rstrip("=")

    def text(self) -> bytes:
        """Return the content of the public key's file."""
        form = serialization.PublicFormat.SubjectPublicKeyInfo
        return Ed25519PublicKey.from_public_bytes(self.public).public_bytes(serialization.Encoding.PEM, form)


@dataclass(frozen=True, slots=True, repr=False)
class SigningKey:
    """A private key; its text form does not show the key."""

    secret: bytes

    def __post_init__(self) -> None:
        right = isinstance(self.secret, bytes) and len(self.secret) == _BYTES
        # the message must not show the key
        require(right, "SigningKey.secret", "be 32 bytes", type(self.secret).__name__)

    def __repr__(self) -> str:
        return f"SigningKey({self.signer.fingerprint})"

    @property
    def signer(self) -> Signer:
        """The public key that belongs to this private key."""
        return Signer(Ed25519PrivateKey.from_private_bytes(self.secret).public_key().public_bytes_raw())

    def sign(self, data: bytes) -> bytes:
        """Return the signature of exactly these bytes: 64 bytes, the same at every call."""
        return Ed25519PrivateKey.from_private_bytes(self.secret).sign(data)

    def text(self) -> bytes:
        """Return the content of the private key's file."""
        private = Ed25519PrivateKey.from_private_bytes(self.secret)
        kind, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
        return private.private_bytes(kind, form, serialization.NoEncryption())


def public_path(path: Path) -> Path:
    """Return the path of the public key's file: that of the private key with ``.pub`` added."""
    return path.with_name(path.name + ".pub")


def write_key(path: Path, key: SigningKey) -> Signer:
    """Write the key to ``path`` (mode 600) and its public key beside it; existing files are never overwritten."""
    for target in (path, public_path(path)):
        hint = "A key that was used must not be lost: name another file."
        require(not os.path.lexists(target), "The key's file", "be new", str(target), hint)
    _write_new(path, key.text(), 0o600)
    try:
        _write_new(public_path(path), key.signer.text(), 0o644)
    except BadValue:
        path.unlink(missing_ok=True)  # leave no half of a pair behind
        raise
    return key.signer


def _write_new(path: Path, data: bytes, mode: int) -> None:
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
        with os.fdopen(handle, "wb") as file:
            os.fchmod(handle, mode)  # regardless of the umask
            file.write(data)
            file.flush()
            os.fsync(handle)
    except OSError as error:
        raise BadValue(f"The key's file {path} cannot be written: {error.strerror}.") from error


def read_key(path: Path) -> SigningKey:
    """Return the private key in a file that only its owner can read."""
    data, mode = _read(path, "The signing key")
    if data.startswith(_PUBLIC):
        raise BadValue(
            f"The signing key {path} must be a private key, and it is a public one: name the file without .pub."
        )
    require(data.startswith(_PRIVATE), "The signing key", "be a PEM file as fedveil keys new writes it", str(path))
    hint = f"Others could have read it: make a new one, or say chmod 600 {path} if nobody did."
    require(mode & 0o077 == 0, f"The signing key {path}", "be closed to others (mode 600)", f"mode {mode:03o}", hint)
    try:
        result = serialization.load_pem_private_key(data, password=None)
    except (ValueError, TypeError) as error:
        raise BadValue(f"The signing key {path} must be a whole Ed25519 key: it cannot be read.") from error
    if not isinstance(result, Ed25519PrivateKey):
        raise BadValue(f"The signing key {path} must be an Ed25519 key, and it is of another kind.")
    return SigningKey(result.private_bytes_raw())


def read_signer(path: Path) -> Signer:
    """Return the public key in a file."""
    data, _ = _read(path, "The signer's key")
    if data.startswith(_PRIVATE):
        raise BadValue(
            f"The signer's key {path} must be a public key, and it is a private one, which belongs to its owner alone: "
            f"name {public_path(path).name}."
        )
    require(data.startswith(_PUBLIC), "The signer's key", "be a PEM file as fedveil keys new writes it", str(path))
    try:
        result = serialization.load_pem_public_key(data)
    except (ValueError, TypeError) as error:
        raise BadValue(f"The signer's key {path} must be a whole Ed25519 key: it cannot be read.") from error
    if not isinstance(result, Ed25519PublicKey):
        raise BadValue(f"The signer's key {path} must be an Ed25519 key, and it is of another kind.")
    return Signer(result.public_bytes_raw())


def _read(path: Path, what: str) -> tuple[bytes, int]:
    """Return the content and the mode of a key's file, both read from the same open file."""
    try:
        with open_file(path) as file:
            result = os.fstat(file.fileno())
            return file.read(_MOST), stat.S_IMODE(result.st_mode)
    except OSError as error:
        raise BadValue(f"{what} must be a readable file: {path} ({error.strerror}).") from error


# The signature of a certificate: a file beside it, made over exactly its bytes.
#
# The certificate names the plan's hash, the model's hash and the hash of the run's last entry in the books, so whoever
# signs it signs these with it. Metrics and report are not covered. The file is one line: a word, the signer's public
# key and the signature, both in hexadecimal digits.

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
        result = _LINE.fullmatch(data)
        if result is None:
            raise BadValue(f"{FILE} must be one line that begins with fedveil-signature-1, and it is something else.")
        public, value = (bytes.fromhex(group.decode("ascii")) for group in result.groups())
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
