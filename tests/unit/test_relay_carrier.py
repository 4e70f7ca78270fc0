"""The aggregator's end of its relay: no relay, one that goes away, and one that says what it likes.

The relay is another user's process. Whatever it says, the aggregator gets an answer, a failure of the one message, or
the one exception that says how to go on; and it reads no more, and waits no longer, than it has stated.
"""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedveil.core.errors import FedveilError
from fedveil.federation.aggregator.relay import RelayCarrier, RelayLost
from fedveil.federation.carrying.orders import READY
from fedveil.federation.flower.network import FlowerFailed, flwr
from fedveil.federation.site.socket import listening
from fedveil.wire import frames

Speaker = Callable[[socket.socket, list[tuple[str, bytes]]], None]


def no_link() -> None:
    raise FedveilError("The link is away.")


def nothing() -> None:
    """The link has a task."""


@contextmanager
def relay(path: Path, speak: Speaker, ready: bytes | None = None) -> Iterator[list[str]]:
    """A relay at ``path`` that greets (in its own way, if ``ready``) and says what ``speak`` says to every order."""
    stop, orders, live = threading.Event(), list[str](), list[socket.socket]()

    def serve(door: socket.socket) -> None:
        door.settimeout(0.005)
        while not stop.is_set():
            with suppress(TimeoutError):
                connection, _ = door.accept()
                live.append(connection)
                with connection, suppress(OSError):
                    connection.settimeout(10.0)
                    if ready is None:
                        frames.send(connection, [(READY, b"")])
                    else:
                        connection.sendall(ready)
                        connection.shutdown(socket.SHUT_WR)
                    while True:
                        order = frames.receive(connection)
                        orders.append(order[0][0])
                        speak(connection, order)

    with listening(path) as door:
        serving = threading.Thread(target=serve, args=(door,))
        serving.start()
        try:
            yield orders
        finally:
            stop.set()
            for connection in live:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
            serving.join()


def test_without_a_link_the_sentence_says_how_to_go_on(tmp_path: Path) -> None:
    with listening(tmp_path / "relay.sock"):
        carrier = RelayCarrier(tmp_path / "relay.sock", no_link)
        with pytest.raises(RelayLost, match=r"go on with --resume when the link is back\. The link is away\."):
            carrier.online()


def test_without_a_relay_the_sentence_names_its_socket(tmp_path: Path) -> None:
    carrier = RelayCarrier(tmp_path / "relay.sock", nothing, away=0.0)
    for _ in range(2):
        with pytest.raises(RelayLost, match=r"No relay listens at .*relay\.sock .*--resume when fedveil-relay runs"):
            carrier.online()


def test_messages_of_a_lost_relay_count_as_failed(tmp_path: Path) -> None:
    """The relay goes away in the middle of an order: what it had is reported as lost, not waited for."""

    def leave(connection: socket.socket, _: frames.Blocks) -> None:
        connection.shutdown(socket.SHUT_RDWR)

    with relay(tmp_path / "relay.sock", leave):
        carrier = RelayCarrier(tmp_path / "relay.sock", nothing)
        assert carrier.push("7", b"sealed", 1.0) == ""
        assert carrier.pull(["", "one"], 1.0) == {"": b"", "one": b""}
        with pytest.raises(RelayLost, match="again and again"):
            carrier.online()
        carrier.close()


def test_a_relay_that_comes_back_is_found_again(tmp_path: Path) -> None:
    path, asked = tmp_path / "relay.sock", list[int]()

    def nodes(connection: socket.socket, order: frames.Blocks) -> None:
        frames.send(connection, [("north", b"7")])

    carrier = RelayCarrier(path, lambda: asked.append(1))
    with relay(path, nodes):
        assert carrier.online() == {"north": "7"}
    late = threading.Event()

    def come() -> None:
        with relay(path, nodes):
            late.wait(30.0)

    coming = threading.Thread(target=come)
    coming.start()
    try:
        assert carrier.online() == {"north": "7"}
        assert len(asked) == 2  # a new relay needs a new task
    finally:
        late.set()
        carrier.close()
        coming.join()


NUMBER = st.integers(0, 2**64 - 1).map(lambda number: number.to_bytes(8, "big"))
NAMES = st.sampled_from(["north", "7", "", "one", "two", "\ud7ff", "x" * 300])
BLOCKS = st.lists(st.tuples(NAMES, st.binary(max_size=40) | st.sampled_from([b"7", "Größe".encode(), b"9" * 300])))


def framed(blocks: frames.Blocks) -> bytes:
    """The bytes of a frame."""
    here, there = socket.socketpair()
    with here, there:
        frames.send(here, blocks)
        return there.recv(2**20)


def spoilt(frame: bytes, at: int, byte: int) -> bytes:
    """A frame with one byte changed."""
    place = at % len(frame)
    return frame[:place] + bytes([byte]) + frame[place + 1 :]


