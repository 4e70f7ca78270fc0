"""Flower's own programs with safe flags (the link, nodes, registration, submission), and the relay beside the link.

One port carries all that the link does, also the commands that start runs, which Flower gives to whoever reaches it.
So the link listens on the loopback interface alone, a proxy passes on what nodes need, and the relay takes the place of
Flower's executor, which would run uploaded code. Tasks need a secret (which Flower heeds only when its executor is a
process of its own), nodes must be registered, and nothing is installed at run time.
"""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from fedveil.errors import FedveilError, NotAvailable
from fedveil.federation.flower.commands import REGISTER
from fedveil.federation.flower.processes import Processes, Started, environment
from fedveil.tables import write_tables

_FRAME: Final = dict.fromkeys(map(ord, "╭╮╰╯─│"), " ")  # around what its commands say
_READY: Final = "Uvicorn running on"
_LISTENING: Final = "listening"
SECRET: Final = "superexec.secret"  # noqa: S105  the name of the file that link and relay share


class FlowerFailed(FedveilError):
    """A command of Flower's was refused; the sentence holds what it wrote."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """Where a SuperLink is, and what proves it; ``name`` is how Flower's configuration calls it."""

    name: str
    host: str
    port: int
    authority: Path

    @property
    def address(self) -> str:
        """Host and port."""
        return f"{self.host}:{self.port}"


def check_installed() -> None:
    """Refuse, with the way out, where Flower is missing."""
    if find_spec("flwr") is None:
        raise NotAvailable("Flower is not installed here; install it with: pip install 'fedveil[flower]'.")


def superlink_command(link: Link, certificate: Path, key: Path, secret: Path) -> list[str]:
    """Start the link: TLS, registered nodes only, tasks by secret, nothing kept on the disk, nothing installed."""
    return [
        *("flower-superlink", "--host", link.host, "--port", str(link.port)),
        *("--ssl-ca-certfile", str(link.authority), "--ssl-certfile", str(certificate), "--ssl-keyfile", str(key)),
        *("--enable-supernode-auth", "--disable-runtime-dependency-installation"),
        *("--isolation", "process", "--superexec-auth-secret-file", str(secret)),
    ]


def relay_command(link: Link, secret: Path, socket: Path, group: str | None = None) -> list[str]:
    """Start the relay, which stands between the link and the aggregator."""
    shared = [] if group is None else ["--group", group]
    return [
        *("fedveil", "relay", "--superlink", link.address, "--authority", str(link.authority)),
        *("--secret", str(secret), "--socket", str(socket), *shared),
    ]


def supernode_command(link: Link, key: Path, guard: Path, port: int, secret: Path | None = None) -> list[str]:
    """Start a node; ``port`` is for its executor, on the loopback interface.

    With a ``secret`` the executor is the site's own process and no uploaded code is run; without one, Flower starts its
    own executor, which runs the uploaded relay.
    """
    own = [] if secret is None else ["--isolation", "process", "--superexec-auth-secret-file", str(secret)]
    program = ["flower-supernode"] if secret is None else [sys.executable, "-m", "fedveil.federation.flower.supernode"]
    return [
        *(*program, "--root-certificates", str(link.authority), "--superlink", link.address),
        *("--auth-supernode-private-key", str(key), "--node-config", f'guard="{guard}"'),
        *("--host", "127.0.0.1", "--port", str(port), *own),
    ]


def start_link(processes: Processes, link: Link, place: Path, patience: float = 60.0) -> Started:
    """The link, from its own folder, ready."""
    check_installed()
    own = replace(link, authority=place / link.authority.name)
    command = superlink_command(own, place / "server.pem", place / "server.key", place / SECRET)
    return _started(processes, "superlink", command, _READY, patience)


def start_relay(processes: Processes, link: Link, place: Path, socket: Path, patience: float = 60.0) -> Started:
    """The relay, from its own folder, ready."""
    own = replace(link, authority=place / link.authority.name)
    words = [sys.executable, "-m", *relay_command(own, place / SECRET, socket)]
    return _started(processes, "relay", words, _LISTENING, patience)


def _started(processes: Processes, name: str, command: Sequence[str], ready: str, patience: float) -> Started:
    """Whatever it leaves lies among the logs, and goes with them."""
    started = processes.start(name, command, {"TMPDIR": str(processes.logs)})
    started.wait_for(ready, patience)
    return started


def start_node(processes: Processes, link: Link, site: str, key: Path, guard: Path, patience: float = 300.0) -> Started:
    """A site's node, as its operator would start it."""
    words = [sys.executable, "-m", "fedveil", "node", "--superlink", link.address, "--key", str(key)]
    words += ["--authority", str(link.authority), "--socket", str(guard), "--patience", str(patience)]
    return processes.start(f"node-{site}", words, {"TMPDIR": str(processes.logs)})


def write_connection(home: Path, link: Link) -> None:
    """Tell Flower's commands in this home where the link is."""
    home.mkdir(parents=True, exist_ok=True)
    where = {"address": link.address, "root-certificates": str(link.authority)}
    text = write_tables({"superlink": {"default": link.name}, f"superlink.{link.name}": where})
    (home / "config.toml").write_text(text, encoding="utf-8")


def register(home: Path, link: Link, nodes: Mapping[str, Path]) -> None:
    """Make the sites' nodes known to the link, by their public keys; those that it knows stay as they are."""
    flwr(home, _registrations(link, nodes))


def submit(home: Path, link: Link, app: Path, nodes: Mapping[str, Path] | None = None) -> None:
    """Start a run; before that, make these nodes known to the link, which may have been restarted."""
    flwr(home, [*_registrations(link, nodes or {}), ["run", str(app), link.name]])


def _registrations(link: Link, nodes: Mapping[str, Path]) -> list[list[str]]:
    return [[*REGISTER, str(public), link.name, "--name", site] for site, public in nodes.items()]


def flwr(home: Path, commands: Sequence[Sequence[str]], patience: float = 120.0) -> None:
    """Commands of Flower's own, in turn; the first that fails is the last."""
    check_installed()
    words = [sys.executable, "-m", "fedveil.federation.flower.commands", json.dumps(commands)]
    try:
        done: Any = subprocess.run(  # noqa: S603  the words are our own
            words,
            env=environment(home, {"COLUMNS": "2000"}),  # or what it says is cut into lines, in the midst of names
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=patience,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise FlowerFailed(f"Flower's commands did not end within {patience:.0f} seconds.") from error
    if done.returncode != 0:
        said = (done.stdout + done.stderr).translate(_FRAME)
        raise FlowerFailed(f"Flower says: {' '.join(said.split())}")
