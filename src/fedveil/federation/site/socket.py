"""The guard's door: a socket on this machine that only its owner, or one group, may open; one envelope a connection."""

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

from fedveil.checks import require
from fedveil.errors import FedveilError
from fedveil.wire import frames
from fedveil.wire.envelope import LARGEST

_LONGEST_PATH: Final = 100  # bytes that a socket's name may have on every system
_PATIENCE: Final = 60.0  # seconds for whoever has knocked to say all of it
_FRAME: Final = 1024  # bytes of a frame around an envelope
_AT_ONCE: Final = 4  # connections that are heard at the same time


class Handler(Protocol):
    """One envelope in, one out."""

    def handle(self, data: bytes, /) -> bytes:
        """The answer, or an exception: then nothing is said."""


def check_path(path: Path) -> Path:
    """A socket's name, which must be short."""
    size = len(os.fsencode(path.absolute()))
    require(
        size <= _LONGEST_PATH, "The socket's path", f"have at most {_LONGEST_PATH} bytes", size, "Take a shorter one."
    )
    return path.absolute()


@contextmanager
def listening(path: Path, group: str | None = None) -> Iterator[socket.socket]:
    """A socket at ``path``, mode 600, or 660 for one group; a dead one of before is replaced, and none is left."""
    path = check_path(path)
    _check_dead(path)
    with suppress(FileNotFoundError):
        path.unlink()
    door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)  # closed to others from its first moment
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
    """Refuse to take the place of a process that listens there, or of a file that is no socket."""
    plain = path.exists() and not path.is_socket()
    require(not plain, "The socket's path", "be free", str(path), "A file is there; name another path.")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            return
        except OSError:  # somebody is there and busy, or it is not ours to look
            pass
    require(False, "The socket's path", "be free", str(path), "Another process listens there; stop it first.")


def serve(door: socket.socket, handler: Handler, tell: Callable[[str], None], stop: Callable[[], bool]) -> None:
    """Answer until told to stop. Nothing that comes in can end this; what goes wrong is told here, never outside.

    Envelopes are handled one at a time, in this thread. They are heard, and answers are said, in threads of their own,
    so that somebody who speaks or listens slowly holds up nobody else.
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
        except Exception as error:  # a fault of ours must not stop the guard, nor leave it in words
            tell(f"An instruction could not be carried out ({type(error).__name__}).")
        finally:
            one.answer.put(None)
    listening.join()


@final
@dataclass(frozen=True, slots=True, eq=False)
class Heard:
    """An envelope that was heard to its end, and where its answer goes; None: nothing is said."""

    envelope: bytes
    answer: "SimpleQueue[bytes | None]"


def _hear_all(
    door: socket.socket, heard: "Queue[Heard]", tell: Callable[[str], None], stop: Callable[[], bool]
) -> None:
    """Hear everybody who knocks, a few at a time; the others wait at the door."""
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
            answer = one.answer.get()
            if answer is not None:
                connection.settimeout(_PATIENCE)
                frames.send(connection, [("envelope", answer)])
        except FedveilError as error:
            tell(str(error))
        except OSError as error:  # the relay went away
            tell(f"The relay was lost: {error}.")
        finally:
            free.release()


def envelope_of(connection: socket.socket) -> bytes:
    """The one envelope that a connection brings, within the limits of size and time."""
    end = time.monotonic() + _PATIENCE
    blocks = frames.receive(connection, LARGEST + _FRAME, lambda: end - time.monotonic())
    require(len(blocks) == 1 and len(blocks[0][1]) <= LARGEST, "A message", "be one envelope", len(blocks))
    return blocks[0][1]
