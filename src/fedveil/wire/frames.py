"""Frames: named blocks of bytes, for a socket between two processes of one machine or the body of a request.

This file needs little more than the standard library, because nodes and the relay load it to carry messages.
"""

import socket
from collections.abc import Callable, Sequence
from typing import Final

from fedveil.core.limits import BLOCKS, FRAME

LARGEST: Final = FRAME
MOST: Final = BLOCKS
_COUNT: Final = 4
_SIZE: Final = 8

Blocks = list[tuple[str, bytes]]


class Closed(ConnectionError):
    """The other side has closed the connection, or sent something that is not a frame."""


def encode(blocks: Sequence[tuple[str, bytes]]) -> bytes:
    """Return one frame as bytes."""
    parts = [len(blocks).to_bytes(_COUNT, "big")]
    for name, data in blocks:
        text = name.encode("utf-8")
        parts += [len(text).to_bytes(_COUNT, "big"), text, len(data).to_bytes(_SIZE, "big"), data]
    return b"".join(parts)


def decode(data: bytes | bytearray, most: int = MOST) -> Blocks:
    """Return the blocks of a frame; raise :class:`Closed` if these bytes are not one."""
    frame = memoryview(data)  # a view, so that only the blocks themselves are copied
    count, place = int.from_bytes(frame[:_COUNT], "big"), _COUNT
    if len(frame) < _COUNT or count > most:
        raise Closed("a frame has too many blocks, or none")
    blocks: Blocks = []
    for _ in range(count):
        text, place = _block(frame, place, _COUNT)
        block, place = _block(frame, place, _SIZE)
        blocks.append((bytes(text).decode("utf-8", "replace"), bytes(block)))
    if place != len(frame):
        raise Closed("a frame has another size than it says")
    return blocks


def send(connection: socket.socket, blocks: Sequence[tuple[str, bytes]]) -> None:
    """Send one frame."""
    frame = encode(blocks)
    connection.sendall(len(frame).to_bytes(_SIZE, "big") + frame)


def receive(
    connection: socket.socket,
    largest: int = LARGEST,
    left: Callable[[], float] | None = None,
    most: int = MOST,
) -> Blocks:
    """Return the next frame; raise :class:`Closed` if there is none.

    ``left``: returns the seconds left for the whole frame, so that a sender cannot hold the line by a byte now and
    then. ``most``: how many blocks a frame may have, because many empty blocks take far more memory than their bytes.
    """
    size = int.from_bytes(_exactly(connection, _SIZE, left), "big")
    if size > largest:
        raise Closed("a frame is too large")
    return decode(_exactly(connection, size, left), most)


def _block(frame: memoryview, place: int, width: int) -> tuple[memoryview, int]:
    start = place + width
    end = start + int.from_bytes(frame[place:start], "big")
    if start > len(frame) or end > len(frame):
        raise Closed("a frame is cut short")
    return frame[start:end], end


def _exactly(connection: socket.socket, size: int, left: Callable[[], float] | None) -> bytearray:
    data = bytearray()
    while len(data) < size:
        if left is not None:
            seconds = left()
            if seconds <= 0:
                raise Closed("a frame took too long")
            connection.settimeout(seconds)
        part = connection.recv(min(size - len(data), 2**20))
        if not part:
            raise Closed("the other side has closed")
        data += part
    return data
