"""A node's way to the guard on its machine: one envelope and its answer over the guard's socket."""

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Final

from fedveil.wire import frames

ENVELOPE: Final = "envelope"
SIGN: Final = 1.0  # seconds between two signs of a guard that works on an answer
_PATIENCE: Final = 3600.0  # seconds; the aggregator's own timeout is shorter


def hand_to_guard(path: Path | str, question: bytes, sign: Callable[[], None] = lambda: None) -> bytes:
    """Return the guard's answer; raise ``OSError`` if it closes without one.

    ``sign``: called whenever the guard says, by an empty frame, that it still works on the answer. One that is halted
    says nothing.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_PATIENCE)
        connection.connect(str(path))
        frames.send(connection, [(ENVELOPE, question)])
        while not (blocks := frames.receive(connection)):
            sign()
        ((_, answer),) = blocks
    return answer
