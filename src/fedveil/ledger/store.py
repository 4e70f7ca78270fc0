"""The SQLite file of the books: created completely or not at all, private, and append-only by SQL triggers.

A commit is on the disk before it returns (write-ahead log, synchronous FULL). Triggers refuse everything but the next
entry, so neither a mistake in the code above nor a person at a prompt can change, remove or skip one.
"""

import fcntl
import os
import re
import sqlite3
import stat
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from fedveil.core.errors import BadValue, FedveilError
from fedveil.core.files import link_new
from fedveil.ledger.entry import GENESIS, Entry, LedgerBroken, check_stories, parse

# The head of the books, in a small file beside them, detects books that have lost their last entries.
#
# A commit lies in SQLite's write-ahead log until it is moved into the main file. A lost or damaged log takes the last
# entries with it, and the rest looks like shorter, valid books. So the number and hash of the last entry are also
# written to ``NAME.head`` after every commit, and compared whenever the books are opened.
#
# A crash between the commit and this file leaves an older head, which the chain still contains. The file has a fixed
# size and is written in place, so it needs no space on a full disk; under a lock, it only goes forward.

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


FORMAT = 1
APPLICATION = 0x66765F31  # "fv_1": marks our files among SQLite files
_WRITE_AHEAD = bytes([2, 2])  # write and read versions, bytes 18 and 19 of every SQLite file

_OUTSIDE = {
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_INTERRUPT,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PROTOCOL,
    sqlite3.SQLITE_NOLFS,
    sqlite3.SQLITE_AUTH,
}

SCHEMA = """
CREATE TABLE books (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    format INTEGER NOT NULL,
    key BLOB NOT NULL CHECK (length(key) = 32),
    fingerprint TEXT NOT NULL
) STRICT;
CREATE TABLE contents (keyed TEXT PRIMARY KEY) STRICT;
CREATE TABLE entries (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT,
    previous TEXT NOT NULL,
    run TEXT NOT NULL,
    round INTEGER NOT NULL CHECK (round >= 0),
    kind TEXT NOT NULL CHECK (kind IN ('cap', 'charge', 'progress', 'release', 'failed')),
    payload TEXT NOT NULL,
    at TEXT,
    hash TEXT NOT NULL CHECK (length(hash) = 64),
    UNIQUE (run, round)
) STRICT;
CREATE TRIGGER books_stay BEFORE UPDATE ON books BEGIN SELECT RAISE(ABORT, 'the books never change'); END;
CREATE TRIGGER books_remain BEFORE DELETE ON books BEGIN SELECT RAISE(ABORT, 'the books never change'); END;
CREATE TRIGGER books_once BEFORE INSERT ON books WHEN EXISTS (SELECT 1 FROM books)
    BEGIN SELECT RAISE(ABORT, 'the books never change'); END;
CREATE TRIGGER entries_stay BEFORE UPDATE ON entries BEGIN SELECT RAISE(ABORT, 'entries never change'); END;
CREATE TRIGGER entries_remain BEFORE DELETE ON entries BEGIN SELECT RAISE(ABORT, 'entries never go'); END;
CREATE TRIGGER entries_follow BEFORE INSERT ON entries BEGIN
    SELECT RAISE(ABORT, 'not the next entry')
        WHERE NEW.sequence IS NOT 1 + coalesce((SELECT max(sequence) FROM entries), 0);
    SELECT RAISE(ABORT, 'not linked to the last entry')
        WHERE NEW.previous IS NOT coalesce((SELECT hash FROM entries ORDER BY sequence DESC LIMIT 1), 'GENESIS');
    SELECT RAISE(ABORT, 'this round is in the books')
        WHERE EXISTS (SELECT 1 FROM entries WHERE run = NEW.run AND round = NEW.round);
    SELECT RAISE(ABORT, 'a charge, and only a charge, is round 0')
        WHERE NEW.kind <> 'cap' AND (NEW.kind = 'charge') <> (NEW.round = 0);
    SELECT RAISE(ABORT, 'this run was never charged') WHERE NEW.kind NOT IN ('cap', 'charge')
        AND NOT EXISTS (SELECT 1 FROM entries WHERE run = NEW.run AND kind = 'charge');
    SELECT RAISE(ABORT, 'this run has ended')
        WHERE EXISTS (SELECT 1 FROM entries WHERE run = NEW.run AND kind IN ('release', 'failed'));
END;
""".replace("GENESIS", GENESIS)


