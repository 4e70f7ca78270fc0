"""The head beside the books: lost or damaged logs and files are found, and nothing that is sound is refused."""

import random
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from fedveil.core.errors import BadValue
from fedveil.ledger import store as storage
from fedveil.ledger.books import Ledger
from fedveil.ledger.entry import LedgerBroken
from fedveil.ledger.store import Head, head_file, keep_head, read_head
from unit.books import MODEL, cost, data


def killed(folder: Path) -> Path:
    """Books as a process leaves them that is killed after a commit: the last charge lies in the log."""
    path, copy = folder / "books", folder / "killed"
    with Ledger.open(path, data) as ledger:
        ledger.charge("first", "plan", [cost()], rounds=1)
    with Ledger.open(path, data) as ledger:
        ledger.charge("last", "plan", [cost()], rounds=1)
        for end in ("", "-wal", "-shm", ".head"):
            shutil.copy(f"{path}{end}", f"{copy}{end}")
    return copy


def charges(path: Path) -> list[str]:
    with Ledger.open(path, data) as ledger:
        return [entry.run for entry in ledger.entries() if entry.kind == "charge"]


def test_a_killed_process_loses_nothing(tmp_path: Path) -> None:
    assert charges(killed(tmp_path)) == ["first", "last"]


def test_a_deleted_log_is_found_out(tmp_path: Path) -> None:
    path = killed(tmp_path)
    Path(f"{path}-wal").unlink()
    with pytest.raises(LedgerBroken, match="Entries were lost, perhaps with killed-wal: bring that file back") as found:
        charges(path)
    assert found.value.entry == 2


def test_a_damaged_or_shortened_log_forgets_no_charge_in_silence(tmp_path: Path) -> None:
    path = killed(tmp_path)
    log, whole = Path(f"{path}-wal"), Path(f"{path}-wal").read_bytes()
    chance = random.Random(3)
    spoilt = [whole[: int(len(whole) * share / 40)] for share in range(40)]
    for _ in range(60):
        place = chance.randrange(len(whole))
        spoilt.append(whole[:place] + bytes([whole[place] ^ 1 << chance.randrange(8)]) + whole[place + 1 :])
    main = path.read_bytes()
    outcomes = set()
    for content in spoilt:
        path.write_bytes(main)
        log.write_bytes(content)
        Path(f"{path}-shm").unlink(missing_ok=True)
        try:
            outcomes.add(tuple(charges(path)))
        except LedgerBroken:
            outcomes.add(("broken",))
    assert outcomes <= {("first", "last"), ("broken",)}
    assert ("broken",) in outcomes


def test_a_damaged_file_is_a_broken_ledger_and_never_another_error(tmp_path: Path) -> None:
    path = tmp_path / "books"
    with Ledger.open(path, data) as ledger:
        for number in range(5):
            ledger.charge(f"run{number}", "plan", [cost()], rounds=1)
    whole, chance, broken = path.read_bytes(), random.Random(4), 0
    refused: list[str] = []
    spoilt = [whole[: int(len(whole) * share / 20)] for share in range(20)]
    for _ in range(150):  # half of them in the header and the schema, where a flip does most
        place = chance.randrange(120 if chance.random() < 0.5 else len(whole))
        spoilt.append(whole[:place] + bytes([whole[place] ^ 1 << chance.randrange(8)]) + whole[place + 1 :])
    for content in spoilt:
        path.write_bytes(content)
        for end in ("-wal", "-shm", "-journal"):
            Path(f"{path}{end}").unlink(missing_ok=True)
        try:
            assert len(charges(path)) == 5
        except LedgerBroken:
            broken += 1
        except BadValue as other:
            refused.append(str(other))
    assert broken > 30
    hit = ("must belong to these data", "have a format")  # the key, the fingerprint or the format
    assert all(any(words in told for words in hit) for told in refused)


def test_a_head_that_is_behind_is_sound(tmp_path: Path) -> None:
    path = tmp_path / "books"
    with Ledger.open(path, data) as ledger:
        ledger.charge("a", "plan", [cost()], rounds=1)
        older = head_file(path).read_bytes()
        ledger.release("a", MODEL)
    head_file(path).write_bytes(older)  # as after a crash between a commit and its head
    assert charges(path) == ["a"]
    with Ledger.open(path, data) as ledger:
        ledger.charge("b", "plan", [cost()], rounds=1)
    assert (read_head(path) or Head(0, "")).sequence == 3


def test_a_head_never_goes_back(tmp_path: Path) -> None:
    path = tmp_path / "books"
    with Ledger.open(path, data) as ledger:
        ledger.charge("a", "plan", [cost()], rounds=1)
    before = read_head(path)
    keep_head(path, Head(0, "0" * 64))
    assert read_head(path) == before


def test_a_missing_head_is_refused_until_it_is_accepted(tmp_path: Path) -> None:
    path = tmp_path / "books"
    with Ledger.open(path, data) as ledger:
        ledger.charge("a", "plan", [cost()], rounds=1)
    head_file(path).unlink()
    with pytest.raises(LedgerBroken, match=r"books\.head is missing beside books.*--accept-head"):
        charges(path)
    Ledger.look(path, accept_head=True).close()
    assert charges(path) == ["a"]


@pytest.mark.parametrize("content", [b"fedveil head 1 2\n", b"x" * 101, b"\xff\xfe"])
def test_an_unreadable_head_is_said(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "books"
    Ledger.open(path, data).close()
    head_file(path).write_bytes(content)
    with pytest.raises(LedgerBroken, match=r"books\.head, cannot be read"):
        charges(path)


def test_lost_books_are_not_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "books"
    with Ledger.open(path, data) as ledger:
        ledger.charge("a", "plan", [cost()], rounds=1)
    path.unlink()
    with pytest.raises(LedgerBroken, match=r"is gone, and books\.head tells of 1 entries"):
        charges(path)


def test_books_of_another_format_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "books"
    Ledger.open(path, data).close()
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("DROP TRIGGER books_stay")
        connection.execute(f"UPDATE books SET format = {storage.FORMAT + 1}")
    with pytest.raises(BadValue, match=r"must have format 1, got 2\. It was written by another version"):
        Ledger.open(path, data)
