"""The guard's socket on this machine, for its owner or one group only; one envelope per connection."""

import os
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, Queue, SimpleQueue
from threading import BoundedSemaphore, Thread
from typing import Final, Protocol, final

from fedveil.core.errors import FedveilError, require, why
from fedveil.federation.carrying.guard_door import ENVELOPE, SIGN
from fedveil.wire import frames
from fedveil.wire.envelope import LARGEST

_LONGEST_PATH: Final = 100  # longest socket path, in bytes, that every system supports
_PATIENCE: Final = 60.0  # seconds in which a connection must deliver its whole envelope
_FRAME: Final = 1024  # bytes of a frame besides the envelope
_AT_ONCE: Final = 4  # connections that are read at the same time


class Handler(Protocol):
    """Takes one envelope and returns one."""

    def handle(self, data: bytes, /) -> bytes:
        """Return the answer; after an exception nothing is sent."""


def check_path(path: Path) -> Path:
    """Return the path of a socket; refuse one that is too long."""
    size = len(os.fsencode(path.absolute()))
    require(
        size <= _LONGEST_PATH, "The socket's path", f"have at most {_LONGEST_PATH} bytes", size, "Take a shorter one."
    )
    return path.absolute()


@contextmanager
def listening(path: Path, group: str | None = None) -> Iterator[socket.socket]:
    """Open a socket at ``path``, mode 600, or 660 for one group; replace a dead one, and remove it at the end."""
    path = check_path(path)
    _check_dead(path)
    with suppress(FileNotFoundError):
        path.unlink()
    door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)  # closed to others from the first moment
    try:
        door.bind(str(path))
    finally:
        os.umask(before)
    try:
        if group is not None:
            shutil.chown(path, group=group)
            path.chmod(0o660)
        door.listen(4)
        yield door
    finally:
        door.close()
        path.unlink(missing_ok=True)


def _check_dead(path: Path) -> None:
    """Refuse to replace a process that listens there, or a file that is not a socket."""
    plain = path.exists() and not path.is_socket()
    require(not plain, "The socket's path", "be free", str(path), "A file is there; name another path.")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            return
        except OSError:  # some process is there and busy, or we lack the permission to look
            pass
    require(False, "The socket's path", "be free", str(path), "Another process listens there; stop it first.")


def serve(door: socket.socket, handler: Handler, tell: Callable[[str], None], stop: Callable[[], bool]) -> None:
    """Answer envelopes until told to stop. No input can end this; errors are reported here, never to the other side.

    Envelopes are handled one at a time, in this thread. They are received, and answers are sent, in other threads, so
    that a slow sender or receiver delays nobody else.
    """
    heard: Queue[Heard] = Queue()
    listening = Thread(target=_hear_all, args=(door, heard, tell, stop), daemon=True)
    listening.start()
    while not stop():
        try:
            one = heard.get(timeout=0.5)
        except Empty:
            continue
        try:
            one.answer.put(handler.handle(one.envelope))
        except FedveilError as error:
            tell(str(error))
        except Exception as error:  # an error of ours must neither stop the guard nor be sent in words
            tell(f"An instruction could not be carried out ({type(error).__name__}).")
        finally:
            one.answer.put(None)
    listening.join()


@final
@dataclass(frozen=True, slots=True, eq=False)
class Heard:
    """An envelope that was received completely, and where its answer goes; None: nothing is sent."""

    envelope: bytes
    answer: "SimpleQueue[bytes | None]"

    def answered(self, sign: Callable[[], None]) -> bytes | None:
        """Wait for the answer, and give a sign every now and then: who waits cannot see whether this guard works."""
        while True:
            try:
                return self.answer.get(timeout=SIGN)
            except Empty:
                sign()


def _hear_all(
    door: socket.socket, heard: "Queue[Heard]", tell: Callable[[str], None], stop: Callable[[], bool]
) -> None:
    """Receive envelopes from all connections, a few at a time; the others wait."""
    free = BoundedSemaphore(_AT_ONCE)
    door.settimeout(0.5)
    while not stop():
        if not free.acquire(timeout=0.5):
            continue
        try:
            connection, _ = door.accept()
        except TimeoutError:
            free.release()
            continue
        Thread(target=_hear, args=(connection, heard, tell, free), daemon=True).start()


def _hear(
    connection: socket.socket, heard: "Queue[Heard]", tell: Callable[[str], None], free: BoundedSemaphore
) -> None:
    with connection:
        try:
            one = Heard(envelope_of(connection), SimpleQueue())
            heard.put(one)
            connection.settimeout(_PATIENCE)
            answer = one.answered(lambda: frames.send(connection, []))
            if answer is not None:
                frames.send(connection, [(ENVELOPE, answer)])
        except FedveilError as error:
            tell(str(error))
        except OSError as error:  # the other side has closed the connection
            tell(f"The relay was lost: {why(error)}.")
        finally:
            free.release()


def envelope_of(connection: socket.socket) -> bytes:
    """Return the one envelope of a connection, within the limits of size and time."""
    end = time.monotonic() + _PATIENCE
    blocks = frames.receive(connection, LARGEST + _FRAME, lambda: end - time.monotonic())
    require(len(blocks) == 1 and len(blocks[0][1]) <= LARGEST, "A message", "be one envelope", len(blocks))
    return blocks[0][1]
