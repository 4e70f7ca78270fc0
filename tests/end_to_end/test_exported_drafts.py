"""Every drafted study, in every format that a model is handed on in: the numbers of ``fedveil predict``, by names.

Tables with texts, gaps, dates, identifiers and numbers written in words' company; columns come in another order, with
others beside them, and one at a time they are left out.
"""

import csv
import io
import json
import pickle
import tomllib
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pandas as pd
import pytest
from wards import Command

import fedveil
from fedveil.jobs.entry import Wish, init_study, profile_data
from fedveil.release.export import TRUSTED, export_model
from fedveil.release.linear import linear_of

EXAMPLES = Path(__file__).parents[2] / "examples"
QUICK = '\n[algorithm]\nkind = "hidden"\norder = "secret"\n[schedule]\nkind = "constant"\nrounds = 2\n'
TOWNS = ["Ulm", "Bonn", "Kiel", "São Paulo", ""]


def made(rows: int, seed: int) -> dict[str, list[Any]]:
    """Columns as a program has them: None where a cell is empty."""
    draw = np.random.default_rng(seed)
    age, town = draw.normal(45, 15, rows).round(), draw.choice(TOWNS, rows, p=[0.4, 0.3, 0.15, 0.1, 0.05])
    income, member = np.exp(draw.normal(8, 2, rows)), draw.choice(["yes", "no"], rows)
    score = (age - 45) / 15 + (town == "Ulm") + 0.3 * draw.normal(size=rows)
    return {
        "patient_id": [f"P{index}" for index in range(rows)],
        "admitted": [f"2021-03-{day:02d}" for day in draw.integers(1, 28, rows)],
        "age": [None if index % 20 == 0 else float(value) for index, value in enumerate(age)],
        "town, of birth": [str(word) or None for word in town],
        "income": [float(value) for value in income],
        "member": [str(word) for word in member],
        "ill": np.where(score > 0.5, "yes", "no").tolist(),
        "grade": np.array(["low", "middle", "high"])[np.digitize(score, [-0.5, 1.0])].tolist(),
        "cost": (100 + 40 * score).round(2).tolist(),
        "visits": draw.poisson(np.exp(0.5 * np.clip(score, -3, 3))).tolist(),
        "time": draw.exponential(4, rows).round(2).tolist(),
        "died": draw.integers(0, 2, rows).tolist(),
    }


def write(path: Path, columns: dict[str, list[Any]], header: bool = True) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        lines = csv.writer(file)
        lines.writerows([list(columns)] if header else [])
        lines.writerows(
            [["?" if cell is None else cell for cell in row] for row in zip(*columns.values(), strict=True)]
        )


TARGETS: dict[str, dict[str, Any]] = {
    "logistic": {"target": "ill", "classes": ("no", "yes")},
    "softmax": {"target": "grade", "classes": ("low", "middle", "high")},
    "huber": {"target": "cost", "range": (0.0, 200.0)},
    "poisson": {"target": "visits", "range": (0.0, 20.0)},
    "survival": {"target": "time", "range": (0.0, 20.0)},
    "smoothed-hinge": {"target": "ill", "classes": ("no", "yes")},
}
KINDS = [f"init {kind}" for kind in TARGETS] + ["profile logistic", "profile softmax", "profile huber", "no header"]
KINDS += [f"example {name}" for name in ("hospitals", "wine", "diabetes")]


def drafted(folder: Path, kind: str) -> Path | dict[str, Any]:
    """A study as ``init`` or ``profile`` drafts it, with a quick schedule; or one of the examples."""
    way, _, name = kind.partition(" ")
    if way == "example":
        study = tomllib.loads((EXAMPLES / f"{name}.toml").read_text(encoding="utf-8"))
        return study | {
            "algorithm": {"kind": "hidden", "order": "secret"},
            "schedule": {"kind": "constant", "rounds": 2},
        }
    table, out = made(400, 1), folder / "study.toml"
    if way == "no":
        numbers = {name: made(400, 1)[name] for name in ("income", "cost", "visits", "died")}
        write(folder / "table.csv", numbers, header=False)
        init_study(Wish(data=str(folder / "table.csv"), classes=("0", "1")), out)
    else:
        asked = dict(TARGETS[name])
        others = {"ill", "grade", "cost", "visits", "time", "died"} - {asked["target"]}
        write(
            folder / "table.csv", {k: v for k, v in table.items() if k not in others - {"died" * (name == "survival")}}
        )
        wish = Wish(data=str(folder / "table.csv"), **asked)
        if way == "profile":
            profile_data(wish, 8.0, folder / "profile")
            out = folder / "profile" / "study.toml"
        else:
            init_study(wish, out)
    text = out.read_text(encoding="utf-8")
    if name == "survival":
        text = text.replace("target_scale = [0.0, 20.0]", 'event = "died"\nintervals = [2, 5, 10]')
    if name in ("survival", "poisson"):
        text = text.replace('kind = "huber"', f'kind = "{name}"')
    if name == "smoothed-hinge":
        text = text.replace('kind = "logistic"', f'kind = "{name}"')
    out.write_text(text + QUICK, encoding="utf-8")
    return out


