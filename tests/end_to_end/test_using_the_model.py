"""From a table with texts and gaps to predictions on new records: the commands, the files, and what is refused."""

import csv
import io
import json
import pickle
import shutil
import sys
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import joblib
import numpy as np
import pytest

import fedveil
from fedveil.bundle.bundle import Bundle
from fedveil.cli import main
from fedveil.data.column import Column

STUDY = """
[study]
name = "wards"
{study}
[data]
source = "train.csv"
target = "ill"
classes = ["no", "yes"]
client_column = "site"
feature_bound = 1.5
missing = ["", "?", "-9"]
[data.scale]
age = [0, 100]
pressure = [80, 200]
[data.categories]
ward = ["A", "B", "C"]
[data.fill]
pressure = 130
ward = "B"
age = {age}
[data.held_out]
fraction = 0.25
{held_out}
[clients]
kind = "column"
[model]
kind = "{model}"
radius = 10.0
[privacy]
epsilon = {epsilon}
delta = 1e-4
neighbours = "zero-out"
[schedule]
kind = "constant"
rounds = 4
passes = 2
"""
Command = Callable[..., SimpleNamespace]


def table(rows: int = 600, seed: int = 0) -> list[dict[str, str]]:
    """Mixed types, gaps in two columns, labels as texts."""
    random = np.random.default_rng(seed)
    age, pressure = random.integers(20, 90, rows), random.normal(130, 20, rows).round(1)
    ward = random.choice(["A", "B", "C", "?"], rows, p=[0.4, 0.3, 0.25, 0.05])
    ill = random.random(rows) < 1 / (1 + np.exp(-((age - 60) / 8 + (pressure - 130) / 20 + 2.0 * (ward == "C"))))
    gaps = random.choice(["", "-9", "ok"], rows, p=[0.03, 0.03, 0.94])
    return [
        {
            "site": f"s{row % 4}",
            "age": str(age[row]),
            "ward": str(ward[row]),
            "pressure": str(pressure[row]) if gaps[row] == "ok" else gaps[row],
            "ill": "yes" if ill[row] else "no",
        }
        for row in range(rows)
    ]


def write_csv(path: Path, rows: list[dict[str, str]], *leave_out: str) -> Path:
    names = [name for name in rows[0] if name not in leave_out]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, names, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    return path