class LedgerUnusable(FedveilError):
    """The file cannot be read or written now: a full disk, a lock that is not released, a file of another kind."""


def create(path: Path, fingerprint: Callable[[bytes], str], urandom: Callable[[int], bytes]) -> None:
    """Create new books at ``path``, unless another process is faster.

    They are built and checked in memory, written to a file without a name, read back, and then linked to their name. So
    nobody ever sees half a ledger, even if the disk is full or the process is killed.
    """
    for remains in (path.with_name(path.name + extra) for extra in ("-wal", "-shm", "-journal")):
        if remains.exists() and not path.exists():  # SQLite would apply the log of another ledger to the new one
            raise BadValue(f"{remains} must not lie alone: bring back its ledger {path.name}, or remove both.")
    try:
        link_new(path, _empty_books(urandom(32), fingerprint))
    except FileExistsError:
        pass
    except OSError as error:
        raise LedgerUnusable(f"A ledger cannot be made in {path.parent}: {error.strerror or error}.") from error


def _empty_books(key: bytes, fingerprint: Callable[[bytes], str]) -> bytes:
    """Return the bytes of books without entries."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        connection.execute(f"PRAGMA application_id = {APPLICATION}")
        connection.executescript(f"BEGIN IMMEDIATE; {SCHEMA}")
        connection.execute("INSERT INTO books VALUES (1, ?, ?, ?)", (FORMAT, key, fingerprint(key)))
        connection.execute("COMMIT")
        (found,) = connection.execute("PRAGMA integrity_check").fetchone()
        if found != "ok" or identity(connection) != (FORMAT, key, fingerprint(key)):
            raise LedgerBroken(0, f"new books are not in order: {found}")
        image = bytearray(connection.serialize())
    image[18:20] = _WRITE_AHEAD  # a database in memory cannot have a write-ahead log, but the file shall have one
    return bytes(image)


def connect(path: Path, patience: float) -> sqlite3.Connection:
    """Return a connection to existing books, configured so that a commit is on the disk."""
    if sqlite3.sqlite_version_info < (3, 37):
        raise LedgerUnusable(f"A ledger needs SQLite 3.37 or later, this is {sqlite3.sqlite_version}.")
    loose = stat.S_IMODE(path.stat().st_mode) & 0o077
    if loose:
        raise BadValue(f"The ledger {path} must be closed to other users; close it with: chmod 600 {path}")
    uri = f"{path.resolve().as_uri()}?mode=rw"  # mode rw never creates an empty file
    connection = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=patience)
    try:
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        if application != APPLICATION:
            if head_file(path).exists():  # it was one of our ledgers
                raise LedgerBroken(0, f"the file {path} is damaged (its mark is gone); bring back a copy of it")
            raise BadValue(f"{path} must be a ledger of this program, and it is another database.")
        for pragma in ("synchronous = FULL", "fullfsync = ON", "trusted_schema = OFF"):
            connection.execute(f"PRAGMA {pragma}")
        (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise LedgerUnusable(f"The ledger {path} lies where no write-ahead log is possible; use a local disk.")
    except BaseException:
        connection.close()
        raise
    return connection


def settle(path: Path) -> None:
    """Move what a killed process left in the log beside the books into the books."""
    with plainly(path):
        connect(path, patience=60.0).close()


def identity(connection: sqlite3.Connection) -> tuple[int, bytes, str]:
    """Return the format, the key and the keyed fingerprint."""
    found = connection.execute("SELECT format, key, fingerprint FROM books").fetchone()
    if found is None:
        raise LedgerBroken(0, "the books' own line is missing")
    form, key, fingerprint = found
    if not (type(form) is int and isinstance(key, bytes) and len(key) == 32 and isinstance(fingerprint, str)):
        raise LedgerBroken(0, "the books' own line is damaged")
    return form, key, fingerprint


def knows_content(connection: sqlite3.Connection, keyed: str) -> bool:
    """Return whether a source with this content, as a keyed digest, was charged in these books."""
    return connection.execute("SELECT 1 FROM contents WHERE keyed = ?", (keyed,)).fetchone() is not None


def remember_content(connection: sqlite3.Connection, keyed: str) -> None:
    """Remember a source's content, by which the books are found again however its rows are read."""
    connection.execute("INSERT OR IGNORE INTO contents VALUES (?)", (keyed,))


