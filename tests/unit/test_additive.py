"""Additive models: rows that need no cutting, knots from noisy counts, shapes, exports, and what is refused."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedveil import plan_study, run_study
from fedveil.core.errors import BadValue
from fedveil.data import lazy_rows
from fedveil.data.column import Column, hat_block
from fedveil.release.export import TRUSTED, export_model
from fedveil.release.model import ReleasedModel
from fedveil.stages.prepare.columns import Columns, Outline, Words
from fedveil.stages.prepare.learned import CELLS, LearnedRule, Number, knots_of
from fedveil.stages.prepare.ranges import Range

_QUICK = {"kind": "dpsgd", "rate": 0.5, "rounds": 6}


def made(rows: int = 400, seed: int = 0) -> dict[str, Any]:
    """Return a curved effect of one column, a gap in another, words, and far-away numbers."""
    draw = np.random.default_rng(seed)
    age, pay = draw.uniform(18, 90, rows), np.exp(draw.normal(3, 2, rows))
    ward = np.array(["A", "B", "C"])[draw.integers(0, 3, rows)].astype(object)
    score = 2 * np.abs(age - 54) / 18 - 2 + (ward == "B")
    ill = draw.random(rows) < 1 / (1 + np.exp(-2 * score))
    pay[draw.random(rows) < 0.2] = np.nan
    return {"age": age, "pay": pay, "ward": ward, "ill": np.where(ill, "yes", "no").astype(object)}


def tables(**model: Any) -> dict[str, Any]:
    return {
        "study": {"name": "curves", "seed": 1},
        "data": {"target": "ill", "classes": ["no", "yes"]},
        "model": {"kind": "logistic", **model},
        "privacy": {"epsilon": 30.0, "delta": 1e-5},
        "algorithm": _QUICK,
        "prepare": {"kind": "auto", "numbers": ["age", "pay"], "texts": ["ward"]},
    }


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> ReleasedModel:
    out = tmp_path_factory.mktemp("additive")
    study = tables(shape="additive", knots=4, monotone={"pay": "increasing"})
    study["data"]["scale"] = {"age": [18, 90]}
    study["algorithm"] = {**_QUICK, "rounds": 40}
    return run_study(study, out, data=made(2000)).model


@given(
    st.lists(st.floats(allow_nan=True, allow_infinity=False), min_size=1, max_size=20),
    st.lists(st.floats(-1, 1), min_size=1, max_size=9, unique=True),
)
def test_a_block_is_never_longer_than_one(numbers: list[float], places: list[float]) -> None:
    knots = np.array(sorted(places))
    if knots.size > 1 and np.diff(knots).min() < 1e-9:
        return
    block = hat_block(np.clip(np.array(numbers), -1, 1), knots)
    assert np.linalg.norm(block, axis=1).max() <= 1 + 1e-12
    there = ~np.isnan(numbers)
    assert np.allclose(block[there, 1:-1].sum(axis=1), np.sqrt(0.5))  # hats add up to one
    assert np.all(block[~there, -1] == 1)
    assert not block[~there, :-1].any()


def test_knots_go_where_records_are_and_keep_the_tail() -> None:
    spike = np.full(CELLS, 1e-9)
    spike[0] = 1.0
    knots = knots_of(spike / spike.sum(), 8)
    assert knots[0] == -1
    assert knots[-1] == 1
    assert min(np.diff(knots)) >= 2 / CELLS * (1 - 1e-9)
    assert sum(knot > -0.9 for knot in knots) >= 3  # half of them for the uniform part


def test_released_rows_are_those_of_training_and_within_the_bound(released: ReleasedModel) -> None:
    rule = released.preparation
    assert rule is not None
    cells = {name: column for name, column in made(50, 7).items() if name != "ill"}
    cells["age"] = np.where(np.arange(50) == 0, 1e299, cells["age"])
    rows, _ = rule.rows(cells, str)
    norms = np.linalg.norm(rows[:, :-1], axis=1)
    assert norms.max() <= rule.bound
    assert norms.min() > 0.7 * rule.bound  # nothing is lost: two hats of one half are the shortest block


def test_all_columns_at_once_make_the_bits_of_each_block() -> None:
    draw = np.random.default_rng(5)
    numbers = draw.normal(size=(200, 3))
    numbers[draw.random((200, 3)) < 0.1] = np.nan
    words = Words(spelt=("A", "B"), codes=draw.integers(0, 2, 200))
    columns = Columns(numbers=numbers, texts={"t": words})
    knots = ((-1.0, -0.2, 0.3, 1.0), (0.1,), (-1.0, 1.0))
    outline = Outline(
        numbers=("a", "b", "c"), texts=("t",), categories={"t": ("B",)}, knots=3, knots_at={"b": (0.1,)}, bound=2.0
    )
    ranges = (Range(-1.0, 2.0), Range(-3.0, 3.0), Range(-2.0, 2.0, 0.1))
    learned = tuple(Number(n, r, 0.1, 0.7, k) for n, r, k in zip("abc", ranges, knots, strict=True))
    rule = LearnedRule(outline=outline, numbers=learned, categories=(), others=(), factor=0.37)
    rows, start = rule.rows(columns), 0
    for place, one in enumerate(learned):
        block = hat_block(one.range.scaled(numbers[:, place]), np.array(one.knots), one.mean, one.spread) * 0.37
        last = start + outline.block(one.name)
        assert np.array_equal(rows[:, start : start + len(one.knots) + 1], block[:, :-1])
        assert np.array_equal(rows[:, last - 1], block[:, -1])
        start = last
    assert np.array_equal(rows[:, start], 0.37 * (words.codes == 1))
    assert np.all(rows[:, -1] == 1.0)


@pytest.mark.parametrize("kind", ["hidden", "dpsgd", "fedavg"])
def test_rows_that_are_made_when_read_train_the_same_model(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = tables(shape="additive", knots_at={"age": [18, 40, 60, 90], "pay": [0, 10, 100]})
    study["data"] |= {"held_out": {"fraction": 0.2}, "fill": {"pay": "drop-row"}}
    study["data"]["categories"] = {"ward": ["A", "B", "C"]}
    study["clients"] = {"kind": "equal", "count": 4}
    study["privacy"] |= {"epsilon": 2.0, "unit": "client" if kind == "fedavg" else "record"}
    study["algorithm"] = {"hidden": {"kind": "hidden", "order": "public"}, "dpsgd": _QUICK}.get(kind, {"kind": kind})
    study["schedule"] = {"hidden": {"rounds": 2, "passes": 1}, "fedavg": {"rounds": 2}}.get(kind, {})
    kept = run_study(study, tmp_path / "kept", data=made()).model.bundle.parameters
    monkeypatch.setattr(lazy_rows, "LARGEST", 2000)
    again = run_study(study, tmp_path / "made", data=made()).model.bundle.parameters
    assert np.array_equal(kept, again)


def test_shapes_tell_the_curve_with_its_band(released: ReleasedModel) -> None:
    table = released.shapes()
    age = [place for place, name in enumerate(table["column"]) if name == "age" and table["word"][place] == ""]
    effects = np.array(table["effect"])[age]
    assert effects[len(effects) // 2] < min(effects[0], effects[-1])  # a valley in the middle
    assert all(
        low < effect < high for low, effect, high in zip(table["low"], table["effect"], table["high"], strict=True)
    )
    pay = [place for place, name in enumerate(table["column"]) if name == "pay" and table["word"][place] == ""]
    assert np.all(np.diff(np.array(table["effect"])[pay]) >= -1e-9)  # as monotone says
    words = {table["word"][place] for place, name in enumerate(table["column"]) if name == "ward"}
    assert {"A", "B", "C"} <= words


def test_exports_predict_the_same(released: ReleasedModel) -> None:
    fresh = made(60, 3)
    del fresh["ill"]
    wanted = released.predict_proba(fresh)[:, 1]
    bundle = released.bundle
    joblib, pandas = pytest.importorskip("joblib"), pytest.importorskip("pandas")
    pipeline = joblib.load(io.BytesIO(export_model(bundle, "sklearn", ending=".joblib")))
    assert np.allclose(pipeline.predict_proba(pandas.DataFrame(fresh))[:, 1], wanted, atol=1e-9)
    skops = pytest.importorskip("skops.io")
    loaded = skops.loads(export_model(bundle, "sklearn"), trusted=list(TRUSTED))
    assert np.allclose(loaded.predict_proba(pandas.DataFrame(fresh))[:, 1], wanted, atol=1e-9)
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(export_model(bundle, "onnx"))
    feeds = {name: np.asarray(column)[:, None] for name, column in fresh.items()}
    assert np.allclose(session.run(["probabilities"], feeds)[0][:, 1], wanted, atol=1e-9)
    told = json.loads(export_model(bundle, "json"))
    assert len(told["features"]) == len(told["weights"])
    columns = {one["name"]: one for one in told["preparation"]["columns"]}
    assert len(columns["age"]["knots"]) >= 3
    assert columns["pay"]["fill"] == "own"


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ({"knots_at": {"age": [60, 20]}}, "rise"),
        ({"knots_at": {"height": [1, 2]}}, "columns of numbers"),
        ({"knots_at": {"age": [20]}}, "two knots"),
        ({"monotone": {"weight": "increasing"}}, "columns of numbers"),
        ({"monotone": {"age": "up"}}, "increasing, decreasing"),
        ({"shape": "linear", "knots": 3}, "left out"),
        ({"shape": "round"}, "linear, additive, auto"),
        ({"knots": 0}, "between 1 and 64"),
    ],
)
def test_a_bad_curve_is_one_sentence(model: dict[str, Any], words: str) -> None:
    with pytest.raises(BadValue, match=words):
        plan_study(tables(**model), data=made())


def test_stated_knots_and_ranges_cost_nothing() -> None:
    study = tables(shape="additive", knots_at={"age": [18, 40, 90], "pay": [0, 20, 400]})
    study["data"]["categories"] = {"ward": ["A", "B", "C"]}
    plan = plan_study(study, data=made()).plan
    assert not plan.preparation
    study["model"]["knots_at"] = {"age": [18, 40, 90]}
    assert [one.name for one in plan_study(study, data=made()).plan.preparation.measurements] == ["ranges", "cells"]


def test_knots_outside_a_stated_range_are_refused() -> None:
    study = tables(knots_at={"age": [18, 40, 90]})
    study["data"]["scale"] = {"age": [20, 80]}
    with pytest.raises(BadValue, match="range of its column"):
        plan_study(study, data=made())


def test_everything_stated_trains_without_a_measurement(tmp_path: Path) -> None:
    study = tables(shape="additive", knots_at={"age": [18, 40, 54, 70, 90], "pay": [0, 20, 400]})
    study["data"]["categories"] = {"ward": ["A", "B", "C"]}
    model = run_study(study, tmp_path / "out", data=made()).model
    assert model.plan.model.curves.knots_at
    assert len(model.predict(made(5))) == 5


def test_few_records_stay_linear_and_many_do_not() -> None:
    study = tables()
    study["privacy"]["epsilon"] = 0.5
    few = plan_study(study, data=made(200))
    assert not few.plan.model.additive
    assert "linear" in few.draft.reason
    study["privacy"]["epsilon"] = 30.0
    many = plan_study(study, data=made(2000))
    assert many.plan.model.additive
    assert "additive" in many.draft.reason


def test_a_column_says_what_its_knots_must_be() -> None:
    with pytest.raises(BadValue, match="lie in its range"):
        Column(name="age", range=(0.0, 1.0), knots=(0.0, 2.0))
    with pytest.raises(BadValue, match="range"):
        Column(name="age", knots=(0.0, 2.0))
