"""The books of a data set: one place for all runs on a source, whatever is made of it; and what `ledger` tells."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyarrow.csv import WriteOptions, read_csv, write_csv
from pyarrow.feather import write_feather
from pyarrow.parquet import write_table

from fedveil import cli, run_study
from fedveil.core.errors import BadValue
from fedveil.data.arrays import records_from_arrays
from fedveil.jobs.compare import compare
from fedveil.jobs.local import open_study
from fedveil.ledger.books import Ledger
from fedveil.ledger.budget import CapExceeded
from fedveil.ledger.place import beside, find
from fedveil.ledger.store import head_file

STUDY = """
[data]
source = "{source}"
target = "y"
classes = 2
feature_bound = {bound}
{data}
[model]
kind = "logistic"
radius = 5.0
[privacy]
epsilon = {epsilon}
delta = 1e-4
[schedule]
passes = 1
rounds = 2
{more}
"""


def write_study(folder: Path, name: str = "study.toml", **changes: Any) -> Path:
    settings = {"source": "data.csv", "bound": 2.0, "data": "", "epsilon": 1.0, "more": ""} | changes
    (folder / name).write_text(STUDY.format(**settings), encoding="utf-8")
    return folder / name


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    generator = np.random.default_rng(1)
    rows = generator.normal(size=(120, 3))
    lines = [f"{a:.6f},{b:.6f},{c:.6f},{int(a > 0)}" for a, b, c in rows]
    (tmp_path / "data.csv").write_text("\n".join(["a,b,c,y", *lines]) + "\n", encoding="utf-8")
    return tmp_path


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run a command in this process: its code, output and complaints."""

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["fedveil", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            cli.main()
        seen = capsys.readouterr()
        return int(stop.value.code or 0), seen.out, seen.err

    return run


CAP = "[books.cap]\nfinal-model = [1.0, 1e-4]"


@pytest.mark.parametrize(
    "changes", [{}, {"bound": 3.0}, {"data": 'ignore = ["c"]'}, {"data": "default_scale = [-4, 4]"}, {"more": CAP}]
)
def test_a_second_run_into_another_folder_costs(folder: Path, changes: dict[str, Any]) -> None:
    run_study(write_study(folder, more=CAP), folder / "one")
    with pytest.raises(CapExceeded):
        run_study(write_study(folder, **changes), folder / "two")
    assert not (folder / "two" / "model.npz").exists()
    assert not (folder / "one" / "private" / "ledger.sqlite").exists()


def test_links_and_other_orders_of_rows_have_the_same_books(folder: Path) -> None:
    run_study(write_study(folder), folder / "one")
    (folder / "elsewhere").mkdir()
    (folder / "elsewhere" / "link.csv").symlink_to(folder / "data.csv")
    run_study(write_study(folder / "elsewhere", source="link.csv"), folder / "two")
    head, *rows = (folder / "data.csv").read_text(encoding="utf-8").splitlines()
    (folder / "data.csv").write_text("\n".join([head, *rows[::-1]]) + "\n", encoding="utf-8")
    run_study(write_study(folder), folder / "three")
    with Ledger.look(beside(folder / "data.csv")) as ledger:
        assert sum(entry.kind == "release" for entry in ledger.entries()) == 3


ROOM = "[books.cap]\nfinal-model = [1.2, 3.5e-4]"  # for one run of epsilon 1 and two that cost next to nothing
NAMED = '[books]\nledger = "{}"'


def charges(place: Path) -> int:
    with Ledger.look(place) as ledger:
        return sum(entry.kind == "charge" for entry in ledger.entries())


@pytest.mark.parametrize("how", ["renamed", "copied", "linked", "moved with its books"])
def test_a_source_under_another_name_keeps_its_books(folder: Path, how: str) -> None:
    run_study(write_study(folder, more=ROOM), folder / "one")
    old, new = folder / "data.csv", folder / "other.csv"
    if how == "renamed":
        old.rename(new)
    elif how == "copied":
        new.write_bytes(old.read_bytes())
    elif how == "linked":
        new.hardlink_to(old)
    else:
        (folder / "there").mkdir()
        new = old.rename(folder / "there" / "other.csv")
        (folder / ".fedveil").rename(folder / "there" / ".fedveil")
    for name in ("two", "three"):
        with pytest.raises(CapExceeded):
            run_study(write_study(folder, source=str(new)), folder / name)
    assert charges(find(new)) == 1
    run_study(write_study(folder, source=str(new), epsilon=0.01), folder / "four")
    assert charges(find(new)) == 2


@pytest.mark.parametrize("name", ["other.parquet", "other.feather", "other.tsv"])
def test_the_same_values_in_another_format_have_the_same_books(folder: Path, name: str) -> None:
    run_study(write_study(folder, more=ROOM), folder / "one")
    table, new = read_csv(folder / "data.csv").take(np.arange(120)[::-1]), folder / name
    if new.suffix == ".tsv":
        write_csv(table, new, WriteOptions(delimiter="\t", quoting_style="all_valid"))
    else:
        (write_table if new.suffix == ".parquet" else write_feather)(table, str(new))
    with pytest.raises(CapExceeded):
        run_study(write_study(folder, source=str(new)), folder / "two")
    assert charges(find(new)) == 1


def test_other_rows_in_the_same_folder_have_books_of_their_own(folder: Path) -> None:
    run_study(write_study(folder, more=CAP), folder / "one")
    text = (folder / "data.csv").read_text(encoding="utf-8")
    (folder / "other.csv").write_text(text + "0.1,0.2,0.3,1\n", encoding="utf-8")
    run_study(write_study(folder, source="other.csv"), folder / "two")
    assert charges(beside(folder / "data.csv")) == charges(beside(folder / "other.csv")) == 1


def test_a_study_without_a_ledger_is_charged_where_another_study_keeps_the_books(folder: Path) -> None:
    named = NAMED.format("named.sqlite") + "\n" + ROOM
    run_study(write_study(folder, more=named), folder / "one")
    with pytest.raises(CapExceeded):
        run_study(write_study(folder), folder / "two")
    with pytest.raises(CapExceeded):
        compare(write_study(folder), algorithms=["hidden"], runs=1)
    assert find(folder / "data.csv").resolve() == folder / "named.sqlite"
    (folder / "named.sqlite").rename(folder / "moved.sqlite")
    (folder / "named.sqlite.head").rename(folder / "moved.sqlite.head")
    for changes in ({}, {"more": NAMED.format("new.sqlite")}):  # nobody begins again because books are not found
        with pytest.raises(BadValue, match=r"must be where they were, .*named\.sqlite, and they are gone"):
            run_study(write_study(folder, **changes), folder / "two")
    run_study(write_study(folder, epsilon=0.01, more=NAMED.format("moved.sqlite")), folder / "two")
    run_study(write_study(folder, epsilon=0.01), folder / "three")
    assert charges(folder / "moved.sqlite") == 3


@pytest.mark.parametrize("first", ["", NAMED.format("first.sqlite")])
def test_rows_that_have_books_get_no_others(folder: Path, first: str) -> None:
    run_study(write_study(folder, more=first), folder / "one")
    with pytest.raises(BadValue, match="neither would know what was spent in the other"):
        run_study(write_study(folder, more=NAMED.format("second.sqlite")), folder / "two")
    assert not (folder / "second.sqlite").exists()
    run_study(write_study(folder, more=NAMED.format(find(folder / "data.csv"))), folder / "two")
    assert charges(find(folder / "data.csv")) == 2


def test_books_in_the_folder_of_a_new_run_are_not_taken_for_those_of_its_rows(folder: Path) -> None:
    run_study(write_study(folder, more=CAP), folder / "one")
    (folder / "two" / "private").mkdir(parents=True, mode=0o700)
    _, loaded = open_study(write_study(folder), None)
    Ledger.open(folder / "two" / "private" / "ledger.sqlite", loaded.fingerprint).close()
    with pytest.raises(CapExceeded):
        run_study(write_study(folder), folder / "two")


def test_rows_that_changed_are_not_charged_to_the_old_books(folder: Path) -> None:
    run_study(write_study(folder), folder / "one")
    with (folder / "data.csv").open("a", encoding="utf-8") as file:
        file.write("0.1,0.2,0.3,1\n")
    with pytest.raises(BadValue, match=r"must belong to these data.*\[books\] ledger"):
        run_study(write_study(folder), folder / "two")


def test_a_folder_has_its_books_beside_it(folder: Path) -> None:
    (folder / "sites").mkdir()
    (folder / "data.csv").rename(folder / "sites" / "a.csv")
    run_study(write_study(folder, source="sites"), folder / "one")
    assert (folder / ".fedveil" / "sites.sqlite").exists()
    assert find(folder / "sites") == folder / ".fedveil" / "sites.sqlite"


def test_a_comparison_on_a_file_is_charged_in_its_books(folder: Path) -> None:
    run_study(write_study(folder), folder / "one")
    assert compare(write_study(folder), algorithms=["hidden"], runs=1).charged
    with Ledger.look(beside(folder / "data.csv")) as ledger:
        assert sum(entry.kind == "charge" for entry in ledger.entries()) == 2


def test_a_place_that_cannot_be_written_is_said_with_the_way_out(folder: Path) -> None:
    (folder / ".fedveil").write_text("in the way", encoding="utf-8")
    with pytest.raises(BadValue, match=r'The books of data\.csv must lie beside it.*\[books\] ledger = "PATH"'):
        run_study(write_study(folder), folder / "one")
    run_study(write_study(folder, more='[books]\nledger = "books.sqlite"'), folder / "one")


def test_arrays_have_books_in_the_run_and_a_cap_needs_a_place(folder: Path) -> None:
    rows = np.random.default_rng(2).normal(size=(60, 2))
    records = records_from_arrays(rows, (rows[:, 0] > 0).astype(int), bound=2.0, classes=2)
    wanted: dict[str, Any] = {
        "model": {"kind": "logistic", "radius": 5.0},
        "privacy": {"epsilon": 1.0, "delta": 1e-3},
        "schedule": {"passes": 1, "rounds": 2},
    }
    run_study(wanted, folder / "one", data=records)
    assert find(folder / "one") == folder / "one" / "private" / "ledger.sqlite"
    with pytest.raises(BadValue, match=r"books\.ledger must be given with a cap"):
        run_study(wanted | {"books": {"cap": {"final-model": [1.0, 1e-3]}}}, folder / "two", data=records)


def test_the_odometer(folder: Path, told: Callable[..., tuple[int, str, str]]) -> None:
    study = write_study(folder, more="[books.cap]\nfinal-model = [2.0, 1e-4]")
    for name in ("one", "two"):
        run_study(study, folder / name)
    answers = []
    for place in (folder / "one", folder / "two", folder / "data.csv", beside(folder / "data.csv")):
        code, out, err = told("ledger", place, "--json")
        assert (code, err) == (0, "")
        answers.append(json.loads(out))
    assert all(answer == answers[0] for answer in answers)
    found = answers[0]
    assert [(run["study"], run["ended"]) for run in found["runs"]] == [("study", "released")] * 2
    rows = {row["adversary"]: row for row in found["observers"]}
    row, cap = rows["final-model"], rows["final-model"]["cap"]
    stated = sum(run["costs"][0]["epsilon"] for run in found["runs"])
    assert row["added_up"]["epsilon"] == pytest.approx(stated)
    assert row["fixed_in_advance"]["delta"] == 1e-4
    assert row["fixed_in_advance"]["epsilon"] <= cap["spent"] < stated
    assert (cap["rule"], cap["epsilon"], cap["delta"]) == ("renyi", 2.0, 1e-4)
    assert 0 < cap["left"] < 1
    with Ledger.look(beside(folder / "data.csv")) as ledger:
        before = ledger.verify()
    for number in range(cap["more_like_the_last"]):
        run_study(study, folder / f"more{number}")
    with pytest.raises(CapExceeded, match=r"with it, epsilon 2\.\d+ would be spent"):
        run_study(study, folder / "last")
    code, out, err = told("ledger", folder / "one")
    assert (code, err) == (0, "")
    assert "no room for a run like the last" in " ".join(out.split())
    assert before == found["entries"]


def test_a_folder_that_holds_data_with_books_is_told_from_a_data_set(
    folder: Path, told: Callable[..., tuple[int, str, str]]
) -> None:
    run_study(write_study(folder), folder / "one")
    code, out, err = told("ledger", folder)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert f"name {folder / 'data.csv'}" in err


def test_missing_and_damaged_books_are_one_sentence(folder: Path, told: Callable[..., tuple[int, str, str]]) -> None:
    run_study(write_study(folder), folder / "one")
    path = beside(folder / "data.csv")
    for wrong in (folder / "nowhere", folder / "study.toml"):
        code, out, err = told("ledger", wrong)
        assert (code, out, err.count("\n")) == (2, "", 1)
    head = head_file(path).read_bytes()
    head_file(path).unlink()
    code, out, err = told("ledger", path)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "--accept-head" in err
    assert told("ledger", path, "--accept-head")[0] == 0
    assert head_file(path).read_bytes() == head
    path.write_bytes(path.read_bytes()[:5000])
    code, out, err = told("ledger", path)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "broken" in err
