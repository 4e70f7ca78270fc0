"""Books that were altered, forged, cut short or are no books at all: found, named, refused."""

import math
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedveil.core.errors import BadValue, FedveilError
from fedveil.ledger.books import Ledger
from fedveil.ledger.entry import Entry, Kind, LedgerBroken, canonical, parse_export, write_export
from fedveil.ledger.store import LedgerUnusable
from unit.books import MODEL, cap, cost, data


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open(tmp_path / "books.sqlite", data) as opened:
        yield opened


def raw(path: Path) -> Any:
    return closing(sqlite3.connect(path, isolation_level=None))


def filled(path: Path) -> int:
    with Ledger.open(path, data) as ledger:
        ledger.charge("a", "plan", [cost()], rounds=3, caps=[cap()], at="2026-01-31T12:00:00Z")
        ledger.charge("b", "plan", [cost()], rounds=3)
        ledger.progress("a", 1)
        ledger.release("a", MODEL)
        return ledger.verify()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE entries SET payload = '{}' WHERE sequence = 2",
        "DELETE FROM entries WHERE sequence = 5",
        "DELETE FROM entries",
        "UPDATE books SET fingerprint = ''",
        "DELETE FROM books",
        "INSERT OR REPLACE INTO books VALUES (1, 1, zeroblob(32), '')",
        "INSERT OR REPLACE INTO entries SELECT sequence, previous, run, round, kind, '{}', at, hash FROM entries",
        "INSERT INTO entries SELECT sequence + 5, previous, 'c', 0, kind, payload, at, hash FROM row 2",
        "INSERT OR IGNORE INTO entries SELECT 6, hash, 'c', 1, 'release', '{}', at, hash FROM row 5",
        "INSERT OR REPLACE INTO entries SELECT 6, hash, 'b', 0, 'charge', '{}', at, hash FROM row 5",
        "INSERT INTO entries SELECT 6, hash, 'a', 3, 'progress', '{}', at, hash FROM row 5",
        "INSERT INTO entries SELECT 6, hash, 'b', 1, 'charge', '{}', at, hash FROM row 5",
        "INSERT INTO entries SELECT 6, hash, 'b', 1, 'gift', '{}', at, hash FROM row 5",
        "INSERT INTO entries SELECT 6, hash, 'b', 'one', 'progress', '{}', at, hash FROM row 5",
        "INSERT INTO entries SELECT 6, hash, 'b', 1, 'progress', x'00', at, hash FROM row 5",
    ],
)
def test_sql_itself_refuses_to_rewrite_the_books(tmp_path: Path, statement: str) -> None:
    filled(tmp_path / "books")
    with raw(tmp_path / "books") as connection, pytest.raises(sqlite3.IntegrityError):
        connection.execute(statement.replace("FROM row ", "FROM entries WHERE sequence = "))
    with Ledger.open(tmp_path / "books", data) as ledger:
        assert ledger.verify() == 5


def verified(path: Path) -> int:
    with Ledger.open(path, data) as ledger:
        return ledger.verify()


COLUMNS = {
    "previous": "'" + "1" * 64 + "'",
    "run": "'z'",
    "round": "round + 40",
    "kind": "CASE kind WHEN 'failed' THEN 'release' ELSE 'failed' END",
    "payload": "replace(payload, '1', '2')",
    "at": "'2020-01-01T00:00:00Z'",
    "hash": "'" + "2" * 64 + "'",
    "sequence": "sequence + 100",
}


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("row", [1, 2, 3, 4, 5])
def test_a_changed_row_is_found_and_named(tmp_path: Path, column: str, row: int) -> None:
    filled(tmp_path / "books")
    with raw(tmp_path / "books") as connection:
        connection.execute("DROP TRIGGER entries_stay")
        change = COLUMNS[column] if (column, row) != ("payload", 4) else "'{\"x\":1}'"  # that payload is {}
        changed = connection.execute(f"UPDATE entries SET {column} = {change} WHERE sequence = {row}").rowcount
    assert changed == 1
    with pytest.raises(LedgerBroken, match=rf"Entry {row} of the ledger is broken") as found:
        verified(tmp_path / "books")
    assert found.value.entry == row
    with pytest.raises(LedgerBroken), Ledger.open(tmp_path / "books", data) as ledger:
        ledger.charge("c", "plan", [cost()], rounds=1)


@pytest.mark.parametrize("row", [1, 2, 3, 4, 5])
def test_a_missing_row_is_found(tmp_path: Path, row: int) -> None:
    filled(tmp_path / "books")
    with raw(tmp_path / "books") as connection:
        connection.execute("DROP TRIGGER entries_remain")
        connection.execute(f"DELETE FROM entries WHERE sequence = {row}")
    with pytest.raises(LedgerBroken) as found:
        verified(tmp_path / "books")
    assert found.value.entry == row
    with pytest.raises(LedgerBroken), Ledger.open(tmp_path / "books", data) as ledger:  # its cost would be forgotten
        ledger.charge("c", "plan", [cost()], rounds=1)
    with pytest.raises(LedgerBroken), Ledger.open(tmp_path / "books", data) as ledger:
        ledger.set_cap(cap(9.0), "because")


