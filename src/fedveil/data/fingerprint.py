"""A keyed hash of the rows of a source: the books of a data set belong to its rows as they were read.

Every row is hashed with all columns of the source, including those that a study ignores, in the order of their names.
The keyed hashes of the rows are added up, so the order of rows does not matter and the number of equal rows does (a
multiset hash by addition [CDDGS03]). What a study makes of the rows (scaling, bound, columns, clients) does not enter.
Adding or removing a row, or changing one cell, gives another fingerprint.

A cell that reads as a number counts as that number, however it is written; an empty cell and NaN are both "missing".

References:
    [CDDGS03] Clarke, Devadas, van Dijk, Gassend, Suh. Incremental Multiset Hash Functions and Their Application to
        Memory Integrity Checking. ASIACRYPT 2003.
"""

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedveil.checks import require

Array = NDArray[Any]
Cells = Array | Sequence[str]  # one column
_MISSING, _NUMBER, _TEXT = range(3)
_SIZE: Final = 32  # bytes in a digest
_CHUNK: Final = 8192  # rows at a time
_WRAP: Final = 2 ** (8 * _SIZE)


@dataclass(frozen=True, slots=True, eq=False)
class RawRows:
    """The digests of the rows of a source, computed when they are needed.

    The digests are not keyed, so they stay in memory: with a digest, anyone could test guesses of its row.
    """

    digests: Callable[[], bytes]

    def fingerprint(self, key: bytes) -> str:
        """Return the keyed hash of the number and the multiset of the rows."""
        right = isinstance(key, bytes) and 16 <= len(key) <= 64
        require(right, "The key of a fingerprint", "be 16 to 64 secret bytes", type(key).__name__)
        found, blake = self.digests(), hashlib.blake2b
        total = 0
        for row in _each(found):
            keyed = blake(row, key=key, digest_size=_SIZE, person=b"fedveil row").digest()
            total += int.from_bytes(keyed, "little")
        content = f"{len(found) // _SIZE} {total % _WRAP}".encode()
        return blake(content, key=key, digest_size=_SIZE, person=b"fedveil rows").hexdigest()

    def found_in(self, others: "RawRows") -> int:
        """Return how many of these rows are equal to one of the others; for the data holder, never for release."""
        known, own = set(_each(others.digests())), _each(self.digests())
        return sum(digest in known for digest in own)


def content_of(path: Path) -> bytes | None:
    """Return a digest of the bytes of a file, or of all files in a folder, whatever they are called.

    It is not keyed, so it stays in memory. None where there is nothing that can be read twice, such as a pipe.
    """
    if path.is_dir():
        below = ((file, file.relative_to(path).parts) for file in path.rglob("*"))
        shown = (file for file, parts in below if not any(part.startswith(".") for part in parts))
        digests = sorted(_bytes_of(file) for file in shown if file.is_file())
        return hashlib.sha256(b"".join(digests)).digest()
    return _bytes_of(path) if path.is_file() else None


def _bytes_of(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def rows_of(columns: Mapping[str, Cells]) -> RawRows:
    """Return the rows of these columns, which must not change; they are hashed once, when needed."""
    kept: list[bytes] = []

    def digests() -> bytes:
        if not kept:
            kept.append(digested(columns))
        return kept[0]

    return RawRows(digests)


def rows_read(digests: Sequence[bytes]) -> RawRows:
    """Return rows that were hashed part by part while they were read."""
    whole = b"".join(digests)
    return RawRows(lambda: whole)


def rows_together(parts: Sequence[RawRows]) -> RawRows:
    """Return the rows of several files together."""
    return RawRows(lambda: b"".join(part.digests() for part in parts))


def _each(digests: bytes) -> list[bytes]:
    return [digests[start : start + _SIZE] for start in range(0, len(digests), _SIZE)]


def digested(columns: Mapping[str, Cells]) -> bytes:
    """Return the digests of all rows; the names of the columns enter each digest."""
    names = sorted(columns)
    titles = hashlib.blake2b(repr(names).encode(), digest_size=_SIZE).digest()
    count = len(columns[names[0]])
    found = []
    for start in range(0, count, _CHUNK):
        cells = [columns[name][start : start + _CHUNK] for name in names]
        found.append(_chunk(cells, titles))
    return b"".join(found)


def _chunk(columns: Sequence[Cells], titles: bytes) -> bytes:
    """Return the bytes of each row.

    They are the kind of every cell, every cell as a number (0 for others), then the texts with their lengths.
    """
    rows, width = len(columns[0]), len(columns)
    kinds = np.full((rows, width), _NUMBER, dtype=np.uint8)
    values = np.zeros((rows, width), dtype="<f8")
    texts: list[Sequence[bytes]] = []
    for place, column in enumerate(columns):
        numbers, words = _settled(column)
        values[:, place] = numbers
        if words is not None:
            kinds[:, place] = np.fromiter((_TEXT if word else _NUMBER for word in words), dtype=np.uint8, count=rows)
            texts.append(words)
    missing = np.isnan(values)
    kinds[missing], values[missing] = _MISSING, 0.0
    values += 0.0  # turns minus zero into zero
    fixed = np.concatenate([kinds, values.view(np.uint8).reshape(rows, 8 * width)], axis=1).tobytes()
    size, blake = 9 * width, hashlib.blake2b
    parts = [fixed[start : start + size] for start in range(0, rows * size, size)]
    if texts:
        parts = [part + b"".join(words) for part, words in zip(parts, zip(*texts, strict=True), strict=True)]
    return b"".join([blake(part, key=titles, digest_size=_SIZE).digest() for part in parts])


def _settled(column: Cells) -> tuple[Array | list[float], Sequence[bytes] | None]:
    """Return a column's numbers (NaN if missing, 0 for a text) and, if there are texts, the text of each row or
    nothing.
    """
    if isinstance(column, np.ndarray) and column.dtype.kind in "biuf":
        return column.astype(np.float64), None
    cells = column.tolist() if isinstance(column, np.ndarray) else column
    try:
        return [float(cell) for cell in cells], None
    except ValueError:
        known: dict[str, tuple[float, bytes]] = {}  # a cache, because categories repeat
        for cell in cells:
            if cell not in known:
                known[cell] = _cell(str(cell).strip())
        pairs = [known[cell] for cell in cells]
        return [number for number, _ in pairs], [word for _, word in pairs]


def _cell(text: str) -> tuple[float, bytes]:
    if not text:
        return math.nan, b""
    try:
        return float(text), b""
    except ValueError:
        word = text.encode("utf-8", "surrogatepass")
        return 0.0, len(word).to_bytes(8, "little") + word
