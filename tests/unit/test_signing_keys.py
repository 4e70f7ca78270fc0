"""Keys that sign certificates: written once and closed, read only if closed, never one half for the other."""

import os
import stat
import subprocess
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519, x25519

from fedveil.core.errors import BadValue, CannotCertify
from fedveil.signing import (
    FILE,
    Signature,
    Signer,
    SigningKey,
    check_signature,
    public_path,
    read_key,
    read_signer,
    signature_in,
    write_key,
)

KEY = SigningKey(bytes(range(32)))
OTHER = SigningKey(bytes(32))
TEXT = b'{"epsilon": 1.0}\n'


def test_a_key_comes_back_from_its_files(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        signer = write_key(tmp_path / "me", KEY)
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "me").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "me.pub").stat().st_mode) == 0o644
    assert read_key(tmp_path / "me") == KEY
    assert read_signer(tmp_path / "me.pub") == signer == KEY.signer
    assert KEY.secret.hex() not in repr(KEY) + (tmp_path / "me.pub").read_text()


def test_signatures_are_plain_ed25519(tmp_path: Path) -> None:
    """Checked by the library on its own, and by another program on the same files."""
    value = Signature.of(TEXT, KEY).value
    ed25519.Ed25519PublicKey.from_public_bytes(KEY.signer.public).verify(value, TEXT)
    write_key(tmp_path / "me", KEY)
    (tmp_path / "text").write_bytes(TEXT)
    (tmp_path / "value").write_bytes(value)
    command = ["openssl", "pkeyutl", "-verify", "-pubin", "-inkey", "me.pub", "-rawin", "-in", "text"]
    try:
        found = subprocess.run([*command, "-sigfile", "value"], cwd=tmp_path, capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("openssl is not installed")
    assert found.returncode == 0, found.stderr


@pytest.mark.parametrize("there", ["me", "me.pub"])
def test_nothing_is_overwritten(there: str, tmp_path: Path) -> None:
    (tmp_path / there).write_text("precious")
    with pytest.raises(BadValue, match="The key's file must be new"):
        write_key(tmp_path / "me", KEY)
    assert [path.name for path in tmp_path.iterdir()] == [there]
    assert (tmp_path / there).read_text() == "precious"


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "me").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BadValue, match="be new"):
        write_key(tmp_path / "me", KEY)
    with pytest.raises(BadValue, match="cannot be written"):
        write_key(tmp_path / "no folder" / "me", KEY)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644, 0o601])
def test_a_key_that_others_could_read_is_refused(mode: int, tmp_path: Path) -> None:
    write_key(tmp_path / "me", KEY)
    (tmp_path / "me").chmod(mode)
    with pytest.raises(BadValue, match=r"closed to others \(mode 600\)"):
        read_key(tmp_path / "me")


def test_one_half_is_not_taken_for_the_other(tmp_path: Path) -> None:
    write_key(tmp_path / "me", KEY)
    with pytest.raises(BadValue, match="must be a private key, and it is a public one"):
        read_key(public_path(tmp_path / "me"))
    with pytest.raises(BadValue, match=r"must be a public key, and it is a private one.*name me\.pub"):
        read_signer(tmp_path / "me")


def test_what_is_no_such_key_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "key"
    kinds = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    for data in (b"", b"hello", KEY.text()[:60], x25519.X25519PrivateKey.generate().private_bytes(*kinds)):
        path.write_bytes(data)
        path.chmod(0o600)
        for read in (read_key, read_signer):
            with pytest.raises(BadValue, match="key"):
                read(path)  # type: ignore[operator]
    for absent in (tmp_path, tmp_path / "absent"):
        for read in (read_key, read_signer):
            with pytest.raises(BadValue, match="must be a"):
                read(absent)  # type: ignore[operator]
    with pytest.raises(BadValue):
        SigningKey(b"short")
    with pytest.raises(BadValue):
        Signer(b"short")


def test_the_signature_is_over_every_byte(tmp_path: Path) -> None:
    found = Signature.of(TEXT, KEY)
    assert found == Signature.of(TEXT, KEY) == Signature.read(found.text())
    assert found.fits(TEXT)
    for index in range(len(TEXT)):
        assert not found.fits(TEXT[:index] + bytes([TEXT[index] ^ 1]) + TEXT[index + 1 :])
    assert not found.fits(TEXT + b"\n")
    assert not Signature(OTHER.signer, found.value).fits(TEXT)
    for text in (b"", found.text()[:-1], found.text() * 2, found.text().upper(), b" " + found.text()):
        with pytest.raises(BadValue, match="one line that begins with fedveil-signature-1"):
            Signature.read(text)


def test_a_folder_s_signature(tmp_path: Path) -> None:
    assert signature_in(tmp_path) is None
    assert check_signature(tmp_path, TEXT) is None
    with pytest.raises(CannotCertify, match="is not signed"):
        check_signature(tmp_path, TEXT, KEY.signer)
    (tmp_path / FILE).write_bytes(Signature.of(TEXT, KEY).text())
    for wanted in (None, KEY.signer):
        assert check_signature(tmp_path, TEXT, wanted) == Signature.of(TEXT, KEY)
        with pytest.raises(CannotCertify, match="does not fit"):
            check_signature(tmp_path, TEXT + b" ", wanted)
    with pytest.raises(CannotCertify, match="its signature names"):
        check_signature(tmp_path, TEXT, OTHER.signer)