def rewrite(path: Path, entries: list[Entry]) -> None:
    """What a forger can do who holds the file and knows the format: every row's own hash is right."""
    with raw(path) as connection:
        for trigger in ("entries_stay", "entries_remain", "entries_follow"):
            connection.execute(f"DROP TRIGGER {trigger}")
        connection.execute("DELETE FROM entries")
        connection.execute("DELETE FROM sqlite_sequence")
        for e in entries:
            row = (e.sequence, e.previous, e.run, e.round, e.kind, canonical(dict(e.payload)), e.at, e.hash)
            connection.execute("INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)


@pytest.mark.parametrize("row", [1, 2, 3, 4])
def test_a_forged_entry_with_a_right_hash_breaks_the_next(tmp_path: Path, row: int) -> None:
    filled(tmp_path / "books")
    with Ledger.open(tmp_path / "books", data) as ledger:
        entries = ledger.entries()
    entries[row - 1] = replace(entries[row - 1], at="2020-01-01T00:00:00Z")
    rewrite(tmp_path / "books", entries)
    with (
        Ledger.open(tmp_path / "books", data) as ledger,
        pytest.raises(LedgerBroken, match="follow the one before") as e,
    ):
        ledger.verify()
    assert e.value.entry == row + 1


STORIES: dict[str, list[tuple[int, Kind]]] = {
    "must be charged first": [(1, "progress")],
    "goes on after round 4, its release": [(0, "charge"), (4, "release"), (5, "progress")],
    "goes on after round 2, its progress": [(0, "charge"), (2, "progress"), (1, "progress")],
    "has 3 rounds": [(0, "charge"), (9, "progress")],
    "run a has 3 rounds": [(0, "charge"), (2, "release")],
}


@pytest.mark.parametrize("message", STORIES)
def test_an_impossible_story_is_broken_even_if_all_hashes_are_right(tmp_path: Path, message: str) -> None:
    Ledger.open(tmp_path / "books", data).close()
    entries: list[Entry] = []
    for round_, kind in STORIES[message]:
        previous = entries[-1].hash if entries else "0" * 64
        payload = {"rounds": 3} if kind == "charge" else {}
        entries.append(
            Entry(sequence=len(entries) + 1, previous=previous, run="a", round=round_, kind=kind, payload=payload)
        )
    rewrite(tmp_path / "books", entries)
    with Ledger.open(tmp_path / "books", data) as ledger, pytest.raises(LedgerBroken, match=message) as found:
        ledger.verify()
    assert found.value.entry == len(entries)
    with pytest.raises(LedgerBroken, match=message):
        parse_export(write_export("a", entries))


def test_a_charge_must_say_how_long_it_is_for() -> None:
    entry = Entry(sequence=1, previous="0" * 64, run="a", round=0, kind="charge", payload={"rounds": "many"})
    with pytest.raises(LedgerBroken, match="how many rounds"):
        parse_export(write_export("a", [entry]))


def test_a_hash_depends_on_the_entry_before_it() -> None:
    first = Entry(sequence=2, previous="1" * 64, run="a", round=0, kind="charge", payload={"rounds": 1})
    assert first.hash != replace(first, previous="2" * 64).hash
    assert first.hash != replace(first, sequence=3).hash


def test_spaces_in_a_payload_are_a_change(tmp_path: Path) -> None:
    filled(tmp_path / "books")
    with raw(tmp_path / "books") as connection:
        connection.execute("DROP TRIGGER entries_stay")
        connection.execute("UPDATE entries SET payload = payload || ' ' WHERE sequence = 3")
    with Ledger.open(tmp_path / "books", data) as ledger, pytest.raises(LedgerBroken, match="not in canonical form"):
        ledger.verify()


def test_files_of_another_kind_are_refused_in_one_sentence(tmp_path: Path) -> None:
    noise, foreign, folder = tmp_path / "noise", tmp_path / "foreign", tmp_path / "folder"
    noise.write_bytes(b"not a database at all" * 100)
    with raw(foreign) as connection:
        connection.execute("CREATE TABLE cats (name)")
    folder.mkdir(mode=0o700)
    for path in (noise, foreign):
        path.chmod(0o600)
    with pytest.raises(LedgerBroken, match=r"is damaged \(file is not a database\)"):
        Ledger.open(noise, data)
    with pytest.raises(BadValue, match="must be a ledger of this program"):
        Ledger.open(foreign, data)
    with pytest.raises(LedgerUnusable, match="cannot be used: unable to open database file"):
        Ledger.open(folder, data)
    with pytest.raises(LedgerUnusable, match="A ledger cannot be made in"):
        Ledger.open(tmp_path / "nowhere" / "books", data)


def test_a_log_without_its_ledger_is_not_applied_to_a_new_one(tmp_path: Path) -> None:
    (tmp_path / "books-wal").write_bytes(b"")
    with pytest.raises(BadValue, match="books-wal must not lie alone"):
        Ledger.open(tmp_path / "books", data)


def test_odd_names_are_names(tmp_path: Path) -> None:
    path = tmp_path / "bo?ks #1 %41;'.sqlite"
    with Ledger.open(path, data) as ledger:
        ledger.charge("a", "plan", [cost()], rounds=1)
    assert sorted(found.name for found in tmp_path.iterdir()) == [path.name, f"{path.name}.head"]


def test_a_link_that_leads_nowhere_is_said(tmp_path: Path) -> None:
    (tmp_path / "books").symlink_to(tmp_path / "gone")
    with pytest.raises(LedgerUnusable, match="No such file"):
        Ledger.open(tmp_path / "books", data)


def test_a_failed_making_leaves_nothing(tmp_path: Path) -> None:
    def broken(key: bytes) -> str:
        raise RuntimeError(str(len(key)))

    with pytest.raises(RuntimeError, match="32"):
        Ledger.open(tmp_path / "books", broken)
    assert list(tmp_path.iterdir()) == []


def test_a_writer_that_never_ends_is_not_waited_for_forever(tmp_path: Path) -> None:
    path = tmp_path / "books"
    with Ledger.open(path, data, patience=0.05) as ledger, raw(path) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(LedgerUnusable, match=r"database is locked\. Another process holds it; try again later\."):
            ledger.charge("a", "plan", [cost()], rounds=1)
        assert ledger.verify() == 0  # readers are not held up
        other.execute("ROLLBACK")
        ledger.charge("a", "plan", [cost()], rounds=1)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"run": "*"}, "run must be up to 100 letters"),
        ({"run": "a/b"}, "run must be up to 100 letters"),
        ({"run": "a\n"}, "run must be up to 100 letters"),
        ({"plan": ""}, "plan must be the plan's hash"),
        ({"rounds": 0}, "rounds must be a whole number"),
        ({"rounds": 1.5}, "rounds must be a whole number"),
        ({"costs": []}, "costs must state one cost"),
        ({"costs": [cost(), cost(0.2)]}, "costs must state one cost"),
        ({"at": "yesterday"}, "Entry.at must be absent or UTC"),
        ({"at": "2026-01-31T12:00:00+01:00"}, "Entry.at must be absent or UTC"),
        ({"extra": {"loss": math.nan}}, "Entry.payload must hold finite numbers"),
        ({"extra": {1: 2}}, "Entry.payload must have text keys"),
        ({"extra": {"x": b"bytes"}}, "Entry.payload must be made of plain JSON values, got bytes"),
    ],
)
def test_senseless_charges_are_refused_and_leave_nothing(ledger: Ledger, given: dict[str, Any], message: str) -> None:
    values: dict[str, Any] = {"run": "a", "plan": "p", "costs": [cost()], "rounds": 1} | given
    with pytest.raises(BadValue, match=message):
        ledger.charge(**values, caps=[cap()])
    assert ledger.verify() == 0


