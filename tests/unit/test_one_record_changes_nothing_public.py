"""Other doors by which the cells of one record could reach what is published: frames, labels, sites, NUL characters."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from fedveil import PrivateLogisticRegression
from fedveil.core.errors import BadValue, FedveilError
from fedveil.data.sources import read
from fedveil.data.spec import Source
from fedveil.engine.system import System
from fedveil.federation.site.data import read_site_data
from fedveil.jobs.local import open_any_study, run_study
from fedveil.planning.plan import write_plan
from fedveil.stages.prepare.ranges import BINS, bins_of, covering_range, range_of

BASE: dict[str, Any] = {
    "model": {"kind": "logistic"},
    "privacy": {"epsilon": 2.0, "delta": 1e-3},
    "algorithm": {"kind": "dpsgd", "rate": 0.5, "rounds": 2},
    "prepare": {"kind": "private"},
}
TWO = {"target": "ill", "classes": ["no", "yes"]}


def outline(flag: Any) -> Any:
    frame = {"age": np.arange(6.0), "flag": flag, "ill": ["no", "yes"] * 3}
    return open_any_study({"data": TWO, **BASE}, data=frame)[1].outline  # type: ignore[union-attr]


@pytest.mark.parametrize("gap", [None, float("nan"), True])
def test_truth_values_are_numbers_with_and_without_a_gap(gap: Any) -> None:
    whole = np.array([True, False, True, False, True, True])
    assert outline(np.array([*whole[:-1], gap], dtype=object)) == outline(whole)


def test_a_text_among_truth_values_is_refused() -> None:
    with pytest.raises(BadValue, match="column 'flag' must be a number, got 'often'"):
        outline(np.array([True, False, True, False, True, "often"], dtype=object))


def test_gaps_of_pandas_are_gaps() -> None:
    pandas = pytest.importorskip("pandas")
    numbers = pandas.Series([1, 2, 3, 4, 5, None], dtype="Int64")
    assert outline(numbers).numbers == ("age", "flag")
    dates = pandas.Series(pandas.to_datetime(["2021-03-04"] * 5 + [None]))
    assert outline(dates).texts == ("flag",)


def test_a_label_of_one_record_must_be_named() -> None:
    X = np.random.default_rng(0).normal(size=(60, 2))
    y = np.array(["a", "b"] * 30)
    y[-1] = "c"
    with pytest.raises(BadValue, match="classes must name all labels where one record alone has one of them"):
        PrivateLogisticRegression(epsilon=2.0, delta=1e-3).fit(X, y)
    named = PrivateLogisticRegression(epsilon=2.0, delta=1e-3, classes=["a", "b", "c"])
    assert len(named.fit(X, y).classes_) == 3


def test_a_label_of_one_protected_client_must_be_named() -> None:
    X, y = np.random.default_rng(0).normal(size=(60, 2)), np.array(["a", "b"] * 30)
    y[-3:] = "c"
    clients = np.repeat(np.arange(20), 3)
    shared = {"epsilon": 4.0, "delta": 1e-2, "unit": "client", "algorithm": {"kind": "fedavg"}}
    with pytest.raises(BadValue, match="one client alone"):
        PrivateLogisticRegression(**shared).fit(X, y, clients=clients)


def test_a_site_does_not_tell_types_from_its_cells(tmp_path: Path) -> None:
    """What a site says of its columns goes to others: a word nobody declared is refused at the site."""
    for cells, fine in (("7,8,9,,", True), ("A,B,A,B,A", False), (",,,,", True)):
        lines = [f"{k},{cell},{k % 2}" for k, cell in enumerate(cells.split(","))]
        (tmp_path / "v.csv").write_text("\n".join(["a,b,ill", *lines]) + "\n")
        (tmp_path / "site.toml").write_text('[data]\nsource = "v.csv"\ntarget = "ill"\nclasses = 2\n')
        if fine:
            told = json.loads(read_site_data(tmp_path / "site.toml").described()["columns"])
            assert told["outline"]["numbers"] == ["a", "b"]
        else:
            with pytest.raises(BadValue, match="column 'b' must be a number, got 'A'"):
                read_site_data(tmp_path / "site.toml")


NUL = "ab\0"


@pytest.mark.parametrize("column", ["name", "ill", "site", "unused"])
def test_a_nul_in_a_text_file_is_refused_by_its_line(tmp_path: Path, column: str) -> None:
    cells = dict.fromkeys(("name", "ill", "site", "unused"), "ab")
    rows = [cells, {**cells, column: NUL}]
    (tmp_path / "v.csv").write_text("\n".join([",".join(cells), *(",".join(row.values()) for row in rows)]) + "\n")
    source = Source.of(
        source="v.csv", feature_bound=1.0, target="ill", classes=("ab", "x"), client_column="site", ignore=("unused",)
    )
    with pytest.raises(BadValue, match=r"^v\.csv, line 3, must hold no character of code 0"):
        read(source, tmp_path)


def test_a_nul_in_a_frame_and_in_parquet_is_refused(tmp_path: Path) -> None:
    columns = {"name": ["ab", NUL, "c", "d"], "ill": ["no", "yes", "no", "yes"]}
    with pytest.raises(BadValue, match="'name' of frame must hold texts without the character of code 0"):
        open_any_study({"data": TWO, **BASE}, data={**columns, "name": np.array(columns["name"], dtype=object)})
    parquet.write_table(pyarrow.table(columns), tmp_path / "v.parquet")
    with pytest.raises(BadValue, match=r"'name' of v\.parquet must hold texts without the character of code 0"):
        open_any_study({"data": {**TWO, "source": str(tmp_path / "v.parquet")}, **BASE})


@pytest.mark.parametrize("deviation", [5.0, 20.0])
@pytest.mark.parametrize("law", ["shifted", "lognormal", "uniform", "counts", "gamma"])
def test_a_drafted_target_range_cuts_few_targets(law: str, deviation: float) -> None:
    """Where noise hides the tails of 300 records, the range of the bulk alone cut up to a half of the targets."""
    draw = np.random.default_rng(3)
    laws = {
        "shifted": lambda: draw.normal(1.5, 0.5, 300),
        "lognormal": lambda: np.exp(draw.normal(0.4, 0.4, 300)),
        "uniform": lambda: draw.uniform(0, 10, 300),
        "counts": lambda: draw.poisson(3, 300).astype(float),
        "gamma": lambda: draw.gamma(4, 38, 300),
    }
    cut, before = [], []
    for _ in range(50):
        numbers = laws[law]()
        counts = np.bincount(bins_of(numbers), minlength=BINS) + draw.normal(size=BINS) * deviation
        for found, kept in ((covering_range, cut), (range_of, before)):
            span = found(counts, 300, deviation)
            kept.append(float(np.mean((numbers < span.low) | (numbers > span.high))))
            assert span.high - span.low <= 20 * np.ptp(numbers)
    assert np.mean(cut) <= 0.02
    assert max(cut) <= 0.1
    assert deviation < 20 or np.mean(before) > 0.1


def numbered(folder: Path, rows: int = 200) -> Path:
    draw = np.random.default_rng(0)
    lines = [f"{x:.3f},{y:.3f}" for x, y in zip(draw.normal(size=rows), draw.normal(1.5, 0.5, rows), strict=True)]
    (folder / "v.csv").write_text("\n".join(["a,y", *lines]) + "\n")
    return folder / "v.csv"


@pytest.mark.parametrize("prepared", [False, True])
def test_the_data_holder_alone_is_told_how_many_targets_are_cut(tmp_path: Path, prepared: bool) -> None:
    data: dict[str, Any] = {"source": str(numbered(tmp_path)), "target": "y", "target_scale": [1, 2]}
    data |= {} if prepared else {"feature_bound": 1.0, "scale": {"a": [-3, 3]}}
    tables = {**BASE, "data": data, "model": {"kind": "huber"}, "books": {"ledger": str(tmp_path / "b.sqlite")}}
    if not prepared:
        tables.pop("prepare")
    told: list[str] = []
    run_study(tables, tmp_path / "out", system=System(note=told.append))
    sentence = next(note for note in told if "of the targets lie outside data.target_scale, [1, 2]" in note)
    published = [path for path in (tmp_path / "out").iterdir() if path.is_file()]
    assert published
    assert not any(sentence.encode() in path.read_bytes() for path in published)


CELLS = ["7", "1e300", "-0.000001", "", "12345678901234567890", "3.0", "+3", " 3 "]


@pytest.mark.parametrize("cell", CELLS)
def test_what_a_run_publishes_before_any_noise_does_not_depend_on_one_cell(tmp_path: Path, cell: str) -> None:
    """Plan, certificate and what it rests on: of a file with this cell in one record, and of the same with 2."""
    found = []
    for name, last in (("a", "2"), ("b", cell)):
        rows = [f"{k % 7},{'AB'[k % 2]},{'no' if k % 3 else 'yes'}" for k in range(59)] + [f"{last},A,no"]
        (tmp_path / name).mkdir()
        (tmp_path / name / "v.csv").write_text("\n".join(["a,b,ill", *rows]) + "\n")
        tables = {**BASE, "data": {**TWO, "source": str(tmp_path / name / "v.csv")}}
        made = run_study(tables, tmp_path / name / "out")
        certificate = json.loads((tmp_path / name / "out" / "certificate.json").read_text())
        found.append((write_plan(made.certificate.plan), certificate["guarantees"], certificate["plan"]))
    assert found[0] == found[1]


@pytest.mark.parametrize("cell", ["maybe", "NEW", '"x\ny"', "1e400"])
def test_a_new_label_is_refused_before_the_charge(tmp_path: Path, cell: str) -> None:
    rows = [f"{k},{'no' if k % 2 else 'yes'}" for k in range(9)] + [f"9,{cell}"]
    (tmp_path / "v.csv").write_text("\n".join(["a,ill", *rows]) + "\n")
    tables = {**BASE, "data": {**TWO, "source": str(tmp_path / "v.csv")}}
    tables["books"] = {"ledger": str(tmp_path / "b.sqlite")}
    with pytest.raises(FedveilError, match="'ill'"):
        run_study(tables, tmp_path / "out")
    assert not (tmp_path / "b.sqlite").exists()
