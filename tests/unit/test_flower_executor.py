"""A site's executor on a machine that is busy: a node that does not answer in time is asked again while it runs."""

import socket
import threading
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from fedveil.federation.flower.executor import Executor

ENOUGH = 2  # questions that were not answered


def test_a_node_that_does_not_answer_is_asked_again_until_it_has_ended() -> None:
    """Its connections are closed without a word, as those of a process are that gets no time; nothing is raised."""
    asked: list[int] = []

    def silent(door: socket.socket) -> None:
        while len(asked) < ENOUGH:
            connection, _ = door.accept()
            connection.close()
            asked.append(1)

    with socket.create_server(("127.0.0.1", 0)) as door:
        thread = threading.Thread(target=silent, args=(door,))
        thread.start()
        address = f"127.0.0.1:{door.getsockname()[1]}"
        Executor(address, bytes(32), Path("door"), over=lambda: len(asked) >= ENOUGH).serve()
        thread.join()
    assert len(asked) == ENOUGH
