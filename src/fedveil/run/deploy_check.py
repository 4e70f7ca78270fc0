"""Is a deployment in order: files and keys, versions, reachability, TLS, authentication; each with what is wrong."""

import importlib.metadata
import socket
import ssl
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from cryptography import x509

from fedveil.errors import FedveilError
from fedveil.run.deployment import read_deployment, read_site

LEAST: Final = (1, 41)
BELOW: Final = (1, 43)
_PATIENCE: Final = 10.0
_SOON: Final = 14  # days


@dataclass(frozen=True, slots=True)
class Row:
    """One thing looked at."""

    what: str
    fine: bool
    detail: str


def check_place(folder: Path, superlink: str | None, now: datetime) -> list[Row]:
    """All that can be looked at from here: from an aggregator's folder, or from a site's."""
    rows = [_version()]
    center = (folder / "deployment.toml").exists() or (folder / "aggregator" / "deployment.toml").exists()
    if center:
        try:
            found = read_deployment(folder)
        except FedveilError as error:
            return [*rows, Row("files", False, str(error))]
        private = [found.folder / name for name in ("identity.key", "server.key", "superexec.secret")]
        missing = [site for site in found.everybody if not found.node_key(site).exists()]
        rows.append(Row("files", not missing, "complete" if not missing else f"no node key of {', '.join(missing)}"))
        rows += [_closed(path) for path in private]
        host, port, authority = found.host, found.port, found.authority
    else:
        try:
            identity, aggregator = read_site(folder / "identity.key")
            rows.append(Row("files", True, f"{identity.name}, for {aggregator.name}"))
        except FedveilError as error:
            return [*rows, Row("files", False, str(error))]
        rows += [_closed(folder / name) for name in ("identity.key", "node.key") if (folder / name).exists()]
        if superlink is None:
            return [*rows, Row("link", False, "give --superlink HOST:PORT to look at the link from a site")]
        host, _, text = superlink.rpartition(":")
        if not (host and text.isdigit()):
            return [*rows, Row("link", False, f"--superlink must be HOST:PORT, got {superlink!r}")]
        port, authority = int(text), folder / "authority.pem"
    rows.append(_authority(authority, now))
    return [*rows, *_link(host, port, authority)]


def _version() -> Row:
    try:
        text = importlib.metadata.version("flwr")
    except importlib.metadata.PackageNotFoundError:
        return Row("Flower", False, "not installed; install it with: pip install 'fedveil[flower]'")
    number = tuple(int(part) for part in text.split(".")[:2] if part.isdigit())
    fine = LEAST <= number < BELOW
    return Row("Flower", fine, text if fine else f"{text}; 1.41 or 1.42 is needed")


def _closed(path: Path) -> Row:
    try:
        loose = stat.S_IMODE(path.stat().st_mode) & 0o077
    except OSError as error:
        return Row(path.name, False, f"cannot be read: {error.strerror}")
    return Row(path.name, not loose, "closed to others" if not loose else f"open to others; close it: chmod 600 {path}")


def _authority(path: Path, now: datetime) -> Row:
    try:
        found = x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        return Row("authority", False, f"{path} cannot be used: {error}")
    days = (found.not_valid_after_utc - now).days
    fine = days >= 0
    detail = f"valid for {days} days" if days >= _SOON else f"valid for {days} days only; write a new deployment"
    return Row("authority", fine, detail if fine else "no longer valid; write a new deployment")


def _link(host: str, port: int, authority: Path) -> list[Row]:
    """Reachability, the certificate, and that tasks are not given to whoever asks."""
    try:
        with socket.create_connection((host, port), timeout=_PATIENCE):
            rows = [Row("reach", True, f"{host}:{port}")]
    except OSError as error:
        hint = "Does the link run, and is its port open to this machine?"
        return [Row("reach", False, f"{host}:{port} cannot be reached ({error}). {hint}")]
    looks: list[tuple[str, Callable[[], str]]] = [("TLS", lambda: _tls(host, port, authority))]
    for what, look in looks:
        try:
            rows.append(Row(what, True, look()))
        except (OSError, ssl.SSLError) as error:
            rows.append(Row(what, False, f"the link does not prove itself by {authority.name}: {error}"))
            return rows
    for what, path in (("tasks", "/v1/runtime/acquire-task"), ("nodes", "/v1/fleet/pull-messages")):
        rows.append(_closed_to_strangers(what, host, port, authority, path))
    return rows


@contextmanager
def _secure(host: str, port: int, authority: Path) -> Iterator[ssl.SSLSocket]:
    context = ssl.create_default_context(cafile=str(authority))
    with (
        socket.create_connection((host, port), timeout=_PATIENCE) as plain,
        context.wrap_socket(plain, server_hostname=host) as secure,
    ):
        yield secure


def _tls(host: str, port: int, authority: Path) -> str:
    with _secure(host, port, authority) as secure:
        return f"{secure.version()}, certificate in order"


def _closed_to_strangers(what: str, host: str, port: int, authority: Path, path: str) -> Row:
    """Whether a request without credentials is turned away."""
    asked = (
        f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/protobuf\r\n"
        "Content-Length: 0\r\nConnection: close\r\n\r\n"
    )
    try:
        with _secure(host, port, authority) as secure:
            secure.sendall(asked.encode("ascii"))
            line = secure.recv(256).split(b"\r\n")[0].decode("ascii", "replace")
    except OSError as error:
        return Row(what, False, f"the link did not answer: {error}")
    status = line.split(" ")[1] if line.startswith("HTTP/") and " " in line else "?"
    fine = status in ("401", "403")
    detail = "refused without credentials" if fine else f"a request without credentials got {status}, not a refusal"
    return Row(what, fine, detail)
