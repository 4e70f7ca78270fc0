"""A site's node: Flower's program that talks with the link, and the site's own executor beside it."""

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from fedveil.errors import FedveilError, NotAvailable
from fedveil.run.flower.network import Link, supernode_command
from fedveil.run.flower.processes import Processes, free_port


class NodeEnded(FedveilError):
    """Flower's node stopped; the sentence holds the end of what it wrote."""


def run_node(link: Link, key: Path, guard: Path, stop: Callable[[], bool], tell: Callable[[str], None]) -> None:
    """Until told to stop, or until Flower's program ends: then so does this, for whoever watches it to start again."""
    try:
        from fedveil.run.flower.executor import Executor  # Flower is loaded here and nowhere before
    except ImportError as error:
        raise NotAvailable("Flower is not installed here; install it with: pip install 'fedveil[flower]'.") from error
    with tempfile.TemporaryDirectory(prefix="fedveil-node-") as name:
        folder = Path(name)
        secret = folder / "secret"
        secret.write_bytes(os.urandom(32))
        secret.chmod(0o600)
        port = free_port()
        with Processes(folder / "flower", folder / "logs", apart=False) as processes:
            node = processes.start("supernode", supernode_command(link, key, guard, port, secret))
            ended = "Flower's node has ended; it wrote: {}"

            def over() -> bool:
                if not node.alive:
                    raise NodeEnded(ended.format(" ".join(node.tail(1500).split())))
                return stop()

            while "SuperNode ID" not in node.tail(20000):
                if over():
                    return
                time.sleep(0.1)
            tell("connected")
            Executor(f"127.0.0.1:{port}", secret.read_bytes(), guard).serve(over)
