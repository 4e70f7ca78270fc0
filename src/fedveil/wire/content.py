"""The content of an envelope: a few named values and named rows of numbers, as plain bytes.

A line of JSON says what follows; rows are little-endian int64 or float64. Reading it can never run code.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedveil.core.errors import require
from fedveil.core.strict_json import read_object
from fedveil.wire.envelope import Refused

Rows = NDArray[np.int64] | NDArray[np.float64]
_TYPES: Final = {"<i8": np.int64, "<f8": np.float64}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Content:
    """Values that JSON can hold, rows of numbers by name, and blocks of bytes by name."""

    values: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    rows: Mapping[str, Rows] = field(default_factory=lambda: MappingProxyType({}))
    blocks: Mapping[str, bytes] = field(default_factory=lambda: MappingProxyType({}))

    def __post_init__(self) -> None:
        for name, row in self.rows.items():
            flat = isinstance(row, np.ndarray) and row.ndim == 1 and row.dtype in (np.int64, np.float64)
            require(flat, f"Content.rows[{name}]", "be one row of int64 or float64", getattr(row, "dtype", type(row)))

    def write(self) -> bytes:
        """Return the content as bytes; equal contents give equal bytes."""
        rows = [(name, _kind(self.rows[name]), int(self.rows[name].size)) for name in sorted(self.rows)]
        blocks = [(name, len(self.blocks[name])) for name in sorted(self.blocks)]
        head = {"values": dict(self.values), "rows": rows, "blocks": blocks}
        parts = [json.dumps(head, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii"), b"\n"]
        parts += [self.rows[name].astype(kind).tobytes() for name, kind, _ in rows]
        parts += [self.blocks[name] for name, _ in blocks]
        return b"".join(parts)

    @classmethod
    def read(cls, data: bytes) -> "Content":
        """Read what :meth:`write` wrote; refuse anything else."""
        line, found, rest = data.partition(b"\n")
        try:
            head = read_object(line, "head")
            values, rows, blocks = head["values"], head["rows"], head["blocks"]
            sizes = [8 * _whole(size) for _, _, size in rows] + [_whole(size) for _, size in blocks]
            if not found or set(head) != {"values", "rows", "blocks"} or not isinstance(values, dict):
                raise Refused("malformed")
            if sum(sizes) != len(rest):
                raise Refused("malformed")
            return cls(values=values, rows=_rows(rows, rest), blocks=_blocks(blocks, rest, 8 * sum(r[2] for r in rows)))
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise Refused("malformed") from error


def filled(size: int) -> Content:
    """Return a content of this length that says nothing.

    >>> len(filled(100).write())
    100
    """
    least = len(Content(values={"pad": ""}).write())
    return Content(values={"pad": "0" * max(size - least, 0)})


def _rows(listed: list[Any], rest: bytes) -> dict[str, Rows]:
    result: dict[str, Rows] = {}
    start = 0
    for name, kind, size in listed:
        wanted: Any = _TYPES[kind]  # only these two types are ever given to numpy
        result[str(name)] = np.frombuffer(rest, dtype=kind, count=size, offset=start).astype(wanted)
        start += 8 * size
    return result


def _blocks(listed: list[Any], rest: bytes, start: int) -> dict[str, bytes]:
    result: dict[str, bytes] = {}
    for name, size in listed:
        result[str(name)] = rest[start : start + size]
        start += size
    return result


def _kind(row: Rows) -> str:
    return next(name for name, dtype in _TYPES.items() if row.dtype == dtype)


def _whole(size: Any) -> int:
    if type(size) is not int or size < 0:
        raise Refused("malformed")
    return size