@pytest.mark.parametrize("bad", [math.nan, -1.0, "1", True, None])
def test_senseless_costs_and_caps_are_refused(bad: Any) -> None:
    with pytest.raises(BadValue, match=r"Cost\.epsilon must"):
        cost(bad)
    with pytest.raises(BadValue, match=r"Cap\.epsilon must"):
        cap(bad)
    with pytest.raises(BadValue, match=r"Cost\.delta must"):
        cost(0.1, bad)
    with pytest.raises(BadValue, match=r"Cap\.epsilon must be finite"):
        cap(math.inf)
    with pytest.raises(BadValue, match=r"Cost\.adversary must be one of"):
        cost(adversary="nobody")


def test_releases_name_a_hash_and_failures_a_known_reason(ledger: Ledger) -> None:
    ledger.charge("a", "plan", [cost()], rounds=1)
    for bad in ("", "x" * 64, MODEL.upper(), None):
        with pytest.raises(BadValue, match="model must be a SHA-256"):
            ledger.release("a", bad)  # type: ignore[arg-type]
    with pytest.raises(BadValue, match="reason must be one of stopped, error"):
        ledger.failed("a", "row 17 is not a number")  # type: ignore[arg-type]


def test_a_closed_ledger_says_so(tmp_path: Path) -> None:
    ledger = Ledger.open(tmp_path / "books", data)
    ledger.close()
    with pytest.raises(FedveilError, match="closed database"):
        ledger.verify()
