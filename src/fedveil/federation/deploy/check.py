"""Check a deployment: files and keys, versions, reachability, TLS, authentication; each row says what is wrong."""

import importlib.metadata
import os
import socket
import ssl
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from cryptography import x509

from fedveil.core.errors import FedveilError, why
from fedveil.federation.deploy.files import INSIDE, LINK, PROXY, RELAY, read_deployment
from fedveil.federation.deploy.own_keys import read_site
from fedveil.federation.flower.internals import TRIED, is_tried
from fedveil.federation.nvflare.job import PLACES
from fedveil.federation.nvflare.job import TRIED as TRIED_FLARE

_PATIENCE: Final = 10.0
_SOON: Final = 14  # days


@dataclass(frozen=True, slots=True)
class Row:
    """The result of one check."""

    what: str
    fine: bool
    detail: str


def check_place(folder: Path, superlink: str | None, now: datetime) -> list[Row]:
    """Run all checks that are possible from here: from an aggregator's folder, or from a site's."""
    center = (folder / "deployment.toml").exists() or (folder / "aggregator" / "deployment.toml").exists()
    return _center(folder, now) if center else _site(folder, superlink, now)


def _center(folder: Path, now: datetime) -> list[Row]:
    """Check the aggregator's machine: its files, the link on this machine, and what outsiders can reach."""
    try:
        result = read_deployment(folder)
    except FedveilError as error:
        return [Row("files", False, str(error))]
    if result.engine == "nvflare":
        there = result.relay.is_socket()
        relay = "a job listens" if there else f"no job listens at {result.relay}; submit nvflare/job"
        return [
            _flare(),
            Row("files", True, "complete"),
            _closed(result.folder / "identity.key"),
            Row("job", there, relay),
        ]
    missing = [site for site in result.parties if not result.node_key(site).exists()]
    rows = [_flower(), Row("files", not missing, "complete" if not missing else f"no node key of {', '.join(missing)}")]
    rows += [_closed(result.folder / "identity.key")]
    for place in (result.folder.parent / name for name in (LINK, RELAY, PROXY)):
        if os.access(place, os.R_OK | os.X_OK):  # after it is handed out, each folder belongs to another user
            keys = sorted([*place.glob("*.key"), *place.glob("*.secret")])
            rows += [_closed(path, f"{place.name}/{path.name}") for path in keys]
    rows.append(_authority(result.authority, now))
    if (result.host, result.port) != (INSIDE, result.inside):
        rows += _link(INSIDE, result.inside, result.authority, "link: ")
    return rows + _link(result.host, result.port, result.authority)


def _site(folder: Path, superlink: str | None, now: datetime) -> list[Row]:
    """Check a site, or the key holder."""
    try:
        identity, aggregator = read_site(folder / "identity.key")
    except FedveilError as error:
        return [Row("files", False, str(error))]
    on_flare = (folder / PLACES).exists()
    rows = [_flare() if on_flare else _flower(), Row("files", True, f"{identity.name}, for {aggregator.name}")]
    rows += [_closed(folder / name) for name in ("identity.key", "node.key") if (folder / name).exists()]
    if on_flare:
        return rows
    if superlink is None:
        return [*rows, Row("link", False, "give --superlink HOST:PORT to look at the link from a site")]
    host, _, text = superlink.rpartition(":")
    if not (host and text.isdigit()):
        return [*rows, Row("link", False, f"--superlink must be HOST:PORT, got {superlink!r}")]
    authority = folder / "authority.pem"
    return [*rows, _authority(authority, now), *_link(host, int(text), authority)]


def _flare() -> Row:
    try:
        text = importlib.metadata.version("nvflare")
    except importlib.metadata.PackageNotFoundError:
        return Row("NVFlare", False, "not installed; install it with: pip install 'fedveil[nvflare]'")
    fine = text.startswith(TRIED_FLARE)
    return Row("NVFlare", fine, text if fine else f"{text} was not tried; take {TRIED_FLARE}0")


def _flower() -> Row:
    try:
        text = importlib.metadata.version("flwr")
    except importlib.metadata.PackageNotFoundError:
        return Row("Flower", False, "not installed; install it with: pip install 'fedveil[flower]'")
    return Row("Flower", is_tried(text), text if is_tried(text) else f"{text} was not tried; take {' or '.join(TRIED)}")


def _closed(path: Path, name: str = "") -> Row:
    try:
        loose = stat.S_IMODE(path.stat().st_mode) & 0o077
    except OSError as error:
        return Row(name or path.name, False, f"cannot be read: {error.strerror}")
    return Row(
        name or path.name, not loose, "closed to others" if not loose else f"open to others; close it: chmod 600 {path}"
    )


def _authority(path: Path, now: datetime) -> Row:
    try:
        found = x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        return Row("authority", False, f"{path} cannot be used: {why(error)}")
    days = (found.not_valid_after_utc - now).days
    fine = days >= 0
    detail = f"valid for {days} days" if days >= _SOON else f"valid for {days} days only; write a new deployment"
    return Row("authority", fine, detail if fine else "no longer valid; write a new deployment")


def _link(host: str, port: int, authority: Path, mark: str = "") -> list[Row]:
    """Check reachability, the certificate, and that strangers get no messages or tasks and cannot start runs."""
    try:
        with socket.create_connection((host, port), timeout=_PATIENCE):
            rows = [Row(f"{mark}reach", True, f"{host}:{port}")]
    except OSError as error:
        hint = "Does it run, and is its port open to this machine?"
        return [Row(f"{mark}reach", False, f"{host}:{port} cannot be reached ({why(error)}). {hint}")]
    try:
        rows.append(Row(f"{mark}TLS", True, _tls(host, port, authority)))
    except (OSError, ssl.SSLError) as error:
        detail = f"{host}:{port} does not prove itself by {authority.name}: {why(error)}"
        return [*rows, Row(f"{mark}TLS", False, detail)]
    for what, path in (("nodes", "/v1/fleet/pull-messages"), ("tasks", "/v1/runtime/acquire-task")):
        status = _status(host, port, authority, path)
        rows.append(_refused(f"{mark}{what}", status))
    status = _status(host, port, authority, "/v1/control/list-runs")
    return [*rows, _commands(f"{mark}commands", host, port, status)]


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


def _status(host: str, port: int, authority: Path, path: str) -> str:
    """Return the status of a request without credentials; a question mark and the reason if there is no answer."""
    asked = (
        f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/protobuf\r\n"
        "Content-Length: 0\r\nConnection: close\r\n\r\n"
    )
    try:
        with _secure(host, port, authority) as secure:
            secure.sendall(asked.encode("ascii"))
            line = secure.recv(256).split(b"\r\n")[0].decode("ascii", "replace")
    except OSError as error:
        return f"? ({why(error)})"
    return line.split(" ")[1] if line.startswith("HTTP/") and " " in line else "?"


def _refused(what: str, status: str) -> Row:
    """Check that a request without credentials is turned away."""
    said = {"401": "refused without credentials", "403": "refused without credentials", "404": "not passed on"}
    return Row(what, status in said, said.get(status, f"a request without credentials got {status}, not a refusal"))


def _commands(what: str, host: str, port: int, status: str) -> Row:
    """Check that outsiders cannot start runs through this port; from its own machine it may be reachable."""
    if status == "404":
        return Row(what, True, "not passed on")
    if host in (INSIDE, "localhost"):
        return Row(what, True, "for users of this machine alone")
    way = "Bind the link to 127.0.0.1 and put the proxy of proxy/fedveil-proxy.conf before it."
    return Row(what, False, f"whoever reaches {host}:{port} can start runs and register nodes ({status}). {way}")
