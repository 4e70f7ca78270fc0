"""The consortium's own certificate authority, its servers' certificates, and node keys, as PEM and SSH bytes.

Validity and names are arguments; the cryptography library makes the keys from the system's entropy.
"""

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedveil.core.errors import require

MOST_DAYS: Final = 3650
_CURVE: Final = ec.SECP384R1  # the curve that Flower's node authentication accepts
_SKEW: Final = timedelta(minutes=5)  # clocks of other machines may be behind by this much


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Server:
    """The certificate of a server and its key."""

    certificate: bytes
    key: bytes


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Certified:
    """An authority's certificate, and the servers' certificates and keys by name; the authority's own key is not kept.

    Without that key nobody can make another server that the sites would trust. A new certificate therefore needs a new
    authority, and every site a new file.
    """

    authority: bytes
    servers: dict[str, Server]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class NodeKey:
    """The key pair that authenticates a site's node to the link."""

    private: bytes
    public: bytes


def make_certificates(servers: Mapping[str, Sequence[str]], now: datetime, days: int) -> Certified:
    """Make an authority and a certificate for each server, valid for these names and addresses."""
    require(len(servers) >= 1 and all(servers.values()), "hosts", "name each server at least once", dict(servers))
    require(1 <= days <= MOST_DAYS, "days", f"lie between 1 and {MOST_DAYS}", days)
    root, issuer, end = (
        ec.generate_private_key(_CURVE()),
        _name("fedveil consortium authority"),
        now + timedelta(days=days),
    )
    authority = (
        _builder(issuer, issuer, root.public_key(), now, end)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signing=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(root.public_key()), critical=False)
        .sign(root, hashes.SHA384())
    )
    return Certified(
        authority=authority.public_bytes(Encoding.PEM),
        servers={name: _server(hosts, root, issuer, now, end) for name, hosts in servers.items()},
    )


def _server(
    hosts: Sequence[str], root: ec.EllipticCurvePrivateKey, issuer: x509.Name, now: datetime, end: datetime
) -> Server:
    own = ec.generate_private_key(_CURVE())
    certificate = (
        _builder(_name(hosts[0]), issuer, own.public_key(), now, end)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(_usage(signing=False), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(own.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(root.public_key()), critical=False)
        .sign(root, hashes.SHA384())
    )
    return Server(
        certificate=certificate.public_bytes(Encoding.PEM),
        key=own.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
    )


def make_node_key() -> NodeKey:
    """Return a new key pair in the form that Flower reads."""
    key = ec.generate_private_key(_CURVE())
    return NodeKey(
        private=key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()),
        public=key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n",
    )


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime, end: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(end)
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _usage(*, signing: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signing,
        key_cert_sign=signing,
        crl_sign=signing,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=not signing,
        encipher_only=False,
        decipher_only=False,
    )
