"""What the books take, what they refuse, and in which words."""

import math
import os
import stat
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest

from fedveil.core.errors import BadValue
from fedveil.ledger.books import Ledger
from fedveil.ledger.budget import CapExceeded, total
from fedveil.ledger.entry import LedgerBroken, canonical, parse_export
from unit.books import MODEL, cap, cost, data


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open(tmp_path / "books.sqlite", data) as opened:
        yield opened


def test_a_run_from_charge_to_release(ledger: Ledger) -> None:
    charged = ledger.charge("a", "plan-a", [cost()], rounds=4, mechanism="text", at="2026-01-31T12:00:00Z")
    ledger.progress("a", 2)
    released = ledger.release("a", MODEL, also=["metrics.json"])
    assert (charged.round, charged.previous, charged.sequence) == (0, "0" * 64, 1)
    assert (released.round, released.payload["model"], released.payload["also"]) == (5, MODEL, ["metrics.json"])
    assert [entry.kind for entry in ledger.entries("a")] == ["charge", "progress", "release"]
    assert ledger.verify() == 3
    assert ledger.spent("final-model") == cost()


def test_a_commit_waits_for_the_disk(ledger: Ledger) -> None:
    pragma = {
        name: ledger._connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("synchronous", "journal_mode")
    }
    assert pragma == {"synchronous": 2, "journal_mode": "wal"}


def test_a_resumed_run_is_charged_once(ledger: Ledger) -> None:
    first = ledger.charge("a", "plan", [cost()], rounds=4)
    assert ledger.charge("a", "plan", [cost()], rounds=4) == first
    assert ledger.spent("final-model").epsilon == 0.1
    with pytest.raises(BadValue, match="The plan of run a must be the one that was charged, plan, got 'other'"):
        ledger.charge("a", "other", [cost()], rounds=4)


def test_one_charge_one_output(ledger: Ledger) -> None:
    ledger.charge("a", "plan", [cost()], rounds=4)
    first = ledger.release("a", MODEL)
    assert ledger.release("a", MODEL) == first
    with pytest.raises(BadValue, match="Run a must go forward: its release of round 5 is in the ledger"):
        ledger.release("a", sha256(b"another").hexdigest())
    with pytest.raises(BadValue, match="must go forward"):
        ledger.progress("a", 4)
    with pytest.raises(BadValue, match="must go forward"):
        ledger.failed("a", "stopped")


def test_nothing_is_recorded_of_a_run_that_was_not_charged(ledger: Ledger) -> None:
    for attempt in (
        lambda: ledger.release("a", MODEL),
        lambda: ledger.progress("a", 1),
        lambda: ledger.failed("a", "error"),
    ):
        with pytest.raises(BadValue, match="Run a must be charged before anything else"):
            attempt()
    assert ledger.verify() == 0


def test_a_failed_run_keeps_its_cost_and_stays_closed(ledger: Ledger) -> None:
    ledger.charge("a", "plan", [cost()], rounds=4)
    ledger.failed("a", "error")
    assert ledger.spent("final-model").epsilon == 0.1
    with pytest.raises(
        BadValue, match=r"Run a must be open, got 'a run that ended without a release'\. Give another run"
    ):
        ledger.charge("a", "plan", [cost()], rounds=4)
    with pytest.raises(BadValue, match="must go forward"):
        ledger.release("a", MODEL)


def test_progress_goes_forward_and_may_be_repeated(ledger: Ledger) -> None:
    ledger.charge("a", "plan", [cost()], rounds=4)
    first = ledger.progress("a", 2, {"dropouts": 1})
    assert ledger.progress("a", 2, {"dropouts": 1}, at="2026-01-31T12:00:00Z") == first
    with pytest.raises(BadValue, match="progress of round 2 now says something else"):
        ledger.progress("a", 2, {"dropouts": 2})
    with pytest.raises(BadValue, match="must go forward"):
        ledger.progress("a", 1)
    for beyond in (0, 5, 2.0, True, -1):
        with pytest.raises(BadValue, match="reached must lie between 1 and 4"):
            ledger.progress("a", beyond)  # type: ignore[arg-type]


def test_the_cap_is_named_with_what_is_spent_and_asked(ledger: Ledger) -> None:
    ledger.charge("a", "plan", [cost(0.8)], rounds=1, caps=[cap()])
    with pytest.raises(CapExceeded) as refused:
        ledger.charge("b", "plan", [cost(0.3)], rounds=1)
    assert str(refused.value) == (
        "The cap for final-model (record, replace-one) is epsilon 1.0, delta 1e-05; epsilon 0.8, delta 1e-06 are spent "
        "and this run asks for epsilon 0.3, delta 1e-06: ask for less, or raise the cap on purpose."
    )
    assert (refused.value.cap, refused.value.spent.epsilon, refused.value.asked.epsilon) == (cap(), 0.8, 0.3)
    assert ledger.verify() == 2  # the cap, the first charge


