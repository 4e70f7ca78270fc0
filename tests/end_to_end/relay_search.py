"""A search of everything that a relay has on its disk for numbers that it must not know.

Needles have at least 64 bits: with 2**14 of them in 2**24 bytes of logs, a false alarm has a chance below 2**-25.
Printed whole numbers have eleven digits or more and must stand alone, so that they are not met within the long names
(hexadecimal, or 19 digits) that logs are full of.
"""

import os
import re
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

LEAST_DIGITS = 11  # shorter whole numbers stand in logs by chance


def needles(rows: Iterable[Any]) -> list[bytes]:
    """Neighbours in a row as they lie in memory, as 64 or 32 bits wide, and the same in hexadecimal."""
    found: list[bytes] = []
    for row in rows:
        for kind in (row.dtype, np.dtype("<f8"), np.dtype("<f4")):
            found += _neighbours(row.astype(kind))
    return [*found, *(needle.hex().encode() for needle in found)]


def _neighbours(row: Any) -> list[bytes]:
    """Two at a time, so that a needle has at least 64 bits; zeros stand everywhere."""
    return [pair.tobytes() for pair in (row[at : at + 2] for at in range(row.size - 1)) if np.all(pair != 0)]


def digits(rows: Iterable[Any]) -> set[bytes]:
    """Each number as somebody would print it, without its sign: as much of it as every way of printing gives."""
    found: set[bytes] = set()
    for value in (value for row in rows for value in row):
        if isinstance(value, np.integer):
            whole = str(abs(int(value)))
            found |= {whole.encode()} if len(whole) >= LEAST_DIGITS else set()
        elif abs(value) > 1e-3:
            found.add(repr(abs(float(value)))[:9].encode())
    return found


def leaks(folders: Sequence[Path], rows: Sequence[Any]) -> list[str]:
    """Files in which a number of these rows stands."""
    bits, printed = needles(rows), digits(rows)
    files = sorted({path for folder in folders for path in folder.rglob("*") if path.is_file()})
    return [str(path) for path in files if _holds(path.read_bytes(), bits, printed)]


def _holds(data: bytes, bits: list[bytes], printed: set[bytes]) -> bool:
    if any(needle in data for needle in bits):
        return True
    # A printed whole number stands alone or before a point; a fraction goes on as long as its printer likes.
    seen = set(re.findall(rb"(?<![0-9A-Za-z])[0-9]{%d,18}(?![0-9A-Za-z])" % LEAST_DIGITS, data))
    seen |= {found[:9] for found in re.findall(rb"[0-9]+\.[0-9]{5,}", data)}
    return bool(seen & printed)


def written_by(pids: Iterable[int]) -> set[Path]:
    """Regular files that these processes have open for writing now, deleted ones too."""
    found: set[Path] = set()
    for process in (Path(f"/proc/{pid}") for pid in pids):
        for handle in (process / "fd").iterdir():
            try:
                text = (process / "fdinfo" / handle.name).read_text()
                regular, target = stat.S_ISREG(handle.stat().st_mode), handle.readlink()
            except FileNotFoundError:  # closed meanwhile
                continue
            flags = int(text.partition("flags:")[2].split()[0], 8)
            if regular and flags & os.O_ACCMODE != os.O_RDONLY:
                found.add(target)
    return found
