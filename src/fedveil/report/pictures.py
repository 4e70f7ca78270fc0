"""Small grey pictures inside the page: each a PNG of a few hundred bytes, as a data address."""

import base64
import struct
import zlib
from collections.abc import Sequence

from fedveil.checks import require
from fedveil.report.markup import Markup, tag

Greys = Sequence[Sequence[int]]
_GAP = (0, 0)  # a transparent gap between two pictures
_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_GREY_AND_ALPHA = 4


def strip(pictures: Sequence[Greys], alt: str) -> Markup:
    """Return pictures of one size side by side, as one image with a text for people who do not see it."""
    require(alt.strip() != "", "alt", "say what the pictures show", alt)
    rows = side_by_side(pictures)
    address = "data:image/png;base64," + base64.b64encode(png(rows)).decode("ascii")
    return tag("img", src=address, alt=alt, width=len(rows[0]), height=len(rows), class_="greys")


def side_by_side(pictures: Sequence[Greys]) -> list[list[tuple[int, int]]]:
    """Return rows of (grey, opacity), with one transparent column between two pictures."""
    require(len(pictures) >= 1, "pictures", "be at least one", len(pictures))
    height, width = len(pictures[0]), len(pictures[0][0]) if pictures[0] else 0
    same = all(len(p) == height and all(len(row) == width for row in p) for p in pictures)
    require(same and height * width > 0, "pictures", "be of one size", [len(p) for p in pictures])
    levels = all(isinstance(v, int) and 0 <= v <= 255 for p in pictures for row in p for v in row)
    require(levels, "pictures", "hold whole numbers from 0 to 255", "something else")
    found: list[list[tuple[int, int]]] = []
    for y in range(height):
        line: list[tuple[int, int]] = []
        for picture in pictures:
            line += [*([_GAP] if line else []), *((value, 255) for value in picture[y])]
        found.append(line)
    return found


def png(rows: Sequence[Sequence[tuple[int, int]]]) -> bytes:
    """Return the PNG file: 8-bit grey with opacity, no filter; the same rows give the same bytes."""
    lines = b"".join(b"\0" + bytes(value for point in row for value in point) for row in rows)
    head = struct.pack(">IIBBBBB", len(rows[0]), len(rows), 8, _GREY_AND_ALPHA, 0, 0, 0)
    return _SIGNATURE + _chunk(b"IHDR", head) + _chunk(b"IDAT", zlib.compress(lines, 9)) + _chunk(b"IEND", b"")


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
