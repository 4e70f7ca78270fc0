"""Flower's documented commands with safe flags (the link, nodes, registration, runs), and the relay beside the link.

One port carries all that the link does, including the commands that start runs, for anyone who reaches it. So the link
listens on the loopback interface only, a proxy passes on what nodes need, and the relay takes the place of Flower's
executor, which would run uploaded code. Tasks need a secret (which Flower checks only if its executor is a separate
process), nodes must be registered, and nothing is installed at run time.

``python -m fedveil.federation.flower.network '[["supernode", "register", ...], ["run", ...]]'`` runs several ``flwr``
commands in one process, because loading Flower costs more than the commands. It ends at the first that fails.
"""

import io
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from importlib.metadata import entry_points, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from fedveil.core.errors import FedveilError, NotAvailable
from fedveil.core.tables import write_tables
from fedveil.federation.carrying.processes import Processes, Started, environment
from fedveil.federation.flower.channel import Link
from fedveil.federation.flower.internals import GUARD, LINK_READY
from fedveil.version import __version__

_FRAME: Final = dict.fromkeys(map(ord, "╭╮╰╯─│"), " ")  # the frame that Flower's commands draw around their output
_REGISTER: Final = ("supernode", "register")
LINK_PROGRAM: Final = "fedveil-link"  # Flower's SuperLink with the post box
LINK_MODULE: Final = ("-P", "-m", "fedveil.federation.flower.link")  # the same, of this Python
_LISTENING: Final = "listening"
SECRET: Final = "superexec.secret"  # noqa: S105  the name of the file that link and relay share
_PROJECT: Final = """[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "fedveil-relay"
version = "{version}"
description = "Carries sealed envelopes between an aggregator and its sites."
license = "Apache-2.0"
dependencies = []

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "fedveil"

[tool.flwr.app.components]
serverapp = "fedveil_relay.server:app"
clientapp = "fedveil_relay.client:app"
"""


class FlowerFailed(FedveilError):
    """One of Flower's commands failed; the message holds its output."""


def check_installed() -> str:
    """Return the version of Flower; refuse, and say how to install it, if it is missing."""
    if find_spec("flwr") is None:
        raise NotAvailable("Flower is not installed here; install it with: pip install 'fedveil[flower]'.")
    return version("flwr")


def superlink_command(
    link: Link, certificate: Path, key: Path, secret: Path, program: Sequence[str] = ("flower-superlink",)
) -> list[str]:
    """Return the command that starts the link: TLS, registered nodes, tasks by secret, nothing stored or installed.

    ``program``: Flower's own, or :data:`LINK_PROGRAM` with the post box.
    """
    return [
        *(*program, "--host", link.host, "--port", str(link.port)),
        *("--ssl-ca-certfile", str(link.authority), "--ssl-certfile", str(certificate), "--ssl-keyfile", str(key)),
        *("--enable-supernode-auth", "--disable-runtime-dependency-installation"),
        *("--isolation", "process", "--superexec-auth-secret-file", str(secret)),
    ]


def relay_command(link: Link, secret: Path, socket: Path, group: str | None = None) -> list[str]:
    """Return the command that starts the relay between the link and the aggregator."""
    shared = [] if group is None else ["--group", group]
    return [
        *("fedveil", "relay", "--superlink", link.address, "--authority", str(link.authority)),
        *("--secret", str(secret), "--socket", str(socket), *shared),
    ]


def supernode_command(
    link: Link,
    key: Path,
    guard: Path,
    port: int,
    secret: Path | None = None,
    program: Sequence[str] = ("flower-supernode",),
) -> list[str]:
    """Return the command that starts a node; ``port`` is for its executor, on the loopback interface.

    With a ``secret`` the executor is the site's own process and no uploaded code is run; without one, Flower starts its
    own executor, which runs the uploaded app.
    """
    own = [] if secret is None else ["--isolation", "process", "--superexec-auth-secret-file", str(secret)]
    return [
        *(*program, "--root-certificates", str(link.authority), "--superlink", link.address),
        *("--auth-supernode-private-key", str(key), "--node-config", f'{GUARD}="{guard}"'),
        *("--host", "127.0.0.1", "--port", str(port), *own),
    ]


def start_link(processes: Processes, link: Link, place: Path, patience: float = 60.0) -> Started:
    """Start the link from its own folder, and wait until it is ready."""
    check_installed()
    own = replace(link, authority=place / link.authority.name)
    program = (sys.executable, *LINK_MODULE)
    command = superlink_command(own, place / "server.pem", place / "server.key", place / SECRET, program)
    return _started(processes, "superlink", command, LINK_READY, patience)


