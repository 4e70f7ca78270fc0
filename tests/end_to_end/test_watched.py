"""Survival from a column of times and one of events: one study file, in one process and at sites of their own."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from end_to_end.conftest import Command
from fedveil import load_model, run_study
from fedveil.core.errors import BadValue
from fedveil.data.sources import labelled
from fedveil.data.spec import Source
from fedveil.federation.site.data import read_site_data
from fedveil.jobs.evaluation import evaluate_model, evaluate_publicly
from fedveil.jobs.local import open_any_study
from fedveil.models.survival import labels

ENDS = [2.0, 4.0, 8.0]


def patients(path: Path, count: int = 900) -> tuple[list[float], list[bool]]:
    """Like TCGA-BRCA in FLamby: persons of six regions, with a time, whether they died then, and what was known."""
    draw = np.random.default_rng(0)
    stage, age = draw.integers(1, 5, count), draw.uniform(30, 90, count)
    died, lost = draw.exponential(1 / (0.05 * stage + 0.001 * age)), draw.uniform(1, 12, count)
    times, events = np.minimum(died, lost).round(3), died <= lost
    words = [("1", "0"), ("true", "False"), ("yes", "no"), ("1.0", "0.0")]
    rows = [
        f"region {k % 6},{s},{a:.1f},{t},{words[k % 4][0 if e else 1]}"
        for k, (s, a, t, e) in enumerate(zip(stage, age, times, events, strict=True))
    ]
    path.write_text("\n".join(["region,stage,age,years,died", *rows]) + "\n")
    return times.tolist(), events.tolist()


def tables(path: Path, **data: Any) -> dict[str, Any]:
    return {
        "study": {"seed": 1},
        "data": {
            "source": str(path),
            "target": "years",
            "event": "died",
            "intervals": ENDS,
            "client_column": "region",
            "feature_bound": 1.0,
            "scale": {"stage": [1.0, 4.0], "age": [20.0, 100.0]},
            "held_out": {"fraction": 0.3, "public": True},
            **data,
        },
        "clients": {"kind": "column"},
        "model": {"kind": "survival"},
        "privacy": {"epsilon": 4.0, "delta": 1e-4, "neighbours": "zero-out"},
        "algorithm": {"kind": "dpsgd", "rate": 0.2, "rounds": 30},
    }


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("watched")
    patients(folder / "patients.csv")
    run_study(tables(folder / "patients.csv"), folder / "results")
    return folder


def test_the_labels_are_those_of_the_function_for_arrays() -> None:
    draw = np.random.default_rng(1)
    times = np.concatenate([draw.uniform(0, 12, 500), [0.0, 2.0, 4.0, 8.0, 2.0, 8.0]])
    events = np.concatenate([draw.random(500) < 0.5, [True, True, False, True, False, False]])
    found = labelled(times, events, ENDS)
    assert [found.words[code] for code in found.codes.tolist()] == labels(times.tolist(), events.tolist(), ENDS)


def test_one_study_file_gives_what_labels_made_beforehand_give(tmp_path: Path) -> None:
    times, events = patients(tmp_path / "patients.csv")
    head, *lines = (tmp_path / "patients.csv").read_text().splitlines()
    made = labels(times, events, ENDS)
    rows = [f"{line.rsplit(',', 2)[0]},{word}" for line, word in zip(lines, made, strict=True)]
    (tmp_path / "made.csv").write_text("\n".join([head.replace("years,died", "seen"), *rows]) + "\n")
    classes = ["1+", "1", "2+", "2", "3+", "3"]
    _, watched = open_any_study(tables(tmp_path / "patients.csv"))
    stated = tables(tmp_path / "made.csv", target="seen", classes=classes, unlisted="drop-row")
    for key in ("event", "intervals"):
        del stated["data"][key]
    _, beforehand = open_any_study(stated)
    for one, two in ((watched.train, beforehand.train), (watched.test, beforehand.test)):
        assert one is not None
        assert two is not None
        assert np.array_equal(one.features, two.features)
        assert np.array_equal(one.targets, two.targets, equal_nan=True)
        assert one.names == two.names
    assert watched.train.blank.any()  # not seen to the end of the first interval


def test_persons_with_the_earlier_event_have_the_larger_risk(place: Path) -> None:
    test = json.loads((place / "results" / "metrics.json").read_text())["test"]
    assert test["concordance"] > 0.55
    model = load_model(place / "results")
    early, late = model.predict({"stage": [1, 4], "age": [40, 80]})
    assert early < late
    known = model.preparation
    assert known is not None
    assert (known.labels.name, known.labels.event, known.labels.ends) == ("years", "died", (2.0, 4.0, 8.0))
    assert [column.name for column in known.columns] == ["stage", "age"]


def test_a_released_model_is_measured_on_other_persons(place: Path, command: Command) -> None:
    ran = command("evaluate", place / "results", place / "patients.csv", "--public", "--json")
    assert ran.code == 0, ran.err
    assert json.loads(ran.out)["test"]["concordance"] > 0.55
    assert "concordance" in command("evaluate", place / "results", place / "patients.csv", "--public").out
    assert evaluate_publicly(place / "results", place / "patients.csv").metrics["records"] == 900
    with pytest.raises(BadValue, match=r"A private evaluation must be of a model of classes or of a number"):
        evaluate_model(place / "results", place / "patients.csv", epsilon=1.0, out=place / "none")


def test_six_regions_each_a_site_of_its_own(place: Path) -> None:
    head, *lines = (place / "patients.csv").read_text().splitlines()
    said = set()
    for region in range(6):
        own = [line for line in lines if line.startswith(f"region {region},")]
        (place / f"{region}.csv").write_text("\n".join([head, *own]) + "\n")
        text = f'[data]\nsource = "{region}.csv"\ntarget = "years"\nevent = "died"\nintervals = [2, 4, 8]\n'
        text += 'feature_bound = 1.0\nignore = ["region"]\nscale = {stage = [1, 4], age = [20, 100]}\n'
        (place / f"{region}.toml").write_text(text)
        found = read_site_data(place / f"{region}.toml")
        assert (found.records.classes, len(found.records), found.blank_rows) == (6, 150, True)
        said.add(found.described()["rule"])
    assert len(said) == 1


def test_columns_may_be_left_to_a_private_preparation(place: Path) -> None:
    asked = tables(place / "patients.csv")
    for key in ("scale", "feature_bound"):
        del asked["data"][key]
    _, found = open_any_study(asked)
    assert found.outline.numbers == ("stage", "age")  # type: ignore[union-attr]
    assert found.train.classes == 6


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ({"intervals": []}, r"data\.event must be given with data\.intervals"),
        ({"event": None}, r"data\.event must be given with data\.intervals"),
        ({"intervals": [2.0, 2.0]}, r"data\.intervals must be up to 200 ends that are positive and rise"),
        ({"intervals": [0.0, 2.0]}, r"data\.intervals must be up to 200 ends that are positive and rise"),
        ({"intervals": [2.0, float("nan")]}, r"data\.intervals must be"),
        ({"target_scale": (0.0, 1.0)}, r"data\.intervals must be the only rule for labels"),
        ({"classes": 6}, r"data\.classes must be those that data\.intervals declare"),
        ({"target": None}, r"data\.target must name the column of times"),
    ],
)
def test_a_bad_statement_is_one_sentence(data: dict[str, Any], sentence: str) -> None:
    given = {"target": "years", "event": "died", "intervals": ENDS, **data}
    with pytest.raises(ValueError, match=sentence):
        Source.of(source="a.csv", feature_bound=1.0, **given)


@pytest.mark.parametrize(
    ("line", "data", "sentence"),
    [
        ("1,30,-2,1", {}, r"line 3, column 'years' must be a time: finite and not negative, got -2\.0"),
        ("1,30,2,maybe", {}, r"line 3, column 'died' must say whether the event was seen.*got 'maybe'"),
        ("1,30,,1", {}, r"line 3, column 'years' must not be missing"),
        ("1,30,2,", {}, r"line 3, column 'years' must not be missing"),
        ("1,30,2,1", {"event": "dead"}, r"data\.categories must name columns of .*got 'dead'"),
        ("1,30,2,1", {"event": "years"}, r"data\.event must differ from data\.target"),
        ("1,30,2,1", {"ignore": ["died"]}, r"data\.event must name no feature"),
    ],
)
def test_a_bad_person_is_named_by_its_place(tmp_path: Path, line: str, data: dict[str, Any], sentence: str) -> None:
    (tmp_path / "few.csv").write_text(f"stage,age,years,died\n1,40,3,0\n{line}\n2,50,5,1\n")
    asked = tables(tmp_path / "few.csv", **data)
    del asked["data"]["client_column"]
    del asked["data"]["held_out"]
    with pytest.raises(ValueError, match=sentence):
        open_any_study({**asked, "clients": {"kind": "equal", "count": 1}})
