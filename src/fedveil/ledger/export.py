"""The publishable part of the books for one run: its entries and the caps in full, of other runs only digests.

One JSON object a line: a head line, then every entry from the first of the books to the run's last. A digest is enough
to recompute the hash of a hidden entry, so every link of the chain can be checked without knowing what others did.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedveil.core.errors import BadValue, require
from fedveil.core.files import read_file
from fedveil.ledger.entry import GENESIS, HASH, Entry, LedgerBroken, canonical, check_run, check_stories, link, parse

FORMAT = "fedveil ledger 1"
_SHOWN = {"sequence", "run", "round", "kind", "payload", "at", "hash"}
_HIDDEN = {"sequence", "digest", "hash"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """The checked content of an export: the run's own entries, the caps before its end, and the end of the chain."""

    run: str
    entries: tuple[Entry, ...]
    caps: tuple[Entry, ...]
    length: int
    head: str


def write_export(run: str, entries: Sequence[Entry]) -> bytes:
    """Return the lines of the export for one run, given all entries of the books."""
    own = [entry.sequence for entry in entries if entry.run == run]
    require(own, "run", "be in the ledger", run)
    shown = entries[: own[-1]]
    lines: list[dict[str, Any]] = [
        {"format": FORMAT, "run": run, "entries": len(shown), "head": shown[-1].hash},
    ]
    for entry in shown:
        full = entry.run == run or entry.kind == "cap"
        known = entry.content if full else {"digest": entry.digest}
        lines.append({"sequence": entry.sequence, **known, "hash": entry.hash})
    return "".join(canonical(line) + "\n" for line in lines).encode("ascii")


def read_export(path: Path) -> list[Entry]:
    """Return the run's own entries, after checking the whole chain."""
    try:
        data = read_file(Path(path))
    except OSError as error:
        raise BadValue(f"The run's record {Path(path).name} must be readable: {error.strerror}.") from error
    return list(parse_export(data).entries)


def parse_export(data: bytes) -> Export:
    """Read and check an export: form, links, order of the run; :class:`LedgerBroken` names the first wrong entry."""
    try:
        lines = [parse(line) for line in data.decode("ascii").removesuffix("\n").split("\n")]
        head = lines[0]
        right = set(head) == {"format", "run", "entries", "head"} and head["format"] == FORMAT
    except (ValueError, TypeError) as error:
        raise BadValue(f"A ledger's export must be lines of canonical JSON, and {_place(data)}.") from error
    require(right, "A ledger's export", f"begin with the format {FORMAT!r}", str(head)[:200])
    check_run(head["run"])
    shown: list[Entry] = []
    previous = GENESIS
    for sequence, line in enumerate(lines[1:], start=1):
        previous, entry = _follow(sequence, previous, line, head["run"])
        shown += [entry] if entry else []
    if head["entries"] != len(lines) - 1:
        raise LedgerBroken(len(lines), f"the export promises {head['entries']} entries and holds {len(lines) - 1}")
    own = tuple(entry for entry in shown if entry.run == head["run"])
    if head["head"] != previous or not own or own[-1].hash != previous:
        raise LedgerBroken(len(lines) - 1, "it is not the run's last entry that the export promises")
    check_stories(own)
    caps = tuple(entry for entry in shown if entry.kind == "cap")
    return Export(run=head["run"], entries=own, caps=caps, length=len(lines) - 1, head=previous)


def _follow(sequence: int, previous: str, line: Any, run: str) -> tuple[str, Entry | None]:
    """Return the hash of the next line, and its entry if it is shown."""
    keys = set(line) if isinstance(line, dict) else set()
    if keys not in (_SHOWN, _HIDDEN) or type(line["sequence"]) is not int or line["sequence"] != sequence:
        raise LedgerBroken(sequence, "it is not the line that should follow")
    if keys == _HIDDEN:
        digest = line["digest"]
        if not (isinstance(digest, str) and HASH.fullmatch(digest)):
            raise LedgerBroken(sequence, "its digest is not a SHA-256")
        entry, found = None, link(sequence, previous, digest)
    else:
        try:
            entry = Entry(**{key: value for key, value in line.items() if key != "hash"}, previous=previous)
        except ValueError as error:
            raise LedgerBroken(sequence, str(error).rstrip(".")) from error
        if entry.run != run and entry.kind != "cap":
            raise LedgerBroken(sequence, f"it belongs to run {entry.run}")
        found = entry.hash
    if found != line["hash"]:
        raise LedgerBroken(sequence, "its content and its hash differ")
    return found, entry


def _place(data: bytes) -> str:
    """Return which line cannot be read."""
    for number, line in enumerate(data.split(b"\n"), start=1):
        try:
            parse(line.decode("ascii"))
        except ValueError as error:
            return f"line {number} is not ({error})"
    return "the first line is not an object"
