"""A site's executor on a machine that is busy: a node that does not answer in time is asked again while it runs."""

import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from flwr.proto.runtime_pb2 import AcquireTaskResponse

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


def test_a_task_that_fails_in_any_way_ends_the_node_and_not_the_site() -> None:
    """A node hands out a task and then says nothing that can be read; Flower raises its own class for each failure."""
    asked: list[str] = []
    task = AcquireTaskResponse(token="token")
    task.task.SetInParent()

    class Broken(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            asked.append(self.path)
            said = task.SerializeToString() if len(asked) == 1 else b"\xff"
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Broken) as node:
        threading.Thread(target=node.serve_forever, daemon=True).start()
        Executor(f"127.0.0.1:{node.server_address[1]}", bytes(32), Path("door"), over=lambda: False).serve()
        node.shutdown()
    assert len(asked) >= 2
