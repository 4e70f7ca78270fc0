"""A released model in the hands of others: scikit-learn, ONNX, JSON; and how good it is said to be."""

import json
import pickle
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
from wards import PUBLIC, Command, by_hand, table, write_csv, write_study

import fedveil
from fedveil.data.column import Column
from fedveil.release.bundle import Bundle


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wards")
    fedveil.run_study(write_study(folder), folder / "out")
    return folder / "out"


def kinds(model: str) -> dict[str, Any]:
    """Studies on scikit-learn's data, one for each loss."""
    data = {"logistic": "breast_cancer", "smoothed-hinge": "breast_cancer", "softmax": "wine", "huber": "diabetes"}
    return {
        "study": {"seed": 5},
        "data": {"source": f"sklearn:{data[model]}", "feature_bound": 1.0},
        "model": {"kind": model, "radius": 5.0} | ({"decision_threshold": 0.3} if model == "logistic" else {}),
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
    from fedveil.release.export import export_model

    model, X = exported[kind]
    path = tmp_path / "model.joblib"
    path.write_bytes(export_model(model.bundle, "sklearn", ending=".joblib"))
    loaded = joblib.load(path)
    ways = {"huber": "predict", "smoothed-hinge": "decision_function"}
    assert getattr(loaded, ways.get(kind, "predict_proba"))(X) == pytest.approx(outputs(model, X), abs=1e-12, rel=1e-12)
    if kind != "huber":
        assert (loaded.predict(X) == model.predict(X)).all()
    assert b"fedveil" not in pickle.dumps(loaded), "it must load where fedveil is not installed"


def test_scikit_learn_reads_texts_and_gaps(exported: dict[str, tuple[fedveil.ReleasedModel, Any]]) -> None:
    """Ages have no fill: a missing one is refused, also where a number marks it."""
    from fedveil.release.to_sklearn import pipeline_of

    model, X = exported["mixed"]
    pipeline = pipeline_of(model.bundle)
    assert pipeline.predict_proba(X) == pytest.approx(model.predict_proba(X), abs=1e-12)
    for gap in (None, np.nan, "", "?", -9, -9.0, "-9"):
        with pytest.raises(ValueError, match="missing"):
            model.predict([[gap, "A", 130.0]])
        with pytest.raises(ValueError, match="NaN"):
            pipeline.predict(np.array([[gap, "A", 130.0]], dtype=object))


def test_scikit_learn_reads_texts_and_gaps_where_all_have_a_fill(tmp_path: Path) -> None:
    from fedveil.release.to_sklearn import pipeline_of

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
    from fedveil.release.to_onnx import to_onnx

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
    assert bundle.preparation
    known = replace(bundle.preparation, columns=(ages, wards, pressures), slots=(3, 0, 4, 1), width=5)
    return fedveil.ReleasedModel(Bundle.of(bundle.files, known))


STRANGE = [[63.0, "A", 145.0], [np.nan, "Q", np.nan], [0.1, None, 500.0], [1e9, "B", -9.0], [20.0, "", 100.0]]


def test_a_learned_preparation_fits_into_the_same_value(run: Path, tmp_path: Path) -> None:
    from fedveil.release.to_sklearn import pipeline_of

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
    from fedveil.release.to_onnx import to_onnx

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
    study = write_study(tmp_path, held_out=PUBLIC if public else "[evaluation]\nprivate = false")
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
    study["algorithm"] = {"kind": "hidden", "order": "secret"}  # a design that weighs all orders takes ten seconds
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


@pytest.mark.parametrize("fill", ["(other)", "zero", "refuse", "drop-row"])
@pytest.mark.parametrize("unknown", ["(other)", "zero", "refuse"])
def test_every_rule_for_other_words_is_exported(run: Path, fill: str, unknown: str) -> None:
    """Also numbers as categories, whether they are given as 3, 3.0 or "3"; what fedveil refuses is refused."""
    from fedveil.release.to_sklearn import pipeline_of

    bundle = fedveil.load_model(run).bundle
    assert bundle.preparation
    wards = Column(name="ward", categories=("3", "A", "(other)"), offsets=(0.1, 0.4, 0.5), fill=fill, unknown=unknown)
    known = replace(bundle.preparation, columns=(bundle.preparation.columns[0], wards, bundle.preparation.columns[2]))
    model = fedveil.ReleasedModel(Bundle.of(bundle.files, known))
    pipeline = pipeline_of(model.bundle)
    for word in ("A", " A ", 3, 3.0, "3", "3.0", "Q", "", None, np.nan, "NA", "-9", "?"):
        given = np.array([[50.0, word, 120.0]], dtype=object)
        try:
            expected = model.predict_proba(given)
        except fedveil.BadValue:
            with pytest.raises(ValueError, match=r"unknown categor|NaN"):
                pipeline.predict_proba(given)
        else:
            assert pipeline.predict_proba(given) == pytest.approx(expected, abs=1e-12), word
