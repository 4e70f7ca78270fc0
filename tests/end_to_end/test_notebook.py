"""What a notebook shows of a run, predictions that keep their index, and the pictures of what a model learned."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import fedveil
from fedveil.report.shapes import listed_shapes, shape_section


@pytest.fixture(scope="module")
def visits() -> pd.DataFrame:
    source = np.random.default_rng(0)
    age, ward = source.uniform(20, 90, 400), source.choice(["A", "<B>"], 400)
    ill = np.where(age + 20 * (ward == "A") + source.normal(0, 10, 400) > 65, "yes", "no")
    frame = pd.DataFrame({"age": age, "noise": source.normal(size=400), "ward": ward, "ill": ill})
    return frame.set_index(pd.Index([f"p{k}" for k in range(400)]))


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory, visits: pd.DataFrame) -> fedveil.Result:
    tables = {
        "data": {
            "target": "ill",
            "classes": ["no", "yes"],
            "feature_bound": 2.0,
            "scale": {"age": [20, 90], "noise": [-3, 3]},
            "categories": {"ward": ["A", "<B>"]},
            "public": True,
            "held_out": {"fraction": 0.25},
        },
        "model": {"kind": "logistic"},
        "privacy": {"epsilon": 4.0, "delta": 1e-4, "neighbours": "zero-out"},
    }
    return fedveil.run_study(tables, out=tmp_path_factory.mktemp("run") / "results", data=visits)


def test_a_notebook_shows_certificate_quality_and_model(result: fedveil.Result) -> None:
    shown = result._repr_html_()
    assert "Certificate for one record (zero-out), delta 0.0001" in shown
    assert re.search(r"final-model</th><td>[0-3]\.\d+|final-model</th><td>4<", shown)
    assert "accuracy" in shown
    assert "<B>" not in shown
    assert shown.count("<table>") == shown.count("</table>") == 2
    shapes = result.model.shapes()._repr_html_()
    assert "<B>" not in shapes
    assert 'scope="col">effect' in shapes
    answer = result.certificate.guarantees[0].answer._repr_html_()
    assert "proved by" in answer


def test_predictions_keep_the_index(result: fedveil.Result, visits: pd.DataFrame) -> None:
    some = visits.drop(columns="ill").iloc[5:9]
    frame = result.model.predict_frame(some)
    assert list(frame.index) == ["p5", "p6", "p7", "p8"]
    assert list(frame.columns) == ["probability_no", "probability_yes", "prediction"]
    assert list(frame["prediction"]) == list(result.model.predict(some))
    assert np.allclose(frame[["probability_no", "probability_yes"]].sum(axis=1), 1.0)


def test_the_report_shows_first_what_matters_most(result: fedveil.Result) -> None:
    shapes = listed_shapes(result.model.shapes())
    assert shapes[0].column == "age"
    assert sorted(shape.column for shape in shapes) == ["age", "noise", "ward"]
    assert shapes[-1].column == "noise"
    drawn = str(shape_section(shapes, "yes"))
    assert drawn.count("<figure>") == 3
    assert "&lt;B&gt;" in drawn
    assert 'class="band"' in drawn
    page = Path(result.folder / "report.html").read_text(encoding="utf-8")
    assert page.index('id="shapes"') < page.index('id="know"')
    assert page.count('id="shape-') == 3 * 3  # each picture, its title and its description


def test_an_empty_word_is_a_word() -> None:
    nan = float("nan")
    table = {"column": ["c", "c"], "position": [nan, nan], "word": ["", "A"], "score": ["", ""], "effect": [0.5, -0.5]}
    table |= {"low": [0.0, -1.0], "high": [1.0, 0.0], "share": [0.5, 0.5]}
    (shape,) = listed_shapes(table)
    assert not shape.numbers
    assert "(empty)" in str(shape_section([shape], "yes"))
