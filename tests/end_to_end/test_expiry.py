"""Records with a date from which on they may be in no model: refused, left out, forgotten when their time has come."""

import json
from datetime import UTC, date, datetime
from pathlib import Path

import numpy as np
import pytest

from fedveil import FedveilError, forget, plan_forgetting, run_study
from fedveil.cli.ledger import ledger
from fedveil.data.expiry import NEVER
from fedveil.engine.system import System
from fedveil.federation.site.data import read_site_data
from fedveil.jobs.entry import Wish, draft_study
from fedveil.jobs.forget import ForgetResult
from fedveil.jobs.local import open_any_study
from fedveil.planning.promises import forgotten
from fedveil.stages.prepare.loading import Unprepared

STUDY = """
[data]
source = "rows.csv"
target = "y"
classes = 2
{data}
[model]
kind = "logistic"
[privacy]
epsilon = 1.0
delta = 1e-5
neighbours = "zero-out"
[algorithm]
kind = "hidden"
order = "public"
"""
STATED = "feature_bound = 2.0\nexpires_column = 'until'"
DATES = {3: "2026-03-31", 5: "2027-01-15", 9: "2027-01-31", 12: "2027-02-01"}  # by row, from 1


def on(day: date) -> System:
    return System(now=lambda: datetime(day.year, day.month, day.day, 9, tzinfo=UTC))


