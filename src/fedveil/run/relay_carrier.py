"""The aggregator's end of its relay: a socket that the relay opens; lost and opened again if need be."""

import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, final

from fedveil.errors import FedveilError
from fedveil.wire import frames

_TRIES: Final = 3


class RelayLost(FedveilError):
    """The relay cannot be reached; the run can be resumed."""


@final
@dataclass(slots=True)
class RelayCarrier:
    """``submit`` asks for a new relay; ``patience``: seconds until it has come. See fedveil.run.post.Carrier."""

    door: socket.socket
    submit: Callable[[], object]
    patience: float = 90.0
    _connection: socket.socket | None = None

    def online(self) -> Mapping[str, str]:
        """Sites that the relay sees."""
        return {name: address.decode("ascii") for name, address in self._order([("nodes", b"")])}

    def push(self, address: str, envelope: bytes, seconds: float) -> str:
        """One envelope; an empty name if the relay would not take it, which then stays unanswered."""
        ((_, name),) = self._order([("push", f"{seconds:.1f}".encode("ascii")), (address, envelope)])
        return name.decode("ascii")

    def pull(self, names: list[str]) -> Mapping[str, bytes]:
        """What has come back."""
        wanted = [(name, b"") for name in names if name]
        found = dict(self._order([("pull", b""), *wanted])) if wanted else {}
        lost: dict[str, bytes] = {name: b"" for name in names if not name}
        return {**{name: data for name, data in found.items() if name in names}, **lost}

    def close(self) -> None:
        """Let the relay go."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _order(self, blocks: frames.Blocks) -> frames.Blocks:
        """Ask the relay; messages that a lost relay had sent are forgotten, and those who wait ask again."""
        for _ in range(_TRIES):
            connection = self._connected()
            try:
                frames.send(connection, blocks)
                return frames.receive(connection)
            except OSError:
                self.close()
                if blocks[0][0] != "nodes":
                    return [(name, b"") for name, _ in blocks[1:]]
        raise RelayLost("The relay was lost again and again; go on with --resume when the link is back.")

    def _ask_for_one(self) -> None:
        try:
            self.submit()
        except FedveilError as error:
            raise RelayLost(f"No relay could be started; go on with --resume when the link is back. {error}") from error

    def _connected(self) -> socket.socket:
        if self._connection is None:
            self._ask_for_one()
            self.door.settimeout(self.patience)
            try:
                self._connection, _ = self.door.accept()
            except TimeoutError as error:
                raise RelayLost(
                    f"No relay came within {self.patience:.0f} seconds. Does the link run, and its executor?"
                ) from error
            self._connection.settimeout(self.patience)
        return self._connection
