"""A node's way to the guard on its machine: one envelope and its answer over the guard's socket."""

import socket
from pathlib import Path
from typing import Final

from fedveil.wire import frames

ENVELOPE: Final = "envelope"
_PATIENCE: Final = 3600.0  # seconds; the aggregator's own timeout is shorter


def hand_to_guard(path: Path | str, question: bytes) -> bytes:
    """Return the guard's answer; raise ``OSError`` if it closes without one."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_PATIENCE)
        connection.connect(str(path))
        frames.send(connection, [(ENVELOPE, question)])
        ((_, answer),) = frames.receive(connection)
    return answer