def study_in(folder: Path, data: str = STATED, dates: dict[int, str] = DATES) -> Path:
    generator = np.random.default_rng(7)
    rows = generator.normal(size=(300, 2))
    labels = (rows @ [1.0, -1.0] + generator.logistic(size=300) > 0).astype(int)
    lines = [
        f"{a:.4f},{b:.4f},{dates.get(n, '')},{y}" for n, ((a, b), y) in enumerate(zip(rows, labels, strict=True), 1)
    ]
    (folder / "rows.csv").write_text("\n".join(["a,b,until,y", *lines]) + "\n")
    (folder / "study.toml").write_text(STUDY.format(data=data))
    return folder / "study.toml"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of late 2026 that leaves out what had expired by then."""
    base = tmp_path_factory.mktemp("expiry")
    study = study_in(base, f"{STATED}\nas_of = 2026-12-01")
    run_study(study, base / "first", system=on(date(2026, 12, 1)))
    return base


def test_the_column_is_no_feature_and_expired_records_are_blank(tmp_path: Path) -> None:
    _, plain = open_any_study(study_in(tmp_path))
    _, opened = open_any_study(study_in(tmp_path, f"{STATED}\nas_of = '2027-01-15'"))
    assert plain.train.features.shape == (300, 3)
    assert np.flatnonzero(opened.train.blank).tolist() == [2, 4]
    assert not opened.train.features[[2, 4]].any()
    kept = np.setdiff1d(np.arange(300), [2, 4])
    assert np.array_equal(opened.train.features[kept], plain.train.features[kept])
    assert np.flatnonzero(opened.expires < NEVER).tolist() == [8, 11]
    assert opened.fingerprint(b"k" * 16) == plain.fingerprint(b"k" * 16)
    assert any("2 records had expired by 2027-01-15" in note for note in opened.notes)


def test_cells_whose_rule_is_learned_expire_alike(tmp_path: Path) -> None:
    _, opened = open_any_study(study_in(tmp_path, "expires_column = 'until'\nas_of = '2027-01-15'"))
    assert isinstance(opened, Unprepared)
    assert np.flatnonzero(opened.train.blank).tolist() == [2, 4]
    assert np.flatnonzero(opened.expires < NEVER).tolist() == [8, 11]
    assert "until" not in opened.columns.texts


@pytest.mark.parametrize("written", ["2027-02-30", "soon", "31.01.2027", "20270131"])
def test_a_cell_that_is_no_date_is_named_by_its_line(tmp_path: Path, written: str) -> None:
    study = study_in(tmp_path, dates={5: "2027-01-15", 7: written})
    with pytest.raises(FedveilError, match=r"rows\.csv, line 8: until must be a date such as 2027-01-31"):
        run_study(study, tmp_path / "run")
    assert not (tmp_path / "run" / "plan.json").exists()


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ("feature_bound = 2.0\nexpires_column = 'till'", "expires_column must name columns of rows.csv"),
        ("feature_bound = 2.0\nexpires_column = 'y'", "differ from the columns of target"),
        (f"{STATED}\ncolumns = ['a', 'until']", "name neither the target nor the client column"),
        (f"{STATED}\nas_of = 'today'", "data.as_of must be a date"),
        ("feature_bound = 2.0\nas_of = '2027-01-01'", "data.as_of must go with data.expires_column"),
    ],
)
def test_what_a_study_may_not_state(tmp_path: Path, data: str, sentence: str) -> None:
    with pytest.raises(FedveilError) as refused:
        open_any_study(study_in(tmp_path, data))
    assert sentence in str(refused.value)


def test_a_run_does_not_begin_with_expired_records(tmp_path: Path) -> None:
    with pytest.raises(FedveilError, match=r'expired by 2026-12-01 must be 0, got 1\. .*as_of = "2026-12-01"'):
        run_study(study_in(tmp_path), tmp_path / "run", system=on(date(2026, 12, 1)))
    assert not (tmp_path / "run").exists()


def test_time_passes_and_exactly_the_expired_leave(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wish = {"epsilon": 0.9, "rounds": 2}
    with pytest.raises(FedveilError, match=r"got 'none by 2027-01-14'\. Next: 2 in 2027-01"):
        plan_forgetting(folder / "first", expired="2027-01-14")
    second = forget(folder / "first", expired=True, out=folder / "second", system=on(date(2027, 1, 31)), **wish)  # type: ignore[arg-type]
    assert second.forgotten.units == 2
    assert json.loads((folder / "second" / "private" / "forgotten.json").read_text())["records"] == [4, 8]
    with pytest.raises(FedveilError, match=r"2 by 2027-01-31, which were forgotten already'\. Next: 1 in 2027-02"):
        plan_forgetting(folder / "second", expired=date(2027, 1, 31))
    third = second.forget(folder / "third", expired="2028-01-01", **wish)
    assert isinstance(third, ForgetResult)
    assert [one.units for one in forgotten(third.certificate.plan)] == [2, 1]
    assert json.loads((folder / "third" / "private" / "forgotten.json").read_text())["records"] == [4, 8, 11]
    shown = {}
    for name in ("first", "second", "third"):
        ledger(folder / name, delta=None, accept_head=False, as_json=True)
        runs = json.loads(capsys.readouterr().out)["runs"]
        shown[name] = [run["expires"] for run in runs]
    assert shown["third"] == [{"2027-01": 2, "2027-02": 1}, {"2027-02": 1}, {}]
    ledger(folder / "first", delta=None, accept_head=False, as_json=False)
    assert "records expire 2 in 2027-01, 1 in 2027-02" in capsys.readouterr().out


def test_one_way_to_say_who_leaves(folder: Path) -> None:
    with pytest.raises(FedveilError, match="in one way, got '2 ways'"):
        plan_forgetting(folder / "first", rows=[7], expired="2028-01-01")


def test_a_study_that_leaves_out_others_than_its_run_did_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_bytes((folder / "rows.csv").read_bytes())
    for later in ('as_of = "2027-02-01"', ""):
        (tmp_path / "study.toml").write_text(STUDY.format(data=f"{STATED}\n{later}"))
        with pytest.raises(FedveilError, match=r"data\.as_of must be 2026-12-01, as in the run"):
            plan_forgetting(folder / "first", study=tmp_path / "study.toml", rows=[7])


def test_a_site_marks_those_that_have_expired(tmp_path: Path) -> None:
    study_in(tmp_path)
    head = f'[data]\nsource = "rows.csv"\ntarget = "y"\nclasses = 2\n{STATED}\n'
    (tmp_path / "site.toml").write_text(f"{head}[left]\nrows = [1]\nexpired = 2027-01-31\n")
    data = read_site_data(tmp_path / "site.toml")
    assert data.left == 4
    assert data.expires == {"2027-02": 1}
    assert np.flatnonzero(data.records.blank).tolist() == [0, 2, 4, 8]


def test_a_draft_names_the_column_and_makes_no_feature_of_it(tmp_path: Path) -> None:
    study_in(tmp_path)
    wish = Wish(data="rows.csv", target="y", epsilon=1.0, expires_column="until")
    draft, _ = draft_study(wish, base=tmp_path)
    assert 'expires_column = "until"' in draft.text()
    assert "until" not in (*draft.columns.features, *draft.columns.unused)
