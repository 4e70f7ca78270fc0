"""A site's node: Flower's program that talks to the link, and the site's own executor beside it."""

import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from fedveil.errors import FedveilError
from fedveil.federation.flower.network import Link, check_installed, supernode_command
from fedveil.federation.flower.processes import Processes, Started, free_port

_AGAIN: Final = 5.0  # seconds before the next attempt


class NodeEnded(FedveilError):
    """The link did not admit Flower's node; the message holds the end of its output."""


def run_node(
    link: Link, key: Path, guard: Path, patience: float, stop: Callable[[], bool], tell: Callable[[str], None]
) -> None:
    """Run the node until told to stop; restart Flower's program when a restarted link has forgotten it.

    ``patience``: seconds to try to get admitted; then this ends, so that its supervisor can start it again. A link
    counts a killed node as alive for up to a minute, and does not admit it again before.
    """
    check_installed()
    from fedveil.federation.flower.executor import Executor  # Flower is imported only here

    with tempfile.TemporaryDirectory(prefix="fedveil-node-") as name:
        folder = Path(name)
        secret = folder / "secret"
        secret.write_bytes(os.urandom(32))
        secret.chmod(0o600)
        with Processes(folder / "flower", folder / "logs", apart=False) as processes:
            while not stop():
                node, port = _let_in(
                    lambda port: processes.start("supernode", supernode_command(link, key, guard, port, secret)),
                    patience,
                    stop,
                    tell,
                )
                tell("connected")
                Executor(f"127.0.0.1:{port}", secret.read_bytes(), guard, partial(_over, node, stop)).serve()
                if not stop():
                    tell("a run was cut short; starting again" if node.alive else "the link has let go; trying again")
                    node.stop()


def _let_in(
    start: Callable[[int], Started], patience: float, stop: Callable[[], bool], tell: Callable[[str], None]
) -> tuple[Started, int]:
    """Start Flower's program until the link knows it, or this one is told to stop; return it with its port.

    Every try takes another port: somebody else may have taken the first between our look and its use.
    """
    end, port = time.monotonic() + patience, free_port()
    node = start(port)
    while "SuperNode ID" not in node.tail(20000) and not stop():
        if not node.alive:
            if time.monotonic() >= end:
                raise NodeEnded(f"Flower's node has ended; it wrote: {' '.join(node.tail(1500).split())}")
            tell("not let in; trying again")
            time.sleep(_AGAIN)
            port = free_port()
            node = start(port)
        time.sleep(0.1)
    return node, port


def _over(node: Started, stop: Callable[[], bool]) -> bool:
    return stop() or not node.alive