def start_relay(processes: Processes, link: Link, place: Path, socket: Path, patience: float = 60.0) -> Started:
    """Start the relay from its own folder, and wait until it is ready."""
    own = replace(link, authority=place / link.authority.name)
    words = [sys.executable, "-P", "-m", *relay_command(own, place / SECRET, socket)]
    return _started(processes, "relay", words, _LISTENING, patience)


def _started(processes: Processes, name: str, command: Sequence[str], ready: str, patience: float) -> Started:
    """Start a process and wait until it is ready; its files lie among the logs and are removed with them."""
    started = processes.start(name, command, {"TMPDIR": str(processes.logs)})
    started.wait_for(ready, patience)
    return started


def start_node(processes: Processes, link: Link, site: str, key: Path, guard: Path, patience: float = 300.0) -> Started:
    """Start a site's node as its operator would, and wait until it is ready."""
    words = [sys.executable, "-P", "-m", "fedveil", "node", "--superlink", link.address, "--key", str(key)]
    words += ["--authority", str(link.authority), "--socket", str(guard), "--patience", str(patience)]
    return processes.start(f"node-{site}", words, {"TMPDIR": str(processes.logs)})


def write_app(folder: Path) -> Path:
    """Write the app that is uploaded with a run, since Flower wants one; the relay and the nodes never load it."""
    package = folder / "fedveil_relay"
    package.mkdir(parents=True, exist_ok=True)
    (folder / "pyproject.toml").write_text(_PROJECT.format(version=__version__), encoding="utf-8")
    (package / "__init__.py").write_text('"""The relay, from this machine\'s own fedveil."""\n', encoding="utf-8")
    # Flower looks for an assignment to the name. Its own executor at a site would load the client's side.
    sides = {
        "server": "app = None\n",
        "client": "from fedveil.federation.flower import apps\n\napp = apps.client_app\n",
    }
    for side, text in sides.items():
        (package / f"{side}.py").write_text(f'"""The {side} side."""\n\n{text}', encoding="utf-8")
    return folder


def write_connection(home: Path, link: Link) -> None:
    """Write the address of the link to Flower's configuration in this home folder."""
    home.mkdir(parents=True, exist_ok=True)
    where = {"address": link.address, "root-certificates": str(link.authority)}
    text = write_tables({"superlink": {"default": link.name}, f"superlink.{link.name}": where})
    (home / "config.toml").write_text(text, encoding="utf-8")


def register(home: Path, link: Link, nodes: Mapping[str, Path]) -> None:
    """Register the sites' nodes at the link by their public keys; nodes that it already knows are not changed."""
    flwr(home, _registrations(link, nodes))


def submit(home: Path, link: Link, app: Path, nodes: Mapping[str, Path] | None = None) -> None:
    """Start a Flower run; first register these nodes, because the link may have been restarted."""
    flwr(home, [*_registrations(link, nodes or {}), ["run", str(app), link.name]])


def _registrations(link: Link, nodes: Mapping[str, Path]) -> list[list[str]]:
    return [[*_REGISTER, str(public), link.name, "--name", site] for site, public in nodes.items()]


def flwr(home: Path, commands: Sequence[Sequence[str]], patience: float = 120.0) -> None:
    """Run Flower's own commands in turn; stop at the first that fails."""
    check_installed()
    words = [sys.executable, "-P", "-m", "fedveil.federation.flower.network", json.dumps(commands)]
    try:
        done: Any = subprocess.run(  # noqa: S603  the words are our own
            words,
            env=environment(home, {"COLUMNS": "2000"}),  # a narrow terminal would break names in the output
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


def run_command(name: str, words: Sequence[str]) -> None:
    """Run one of Flower's commands in this process, by the entry point that Flower's package declares for it."""
    (command,) = entry_points(group="console_scripts", name=name)
    sys.argv = [name, *words]
    command.load()()


def main() -> None:
    """Run ``flwr`` commands in turn and show their output; end with status 1 at the first that fails."""
    for words in json.loads(sys.argv[1]):
        output, failed = io.StringIO(), False
        with redirect_stdout(output), redirect_stderr(output):
            try:
                run_command("flwr", words)
            except SystemExit as end:
                failed = end.code not in (0, None)
        sys.stdout.write(output.getvalue())
        # a node that the link already knows is not a failure
        known = tuple(words[:2]) == _REGISTER and "already" in output.getvalue()
        if failed and not known:
            sys.exit(1)


if __name__ == "__main__":
    main()