def test_a_budget_can_be_spent_to_the_last_digit(ledger: Ledger) -> None:
    for run in "abc":  # in floats 0.1 + 0.1 + 0.1 > 0.3
        ledger.charge(run, "plan", [cost(0.1)], rounds=1, caps=[cap(0.3)])
    assert ledger.spent("final-model").epsilon == 0.3
    with pytest.raises(CapExceeded):
        ledger.charge("d", "plan", [cost(5e-324)], rounds=1)


def test_deltas_are_capped_too(ledger: Ledger) -> None:
    ledger.charge("a", "plan", [cost(0.0, 9e-6)], rounds=1, caps=[cap()])
    with pytest.raises(CapExceeded):
        ledger.charge("b", "plan", [cost(0.0, 2e-6)], rounds=1)


def test_a_study_may_lower_a_cap_and_only_a_deliberate_act_raises_it(ledger: Ledger) -> None:
    ledger.charge("a", "plan", [cost()], rounds=1, caps=[cap(1.0)])
    ledger.charge("b", "plan", [cost()], rounds=1, caps=[cap(0.5)])
    assert ledger.caps() == (cap(0.5),)
    for higher in (cap(0.6), cap(0.4, 1e-4), cap(0.4, unit="client")):
        with pytest.raises(BadValue, match=r"must not exceed the one in the ledger, epsilon 0\.5 and delta 1e-05"):
            ledger.charge("c", "plan", [cost()], rounds=1, caps=[higher])
    with pytest.raises(CapExceeded):
        ledger.charge("c", "plan", [cost()], rounds=1, caps=[cap(0.25)])
    assert ledger.caps() == (cap(0.5),)  # a refused charge changes nothing
    raised = ledger.set_cap(cap(2.0), "the board agreed on 3 March")
    assert (raised.kind, raised.payload["reason"]) == ("cap", "the board agreed on 3 March")
    ledger.charge("c", "plan", [cost(1.5)], rounds=1)
    with pytest.raises(BadValue, match="reason must say why"):
        ledger.set_cap(cap(3.0), " ")


def test_an_infinite_cost_is_written_as_null_and_breaks_any_cap(ledger: Ledger) -> None:
    server = cost(math.inf, 0.0, adversary="server")
    entry = ledger.charge("a", "plan", [cost(), server], rounds=1, caps=[cap()])
    assert entry.payload["costs"][1]["epsilon"] is None
    assert ledger.spent("server").epsilon == math.inf
    with pytest.raises(CapExceeded, match=r"epsilon inf, delta 0\.0 are spent"):
        ledger.charge("b", "plan", [cost(), cost(adversary="server")], rounds=1, caps=[cap(9.0, adversary="server")])
    with Ledger.open(ledger.path.with_name("other"), data) as other, pytest.raises(CapExceeded, match="no finite cost"):
        other.charge("a", "plan", [server], rounds=1, caps=[cap(9.0, adversary="server")])


@pytest.mark.parametrize(
    ("unit", "neighbours", "covered"),
    [
        ("record", "replace-one", {"record replace-one", "record zero-out"}),
        ("record", "zero-out", {"record zero-out"}),
        ("client", "replace-one", {"record replace-one", "record zero-out", "client replace-one", "client zero-out"}),
        ("client", "zero-out", {"client zero-out"}),
    ],
)
def test_a_cost_counts_only_where_it_holds(ledger: Ledger, unit: str, neighbours: str, covered: set[str]) -> None:
    ledger.charge("a", "plan", [cost(unit=unit, neighbours=neighbours)], rounds=1)
    for question in ("record replace-one", "record zero-out", "client replace-one", "client zero-out"):
        found = ledger.spent("final-model", *question.split())  # type: ignore[arg-type]
        assert found.epsilon == (0.1 if question in covered else math.inf)


def test_an_observer_nobody_spoke_of_may_know_everything(ledger: Ledger) -> None:
    assert ledger.spent("server").epsilon == 0.0  # nothing ran
    ledger.charge("a", "plan", [cost()], rounds=1)
    assert ledger.spent("server").epsilon == math.inf
    with pytest.raises(CapExceeded):
        ledger.charge("b", "plan", [cost()], rounds=1, caps=[cap(adversary="every-model")])


