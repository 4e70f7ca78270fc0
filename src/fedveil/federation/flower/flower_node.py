"""Flower's own node with the site's executor beside it, at a link without a post box.

``python -m fedveil.federation.flower.flower_node`` is ``flower-supernode`` with shorter pauses.
"""

import os
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from fedveil.federation.carrying.processes import Processes, Started, end_with_parent, free_port
from fedveil.federation.flower.channel import Link
from fedveil.federation.flower.internals import NODE_ADMITTED, is_tried, node_loop, shorten_pauses, untried_warning
from fedveil.federation.flower.network import check_installed, run_command, supernode_command
from fedveil.federation.flower.node import AGAIN, NodeEnded


def run_flower_node(
    link: Link, key: Path, guard: Path, patience: float, stop: Callable[[], bool], tell: Callable[[str], None]
) -> None:
    """Run Flower's SuperNode until told to stop; restart it when a restarted link has forgotten it.

    A link counts a killed node as alive for up to a minute, and does not admit it again before.
    """
    version = check_installed()
    from fedveil.federation.flower.apps import client_app  # Flower is imported only here
    from fedveil.federation.flower.internals import ClientAppExecutor

    if warning := untried_warning(version):
        tell(warning)
    with tempfile.TemporaryDirectory(prefix="fedveil-node-") as name:
        folder = Path(name)
        secret = folder / "secret"
        secret.write_bytes(os.urandom(32))
        secret.chmod(0o600)
        with Processes(folder / "flower", folder / "logs", apart=False) as processes:
            while not stop():
                node, port = _let_in(
                    lambda port: processes.start(
                        "supernode", supernode_command(link, key, guard, port, secret, supernode_program(version))
                    ),
                    patience,
                    stop,
                    tell,
                )
                tell("connected")
                over = partial(_over, node, stop)
                ClientAppExecutor(client_app, f"127.0.0.1:{port}", secret.read_bytes(), guard, over).serve()
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
    while NODE_ADMITTED not in node.tail(20000) and not stop():
        if not node.alive:
            if time.monotonic() >= end:
                raise NodeEnded(f"Flower's node has ended; it wrote: {' '.join(node.tail(1500).split())}")
            tell("not let in; trying again")
            time.sleep(AGAIN)
            port = free_port()
            node = start(port)
        time.sleep(0.1)
    return node, port


def _over(node: Started, stop: Callable[[], bool]) -> bool:
    return stop() or not node.alive


def supernode_program(version: str) -> list[str]:
    """Return the program of a node: with shorter pauses for a Flower that was tried, else Flower's own command."""
    return (
        [sys.executable, "-P", "-m", "fedveil.federation.flower.flower_node"]
        if is_tried(version)
        else ["flower-supernode"]
    )


def main() -> None:
    """Run ``flower-supernode`` with this process's arguments and shorter pauses."""
    end_with_parent()
    if not shorten_pauses(node_loop()):
        sys.stderr.write("Flower's loop has changed; this node looks for messages every three seconds\n")
    run_command("flower-supernode", sys.argv[1:])


if __name__ == "__main__":
    main()