SAID = (
    st.binary(max_size=80)
    | NUMBER.flatmap(lambda size: st.binary(max_size=40).map(lambda rest: size + rest))
    | BLOCKS.map(framed)
    | st.builds(spoilt, BLOCKS.map(framed), st.integers(0, 10**6), st.integers(0, 255))
)


@settings(max_examples=150, deadline=None)
@given(said=SAID, ready=st.none() | SAID)
def test_whatever_a_relay_says_is_an_answer_or_a_failure(
    tmp_path_factory: pytest.TempPathFactory, said: bytes, ready: bytes | None
) -> None:
    """On a live socket: no other exception, plain addresses and names alone, and nothing that was not asked for."""

    def speak(connection: socket.socket, _: frames.Blocks) -> None:
        connection.sendall(said)
        connection.shutdown(socket.SHUT_WR)

    path = tmp_path_factory.mktemp("relay") / "relay.sock"
    with relay(path, speak, ready):
        carrier = RelayCarrier(path, nothing, patience=5.0)
        try:
            for _ in range(2):
                with suppress(RelayLost):
                    assert all(word.isascii() and 0 < len(word) <= 200 for word in carrier.online().values())
                with suppress(RelayLost):
                    name = carrier.push("7", b"sealed", 1.0)
                    assert name.isascii()
                    assert len(name) <= 200
                with suppress(RelayLost):
                    found = carrier.pull(["one", "two", ""], 1.0)
                    assert set(found) <= {"one", "two", ""}
                    assert all(isinstance(envelope, bytes) for envelope in found.values())
        finally:
            carrier.close()


@pytest.mark.parametrize("size", [2**27, 2**32, 2**63])
def test_a_relay_cannot_make_the_aggregator_read_more_than_it_takes(tmp_path: Path, size: int) -> None:
    """The size that a frame states is compared before a byte of it is read, and the message counts as lost."""
    sent = []

    def speak(connection: socket.socket, _: frames.Blocks) -> None:
        connection.sendall(size.to_bytes(8, "big"))
        connection.settimeout(10.0)
        with suppress(OSError):
            while True:
                sent.append(connection.send(bytes(2**16)))

    with relay(tmp_path / "relay.sock", speak):
        carrier = RelayCarrier(tmp_path / "relay.sock", nothing)
        assert carrier.pull(["one"], 1.0) == {"one": b""}
        assert carrier.push("7", b"sealed", 1.0) == ""
        carrier.close()
    assert sum(sent) < 2**24  # what the system's own buffers take


def test_many_empty_blocks_are_not_unpacked(tmp_path: Path) -> None:
    """A frame within its size may name millions of blocks, and each costs far more memory than its twelve bytes."""
    frame = (10**6).to_bytes(4, "big") + bytes(12 * 10**6)

    def speak(connection: socket.socket, _: frames.Blocks) -> None:
        connection.sendall(len(frame).to_bytes(8, "big") + frame)

    with relay(tmp_path / "relay.sock", speak):
        carrier = RelayCarrier(tmp_path / "relay.sock", nothing)
        assert carrier.pull(["one"], 1.0) == {"one": b""}
        carrier.close()


def test_a_relay_that_drips_does_not_hold_the_aggregator(tmp_path: Path) -> None:
    """A byte now and then is within every single wait; all of them together must be within the patience."""

    over = threading.Event()

    def speak(connection: socket.socket, _: frames.Blocks) -> None:
        connection.sendall((10_000).to_bytes(8, "big"))
        with suppress(OSError):
            while not over.wait(0.02):
                connection.sendall(b"x")

    with relay(tmp_path / "relay.sock", speak):
        carrier, began = RelayCarrier(tmp_path / "relay.sock", nothing, patience=0.4), time.monotonic()
        assert carrier.pull(["one"], 1.0) == {"one": b""}
        carrier.close()
        over.set()
        assert time.monotonic() - began < 100.0  # ten thousand bytes would take two hundred seconds


def test_larger_questions_allow_larger_answers(tmp_path: Path) -> None:
    orders: list[frames.Blocks] = []

    def speak(connection: socket.socket, order: frames.Blocks) -> None:
        orders.append(order)
        frames.send(connection, [])

    with relay(tmp_path / "relay.sock", speak):
        carrier = RelayCarrier(tmp_path / "relay.sock", nothing)
        carrier.pull(["one"], 1.0)
        carrier.push("7", bytes(2**21), 1.0)
        carrier.pull(["one"], 1.0)
        carrier.close()
    assert [int(order[0][1].split()[0]) for order in orders if order[0][0] == "pull"] == [2**26, 2**27]


def test_the_first_command_of_flowers_that_fails_is_the_last(tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    commands = [["--version"], ["run", str(tmp_path / "nothing"), "nowhere"], ["--version"]]
    with pytest.raises(FlowerFailed, match="Flower says: Flower version") as failed:
        flwr(tmp_path, commands)
    assert str(failed.value).count("Flower version") == 1
