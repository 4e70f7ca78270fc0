"""Doors of one machine, and folders of one process: nobody holds the line, nobody takes another's place."""

import socket
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from fedveil.core.errors import BadValue
from fedveil.engine.files import FolderInUse, sole_use
from fedveil.federation.aggregator.consortium import consortium
from fedveil.federation.aggregator.conversation import begin
from fedveil.federation.site.socket import listening
from fedveil.wire import frames
from fedveil.wire.content import Content
from unit.federations import made_up


def test_a_byte_now_and_then_does_not_hold_the_line() -> None:
    here, there = socket.socketpair()
    stop = threading.Event()

    def drip() -> None:
        there.sendall((1000).to_bytes(8, "big"))
        while not stop.wait(0.05):
            there.sendall(b"x")

    dripping = threading.Thread(target=drip)
    with here, there:
        dripping.start()
        began = time.monotonic()
        try:
            with pytest.raises(OSError, match=r"too long|timed out"):
                frames.receive(here, left=lambda: began + 0.4 - time.monotonic())
            assert time.monotonic() - began < 40  # a thousand bytes would take fifty seconds
        finally:
            stop.set()
            dripping.join()


def test_a_frame_larger_than_wanted_is_not_read() -> None:
    here, there = socket.socketpair()
    with here, there:
        frames.send(there, [("envelope", bytes(100))])
        with pytest.raises(frames.Closed, match="too large"):
            frames.receive(here, largest=100)
        frames.send(here, [("envelope", bytes(100))])
        assert frames.receive(there, largest=200, left=lambda: 5.0) == [("envelope", bytes(100))]


def test_a_socket_that_somebody_listens_at_is_not_taken(tmp_path: Path) -> None:
    path = tmp_path / "guard.sock"
    with listening(path) as door:
        with pytest.raises(BadValue, match="Another process listens there"), listening(path):
            pass
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as knocking:
            knocking.connect(str(path))  # the first one is still there
        door.accept()[0].close()
    dead = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    dead.bind(str(path))
    dead.close()
    with listening(path):
        assert path.is_socket()


def test_a_file_is_not_replaced_by_a_socket(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_text("1,2,3\n")
    with pytest.raises(BadValue, match="A file is there"), listening(path):
        pass
    assert path.read_text() == "1,2,3\n"


def test_an_aggregator_at_work_is_not_counted_past(tmp_path: Path) -> None:
    """A second one would take the next numbers, and the first one's questions would be old."""
    begun = begin(tmp_path, False, lambda size: made_up("run", size))
    with sole_use(tmp_path / "private"), pytest.raises(FolderInUse):
        begin(tmp_path, True, lambda size: made_up("run", size))
    assert begin(tmp_path, True, lambda size: made_up("run", size)).number == 2 * begun.number


@pytest.mark.parametrize("sizes", [[2**62, 2**62], [2**40], [0], []])
def test_what_a_site_says_of_itself_cannot_use_up_the_aggregator(sizes: list[int]) -> None:
    values = {"features": 3, "classes": 2, "bound": 1.0}
    said = Content(values=values, rows={"sizes": np.array(sizes, dtype=np.int64)})
    with pytest.raises(BadValue, match="clients of north"):
        consortium({"north": said})


def test_what_a_site_says_badly_of_itself_is_refused_in_a_sentence() -> None:
    rows = {"sizes": np.array([2]), "positions": np.array([0, 1]), "owner": np.array([0, 5]), "numbers": np.array([0])}
    values = {"features": 3, "classes": 2, "bound": 1.0}
    with pytest.raises(BadValue, match="owners"):
        consortium({"north": Content(values=values, rows=rows)})
    rows.pop("owner")
    with pytest.raises(BadValue, match="numbers, positions and owner"):
        consortium({"north": Content(values=values, rows=rows)})
    with pytest.raises(BadValue, match="features, classes and bound"):
        consortium({"north": Content(values={**values, "features": float("inf")}, rows=rows)})
