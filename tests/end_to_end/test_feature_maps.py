"""A frozen feature map under a linear model with the hidden bounds: in the plan, the certificate and the bundle."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedveil import BadValue, allowing, give, load_model, plan_study, records_from_arrays, run_study
from fedveil.data.rows import mapped_rows
from fedveil.federation.site.data import read_site_data
from fedveil.jobs.local import Result
from fedveil.planning.plan import read_plan, write_plan
from fedveil.release.export import export_model

_FILE = """
import numpy as np

def products(rows):
    first, second = rows[:, :1], rows[:, 1:2]
    return np.concatenate([rows, first * second], axis=1)

def mixing(rows):
    return rows - rows.mean(axis=0)

calls = []
def remembering(rows):
    calls.append(1)
    return rows + len(calls)

def shapeless(rows):
    return np.zeros((1, 1 + int(rows[0, 0] > 0)))

def failing(rows):
    raise RuntimeError("no such weights")

def infinite(rows):
    return rows * np.inf
"""


@pytest.fixture(autouse=True)
def in_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The map's file is found in the folder where the command runs."""
    monkeypatch.chdir(folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sign of a product of two columns, which no linear model predicts from the columns alone."""
    folder = tmp_path_factory.mktemp("maps")
    rows = np.random.default_rng(0).uniform(-1, 1, size=(3000, 2))
    np.savez(folder / "data.npz", X=rows, y=(rows[:, 0] * rows[:, 1] > 0).astype(np.int64))
    (folder / "my_maps_of_tests.py").write_text(_FILE, encoding="utf-8")
    return folder


def _tables(folder: Path, **data: Any) -> dict[str, Any]:
    return {
        "data": {
            "source": str(folder / "data.npz"),
            "target": "y",
            "classes": 2,
            "feature_bound": 1.5,
            "held_out": {"fraction": 0.2, "public": True},
            **data,
        },
        "clients": {"kind": "equal", "count": 1},
        "model": {"kind": "logistic"},
        "privacy": {"epsilon": 4.0, "delta": 1e-5},
        "algorithm": {"kind": "hidden", "order": "secret"},
        "schedule": {"rounds": 4, "passes": 3},
    }


@pytest.fixture(scope="module")
def result(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Result:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        out = tmp_path_factory.mktemp("mapped") / "results"
        with allowing("my_maps_of_tests:products"):
            return run_study(_tables(folder, feature_map="my_maps_of_tests:products"), out)


def test_a_linear_model_learns_on_the_map_and_keeps_its_convexity(result: Result) -> None:
    assert result.metrics["test"]["accuracy"] > 0.8
    plan = result.certificate.plan
    assert plan.origin.feature_map == "my_maps_of_tests:products"
    assert plan.constants.convex
    assert plan.dimension == 4
    names = {bound.name for bound in result.certificate.guarantees[0].answer.bounds if bound.epsilon is not None}
    assert {"shift", "block"} & names  # bounds that need convexity


def test_the_certificate_names_the_map_as_assumed_public(result: Result) -> None:
    text = (result.folder / "certificate.json").read_text(encoding="utf-8")
    rows = [row for one in json.loads(text)["guarantees"] for row in one["assumptions"] if row["name"] == "feature map"]
    assert rows
    assert all("declared: it is public" in row["enforced_by"] for row in rows)


def test_a_plan_without_a_map_keeps_its_text(result: Result) -> None:
    plan = result.certificate.plan
    assert 'feature_map = "my_maps_of_tests:products"' in write_plan(plan)
    assert read_plan(write_plan(plan)) == plan


def test_the_bundle_predicts_where_the_map_is_allowed(result: Result) -> None:
    rows = np.array([[0.5, 0.5], [0.5, -0.5], [-0.7, -0.6]])
    assert result.model.predict(rows).tolist() == [1, 0, 1]
    with pytest.raises(BadValue, match="allow it with --module my_maps_of_tests:products"):
        load_model(result.folder).predict(rows)
    with allowing("my_maps_of_tests:products"):
        allowed = load_model(result.folder / "bundle.zip")
    assert allowed.predict(rows).tolist() == [1, 0, 1]
    for to in ("json", "sklearn"):
        with pytest.raises(BadValue, match="has a feature map"):
            export_model(allowed.bundle, to)


def test_a_record_gets_the_same_bits_in_any_company() -> None:
    """Even of a map that mixes the rows it is given: it is given one at a time."""
    source = np.random.default_rng(1)
    rows, others = source.normal(size=(50, 3)), source.normal(size=(50, 3))
    others[20] = rows[20]

    def centred(given: Any) -> Any:
        return np.tanh(given @ np.linspace(-1, 1, 15).reshape(3, 5)) - given.mean(axis=0)[:1]

    name = give(centred)
    whole, other = mapped_rows(name, rows, 1.0, 1.0), mapped_rows(name, others, 1.0, 1.0)
    alone = mapped_rows(name, rows[20:21], 1.0, 1.0)
    assert whole[20].tobytes() == other[20].tobytes() == alone[0].tobytes()
    assert float(np.linalg.norm(whole[:, :-1], axis=1).max()) <= 1.0


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("remembering", "must be a function of its row, got 'two results for one record'"),
        ("shapeless", "must give every record"),
        ("failing", "that failed: RuntimeError: no such weights"),
        ("infinite", "must give finite numbers"),
        ("absent", "must name a function in my_maps_of_tests"),
    ],
)
def test_bad_maps_are_refused_before_anything_is_charged(folder: Path, name: str, told: str) -> None:
    with allowing(f"my_maps_of_tests:{name}"), pytest.raises(BadValue) as refused:
        plan_study(_tables(folder, feature_map=f"my_maps_of_tests:{name}"))
    assert told in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_name_that_is_none_is_refused(folder: Path) -> None:
    with pytest.raises(BadValue, match=r"data\.feature_map must name a function of rows"):
        plan_study(_tables(folder, feature_map="products"))


def test_a_map_needs_a_stated_rule(folder: Path) -> None:
    tables = _tables(folder, feature_map="my_maps_of_tests:products")
    del tables["data"]["feature_bound"]
    with pytest.raises(BadValue, match="be left out where the rule for rows is learned"):
        plan_study(tables)


def test_held_out_records_have_no_map_of_their_own(folder: Path) -> None:
    tables = _tables(folder, feature_map="my_maps_of_tests:products")
    tables["data"]["held_out"] = {"source": "data.npz", "feature_map": "my_maps_of_tests:mixing"}
    with pytest.raises(BadValue, match="the key 'feature_map' must be a known one"):
        plan_study(tables)


def test_a_site_states_no_map(folder: Path) -> None:
    text = '[data]\nsource = "data.npz"\ntarget = "y"\nclasses = 2\nfeature_bound = 1.0\n'
    (folder / "site.toml").write_text(text + 'feature_map = "my_maps_of_tests:products"\n', encoding="utf-8")
    with pytest.raises(BadValue, match=r"data\.feature_map must be left out at a site"):
        read_site_data(folder / "site.toml")


def test_a_map_given_in_python_is_named_by_its_code(folder: Path) -> None:
    def squares(rows: Any) -> Any:
        return rows**2

    tables = _tables(folder)
    found = np.load(folder / "data.npz")
    planned = plan_study(tables, feature_map=squares).plan
    assert planned.origin.feature_map == give(squares)
    assert planned.origin.feature_map.startswith("given:squares_")
    records = records_from_arrays(found["X"], found["y"], bound=1.5, classes=2, feature_map=squares)
    without = {key: value for key, value in tables.items() if key not in ("data", "clients")}
    assert plan_study(without, records).plan.origin.feature_map == planned.origin.feature_map
    with pytest.raises(BadValue, match="give the same one again"):
        mapped_rows("given:squares_0", np.ones((1, 2)), 1.0, 0.0)
