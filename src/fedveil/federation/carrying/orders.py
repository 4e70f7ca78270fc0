"""An aggregator's three orders to whatever carries its envelopes, and the loop that serves aggregators at a socket.

``nodes`` lists who is online, ``push`` sends envelopes, ``pull`` waits for answers. Every engine's relay carries out
the same orders, so the aggregator does not know which engine is behind its relay.
"""

import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from threading import BoundedSemaphore, Thread
from typing import Final, Self, final

from fedveil.core.errors import FedveilError
from fedveil.wire import frames

READY: Final = "ready"  # the first word of a relay, sent when it can carry out orders
NODES: Final = "nodes"
PUSH: Final = "push"
PULL: Final = "pull"
_LONGEST: Final = 10**7  # seconds that an order may name
_AT_ONCE: Final = 16  # aggregators served at the same time


@final
@dataclass(frozen=True, slots=True)
class Order:
    """One order. ``items``: for ``push`` envelopes by node, for ``pull`` the names of the questions.

    ``seconds``: for ``push`` how long an answer is of use, for ``pull`` how long to wait for the first. ``most``: how
    many bytes of envelopes the aggregator accepts at once.
    """

    what: str
    items: frames.Blocks
    seconds: float = 0.0
    most: int = 0

    @classmethod
    def read(cls, blocks: frames.Blocks) -> Self:
        """Read an order; raise ``ValueError`` for anything else."""
        (what, detail), *items = blocks
        if what == NODES:
            return cls(what, items)
        if what == PUSH:
            return cls(what, items, seconds_of(detail))
        if what == PULL:
            most, hold = detail.split()
            return cls(what, items, seconds_of(hold), int(most))
        raise ValueError("an order must be one of nodes, push, pull")

    @property
    def names(self) -> list[str]:
        """Return the nodes or questions that the order names."""
        return [name for name, _ in self.items]


def seconds_of(text: bytes) -> float:
    """Read a number of seconds; raise ``ValueError`` for anything else.

    >>> seconds_of(b"2.5")
    2.5
    """
    seconds = float(text)
    if not 0 <= seconds < _LONGEST:
        raise ValueError("seconds must be a number of seconds")
    return seconds


def fitting(answers: dict[str, bytes], ready: Sequence[str], most: int) -> frames.Blocks:
    """Take answers out, up to so many bytes; one that can never fit is reported as a failure."""
    chosen: frames.Blocks = []
    left = most
    for name in ready:
        if len(answers[name]) > most:
            answers[name] = b""
        if len(answers[name]) <= left:
            left -= len(answers[name])
            chosen.append((name, answers.pop(name)))
    return chosen


def serve_orders(connection: socket.socket, carry_out: Callable[[frames.Blocks], frames.Blocks]) -> None:
    """Carry out orders until the aggregator leaves or sends something that is not an order."""
    connection.settimeout(None)
    with suppress(OSError, ValueError, FedveilError):
        frames.send(connection, [(READY, b"")])
        while True:
            frames.send(connection, carry_out(frames.receive(connection)))


def serve_aggregators(
    door: socket.socket,
    serve: Callable[[socket.socket], None],
    stop: Callable[[], bool],
    tell: Callable[[str], None],
) -> None:
    """Serve the aggregators that connect, several at a time, until told to stop.

    A failure with one of them does not affect the rest of the process.
    """
    free = BoundedSemaphore(_AT_ONCE)

    def serve_one(connection: socket.socket) -> None:
        with connection:
            try:
                serve(connection)
            except Exception as error:  # an aggregator whose connection is closed asks for another relay
                tell(f"an aggregator was let go ({type(error).__name__})")
            finally:
                free.release()

    door.settimeout(0.5)
    while not stop():
        try:
            connection, _ = door.accept()
        except TimeoutError:
            continue
        if not free.acquire(blocking=False):
            tell("too many aggregators at once; one was turned away")
            connection.close()
            continue
        Thread(target=serve_one, args=(connection,), daemon=True).start()
