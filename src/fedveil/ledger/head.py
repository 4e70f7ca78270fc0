"""The head of the books, in a small file beside them, detects books that have lost their last entries.

A commit lies in SQLite's write-ahead log until it is moved into the main file. A lost or damaged log takes the last
entries with it, and the rest looks like shorter, valid books. So the number and hash of the last entry are also written
to ``NAME.head`` after every commit, and compared whenever the books are opened.

A crash between the commit and this file leaves an older head, which the chain still contains. The file has a fixed size
and is written in place, so it needs no space on a full disk; under a lock, it only goes forward.
"""

import fcntl
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fedveil.ledger.entry import LedgerBroken

_LINE: Final = re.compile(rb"fedveil head 1 ([0-9]{20}) ([0-9a-f]{64})\n")


@dataclass(frozen=True, slots=True)
class Head:
    """Number and hash of the last recorded entry; number 0 if there was none."""

    sequence: int
    hash: str


def head_file(ledger: Path) -> Path:
    """Return the path of the head, beside the database itself even if ``ledger`` is a link to it."""
    real = ledger.resolve()
    return real.with_name(real.name + ".head")


def read_head(ledger: Path) -> Head | None:
    """Return the recorded head; None if there is none, or if its first writing was interrupted."""
    try:
        content = head_file(ledger).read_bytes()
    except FileNotFoundError:
        return None
    return _parsed(content, ledger)


def keep_head(ledger: Path, head: Head) -> None:
    """Write the head, unless a later one is there; it is on the disk when this returns."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    handle = os.open(head_file(ledger), flags, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)  # held until the handle is closed
        known = _parsed(os.pread(handle, 1000, 0), ledger)
        if known is None or known.sequence < head.sequence:
            os.pwrite(handle, f"fedveil head 1 {head.sequence:020d} {head.hash}\n".encode("ascii"), 0)
            os.fsync(handle)
    finally:
        os.close(handle)


def _parsed(content: bytes, ledger: Path) -> Head | None:
    if not content:
        return None
    found = _LINE.fullmatch(content)
    if found is None:
        raise LedgerBroken(0, f"the head that is kept beside it, {head_file(ledger).name}, cannot be read")
    return Head(int(found[1]), found[2].decode("ascii"))
