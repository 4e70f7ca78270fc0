"""A keyed hash of the values of a table: the ledger of a data set belongs to its rows, however they are written.

Two tables have the same fingerprint if they have the same columns and the same rows, each as often, in any order of
columns and rows. A cell is a number, a text, or missing. What reads as a number counts as that number to double
precision (``1``, ``1.0`` and ``1e0`` are one value; true is 1 and false is 0), texts count without the blanks around
them, and empty cells, nulls, NaN and the usual marks are all missing. So the delimiter, the format and the order of a
file do not matter, nor does what a study makes of the rows (scaling, bound, columns, clients); adding or removing a
row, or changing one value, gives another fingerprint but for a chance of less than 2^-89.

Each row is a linear form in secret coefficients, one for every column's number and one for every column and text; the
fingerprint is the product of (z + form) over the rows, modulo the prime 2^61 - 1, three times over with other
coefficients. Rows are taken some at a time, so a table need not fit in memory. Proof: docs/theory/fingerprint.md.
"""

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedveil.core.errors import require
from fedveil.data.cells import MISSING, Texts, number_of

Array = NDArray[Any]
Whole = NDArray[np.uint64]
_TRUTH: Final = {"true": 1.0, "false": 0.0}
PRIME: Final = 2**61 - 1
_TIMES: Final = 3
_CHUNK: Final = 2**15  # rows at a time: what the arithmetic needs then stays in the processor's cache
_KNOWN: Final = b"fedveil: rows that stand in two tables"  # compares rows within one process, where nothing is secret


Cells = Array | Texts  # one column: numbers (NaN: missing), or texts
Part = Mapping[str, Cells]  # some rows, column by column


@dataclass(frozen=True, slots=True, eq=False)
class RawRows:
    """The rows of a source, read part by part whenever they are asked for."""

    parts: Callable[[], Iterable[Part]]

    def fingerprint(self, key: bytes) -> str:
        """Return the keyed hash of the columns' names, the number of rows and the multiset of rows."""
        right = isinstance(key, bytes) and 16 <= len(key) <= 64
        require(right, "The key of a fingerprint", "be 16 to 64 secret bytes", type(key).__name__)
        rows, total, names = 0, [1] * _TIMES, set[tuple[str, ...]]()
        points = _coefficients(key, "point")
        for titles, forms in self._forms(key):
            names.add(titles)
            rows += forms.shape[1]
            for one in range(_TIMES):
                total[one] = total[one] * _product(_added(forms[one], np.uint64(points[one]))) % PRIME
        content = repr((sorted(names), rows, total)).encode()
        return hashlib.blake2b(content, key=key, digest_size=32, person=b"fedveil rows").hexdigest()

    def found_in(self, others: "RawRows") -> int:
        """Return how many of these rows are equal to one of the others; for the data holder, never for release."""
        known: dict[tuple[str, ...], list[Whole]] = {}
        for titles, forms in others._forms(_KNOWN):
            known.setdefault(titles, []).append(forms)
        joined = {titles: np.concatenate(parts, axis=1) for titles, parts in known.items()}
        count = 0
        for titles, forms in self._forms(_KNOWN):
            if titles in joined:
                there = joined[titles]
                near = np.isin(forms[0], there[0])
                if near.any():
                    like = set(zip(*there[:, np.isin(there[0], forms[0])].tolist(), strict=True))
                    count += sum(row in like for row in zip(*forms[:, near].tolist(), strict=True))
        return count

    def row_keys(self) -> list[tuple[Any, ...]]:
        """Return a key for each row, equal for rows of equal columns and values; for the data holder alone."""
        keys: list[tuple[Any, ...]] = []
        for titles, forms in self._forms(_KNOWN):
            keys += [(titles, *row) for row in zip(*forms.tolist(), strict=True)]
        return keys

    def _forms(self, key: bytes) -> Iterator[tuple[tuple[str, ...], Whole]]:
        """Yield the names of the columns and, for some rows, the values of their linear forms: one line a form."""
        for part in self.parts():
            rows = len(next(iter(part.values())))
            names = sorted(part)
            columns = [_Column.of(part[name], name, key) for name in names]
            for start in range(0, rows, _CHUNK):
                forms = np.zeros((_TIMES, min(_CHUNK, rows - start)), dtype=np.uint64)
                for column in columns:
                    column.add_to(forms, slice(start, start + _CHUNK))
                forms[forms == PRIME] = 0
                yield tuple(names), forms


