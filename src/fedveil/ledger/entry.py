"""One entry of the books, and the chain of hashes that links the entries.

The hash of an entry covers its place, the hash before it, and a digest of its content. With the separate digest, an
export can show another run's entry without its content, and every link can still be recomputed.
"""

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, get_args

from fedveil.core.errors import BadValue, FedveilError, require
from fedveil.core.files import read_file
from fedveil.core.strict_json import read_json

Kind = Literal["cap", "charge", "progress", "release", "failed"]
GENESIS = "0" * 64  # the hash before the first entry
ALL_RUNS = "*"  # the name under which caps are recorded; no run can have it
RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
UTC = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?Z")
HASH = re.compile(r"[0-9a-f]{64}")


class LedgerBroken(FedveilError):
    """The books, or an export, were altered or damaged; ``entry`` is the first wrong entry, 0 for the whole."""

    def __init__(self, entry: int, why: str) -> None:
        what = f"Entry {entry} of the ledger" if entry else "The ledger"
        super().__init__(f"{what} is broken: {why}.")
        self.entry = entry


def plain(name: str, value: Any) -> Any:
    """Return a copy made of JSON's own types; refuse what JSON would change silently (NaN, keys that are numbers)."""
    match value:
        case None | bool() | str():
            return value
        case Integral():
            return int(value)
        case Real():
            require(math.isfinite(value), name, "hold finite numbers only", value)
            return float(value)
        case list() | tuple():
            return [plain(name, item) for item in value]
        case Mapping():
            require(all(type(key) is str for key in value), name, "have text keys only", list(value))
            return {key: plain(name, item) for key, item in value.items()}
        case _:
            raise BadValue(f"{name} must be made of plain JSON values, got {type(value).__name__}.")


def canonical(value: Any) -> str:
    """Return a plain value in canonical form.

    Keys are sorted; there are no spaces; text is ASCII; numbers are the shortest that read back the same.

    >>> canonical({"b": [1, 0.1], "a": None})
    '{"a":null,"b":[1,0.1]}'
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def parse(text: str) -> Any:
    """Read JSON that must be in canonical form, so that each value has one text and one hash."""
    try:
        value = read_json(text, "it")
        same = canonical(value) == text
    except (ValueError, RecursionError) as error:
        raise ValueError("it is not JSON") from error
    if not same:
        raise ValueError("it is not in canonical form")
    return value


def sha256(text: str) -> str:
    """Return the hexadecimal SHA-256 of ASCII text."""
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def link(sequence: int, previous: str, digest: str) -> str:
    """Return the hash of the entry at this place, after the previous hash, with this content digest."""
    return sha256(canonical([sequence, previous, digest]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One entry: round 0 of a run is its charge, rounds 1 to T its progress, round T + 1 its release or failure."""

    sequence: int
    previous: str
    run: str
    round: int
    kind: Kind
    payload: Mapping[str, Any]
    at: str | None = None

    def __post_init__(self) -> None:
        require(type(self.sequence) is int and self.sequence >= 1, "Entry.sequence", "be at least 1", self.sequence)
        known = isinstance(self.previous, str) and HASH.fullmatch(self.previous)
        require(known, "Entry.previous", "be 64 hexadecimal digits", self.previous)
        require(self.kind in get_args(Kind), "Entry.kind", f"be one of {', '.join(get_args(Kind))}", self.kind)
        check_run(self.run) if self.kind != "cap" else require(self.run == ALL_RUNS, "Entry.run", "be *", self.run)
        right = type(self.round) is int and 0 <= self.round < 2**62
        require(right, "Entry.round", "be a whole number, at least 0", self.round)
        placed = self.kind == "cap" or (self.round == 0) == (self.kind == "charge")
        require(placed, "Entry.round", "be 0 for a charge and only for a charge", self.round)
        timed = self.at is None or (isinstance(self.at, str) and UTC.fullmatch(self.at))
        require(timed, "Entry.at", "be absent or UTC like 2026-01-31T12:00:00Z", self.at)
        require(isinstance(self.payload, Mapping), "Entry.payload", "be a mapping", self.payload)
        object.__setattr__(self, "payload", MappingProxyType(plain("Entry.payload", self.payload)))

    @property
    def content(self) -> dict[str, Any]:
        """Return what happened, without the place in the chain."""
        return {
            "run": self.run,
            "round": self.round,
            "kind": self.kind,
            "payload": dict(self.payload),
            "at": self.at,
        }

    @property
    def digest(self) -> str:
        """SHA-256 of the content."""
        return sha256(canonical(self.content))

    @property
    def hash(self) -> str:
        """SHA-256 of place, previous hash and digest."""
        return link(self.sequence, self.previous, self.digest)


def check_run(run: str) -> None:
    """Refuse a run's name that does not fit in a file name and a message."""
    rule = "be up to 100 letters, digits, dots, dashes or underscores, starting with a letter or digit"
    require(isinstance(run, str) and RUN.fullmatch(run), "run", rule, run)


def check_stories(entries: Iterable[Entry]) -> None:
    """Check that every run is charged first, goes forward and ends once; ``LedgerBroken`` names the first violation."""
    rounds: dict[str, int] = {}
    latest: dict[str, Entry] = {}
    for entry in entries:
        if entry.kind == "cap":
            continue
        before = latest.get(entry.run)
        if (before is None) != (entry.kind == "charge"):
            raise LedgerBroken(entry.sequence, f"run {entry.run} must be charged first, and once")
        if before is None:
            rounds[entry.run] = entry.payload.get("rounds", 0)
            if type(rounds[entry.run]) is not int or rounds[entry.run] < 1:
                raise LedgerBroken(entry.sequence, "it does not say how many rounds are charged")
        elif before.kind in ("release", "failed") or entry.round <= before.round:
            raise LedgerBroken(entry.sequence, f"run {entry.run} goes on after round {before.round}, its {before.kind}")
        last = rounds[entry.run] + 1
        if (entry.round == last) != (entry.kind in ("release", "failed")) or entry.round > last:
            raise LedgerBroken(entry.sequence, f"run {entry.run} has {last - 1} rounds")
        latest[entry.run] = entry


# The publishable part of the books for one run: its entries and the caps in full, of other runs only digests.
#
# One JSON object a line: a head line, then every entry from the first of the books to the run's last. A digest is
# enough to recompute the hash of a hidden entry, so every link of the chain can be checked without knowing what others
# did.

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
        entry, result = None, link(sequence, previous, digest)
    else:
        try:
            entry = Entry(**{key: value for key, value in line.items() if key != "hash"}, previous=previous)
        except ValueError as error:
            raise LedgerBroken(sequence, str(error).rstrip(".")) from error
        if entry.run != run and entry.kind != "cap":
            raise LedgerBroken(sequence, f"it belongs to run {entry.run}")
        result = entry.hash
    if result != line["hash"]:
        raise LedgerBroken(sequence, "its content and its hash differ")
    return result, entry


def _place(data: bytes) -> str:
    """Return which line cannot be read."""
    for number, line in enumerate(data.split(b"\n"), start=1):
        try:
            parse(line.decode("ascii"))
        except ValueError as error:
            return f"line {number} is not ({error})"
    return "the first line is not an object"
