"""A site's node: Flower's program that talks with the link, and the site's own executor beside it."""

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from fedveil.errors import FedveilError, NotAvailable
from fedveil.run.flower.network import Link, supernode_command
from fedveil.run.flower.processes import Processes, Started, free_port

_AGAIN: Final = 5.0  # seconds


class NodeEnded(FedveilError):
    """Flower's node stopped; the sentence holds the end of what it wrote."""


def run_node(
    link: Link, key: Path, guard: Path, patience: float, stop: Callable[[], bool], tell: Callable[[str], None]
) -> None:
    """Until told to stop, or until Flower's program ends: then so does this, for whoever watches it to start again.

    ``patience``: seconds to try to get in. A link takes a node that was killed for alive for up to a minute, and does
    not let it in again before.
    """
    try:
        from fedveil.run.flower.executor import Executor  # Flower is loaded here and nowhere before
    except ImportError as error:
        raise NotAvailable("Flower is not installed here; install it with: pip install 'fedveil[flower]'.") from error
    with tempfile.TemporaryDirectory(prefix="fedveil-node-") as name:
        folder, end = Path(name), time.monotonic() + patience
        secret, port = folder / "secret", free_port()
        secret.write_bytes(os.urandom(32))
        secret.chmod(0o600)
        with Processes(folder / "flower", folder / "logs", apart=False) as processes:
            command = supernode_command(link, key, guard, port, secret)
            node = processes.start("supernode", command)
            while "SuperNode ID" not in node.tail(20000):
                if stop():
                    return
                if not node.alive:
                    if time.monotonic() >= end:
                        raise _ended(node)
                    tell("not let in; trying again")
                    time.sleep(_AGAIN)
                    node = processes.start("supernode", command)
                time.sleep(0.1)
            tell("connected")
            Executor(f"127.0.0.1:{port}", secret.read_bytes(), guard).serve(lambda: _over(node, stop))


def _over(node: Started, stop: Callable[[], bool]) -> bool:
    if not node.alive:
        raise _ended(node)
    return stop()


def _ended(node: Started) -> NodeEnded:
    return NodeEnded(f"Flower's node has ended; it wrote: {' '.join(node.tail(1500).split())}")