def test_books_are_closed_to_other_data_and_other_users(tmp_path: Path) -> None:
    path = tmp_path / "books.sqlite"
    Ledger.open(path, data).close()
    with pytest.raises(BadValue, match="must belong to these data, and it was opened for others"):
        Ledger.open(path, lambda key: sha256(key + b"other records").hexdigest())
    path.chmod(0o640)
    with pytest.raises(BadValue, match="must be closed to other users; close it with: chmod 600"):
        Ledger.open(path, data)


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_every_file_is_private_from_the_start(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    seen: set[int] = set()

    def watching(key: bytes) -> str:  # called while the books are being made, and while they are opened
        seen.update(stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir())
        return data(key)

    try:
        with Ledger.open(tmp_path / "books.sqlite", watching) as ledger:
            ledger.charge("a", "plan", [cost()], rounds=1)
            modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    finally:
        os.umask(before)
    assert modes == {f"books.sqlite{end}": 0o600 for end in ("", "-wal", "-shm", ".head")}
    assert seen == {0o600}


def test_the_key_comes_from_the_given_source_and_stays_inside(tmp_path: Path) -> None:
    key = bytes(range(32))
    with Ledger.open(tmp_path / "books", data, urandom=lambda size: key[:size]) as ledger:
        ledger.charge("a", "plan", [cost()], rounds=1)
        exported = ledger.export("a")
    assert key in (tmp_path / "books").read_bytes()
    assert data(key).encode() not in exported
    assert key.hex().encode() not in exported


def test_two_new_books_with_the_same_runs_give_the_same_export(tmp_path: Path) -> None:
    exports = []
    for name in ("one", "two"):
        with Ledger.open(tmp_path / name, data) as ledger:
            ledger.charge("a", "plan", [cost()], rounds=3, caps=[cap()])
            ledger.release("a", MODEL)
            exports.append(ledger.export("a"))
    assert exports[0] == exports[1]


def test_an_export_shows_one_run_and_the_digests_of_the_others(ledger: Ledger) -> None:
    for run in ("mine", "secret"):
        ledger.charge(run, f"plan-{run}", [cost()], rounds=3, caps=[cap()])
    ledger.progress("secret", 1)
    ledger.release("mine", MODEL)
    ledger.release("secret", sha256(b"x").hexdigest())
    text = ledger.export("mine")
    export = parse_export(text)
    assert b"secret" not in text
    assert [entry.kind for entry in export.entries] == ["charge", "release"]
    assert [entry.kind for entry in export.caps] == ["cap"]
    assert export.length == 5  # to the run's end and no further
    assert ledger.remembers(export)
    with pytest.raises(BadValue, match="run must be in the ledger, got 'none'"):
        ledger.export("none")


def test_an_export_shows_neither_more_nor_less_than_its_run(ledger: Ledger) -> None:
    for run in "ab":
        ledger.charge(run, "plan", [cost()], rounds=3)
    first, second = ledger.entries()
    hidden = {"sequence": 2, "digest": second.digest, "hash": second.hash}
    shown = [{"sequence": entry.sequence, **entry.content, "hash": entry.hash} for entry in (first, second)]
    start = {"format": "fedveil ledger 1", "entries": 2, "head": second.hash}
    for run, lines, message in (
        ("a", [shown[0], hidden], "not the run's last entry"),
        ("b", shown, "Entry 1 of the ledger is broken: it belongs to run a"),
        ("c", [hidden], "not the line that should follow"),
    ):
        text = "".join(canonical(line) + "\n" for line in ({**start, "run": run}, *lines))
        with pytest.raises(LedgerBroken, match=message):
            parse_export(text.encode())


def test_books_rolled_back_to_an_older_copy_do_not_remember(tmp_path: Path) -> None:
    path, copy = tmp_path / "books", tmp_path / "copy"
    with Ledger.open(path, data) as ledger:
        ledger.charge("a", "plan", [cost()], rounds=3)
    copy.write_bytes(path.read_bytes())
    copy.chmod(0o600)
    with Ledger.open(path, data) as ledger:
        ledger.release("a", MODEL)
        export = parse_export(ledger.export("a"))
        assert ledger.remembers(export)
    with Ledger.look(copy, accept_head=True) as older:  # on purpose: the copy came without its head
        assert older.verify() == 1
        assert not older.remembers(export)


def test_of_several_statements_that_answer_a_question_the_least_counts() -> None:
    """A cost for whole clients covers records, too; where a run states both, nobody is charged for the larger."""
    both = [cost(0.5, unit="client"), cost(0.125, unit="record")]
    assert total([both, both], "final-model", "record", "replace-one").epsilon == 0.25
    assert total([both], "final-model", "client", "replace-one").epsilon == 0.5
