"""The aggregator's end of its relay. The relay is a process of another user and is not trusted.

Everything that the relay says is read within limits of size and time. A violation counts as a failure of the message
that it was about, as if the relay had been lost at that moment: the connection is closed, and another relay is
requested when it is needed. A relay can end the aggregator only by :class:`RelayLost`.
"""

import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from fedveil.core.errors import FedveilError
from fedveil.federation.carrying.orders import NODES, PULL, PUSH, READY
from fedveil.wire import frames

_TRIES: Final = 3
_PAUSE: Final = 0.2  # seconds between two attempts to connect
_WORD: Final = 200  # characters of an address or of a message's name
_MOST_NODES: Final = 2000
_SMALL: Final = 2**20  # bytes of an answer without envelopes
_LEAST: Final = 2**26  # bytes of envelopes that are taken at once, whatever was asked
_TIMES: Final = 64  # or this multiple of the largest question, since ciphertexts are larger than what they encrypt


class RelayLost(FedveilError):
    """The relay cannot be reached; the run can be resumed."""


@final
@dataclass(slots=True)
class RelayCarrier:
    """A carrier through the relay. ``path``: the relay's socket; ``submit`` starts a Flower run, which gives it a task.

    ``patience``: seconds for the relay to get ready, and for each of its answers; ``away``: seconds for a lost relay to
    come back. See fedveil.federation.aggregator.post.Carrier.
    """

    path: Path
    submit: Callable[[], object]
    patience: float = 90.0
    away: float = 30.0
    largest: int = 0  # bytes of the largest question so far
    _connection: socket.socket | None = None

    def online(self) -> Mapping[str, str]:
        """Return the sites that the relay sees; malformed addresses are left out."""
        result = self._order([(NODES, b"")], _SMALL, _MOST_NODES)
        return {name: word for name, word in ((name, plain(address)) for name, address in result) if word}

    def push(self, address: str, envelope: bytes, seconds: float) -> str:
        """Send one envelope; return an empty name, which is never answered, if the relay does not take it."""
        self.largest = max(self.largest, len(envelope))
        said = self._order([(PUSH, f"{seconds:.1f}".encode("ascii")), (address, envelope)], _SMALL, 1)
        return plain(said[0][1]) if len(said) == 1 else ""

    def pull(self, names: list[str], seconds: float) -> Mapping[str, bytes]:
        """Return what has come back, as soon as there is something; names that were not asked for are ignored."""
        lost: dict[str, bytes] = {name: b"" for name in names if not name}
        wanted, most = [(name, b"") for name in names if name], self.most
        if not wanted:
            return lost
        detail = f"{most} {0.0 if lost else min(seconds, self.patience / 3):.2f}".encode("ascii")
        largest = most + len(wanted) * (_WORD + 12) + _SMALL
        answers = self._order([(PULL, detail), *wanted], largest, len(wanted))
        return {**{name: data for name, data in answers if name in names}, **lost}

    @property
    def most(self) -> int:
        """Return how many bytes of envelopes are accepted at once."""
        return max(_LEAST, _TIMES * self.largest)

    def close(self) -> None:
        """Close the connection to the relay."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _order(self, blocks: frames.Blocks, largest: int, most: int) -> frames.Blocks:
        """Send an order to the relay and return its answer.

        Messages that a lost relay had sent are forgotten, and asked for again. ``largest``: most bytes of the answer;
        ``most``: most blocks of the answer.
        """
        for _ in range(_TRIES):
            try:
                connection = self._connected()
                connection.settimeout(self.patience)
                frames.send(connection, blocks)
                return self._said(connection, largest, most)
            except OSError:  # includes answers that are malformed, too large or too slow
                self.close()
                if blocks[0][0] != NODES:
                    return [(name, b"") for name, _ in blocks[1:]]
        raise RelayLost("The relay was lost again and again; go on with --resume when the link is back.")

    def _said(self, connection: socket.socket, largest: int, most: int) -> frames.Blocks:
        end = time.monotonic() + self.patience
        return frames.receive(connection, largest, lambda: end - time.monotonic(), most)

    def _connected(self) -> socket.socket:
        """Connect to the relay, have the link give it a task, and wait until it has the task."""
        if self._connection is not None:
            return self._connection
        connection = self._connection = self._knocked()
        try:
            self.submit()
        except FedveilError as error:
            self.close()
            raise RelayLost(f"No relay could be started; go on with --resume when the link is back. {error}") from error
        if self._said(connection, _SMALL, 1) != [(READY, b"")]:
            raise frames.Closed("what listens at the relay's socket is no relay")
        return connection

    def _knocked(self) -> socket.socket:
        """Return a connection to the relay; a relay that was lost has some time to come back."""
        end = time.monotonic() + self.away
        while True:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                connection.settimeout(self.patience)
                connection.connect(str(self.path))
            except OSError as error:
                connection.close()
                if isinstance(error, PermissionError) or time.monotonic() >= end:
                    raise RelayLost(
                        f"No relay listens at {self.path} ({error.strerror or error}); go on with --resume when"
                        " fedveil-relay runs and this user may open its socket."
                    ) from error
                time.sleep(_PAUSE)
            else:
                return connection


def plain(data: bytes) -> str:
    """Return a word of the relay if it is short, printable ASCII; otherwise an empty string.

    >>> plain(b"12345"), plain(b"12 345"), plain("Größe".encode())
    ('12345', '', '')
    """
    text = data.decode("ascii", "replace") if len(data) <= _WORD else ""
    return text if text.isascii() and text.isprintable() and " " not in text else ""
