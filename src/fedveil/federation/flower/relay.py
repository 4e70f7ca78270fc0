"""The aggregator's relay: a separate process that carries sealed envelopes between the aggregator and the link.

It takes the place of Flower's executor, which would install and run whatever app was uploaded with a run; the relay
runs its own app (apps.py) and never looks at an uploaded one. It takes a task of the link only while an aggregator is
connected to its socket, and only carries out that aggregator's orders. Its only key is the link's secret for tasks, and
it shares nothing with the aggregator but the socket.
"""

import select
import socket
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Final, final

from fedveil.federation.carrying.orders import serve_aggregators
from fedveil.federation.flower.apps import server_app
from fedveil.federation.flower.channel import Link
from fedveil.federation.flower.internals import ServerAppExecutor

_LOOK: Final = 0.2  # seconds between polls for a task while an aggregator waits for one


@final
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Relay:
    """Serves aggregators; ``secret``: what the link requires before it hands out a task."""

    link: Link
    secret: bytes
    tell: Callable[[str], None]

    def __post_init__(self) -> None:
        # Loads Flower's parts, and fails if one is missing, before an aggregator can come.
        self._executor().close()

    def serve(self, door: socket.socket, stop: Callable[[], bool]) -> None:
        """Serve the aggregators that connect, several at a time, until told to stop."""
        serve_aggregators(door, self._serve_one, stop, self.tell)

    def _serve_one(self, connection: socket.socket) -> None:
        """Serve one aggregator until it leaves or the link is lost."""
        with closing(self._executor()) as executor:
            app = server_app(connection, self.link)
            while not has_left(connection) and not executor.run_next(app, lambda: shut(connection)):
                select.select([connection], [], [], _LOOK)

    def _executor(self) -> ServerAppExecutor:
        return ServerAppExecutor(self.link.address, self.link.authority.read_bytes(), self.secret)


def has_left(connection: socket.socket) -> bool:
    """Return whether the other side has closed the connection."""
    try:
        readable, _, _ = select.select([connection], [], [], 0)
        return bool(readable) and connection.recv(1, socket.MSG_PEEK) == b""
    except OSError:
        return True


def shut(connection: socket.socket) -> None:
    """Close the connection, which ends whatever waits for it."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