@pytest.fixture(scope="module", params=KINDS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> fedveil.ReleasedModel:
    folder = tmp_path_factory.mktemp("drafted")
    return fedveil.run_study(drafted(folder, request.param), folder / "out").model


def new_rows(model: fedveil.ReleasedModel) -> pd.DataFrame:
    """Records that the model never saw: words that it does not know, gaps, blanks, numbers far outside its ranges."""
    known, draw = model.preparation, np.random.default_rng(3)
    assert known is not None
    if "income" in known.names:
        frame = pd.DataFrame(made(120, 2))[list(known.names)]
        towns, strict = frame["town, of birth"].to_numpy(dtype=object), known.columns[0].fill == "refuse"
        towns[:6] = ["Atlantis", " Ulm ", "Bonn", None, "NA", np.nan]
        frame["town, of birth"] = towns
        frame.loc[7:9, "income"] = [1e12, -5.0, 0.0]
        return frame.dropna() if strict else frame
    low, high = (np.array([(column.range or (0.0, 1.0))[end] for column in known.columns]) for end in (0, 1))
    return pd.DataFrame(low + (high - low) * draw.normal(0.5, 1.0, (60, low.size)), columns=list(known.names))


def numbers(model: Any, X: Any) -> Any:
    """Everything that it predicts as a number; classes are compared on their own."""
    kind = "predict"
    for name in ("predict_proba", "decision_function"):
        if hasattr(model, name) and hasattr(model, "classes_"):
            kind = name
            break
    return np.asarray(getattr(model, kind)(X), dtype=float)


def expected(model: fedveil.ReleasedModel, X: Any) -> Any:
    if not linear_of(model.bundle, "json").classes or model.survival:
        return model.predict(X)
    return model.decision_function(X) if model.plan.model.kind == "smoothed-hinge" else model.predict_proba(X)


def frames(frame: pd.DataFrame) -> dict[str, Any]:
    """The same records in other hands."""
    swapped = frame[list(frame.columns[::-1])]
    objects = frame.astype(object).where(frame.notna(), None)
    beside = swapped.assign(name="somebody", nothing=np.nan)
    found = {"frame": frame, "swapped": swapped, "objects": objects, "beside others": beside}
    return found | {
        "array": frame.to_numpy(),
        "rows": frame.to_numpy(dtype=object).tolist(),
        "texts": objects.astype(str),
    }


@pytest.mark.parametrize("ending", [".skops", ".joblib", ".pkl"])
@pytest.mark.filterwarnings("error")
def test_scikit_learn(model: fedveil.ReleasedModel, ending: str) -> None:
    written = export_model(model.bundle, "sklearn", ending=ending)
    assert b"fedveil" not in written, "it must load where fedveil is not installed"
    if ending == ".skops":
        skops = pytest.importorskip("skops.io")
        assert set(skops.get_untrusted_types(data=written)) <= set(TRUSTED)
        pipeline = skops.loads(written, trusted=list(TRUSTED))
    else:
        pipeline = joblib.load(io.BytesIO(written)) if ending == ".joblib" else pickle.loads(written)
    frame = new_rows(model)
    assert pipeline.feature_names_in_.tolist() == model.feature_names_in_.tolist()
    for name, given in frames(frame).items():
        if name == "texts":
            given = given.replace("None", "")
        wanted = expected(model, given)
        assert numbers(pipeline, given) == pytest.approx(wanted, abs=1e-12, rel=1e-12), name
        if name != "array":
            assert wanted == pytest.approx(expected(model, frame), abs=1e-12, rel=1e-12), name
        if linear_of(model.bundle, "json").classes and not model.survival:
            assert (pipeline.predict(given) == model.predict(given)).all()
    for column in frame.columns:
        with pytest.raises(ValueError, match=f"columns are missing.*{column}"):
            pipeline.predict(frame.drop(columns=column))
    with pytest.raises(ValueError, match="features"):
        pipeline.predict(frame.to_numpy()[:, 1:])


def test_polars(model: fedveil.ReleasedModel) -> None:
    polars = pytest.importorskip("polars")
    pipeline = joblib.load(io.BytesIO(export_model(model.bundle, "sklearn", ending=".joblib")))
    frame = new_rows(model)
    given = polars.from_dicts(frame[list(frame.columns[::-1])].to_dict("records"), infer_schema_length=None)
    try:
        found = numbers(pipeline, given)
    except ValueError as error:
        if "different column names" not in str(error):
            raise
        pytest.skip("this scikit-learn does not find the columns of such a frame by name, and refuses it")
    assert found == pytest.approx(expected(model, given), abs=1e-12, rel=1e-12)


def test_onnx(model: fedveil.ReleasedModel) -> None:
    pytest.importorskip("onnx")
    runtime = pytest.importorskip("onnxruntime")
    known, frame = model.preparation, new_rows(model)
    assert known is not None
    session = runtime.InferenceSession(export_model(model.bundle, "onnx"), providers=["CPUExecutionProvider"])
    feeds = {
        column.name: frame[[column.name]].fillna("").map(str.strip).to_numpy(dtype=object)
        if column.categories
        else frame[[column.name]].to_numpy(dtype=float)
        for column in reversed(known.columns)
    }
    found = dict(zip([one.name for one in session.get_outputs()], session.run(None, feeds), strict=True))
    values = next(found[name] for name in ("prediction", "probabilities", "scores") if name in found)
    wanted = expected(model, frame)
    if "scores" in found:
        wanted = np.outer(wanted, [-1, 1])
    assert values.squeeze() == pytest.approx(wanted, abs=1e-9, rel=1e-9)
    if "label" in found:
        assert (found["label"] == model.predict(frame).astype(str)).all()
    feeds.pop(known.names[0])
    with pytest.raises(ValueError, match=r"Required inputs|missing"):
        session.run(None, feeds)


def test_json(model: fedveil.ReleasedModel) -> None:
    said, frame = json.loads(export_model(model.bundle, "json")), new_rows(model)
    found = np.array([by_hand(said, record) for record in frame[list(frame.columns[::-1])].to_dict("records")])
    wanted = expected(model, frame)
    assert found.squeeze() == pytest.approx(wanted, abs=1e-12, rel=1e-12)


def by_hand(said: dict[str, Any], record: dict[str, Any]) -> Any:
    """A prediction as docs/using-the-model.md says it, from named cells and the file alone."""
    entries: list[float] = []
    marks = said["preparation"]["missing"]
    for column in said["preparation"]["columns"]:
        cell = record[column["name"]]
        cell = "" if cell is None or cell != cell else cell.strip() if isinstance(cell, str) else cell
        cell = column["fill"] if cell in marks or cell == "" else cell
        if "categories" in column:
            words = column["categories"]
            if cell not in words:
                assert cell == "zero" or column["unknown"] != "refuse"
                cell = column["unknown"] if cell != "zero" else cell
            hot = np.array([float(cell == word) for word in words]) - column.get("offsets", [0.0] * len(words))
            entries += (hot * column.get("weight", 1.0)).tolist()
        else:
            entries.append(number(column, float(cell)))
    row = np.array(entries)
    row /= max(1.0, float(np.linalg.norm(row)) / said["cut"])
    scores = row @ np.array(said["weights"]) + said["constants"]
    match said["link"]:
        case "logistic":
            return [1 / (1 + np.exp(scores[0])), 1 / (1 + np.exp(-scores[0]))]
        case "softmax":
            return np.exp(scores - scores.max()) / np.exp(scores - scores.max()).sum()
        case "counts":
            return said["top"] * min(said["rate"] * np.exp(scores[0]), 1)
        case "survival":
            return 1 - np.prod(1 / (1 + np.exp(scores)))
    return scores


def number(column: dict[str, Any], x: float) -> float:
    low, high = column.get("range", (-np.inf, np.inf))
    x = min(max(x, low), high)
    if column.get("unit"):
        x, low, high = (float(np.arcsinh(value / column["unit"])) for value in (x, low, high))
    centre = column.get("centre", (low + high) / 2 if "range" in column else 0.0)
    scale = column.get("scale", (high - low) / 2 if "range" in column else 1.0)
    return (x - centre) / scale


def test_the_file_is_called_as_it_is_written(tmp_path: Path, command: Command) -> None:
    study = drafted(tmp_path, "init logistic")
    fedveil.run_study(study, tmp_path / "out")
    said = command("export", tmp_path / "out", "--to", "sklearn")
    assert said.code == 0, said.err
    assert (tmp_path / "out" / "model.skops").is_file()
    assert "numpy.asarray" in said.out
    said = command("export", tmp_path / "out", "--to", "sklearn", "--out", tmp_path / "model.zip")
    assert (said.code, "must end in .skops, .joblib, .pkl" in said.err) == (2, True)
    assert command("predict", tmp_path / "out", tmp_path / "table.csv", "--out", tmp_path / "p.csv").code == 0
    frame = pd.read_csv(tmp_path / "table.csv")
    skops = pytest.importorskip("skops.io")
    pipeline = skops.load(tmp_path / "out" / "model.skops", trusted=list(TRUSTED))
    assert (pipeline.predict(frame) == pd.read_csv(tmp_path / "p.csv")["prediction"]).all()