def write_study(folder: Path, **parts: Any) -> Path:
    write_csv(folder / "train.csv", table())
    settings = {"study": "seed = 1", "age": '"refuse"', "held_out": "", "model": "logistic", "epsilon": 4.0} | parts
    path = folder / "study.toml"
    path.write_text(STUDY.format(**settings), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wards")
    fedveil.run_study(write_study(folder), folder / "out")
    return folder / "out"


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    def call(*arguments: object) -> SimpleNamespace:
        monkeypatch.setattr(sys, "argv", ["fedveil", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return SimpleNamespace(code=ended.value.code, out=out, err=err)

    return call


def by_hand(run: Path, rows: list[dict[str, str]]) -> np.ndarray[Any, Any]:
    """The probability of "yes", from the study's own words and the released parameters, cell by cell."""
    weights = np.load(run / "model.npz")["parameters"]
    found = []
    for row in rows:
        pressure = 130.0 if row["pressure"] in ("", "-9") else float(row["pressure"])
        ward = "B" if row["ward"] == "?" else row["ward"]
        scaled = [(float(row["age"]) - 50) / 50, *(float(ward == one) for one in "ABC"), (pressure - 140) / 60]
        cut = np.clip(scaled, -1, 1)
        cut = cut * min(1.0, 1.5 / np.linalg.norm(cut))
        found.append(1 / (1 + np.exp(-(np.append(cut, 1.0) @ weights))))
    return np.array(found)


def read(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"))))


def test_from_a_table_to_predictions_on_new_records(tmp_path: Path, run: Path, command: Command) -> None:
    rows = table(300, seed=7)
    new = write_csv(tmp_path / "new.csv", rows, "ill", "site")
    out = tmp_path / "predictions.csv"
    said = command("predict", run, new, "--out", out, "--probabilities", "--keep", "age")
    assert said.code == 0, said.err
    found, expected = read(out), by_hand(run, rows)
    assert list(found[0]) == ["age", "probability_no", "probability_yes", "prediction"]
    assert [row["age"] for row in found] == [row["age"] for row in rows]
    assert [float(row["probability_yes"]) for row in found] == pytest.approx(expected.tolist(), abs=1e-12)
    assert [row["prediction"] for row in found] == ["yes" if p > 0.5 else "no" for p in expected]
    assert "300 records" in said.out


@pytest.mark.parametrize("labelled", [True, False])
def test_labels_are_not_looked_at(tmp_path: Path, run: Path, command: Command, labelled: bool) -> None:
    rows = [row | {"ill": "never heard of"} for row in table(50, seed=3)]
    new = write_csv(tmp_path / "new.csv", rows, *([] if labelled else ["ill", "site"]))
    said = command("predict", run, new, "--out", tmp_path / "p.csv", "--json")
    result = json.loads(said.out)
    expected = by_hand(run, rows)
    assert result["rows"] == 50
    assert result["counts"] == {"no": int((expected <= 0.5).sum()), "yes": int((expected > 0.5).sum())}


def test_a_bundle_alone_is_enough(tmp_path: Path, run: Path) -> None:
    shutil.copy(run / "bundle.zip", tmp_path / "handed.zip")
    model = fedveil.load_model(tmp_path / "handed.zip")
    rows = table(20, seed=4)
    cells = {name: [row[name] for row in rows] for name in ("age", "ward", "pressure")}
    assert model.predict_proba(cells)[:, 1] == pytest.approx(by_hand(run, rows).tolist(), abs=1e-12)
    assert model.predict(cells).tolist() == ["yes" if p > 0.5 else "no" for p in by_hand(run, rows)]
    assert model.feature_names_in_.tolist() == ["age", "ward", "pressure"]
    assert model.classes_.tolist() == ["no", "yes"]
    assert model.certificate == json.loads((run / "certificate.json").read_text())
    assert model.plan.hash == model.certificate["plan"]
    assert repr(model).startswith("ReleasedModel('wards': logistic, 3 columns, NOT PRIVATE")
    assert "<script" not in model._repr_html_()
    assert "age, ward, pressure" in model._repr_html_()


def test_arrays_and_frames_are_taken_as_they_come(run: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    model, rows = fedveil.load_model(run), table(30, seed=5)
    expected = by_hand(run, rows).tolist()
    cells = {name: [row[name] for row in rows] for name in model.feature_names_in_}
    numbers = [None if row["pressure"] in ("", "-9") else float(row["pressure"]) for row in rows]
    mixed = [[float(row["age"]), row["ward"], value] for row, value in zip(rows, numbers, strict=True)]
    frame = pyarrow.table({"ward": cells["ward"], "pressure": numbers, "age": [int(row["age"]) for row in rows]})
    for X in (cells, mixed, np.array(mixed, dtype=object), frame):
        assert model.predict_proba(X)[:, 1] == pytest.approx(expected, abs=1e-12)
    assert model.decision_function(cells).shape == (30,)


@pytest.mark.parametrize("form", ["parquet", "npz", "folder", "tsv"])
def test_new_records_may_come_in_any_format(tmp_path: Path, run: Path, command: Command, form: str) -> None:
    rows = table(90, seed=6)
    numbers = [np.nan if row["pressure"] in ("", "-9") else float(row["pressure"]) for row in rows]
    columns = {
        "age": np.array([float(row["age"]) for row in rows]),
        "ward": np.array([row["ward"] for row in rows]),
        "pressure": np.array(numbers),
    }
    match form:
        case "parquet":
            arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
            new = tmp_path / "new.parquet"
            parquet.write_table(arrow.table({name: list(values) for name, values in columns.items()}), new)
        case "npz":
            new = tmp_path / "new.npz"
            np.savez(new, **columns)
        case "folder":
            new = tmp_path / "new"
            new.mkdir()
            write_csv(new / "1.csv", rows[:40])
            write_csv(new / "2.csv", rows[40:])
        case _:
            new = tmp_path / "new.tsv"
            new.write_text(
                "age\tward\tpressure\n" + "".join(f"{r['age']}\t{r['ward']}\t{r['pressure']}\n" for r in rows)
            )
    out = tmp_path / "p.csv"
    said = command("predict", run, new, "--out", out, "--probabilities")
    assert said.code == 0, said.err
    assert [float(row["probability_yes"]) for row in read(out)] == pytest.approx(by_hand(run, rows).tolist(), abs=1e-12)


def test_predictions_as_parquet(tmp_path: Path, run: Path, command: Command) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = table(50, seed=8)
    new = write_csv(tmp_path / "new.csv", rows)
    assert command("predict", run, new, "--out", tmp_path / "p.parquet", "--probabilities", "--keep", "site").code == 0
    found = parquet.read_table(tmp_path / "p.parquet").to_pydict()
    assert list(found) == ["site", "probability_no", "probability_yes", "prediction"]
    assert found["probability_yes"] == pytest.approx(by_hand(run, rows).tolist(), abs=1e-12)


def test_a_file_that_is_not_plain_in_the_middle_is_read_all_the_same(tmp_path: Path, run: Path) -> None:
    """The fast reader stops at the odd record, and the careful one goes on from there, none lost and none twice."""
    rows = table(20_000, seed=9)
    rows[15_000] = rows[15_000] | {"pressure": " 120 "}
    rows[15_001] = rows[15_001] | {"ward": " C"}
    new = write_csv(tmp_path / "new.csv", rows)
    text = new.read_text().splitlines()
    text[15_003] = text[15_003] + "\n\n   "  # blank lines
    text[15_010] = ", ".join(f'"{cell}"' for cell in text[15_010].split(","))
    new.write_text("\n".join(text) + "\n")
    from fedveil.bundle.predicting import predict_file

    result = predict_file(fedveil.load_model(run), str(new), tmp_path / "p.csv", with_probabilities=True)
    clean = [row | {key: row[key].strip() for key in row} for row in rows]
    assert result.rows == 20_000
    expected = by_hand(run, clean).tolist()
    assert [float(row["probability_yes"]) for row in read(tmp_path / "p.csv")] == pytest.approx(expected, abs=1e-12)


GOOD = "age,ward,pressure\n63,A,145\n"
BAD: dict[str, tuple[str, list[str], str]] = {
    "unknown category": ("age,ward,pressure\n63,A,145\n63,Q,145\n", [], "record 2, column 'ward' must be one of"),
    "absent column": ("age,ward\n63,A\n", [], "have the column 'pressure'"),
    "absent column without a fill": ("ward,pressure\nA,145\n", ["--absent", "fill"], "have the column 'age'"),
    "misspelt column": ("age,wards,pressure\n63,A,145\n", [], "Did you mean wards?"),
    "text among numbers": ("age,ward,pressure\n63,A,high\n", [], "line 2, column 'pressure' must be a number"),
    "missing without a fill": ("age,ward,pressure\n,A,145\n", [], "column 'age' must not be missing"),
    "infinite": ("age,ward,pressure\n1e999,A,145\n", [], "finite"),
    "unequal rows": ("age,ward,pressure\n63,A\n", [], "have 3 cells"),
    "two columns of one name": ("age,ward,ward,pressure\n63,A,A,1\n", [], "have different names"),
    "no rows": ("age,ward,pressure\n", [], "at least one record"),
    "an empty file": ("", [], "at least one row"),
    "a column to keep that is not there": (GOOD, ["--keep", "name"], "--keep must name columns of the data"),
    "the prediction's own name": (GOOD, ["--keep", "prediction"], "--keep"),
    "another suffix": (GOOD, ["--out", "p.txt"], ".csv or .parquet"),
    "another rule": (GOOD, ["--unknown", "guess"], "--unknown must be refuse or zero"),
    "the data themselves": (GOOD, ["--out", "new.csv"], "--out must name another file than the data"),
    "a folder that is not there": (GOOD, ["--out", "nowhere/p.csv"], "cannot be written"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_data_get_one_sentence_and_leave_nothing(
    tmp_path: Path, run: Path, command: Command, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, more, told = BAD[name]
    monkeypatch.chdir(tmp_path)
    Path("new.csv").write_text(text)
    words = ["predict", run, "new.csv", *([] if "--out" in more else ["--out", "p.csv"]), *more]
    said = command(*words)
    assert said.code == 2
    assert told in said.err
    assert said.err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["new.csv"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["predict", "nowhere", "new.csv", "--out", "p.csv"], "must be a run's folder or its bundle.zip"),
        (["predict", ".", "new.csv", "--out", "p.csv"], "must hold bundle.zip"),
        (["predict", "new.csv", "new.csv", "--out", "p.csv"], "must be a bundle.zip that a run left"),
        (["export", "nowhere", "--to", "json"], "must be a run's folder or its bundle.zip"),
        (["export", "{run}", "--to", "excel"], "--to must be one of sklearn, onnx, json"),
        (["predict", "{run}", "other.csv", "--out", "p.csv"], "The data must be a file or folder"),
        (["predict", "{run}", "sklearn:wines", "--out", "p.csv"], "Did you mean wine?"),
    ],
)
def test_bad_words_get_one_sentence(
    tmp_path: Path, run: Path, command: Command, words: list[str], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("new.csv").write_text(GOOD)
    said = command(*(word.format(run=run) for word in words))
    assert (said.code, said.err.count("\n")) == (2, 1)
    assert told in said.err


def test_a_lenient_reader_fills_absent_columns_and_takes_unknown_categories_for_none(
    tmp_path: Path, run: Path, command: Command
) -> None:
    new = tmp_path / "new.csv"
    new.write_text("age,ward\n63,Q\n")
    words = ["predict", run, new, "--out", tmp_path / "p.csv", "--probabilities"]
    assert command(*words, "--absent", "fill", "--unknown", "zero").code == 0
    weights = np.load(run / "model.npz")["parameters"]
    row = np.array([13 / 50, 0, 0, 0, -10 / 60, 1.0])
    assert float(read(tmp_path / "p.csv")[0]["probability_yes"]) == pytest.approx(1 / (1 + np.exp(-row @ weights)))


CHANGES = {
    "model.npz": (b"parameters", b"parametErs"),
    "preparation.json": (b'"C"', b'"C", "D"'),
    "plan.toml": (b"delta = ", b"delta = 0"),
    "certificate.json": (b'"plan": "', b'"plan": "0'),
}


@pytest.mark.parametrize("member", CHANGES)
def test_a_bundle_that_was_changed_is_refused(tmp_path: Path, run: Path, command: Command, member: str) -> None:
    changed = tmp_path / "changed.zip"
    with zipfile.ZipFile(run / "bundle.zip") as old, zipfile.ZipFile(changed, "w") as new:
        for name in old.namelist():
            data = old.read(name)
            if name == member:
                assert CHANGES[name][0] in data
                data = data.replace(*CHANGES[name], 1)
            new.writestr(name, data)
    said = command("export", changed, "--to", "json", "--out", tmp_path / "m.json")
    assert (said.code, said.err.count("\n")) == (2, 1)


def test_a_bundle_with_something_else_in_it_is_refused(tmp_path: Path, run: Path, command: Command) -> None:
    changed = tmp_path / "changed.zip"
    shutil.copy(run / "bundle.zip", changed)
    with zipfile.ZipFile(changed, "a") as archive:
        archive.writestr("../evil.py", "")
    said = command("export", changed, "--to", "json", "--out", tmp_path / "m.json")
    assert said.code == 2
    assert "must hold only" in said.err


def test_a_row_that_training_would_drop_has_no_prediction(tmp_path: Path, command: Command) -> None:
    result = fedveil.run_study(write_study(tmp_path, age='"drop-row"'), tmp_path / "out")
    new = tmp_path / "new.csv"
    new.write_text("age,ward,pressure\n63,A,145\n,A,145\n41,B,\n")
    said = command("predict", tmp_path / "out", new, "--out", tmp_path / "p.csv", "--probabilities", "--json")
    assert json.loads(said.out)["without_prediction"] == 1
    found = read(tmp_path / "p.csv")
    assert found[1] == {"probability_no": "", "probability_yes": "", "prediction": ""}
    assert found[0]["prediction"] in ("no", "yes")
    with pytest.raises(fedveil.BadValue, match="Row 1 must have no missing value"):
        result.model.predict({"age": [63, np.nan], "ward": ["A", "A"], "pressure": [145, 145]})


def test_numbers_are_predicted_and_measured_in_their_own_unit(tmp_path: Path, command: Command) -> None:
    from sklearn.datasets import load_diabetes

    study = {
        "study": {"seed": 3},
        "data": {"source": "sklearn:diabetes", "feature_bound": 1.0, "held_out": {"fraction": 0.3, "public": True}},
        "model": {"kind": "huber", "radius": 5.0},
        "privacy": {"epsilon": 20.0, "delta": 1e-4, "neighbours": "zero-out"},
        "report": {"baselines": True},
    }
    result = fedveil.run_study(study, tmp_path / "out")
    test, X = result.metrics["test"], load_diabetes(return_X_y=True)[0]
    said = result.model.predict(X)
    assert 0 < said.min() < 100 < 200 < said.max() < 346
    assert 20 < test["mae"] < test["baseline"]["mae"] < 100  # of a scale from 25 to 346
    assert test["mae"] == pytest.approx(test["mean_absolute_error"] * (346 - 25) / 2)
    assert result.metrics["baselines"]["centralised"]["mae"] < test["baseline"]["mae"]
    assert command("predict", tmp_path / "out", "sklearn:diabetes", "--out", tmp_path / "p.csv").code == 0
    assert [float(row["prediction"]) for row in read(tmp_path / "p.csv")] == pytest.approx(said.tolist())
    said = command("predict", tmp_path / "out", "sklearn:diabetes", "--out", tmp_path / "q.csv", "--probabilities")
    assert (said.code, "--probabilities" in said.err) == (2, True)
    with pytest.raises(fedveil.BadValue, match="predict_proba"):
        result.model.predict_proba(X)


def kinds(model: str) -> dict[str, Any]:
    """Studies on scikit-learn's data, one for each loss."""
    data = {"logistic": "breast_cancer", "smoothed-hinge": "breast_cancer", "softmax": "wine", "huber": "diabetes"}
    return {
        "study": {"seed": 5},
        "data": {"source": f"sklearn:{data[model]}", "feature_bound": 1.0},
        "model": {"kind": model, "radius": 5.0},
        "privacy": {"epsilon": 8.0, "delta": 1e-4, "neighbours": "zero-out"},
        "schedule": {"kind": "constant", "rounds": 2},
    }


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory, run: Path) -> dict[str, tuple[fedveil.ReleasedModel, Any]]:
    """A model of each kind, and raw rows for it, far outside its ranges too."""
    random, found = np.random.default_rng(2), {}
    for kind in ("logistic", "smoothed-hinge", "softmax", "huber"):
        model = fedveil.run_study(kinds(kind), tmp_path_factory.mktemp(kind) / "out").model
        known = model.preparation
        assert known is not None
        low, high = (np.array([(column.range or (0, 1))[end] for column in known.columns]) for end in (0, 1))
        found[kind] = (model, low + (high - low) * random.normal(0.5, 1.0, size=(200, low.size)))
    rows = table(200, seed=11)
    gaps = [np.nan if row["pressure"] == "" else float(row["pressure"]) for row in rows]
    mixed = [[float(r["age"]), r["ward"], value] for r, value in zip(rows, gaps, strict=True)]
    found["mixed"] = (fedveil.load_model(run), np.array(mixed, dtype=object))
    return found


def outputs(model: fedveil.ReleasedModel, X: Any) -> np.ndarray[Any, Any]:
    if model.plan.model.kind == "huber":
        return model.predict(X)
    return model.decision_function(X) if model.plan.model.kind == "smoothed-hinge" else model.predict_proba(X)


@pytest.mark.parametrize("kind", ["smoothed-hinge", "softmax", "huber", "logistic"])
def test_scikit_learn_gives_the_same_numbers(
    exported: dict[str, tuple[fedveil.ReleasedModel, Any]], tmp_path: Path, kind: str
) -> None:
    from fedveil.bundle.export import exported as written

    model, X = exported[kind]
    path = tmp_path / "model.joblib"
    path.write_bytes(written(model.bundle, "sklearn"))
    loaded = joblib.load(path)
    ways = {"huber": "predict", "smoothed-hinge": "decision_function"}
    assert getattr(loaded, ways.get(kind, "predict_proba"))(X) == pytest.approx(outputs(model, X), abs=1e-12, rel=1e-12)
    if kind != "huber":
        assert (loaded.predict(X) == model.predict(X)).all()
    assert b"fedveil" not in pickle.dumps(loaded), "it must load where fedveil is not installed"


def test_scikit_learn_reads_texts_and_gaps(exported: dict[str, tuple[fedveil.ReleasedModel, Any]]) -> None:
    """Ages have no fill, so a mark of a missing value that is a number cannot be told in them: said, not guessed."""
    from fedveil.bundle.to_sklearn import pipeline_of

    model, _ = exported["mixed"]
    with pytest.raises(fedveil.BadValue, match="Columns without a fill"):
        pipeline_of(model.bundle)


def test_scikit_learn_reads_texts_and_gaps_where_all_have_a_fill(tmp_path: Path) -> None:
    from fedveil.bundle.to_sklearn import pipeline_of

    model = fedveil.run_study(write_study(tmp_path, age="50"), tmp_path / "out").model
    X = [[63.0, "A", 145.0], [np.nan, None, np.nan], [41.0, "?", -9.0], [300.0, "C", 1e9], [-9.0, "", 100.0]]
    rows = np.array(X, dtype=object)
    assert pipeline_of(model.bundle).predict_proba(rows) == pytest.approx(model.predict_proba(rows), abs=1e-12)
    with pytest.raises(ValueError, match="unknown categories"):
        pipeline_of(model.bundle).predict(np.array([[63.0, "Q", 145.0]], dtype=object))
    assert pipeline_of(model.lenient(unknown="zero").bundle).predict_proba(
        np.array([[63.0, "Q", 145.0]], dtype=object)
    ) == pytest.approx(model.lenient(unknown="zero").predict_proba([[63.0, "Q", 145.0]]), abs=1e-12)


@pytest.mark.parametrize("kind", ["smoothed-hinge", "softmax", "huber", "logistic", "mixed"])
def test_onnx_gives_the_same_numbers(exported: dict[str, tuple[fedveil.ReleasedModel, Any]], kind: str) -> None:
    pytest.importorskip("onnx")
    runtime = pytest.importorskip("onnxruntime")
    from fedveil.bundle.to_onnx import to_onnx

    model, X = exported[kind]
    session = runtime.InferenceSession(to_onnx(model.bundle), providers=["CPUExecutionProvider"])
    known = model.preparation
    assert known is not None
    feeds = {
        column.name: np.asarray(X[:, [index]], dtype=object if column.categories else np.float64)
        for index, column in enumerate(known.columns)
    }
    found = session.run(None, feeds)
    assert found[-1].squeeze() == pytest.approx(
        outputs(model, X) if kind != "smoothed-hinge" else np.outer(outputs(model, X), [-1, 1]), abs=1e-9, rel=1e-9
    )
    if kind != "huber":
        assert (found[0] == model.predict(X).astype(str)).all()
    if kind == "mixed":
        feeds["ward"][0, 0], feeds["age"][1, 0] = "Q", np.nan
        assert np.isnan(session.run(None, feeds)[-1][:2]).all()


def learned(run: Path) -> fedveil.ReleasedModel:
    """The same parameters behind a preparation of the kind that is learned: bent scales, shares, others, places."""
    ages = Column(name="age", range=(1.0, 100.0), unit=5.0, centre=2.5, scale=0.8, fill=30.0)
    wards = Column(
        name="ward", categories=("A", "(other)"), offsets=(0.4, 0.6), weight=0.7, fill="(other)", unknown="(other)"
    )
    pressures = Column(name="pressure", range=(80.0, 200.0), centre=128.0, scale=31.0, fill=128.0)
    bundle = fedveil.load_model(run).bundle
    assert bundle.preparation is not None
    known = replace(bundle.preparation, columns=(ages, wards, pressures), slots=(3, 0, 4, 1), width=5)
    return fedveil.ReleasedModel(Bundle.of(bundle.files, known))


STRANGE = [[63.0, "A", 145.0], [np.nan, "Q", np.nan], [0.1, None, 500.0], [1e9, "B", -9.0], [20.0, "", 100.0]]


def test_a_learned_preparation_fits_into_the_same_value(run: Path, tmp_path: Path) -> None:
    from fedveil.bundle.to_sklearn import pipeline_of

    model, weights = learned(run), np.load(run / "model.npz")["parameters"]
    path = tmp_path / "learned.zip"
    path.write_bytes(model.bundle.write())
    assert fedveil.load_model(path).preparation == model.preparation
    expected = []
    for age, ward, pressure in STRANGE:
        first = np.arcsinh(np.clip(30.0 if age in (-9.0,) or np.isnan(age) else age, 1, 100) / 5)
        third = np.clip(128.0 if pressure == -9.0 or np.isnan(pressure) else pressure, 80, 200)
        ours = float(ward == "A")
        row = np.zeros(5)
        row[[3, 0, 4, 1]] = (first - 2.5) / 0.8, 0.7 * (ours - 0.4), 0.7 * (1 - ours - 0.6), (third - 128) / 31
        row *= min(1.0, 1.5 / np.linalg.norm(row))
        expected.append(1 / (1 + np.exp(-np.append(row, 1.0) @ weights)))
    X = np.array(STRANGE, dtype=object)
    assert model.predict_proba(X)[:, 1] == pytest.approx(expected, abs=1e-12)
    assert pipeline_of(model.bundle).predict_proba(X)[:, 1] == pytest.approx(expected, abs=1e-12)


def test_onnx_knows_a_learned_preparation(run: Path) -> None:
    pytest.importorskip("onnx")
    runtime = pytest.importorskip("onnxruntime")
    from fedveil.bundle.to_onnx import to_onnx

    model, X = learned(run), np.array(STRANGE, dtype=object)
    session = runtime.InferenceSession(to_onnx(model.bundle), providers=["CPUExecutionProvider"])
    words = np.array([["" if word is None else word] for word in X[:, 1]], dtype=object)
    feeds = {"age": X[:, :1].astype(np.float64), "ward": words, "pressure": X[:, 2:].astype(np.float64)}
    assert session.run(None, feeds)[1] == pytest.approx(model.predict_proba(X), abs=1e-9)


def test_without_onnx_one_sentence_says_what_to_install(
    run: Path, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    said = command("export", run, "--to", "onnx", "--out", tmp_path / "m.onnx")
    assert (said.code, "fedveil[onnx]" in said.err) == (2, True)


def test_json_has_every_number_that_a_prediction_needs(run: Path, command: Command, tmp_path: Path) -> None:
    assert command("export", run, "--to", "json", "--out", tmp_path / "m.json").code == 0
    found = json.loads((tmp_path / "m.json").read_text())
    rows = table(20, seed=12)
    expected = by_hand(run, rows)
    for row, wanted in zip(rows, expected, strict=True):
        entries: list[float] = []
        for column in found["preparation"]["columns"]:
            cell = row[column["name"]]
            cell = str(column["fill"]) if cell in found["preparation"]["missing"] else cell
            if "categories" in column:
                entries += [float(cell == word) for word in column["categories"]]
            else:
                low, high = column["range"]
                entries.append(min(1.0, max(-1.0, (float(cell) - (low + high) / 2) / ((high - low) / 2))))
        scale = max(1.0, float(np.linalg.norm(entries)) / found["cut"])
        score = sum(entry / scale * weights[0] for entry, weights in zip(entries, found["weights"], strict=True))
        assert 1 / (1 + np.exp(-(score + found["constants"][0]))) == pytest.approx(wanted, abs=1e-12)
    assert found["certificate"] == json.loads((run / "certificate.json").read_text())


def test_a_model_no_better_than_the_majority_is_warned_of(tmp_path: Path, command: Command) -> None:
    rows = [row | {"ill": "yes" if index % 9 == 0 else "no"} for index, row in enumerate(table())]
    study = write_study(tmp_path)
    write_csv(tmp_path / "train.csv", rows)
    said = command("run", study, "--out", tmp_path / "out")
    assert "WARNING: This model does no better than always answering 'no'" in said.out
    assert "always 'no'" in said.out
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "This model does no better than always answering" in page
    assert "always “no”" in page
    result = json.loads(command("run", study, "--out", tmp_path / "again", "--json").out)
    assert any("no better" in sentence for sentence in result["warnings"])


@pytest.mark.parametrize("public", [True, False])
def test_what_may_tell_about_single_records_stays_private(tmp_path: Path, public: bool) -> None:
    study = write_study(tmp_path, held_out="public = true" if public else "")
    test = fedveil.run_study(study, tmp_path / "out").metrics["test"]
    private = tmp_path / "out" / "private"
    assert ("bins" in test["calibration"]) == public
    assert (private / "calibration.json").exists() != public
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert ("Can its probabilities be trusted?" in page) == public
    assert "Class by class" in page
    assert "the same model, with all that a prediction needs" in page
    assert set(test) >= {"baseline", "auc", "log_loss", "brier", "confusion", "recall", "precision", "threshold"}


def test_compare_shows_the_constant_answer(tmp_path: Path, command: Command) -> None:
    study = write_study(tmp_path)
    said = command("compare", study, "--algorithms", "hidden", "--runs", "1", "--out", tmp_path / "compared")
    assert "always 'yes': accuracy" in said.out
    found = json.loads((tmp_path / "compared" / "compare.json").read_text())
    assert found["constant"] == "always 'yes'"
    assert 0.4 < found["baseline"] < 0.8
    assert "always &#x27;yes&#x27;" in (tmp_path / "compared" / "compare.html").read_text(encoding="utf-8")
    rows = [row | {"ill": "yes" if index % 9 == 0 else "no"} for index, row in enumerate(table())]
    (tmp_path / "rare").mkdir()
    study = write_study(tmp_path / "rare")
    write_csv(tmp_path / "rare" / "train.csv", rows)
    said = command("compare", study, "--algorithms", "hidden", "--runs", "1", "--json")
    assert said.code == 0, said.err
    assert json.loads(said.out)["no_better"] == ["hidden"]


def test_arrays_given_in_python_make_a_whole_model_too(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    X = random.normal(size=(300, 3))
    y = (X[:, 0] > 0).astype(int)
    records = fedveil.records_from_arrays(X, y, bound=1.0, classes=2, scale=(-3.0, 3.0))
    study = {"study": {"seed": 1}, "model": {"kind": "logistic"}, "privacy": {"epsilon": 8.0, "delta": 1e-4}}
    model = fedveil.run_study(study, tmp_path / "out", data=records).model
    assert model.classes_.tolist() == [0, 1]
    assert np.mean(model.predict(X) == y) > 0.7


def test_canaries_are_not_part_of_the_model_in_use(tmp_path: Path) -> None:
    study = write_study(tmp_path)
    study.write_text(study.read_text() + "[audit]\ncanaries = 20\n")
    model = fedveil.run_study(study, tmp_path / "out").model
    rows = table(10, seed=2)
    cells = {name: [row[name] for row in rows] for name in ("age", "ward", "pressure")}
    weights = np.load(tmp_path / "out" / "model.npz")["coefficients"]
    assert model.bundle.parameters.tolist() == weights.ravel().tolist()
    assert model.predict(cells).size == 10
