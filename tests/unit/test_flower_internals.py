"""What fedveil uses of Flower beyond its public interface: which versions have it, and what it does.

Tried with Flower 1.41.0 and 1.42.0: whoever adds a version runs tests/end_to_end/test_flower*.py with it first.
"""

import ast
import signal
import socket
import sys
import threading
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedveil.core.errors import NotAvailable
from fedveil.federation.flower import internals
from fedveil.federation.flower.flower_node import supernode_program
from fedveil.federation.flower.internals import (
    TRIED,
    AdaptiveSleep,
    ClientAppExecutor,
    ServerAppExecutor,
    at_most,
    beating,
    identify,
    is_tried,
    node_loop,
    shorten_pauses,
    untried_warning,
)

ROOT = Path(__file__).parents[2]
PUBLIC = {"flwr.app", "flwr.clientapp", "flwr.serverapp"}
ENOUGH = 2  # questions that were not answered


def test_the_versions_that_were_tried_are_those_that_pip_may_install() -> None:
    requirements = pytest.importorskip("packaging.requirements")
    assert TRIED == ("1.41.0", "1.42.0")
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    allowed = requirements.Requirement(extras["flower"][0]).specifier
    assert [text for text in ("1.40.0", *TRIED, "1.43.0") if text in allowed] == list(TRIED)
    pinned = (ROOT / "constraints.txt").read_text().split("flwr==")[1].split()[0]
    assert pinned in TRIED


def test_the_installed_flower_was_tried() -> None:
    pytest.importorskip("flwr")
    assert is_tried(version("flwr"))