@dataclass(frozen=True, slots=True, eq=False)
class _Column:
    """A column with its coefficients: of its numbers' upper and lower bits and of a missing one, or of every text."""

    cells: Cells
    upper: Sequence[int]
    lower: Sequence[int]
    missing: Sequence[int]
    words: Whole | None

    @classmethod
    def of(cls, cells: Cells, name: str, key: bytes) -> "_Column":
        own = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), key=key, digest_size=32).digest()
        upper, lower, missing = (_coefficients(own, role) for role in ("upper", "lower", "missing"))
        words = None
        if isinstance(cells, Texts):
            found = [_word(word, own, (upper, lower, missing)) for word in cells.words]
            words = np.array(found, dtype=np.uint64).reshape(-1, _TIMES).T
        return cls(cells, upper, lower, missing, words)

    def add_to(self, forms: Whole, rows: slice) -> None:
        """Add what these rows of the column contribute to their forms."""
        if isinstance(self.cells, Texts):
            assert self.words is not None  # noqa: S101  for the type checker
            for one in range(_TIMES):
                forms[one] = _added(forms[one], self.words[one][self.cells.codes[rows]])
            return
        values = self.cells[rows].astype(np.float64) + 0.0  # turns minus zero into zero
        gone = np.isnan(values)
        bits = values.view(np.uint64)
        high, low = bits >> np.uint64(32), bits & np.uint64(2**32 - 1)
        for one in range(_TIMES):
            found = _added(_times(high, self.upper[one]), _times(low, self.lower[one]))
            if gone.any():
                found[gone] = self.missing[one]
            forms[one] = _added(forms[one], found)


def _word(word: str, key: bytes, coefficients: Sequence[Sequence[int]]) -> list[int]:
    """Return what a text of a column adds to a form: as the number that it is, as a missing value, or as itself."""
    text = word.strip()
    number = _number(text)
    if number is None:
        result = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), key=key, digest_size=8 * _TIMES).digest()
        return [int.from_bytes(result[8 * one : 8 * one + 8], "little") % PRIME for one in range(_TIMES)]
    upper, lower, missing = coefficients
    if math.isnan(number):
        return list(missing)
    bits = int(np.float64(number + 0.0).view(np.uint64))
    high, low = bits >> 32, bits & (2**32 - 1)
    return [(a * high + b * low) % PRIME for a, b in zip(upper, lower, strict=True)]


def _number(text: str) -> float | None:
    """Return the number that a text is, NaN for a missing one; None for any other text."""
    if text in MISSING:
        return math.nan
    result = number_of(text)
    return _TRUTH.get(text.lower()) if result is None else result


def _coefficients(key: bytes, role: str) -> list[int]:
    result = hashlib.blake2b(role.encode(), key=key, digest_size=8 * _TIMES, person=b"fedveil form").digest()
    return [int.from_bytes(result[8 * one : 8 * one + 8], "little") % PRIME for one in range(_TIMES)]


def _reduced(values: Whole) -> Whole:
    """Return numbers below 2^64 modulo the prime, in [0, PRIME]; both ends stand for zero."""
    return (values & np.uint64(PRIME)) + (values >> np.uint64(61))


def _added(first: Whole, second: Whole | np.uint64) -> Whole:
    return _reduced(_reduced(first + second))


def _times(values: Whole, factor: int) -> Whole:
    """Return numbers of 32 bits times a number of 61 bits, modulo the prime."""
    upper, lower = np.uint64(factor >> 31), np.uint64(factor & (2**31 - 1))
    outer = values * upper  # times 2^31: the bits from 2^61 on wrap around
    moved = (outer >> np.uint64(30)) + ((outer & np.uint64(2**30 - 1)) << np.uint64(31))
    return _reduced(_reduced(values * lower) + moved)


def _product(values: Whole) -> int:
    """Return the product of all numbers modulo the prime, by halves."""
    while values.size > 1:
        half = values.size // 2
        both = _multiplied(values[:half], values[half : 2 * half])
        values = np.append(both, values[2 * half :])
    return int(values[0]) % PRIME if values.size else 1


def _multiplied(first: Whole, second: Whole) -> Whole:
    """Return products of numbers of 61 bits modulo the prime; 2^62 is 2, and the middle part wraps around at 2^61."""
    a, b = first >> np.uint64(31), first & np.uint64(2**31 - 1)
    c, d = second >> np.uint64(31), second & np.uint64(2**31 - 1)
    middle = a * d + b * c
    moved = (middle >> np.uint64(30)) + ((middle & np.uint64(2**30 - 1)) << np.uint64(31))
    return _reduced(_reduced(_reduced(b * d) + moved) + _reduced(np.uint64(2) * (a * c)))


def rows_of(columns: Part) -> RawRows:
    """Return the rows of these columns, which must not change."""
    return RawRows(lambda: (columns,))


def rows_together(parts: Sequence[RawRows]) -> RawRows:
    """Return the rows of several files together."""
    return RawRows(lambda: (part for one in parts for part in one.parts()))


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
