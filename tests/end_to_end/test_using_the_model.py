"""From a table with texts and gaps to predictions on new records: the commands, the files, and what is refused."""

import json
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
from wards import Command, by_hand, read, table, write_csv, write_study

import fedveil


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wards")
    fedveil.run_study(write_study(folder), folder / "out")
    return folder / "out"


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
    assert repr(model).startswith("ReleasedModel(wards: logistic, 3 columns, NOT PRIVATE")
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
    from fedveil.release.predicting import predict_file

    result = predict_file(fedveil.load_model(run), str(new), tmp_path / "p.csv", with_probabilities=True)
    clean = [row | {key: row[key].strip() for key in row} for row in rows]
    assert result.rows == 20_000
    expected = by_hand(run, clean).tolist()
    assert [float(row["probability_yes"]) for row in read(tmp_path / "p.csv")] == pytest.approx(expected, abs=1e-12)


GOOD = "age,ward,pressure\n63,A,145\n"
BAD: dict[str, tuple[str, list[str], str]] = {
    "unknown category": ("age,ward,pressure\n63,A,145\n63,Q,145\n", [], "line 3, column 'ward' must be one of"),
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
        "schedule": {"rounds": 8, "passes": 20},
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


def test_predicting_keeps_to_one_thread_of_linear_algebra_and_gives_it_back() -> None:
    """Products of a few thousand rows are too small for more; whoever calls it has its own threads afterwards."""
    from threadpoolctl import threadpool_info

    from fedveil.release.predicting import one_thread

    def threads() -> list[int]:
        return [one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas"]

    before = threads()
    with one_thread():
        assert set(threads()) <= {1}
    assert threads() == before