def test_no_other_file_imports_what_flower_does_not_publish() -> None:
    """In the one folder that may import Flower at all, which import-linter checks for the rest."""
    used = set[tuple[str, str]]()
    for path in Path(internals.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            else:
                names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            used |= {(path.name, name) for name in names if name.split(".")[0] == "flwr"}
    assert {name for file, name in used if file != "internals.py"} <= PUBLIC
    assert {file for file, _ in used} == {"apps.py", "internals.py"}


def test_a_flower_that_was_not_tried_keeps_its_own_pace_with_a_warning() -> None:
    assert untried_warning("1.42.0") == ""
    assert supernode_program("1.42.0")[0] == sys.executable
    assert "Flower 1.43.0 was not tried with this fedveil (1.41.0 and 1.42.0 were)" in untried_warning("1.43.0")
    assert supernode_program("1.43.0") == ["flower-supernode"]


def test_only_a_loop_that_sleeps_by_the_module_time_is_changed() -> None:
    pytest.importorskip("flwr")
    loop = node_loop()
    kept = loop.time
    try:
        assert shorten_pauses(loop)
        assert isinstance(loop.time, AdaptiveSleep)
        assert not shorten_pauses(loop)  # once is enough
    finally:
        loop.time = kept
    other = SimpleNamespace(sleep=kept.sleep)
    assert not shorten_pauses(other)
    assert vars(other) == {"sleep": kept.sleep}
    assert not shorten_pauses(None)


def test_a_flower_without_a_needed_part_is_refused_before_the_first_message(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("flwr")
    sentence = (
        r"lacks a part .*; fedveil was tried with Flower 1\.41\.0 and 1\.42\.0\. .*pip install 'fedveil\[flower\]'"
    )
    monkeypatch.setitem(sys.modules, "flwr.supernode.runtime.run_clientapp", None)
    with pytest.raises(NotAvailable, match=sentence):
        ClientAppExecutor(None, "127.0.0.1:1", bytes(32), Path("door"), over=lambda: True)
    monkeypatch.setitem(sys.modules, "flwr.superlink.grid", None)
    with pytest.raises(NotAvailable, match=sentence):
        ServerAppExecutor("127.0.0.1:1", b"", bytes(32))


def test_a_node_that_does_not_answer_is_asked_again_until_it_has_ended() -> None:
    """Its connections are closed without a word, as those of a process are that gets no time; nothing is raised."""
    pytest.importorskip("flwr")
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
        ClientAppExecutor(None, address, bytes(32), Path("door"), over=lambda: len(asked) >= ENOUGH).serve()
        thread.join()
    assert len(asked) == ENOUGH


@pytest.fixture
def broken_node() -> Iterator[tuple[str, list[str]]]:
    """The address of a node that hands out a task and then says nothing that can be read, and what it was asked."""
    pytest.importorskip("flwr")
    from flwr.proto.runtime_pb2 import AcquireTaskResponse

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
        yield f"127.0.0.1:{node.server_address[1]}", asked
        node.shutdown()


def test_a_task_that_fails_in_any_way_ends_the_node_and_not_the_site(broken_node: tuple[str, list[str]]) -> None:
    """Flower raises its own class for each failure."""
    address, asked = broken_node
    ClientAppExecutor(None, address, bytes(32), Path("door"), over=lambda: False).serve()
    assert len(asked) >= 2


def test_a_part_that_is_missing_for_a_task_ends_the_site_in_a_sentence(
    broken_node: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new node would lack it too."""
    executor = ClientAppExecutor(None, broken_node[0], bytes(32), Path("door"), over=lambda: False)
    monkeypatch.setitem(sys.modules, "flwr.common.constant", None)
    with pytest.raises(NotAvailable, match="lacks a part"):
        executor.serve()


def test_messages_of_two_threads_belong_to_their_own_tasks() -> None:
    """Several aggregators share a relay; Flower alone would give all messages to the last of them."""
    pytest.importorskip("flwr")
    from flwr.app import Message, RecordDict

    together, senders = threading.Barrier(2), dict[int, Any]()

    def send(task: int) -> None:
        identify(run=task + 10, task=task, node=task + 20)
        together.wait(60)
        senders[task] = Message(RecordDict(), dst_node_id=5, message_type="query").metadata

    threads = [threading.Thread(target=send, args=(task,)) for task in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {task: (one.run_id, one.src_task_id, one.src_node_id) for task, one in senders.items()} == {
        1: (11, 1, 21),
        2: (12, 2, 22),
    }


class Client:
    """Says, as the link's client would, that the task has ended."""

    def SendTaskHeartbeat(self, _: Any) -> Any:  # noqa: N802  Flower's name
        return SimpleNamespace(success=False)


def test_a_task_that_is_over_is_told_and_no_signal_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("flwr")
    monkeypatch.setattr(internals, "_HEARTBEAT", 0.01)
    over, interrupted = threading.Event(), list[int]()
    before = signal.signal(signal.SIGINT, lambda number, _: interrupted.append(number))
    try:
        with beating(Client(), over.set):
            assert over.wait(60.0)
        assert interrupted == []
        from flwr.supercore.heartbeat import make_task_heartbeat_fn_http

        make_task_heartbeat_fn_http(Client())()  # Flower's own does
        assert interrupted == [signal.SIGINT]
    finally:
        signal.signal(signal.SIGINT, before)


def test_what_takes_too_long_is_ended() -> None:
    ended = threading.Event()
    with at_most(0.01, ended.set):
        assert ended.wait(60)


def test_what_ends_in_time_is_left_alone() -> None:
    ended = threading.Event()
    with at_most(3600, ended.set):
        pass
    assert not ended.is_set()


@dataclass
class Still:
    """A clock that only notes how long it would have slept; ``look``: what passes between two looks at it."""

    slept: list[float] = field(default_factory=list)
    look: float = 0.0
    now: float = 7.0

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)

    def monotonic(self) -> float:
        self.now += self.look
        return self.now


def test_a_message_makes_the_next_looks_quick_and_silence_makes_them_rare() -> None:
    clock = Still()
    time = AdaptiveSleep(clock)
    for _ in range(100):
        time.sleep(3)
    assert clock.slept == sorted(clock.slept)
    assert clock.slept[0] < 0.2
    assert clock.slept[-1] == 3
    assert 30 < sum(clock.slept[:70]) < 90  # a minute or so until it is as rare as Flower's own
    time.sleep(0.5)  # a message has come, and its answer is awaited
    time.sleep(3)
    assert max(clock.slept[-2:]) < 0.2
    time.sleep(0.01)
    assert clock.slept[-1] == 0.01
    assert time.monotonic() == 7.0


def test_a_slow_link_is_looked_at_less_often() -> None:
    clock = Still()
    time = AdaptiveSleep(clock)
    time.sleep(3)
    clock.look = 0.2
    time.sleep(3)
    assert 0.9 < clock.slept[-1] < 1.1  # five times as long as the look
    clock.look = 2.0
    time.sleep(3)
    assert clock.slept[-1] == 3  # never longer than Flower itself