def hash_at(connection: sqlite3.Connection, sequence: int) -> str | None:
    """Return the hash of the entry at this place; None if there is none."""
    result = connection.execute("SELECT hash FROM entries WHERE sequence = ?", (sequence,)).fetchone()
    return None if result is None else str(result[0])


@contextmanager
def plainly(path: Path) -> Iterator[None]:
    """Turn errors of SQLite and of the disk into one sentence.

    :class:`LedgerUnusable` for causes outside the file (locks, permissions, a full disk), and :class:`LedgerBroken` for
    everything else that SQLite reports, which means a damaged file.
    """
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        text = str(error)
        if isinstance(error, sqlite3.Error) and not _outside(error, path):
            raise LedgerBroken(0, f"the file {path} is damaged ({text}); bring back a copy of it") from error
        hint = " Another process holds it; try again later." if "locked" in text else ""
        raise LedgerUnusable(f"The ledger {path} cannot be used: {text}.{hint}") from error


def _outside(error: sqlite3.Error, path: Path) -> bool:
    """Return whether the cause of an error lies outside the file.

    A file that ends too early is damaged, and so is one that calls itself read-only although we may write to it.
    """
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT)
    if code & 0xFF == sqlite3.SQLITE_READONLY:
        return not (os.access(path, os.W_OK) and os.access(path.resolve().parent, os.W_OK))
    return code != sqlite3.SQLITE_IOERR_SHORT_READ and code & 0xFF in _OUTSIDE


@contextmanager
def transaction(connection: sqlite3.Connection, *, writing: bool) -> Iterator[None]:
    """Hold one view of the books; a writer is alone from the first read to the commit, and writes all or nothing."""
    connection.execute("BEGIN IMMEDIATE" if writing else "BEGIN")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def append(connection: sqlite3.Connection, entry: Entry, payload: str) -> None:
    """Write the next entry."""
    row = (entry.sequence, entry.previous, entry.run, entry.round, entry.kind, payload, entry.at, entry.hash)
    connection.execute("INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)


def head(connection: sqlite3.Connection) -> tuple[int, str]:
    """Return the sequence number and the hash of the last entry."""
    result = connection.execute("SELECT sequence, hash FROM entries ORDER BY sequence DESC LIMIT 1").fetchone()
    return (0, GENESIS) if result is None else (int(result[0]), str(result[1]))


def entry_of(row: tuple[Any, ...]) -> Entry:
    """Return an entry as it is stored; raise ``LedgerBroken`` if it does not match its hash."""
    sequence, previous, run, round_, kind, payload, at, stored = row
    try:
        content = parse(payload)
        entry = Entry(sequence=sequence, previous=previous, run=run, round=round_, kind=kind, payload=content, at=at)
    except (ValueError, TypeError) as error:
        raise LedgerBroken(sequence, str(error).rstrip(".")) from error
    if entry.hash != stored:
        raise LedgerBroken(sequence, "its content and its hash differ")
    return entry


def of_run(connection: sqlite3.Connection, run: str) -> list[Entry]:
    """Return a run's entries, each checked against its own hash."""
    query = "SELECT * FROM entries WHERE run = ? ORDER BY sequence"
    return [entry_of(row) for row in connection.execute(query, (run,))]


def at_round(connection: sqlite3.Connection, run: str, number: int) -> Entry | None:
    """Return a run's entry of this round; round 0 is its charge."""
    result = connection.execute("SELECT * FROM entries WHERE run = ? AND round = ?", (run, number)).fetchone()
    return None if result is None else entry_of(result)


def last_of(connection: sqlite3.Connection, run: str) -> Entry | None:
    """Return a run's latest entry."""
    query = "SELECT * FROM entries WHERE run = ? ORDER BY round DESC LIMIT 1"
    result = connection.execute(query, (run,)).fetchone()
    return None if result is None else entry_of(result)


def everything(connection: sqlite3.Connection) -> list[Entry]:
    """Return all entries, after checking the whole chain."""
    entries: list[Entry] = []
    previous = GENESIS
    for place, row in enumerate(connection.execute("SELECT * FROM entries ORDER BY sequence"), start=1):
        if row[0] != place or row[1] != previous:
            raise LedgerBroken(place, "it does not follow the one before")
        entries.append(entry_of(row))
        previous = row[7]
    counted = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'entries'").fetchone()
    written = int(counted[0]) if counted else 0
    if written != len(entries):
        raise LedgerBroken(len(entries) + 1, f"{written} entries were written and {len(entries)} are left")
    check_stories(entries)
    return entries
