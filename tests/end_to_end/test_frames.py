"""Frames of pandas and polars: trained on, predicted with, and their column names kept."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedveil
from fedveil.core.errors import FedveilError
from fedveil.jobs.estimators import PrivateLogisticRegression

STUDY: dict[str, Any] = {
    "data": {"target": "ill", "classes": ["no", "yes"]},
    "model": {"kind": "logistic"},
    "privacy": {"epsilon": 4.0, "delta": 1e-3},
    "algorithm": {"kind": "dpsgd", "rate": 0.5, "rounds": 4},
    "prepare": {"kind": "private"},
    "study": {"seed": 3},
}


def columns(count: int = 200, seed: int = 2) -> dict[str, list[Any]]:
    draw = np.random.default_rng(seed)
    age = draw.normal(50, 12, count).round(2)
    ward = draw.choice(["A", "B"], count)
    return {
        "age": [None if index % 11 == 4 else value for index, value in enumerate(age.tolist())],
        "ward": [None if index % 13 == 5 else value for index, value in enumerate(ward.tolist())],
        "ill": np.where(age > 50, "yes", "no").tolist(),
    }


def framed(kind: str, given: dict[str, list[Any]]) -> Any:
    if kind == "columns":
        return {name: np.array(cells, dtype=object) for name, cells in given.items()}
    library = pytest.importorskip(kind)
    return library.DataFrame(given)


@pytest.fixture(scope="module")
def from_a_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("frames")
    given = columns()
    lines = [",".join("" if cell is None else str(cell) for cell in row) for row in zip(*given.values(), strict=True)]
    (folder / "v.csv").write_text("\n".join([",".join(given), *lines]) + "\n")
    study = {**STUDY, "data": {**STUDY["data"], "source": str(folder / "v.csv")}}
    fedveil.run_study(study, folder / "out")
    return folder / "out"


@pytest.mark.parametrize("kind", ["columns", "pandas", "polars"])
def test_a_frame_trains_the_model_of_the_same_file(tmp_path: Path, from_a_file: Path, kind: str) -> None:
    found = fedveil.run_study(STUDY, tmp_path / "out", data=framed(kind, columns()))
    assert (tmp_path / "out" / "model.npz").read_bytes() == (from_a_file / "model.npz").read_bytes()
    assert found.model.feature_names_in_.tolist() == ["age", "ward"]
    new = columns(20, seed=9)
    predicted = found.model.predict(framed(kind, {name: new[name] for name in ("ward", "age")}))
    assert predicted.tolist() == fedveil.load_model(from_a_file).predict(framed("columns", new)).tolist()


@pytest.mark.parametrize("kind", ["pandas", "polars"])
def test_estimators_and_records_keep_the_names_of_columns(kind: str) -> None:
    draw = np.random.default_rng(0)
    numbers = {"age": draw.normal(size=100).tolist(), "weight": draw.normal(size=100).tolist()}
    frame, labels = framed(kind, numbers), (np.array(numbers["age"]) > 0).astype(int)
    model = PrivateLogisticRegression(epsilon=4.0, delta=1e-3, random_state=1).fit(frame, labels)
    assert model.feature_names_in_.tolist() == ["age", "weight"]
    records = fedveil.records_from_arrays(frame, labels, bound=1.0, classes=2)
    array = fedveil.records_from_arrays(np.column_stack(list(numbers.values())), labels, bound=1.0, classes=2)
    assert records.preparation
    assert records.preparation.names == ("age", "weight")
    assert np.array_equal(records.features, array.features)
    assert records.raw is not None
    assert array.raw is not None
    assert records.raw.fingerprint(b"k" * 32) == array.raw.fingerprint(b"k" * 32)  # so the same books


@pytest.mark.parametrize(
    ("study", "given", "told"),
    [
        ({**STUDY, "data": {**STUDY["data"], "source": "x.csv"}}, columns(), r"data\.source must be left out"),
        (STUDY, {"ill": ["no", "yes"]}, "at least two columns"),
        (STUDY, {"age": [1.0, 2.0], "il": ["no", "yes"]}, r"data\.target must be a column of frame"),
        (STUDY, {"age": [1.0, 2.0], "ill": ["no", "perhaps"]}, "frame, row 2.*must be one of data.classes"),
    ],
)
def test_a_frame_that_does_not_fit_is_refused(
    tmp_path: Path, study: dict[str, Any], given: dict[str, list[Any]], told: str
) -> None:
    with pytest.raises(FedveilError, match=told):
        fedveil.run_study(study, tmp_path / "out", data=given)
