"""Whole runs with a private preparation: one charge, one certificate, what was learned beside the model."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedveil.certificate.certify import certify_written
from fedveil.core.errors import BadValue, FedveilError
from fedveil.engine.system import System
from fedveil.jobs.estimators import Budget, PrivateHuberRegressor, PrivateLogisticRegression
from fedveil.jobs.local import open_any_study, run_study
from fedveil.ledger.entry import read_export
from fedveil.planning.plan import read_plan
from fedveil.planning.promises import promise
from fedveil.release.bundle import Bundle
from fedveil.release.export import to_json
from fedveil.release.to_sklearn import pipeline_of
from fedveil.stages.prepare.learned import LearnedRule
from fedveil.stages.prepare.loading import Unprepared
from fedveil.version import __version__

N = 600


@pytest.fixture
def tables(tmp_path: Path) -> dict[str, Any]:
    generator = np.random.default_rng(0)
    size, colour = generator.normal(300.0, 40.0, N), np.where(generator.random(N) < 0.4, "red", "blue")
    label = (size + 60 * (colour == "red") + generator.normal(0.0, 10.0, N) > 320).astype(int)
    rows = [f"{a:.3f},{b},{c}" for a, b, c in zip(size, colour, label, strict=True)]
    (tmp_path / "shops.csv").write_text("\n".join(["size,colour,label", *rows]) + "\n")
    return {
        "data": {
            "source": str(tmp_path / "shops.csv"),
            "target": "label",
            "classes": 2,
            "held_out": {"fraction": 0.25, "public": True},
        },
        "clients": {"kind": "equal", "count": 5},
        "model": {"kind": "logistic", "radius": 10.0},
        "privacy": {"epsilon": 3.0, "delta": 1e-5, "neighbours": "zero-out"},
        "algorithm": {"kind": "dpsgd", "rate": 0.2, "rounds": 40},
    }


@pytest.mark.parametrize(("shape", "measured"), [("auto", ["cells"]), ("linear", ["means", "spreads"])])
def test_one_charge_one_certificate_and_the_rule_beside_the_model(
    tables: dict[str, Any], tmp_path: Path, shape: str, measured: list[str]
) -> None:
    out = tmp_path / "out"
    tables["model"]["shape"] = shape
    result = run_study(tables, out)
    plan = read_plan((out / "plan.toml").read_text())
    assert plan.preparation
    assert [one.name for one in plan.preparation.measurements] == ["ranges", "categories", *measured]
    entries = read_export(out / "ledger.jsonl")
    assert [entry.kind for entry in entries] == ["charge", "release"]
    charged = {cost["adversary"]: cost["epsilon"] for cost in entries[0].payload["costs"]}
    assert charged["final-model"] == promise(plan, "final-model").epsilon <= 3.0
    assert result.metrics["test"]["accuracy"] > 0.8
    learned = LearnedRule.read((out / "preparation.json").read_text())
    assert {one.word for one in learned.categories} == {"red", "blue"}
    _, raw = open_any_study(tables)
    assert isinstance(raw, Unprepared)
    rows = raw.loaded(learned).test
    assert rows is not None
    model = np.load(out / "model.npz")["parameters"]
    assert np.mean((rows.features @ model > 0) == rows.targets) == result.metrics["test"]["accuracy"]
    assert certify_written(out, __version__)[1] == []
    files = {row["file"] for row in json.loads((out / "certificate.json").read_text())["released"]}
    assert {"model.npz", "preparation.json"} <= files


def test_notes_for_the_data_holder_stay_private(tables: dict[str, Any], tmp_path: Path) -> None:
    out = tmp_path / "out"
    tables["model"]["shape"] = "linear"  # of an additive model no row is cut
    run_study(tables, out)
    notes = json.loads((out / "private" / "preparation_notes.json").read_text())["notes"]
    assert any("longer than the feature bound" in note for note in notes)
    for path in out.glob("*.*"):
        assert b"longer than the feature bound" not in path.read_bytes()
    assert not (out / "private" / "key").exists()


def test_a_changed_preparation_is_noticed(tables: dict[str, Any], tmp_path: Path) -> None:
    out = tmp_path / "out"
    run_study(tables, out)
    path = out / "preparation.json"
    path.write_text(path.read_text().replace('"factor": ', '"factor": 1'))
    with pytest.raises(BadValue, match=r"preparation\.json must be the preparation that the model names"):
        certify_written(out, __version__)


def test_a_refusal_charges_nothing(tables: dict[str, Any], tmp_path: Path) -> None:
    ledger = tmp_path / "books.sqlite"
    for wrong in ({"share": 0.0}, {"share": 1.0}, {"kind": "guess"}, {"numbers": ["colour"]}, {"texts": ["nobody"]}):
        with pytest.raises(FedveilError):
            run_study({**tables, "prepare": wrong, "books": {"ledger": str(ledger)}}, tmp_path / "out")
    assert not ledger.exists()
    assert not (tmp_path / "out" / "plan.toml").exists()


def test_an_interrupted_run_goes_on_with_the_same_numbers(tables: dict[str, Any], tmp_path: Path) -> None:
    """The measurements are functions of the key: whoever begins again learns the same, and sees nothing twice."""
    out, keys = tmp_path / "out", iter(range(1000))

    def draw(count: int) -> bytes:
        return bytes((next(keys) + place) % 256 for place in range(count))

    def stop(now: Any) -> None:
        if now.round == 20:
            raise KeyboardInterrupt

    with pytest.raises(FedveilError, match="--resume"):
        run_study(tables, out, watch=stop, system=System(random=draw))
    first = (out / "private" / "preparation_notes.json").read_bytes()
    assert not (out / "preparation.json").exists()
    run_study(tables, out, resume=True)
    assert (out / "private" / "preparation_notes.json").read_bytes() == first
    other = {**tables, "prepare": {"kind": "private"}}
    with pytest.raises(FedveilError):
        run_study(other, out, resume=True)


@pytest.mark.parametrize("server", ["trusted", "secure-aggregation"])
def test_shares_and_masks_carry_the_measurements_too(tables: dict[str, Any], tmp_path: Path, server: str) -> None:
    tables["data"]["categories"] = {"colour": ["red", "blue"]}
    tables["trust"] = {"server": server, "dropouts": 1}
    tables["study"] = {"seed": 3}
    missing = System(fails=lambda turn, client: client == 2)
    result = run_study(tables, tmp_path / "out", system=missing)
    assert result.certificate.plan.preparation
    assert result.metrics["test"]["accuracy"] > 0.75


def test_a_seeded_run_repeats_to_the_byte(tables: dict[str, Any], tmp_path: Path) -> None:
    tables["study"] = {"seed": 7}
    for name in ("a", "b"):
        run_study(tables, tmp_path / name)
    for file in ("plan.toml", "model.npz", "preparation.json", "certificate.json"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


class TestEstimators:
    X = np.random.default_rng(1).normal(size=(500, 3)) * [1.0, 1e4, 1e-4] + [5.0, -2e4, 0.0]

    def test_columns_of_any_scale_are_learned_within_the_budget(self, tmp_path: Path) -> None:
        budget = Budget(str(tmp_path / "budget.sqlite"), epsilon=4.0, delta=1e-4, neighbours="zero-out")
        y = self.X[:, 1] > -2e4
        settings: dict[str, Any] = {"algorithm": {"kind": "dpsgd", "rate": 0.2, "rounds": 30}, "budget": budget}
        model = PrivateLogisticRegression(
            epsilon=3.0, delta=1e-5, neighbours="zero-out", prepare="private", **settings
        ).fit(self.X, y, clients=[0] * 500)
        assert model.score(self.X, y) > 0.85
        assert model.epsilon_ <= 3.0
        assert budget.spent().epsilon == pytest.approx(model.epsilon_)
        names = {row.name for row in model.certificate_.guarantees[0].assumptions}
        assert "preparation, cells: noise" in names

    def test_regression_and_a_stated_share(self) -> None:
        y = 1e-4 * (self.X[:, 1] + 2e4)
        model = PrivateHuberRegressor(
            epsilon=8.0,
            delta=1e-5,
            neighbours="zero-out",
            target_range=(-3.0, 3.0),
            prepare={"kind": "private", "share": 0.2},
            algorithm={"kind": "dpsgd", "rate": 0.5, "rounds": 30},
        ).fit(self.X, y, clients=[0] * 500)
        assert model.score(self.X, y) > 0.5
        plan = model.fit_.plan
        assert plan.preparation
        assert plan.preparation.share == pytest.approx(0.2)

    @pytest.mark.parametrize("wrong", ["guess", 3, {"shares": 0.1}, {"kind": "private", "share": 1.0}])
    def test_a_wrong_wish_is_one_sentence(self, wrong: Any) -> None:
        with pytest.raises(BadValue, match="prepare"):
            PrivateLogisticRegression(prepare=wrong).fit(self.X, self.X[:, 0] > 5)


def test_the_model_in_use_prepares_records_as_training_did(tables: dict[str, Any], tmp_path: Path) -> None:
    result = run_study(tables, tmp_path / "out")
    found = open_any_study(tables)[1]
    assert isinstance(found, Unprepared)
    learned = LearnedRule.read((tmp_path / "out" / "preparation.json").read_text())
    rule = result.model.preparation
    assert rule is not None
    lines = [line.split(",") for line in (tmp_path / "shops.csv").read_text().splitlines()[1:]]
    cells = {"size": [line[0] for line in lines], "colour": [line[1] for line in lines]}
    rows, dropped = rule.rows(cells, str)
    assert not dropped.any()
    assert rows == pytest.approx(learned.rows(found.columns), abs=1e-12)
    said = result.model.predict({"size": [400.0, 250.0, None], "colour": ["red", "never heard of", None]})
    assert said.tolist()[:2] == [1, 0]


@pytest.mark.parametrize("prepare", [{"components": 2}, {"whiten": True}, {"components": 2, "whiten": True}], ids=str)
def test_a_projected_model_is_charged_released_and_used_alike_everywhere(
    tables: dict[str, Any], tmp_path: Path, prepare: dict[str, Any]
) -> None:
    tables["prepare"] = prepare
    result = run_study(tables, tmp_path / "out")
    assert "moments" in (result.certificate.plan.preparation or ())
    found = open_any_study(tables)[1]
    assert isinstance(found, Unprepared)
    learned = LearnedRule.read((tmp_path / "out" / "preparation.json").read_text())
    bundle = Bundle.read(tmp_path / "out")
    assert bundle.preparation
    lines = [line.split(",") for line in (tmp_path / "shops.csv").read_text().splitlines()[1:]]
    rows, _ = bundle.preparation.rows({"size": [x[0] for x in lines], "colour": [x[1] for x in lines]}, str)
    assert rows == pytest.approx(learned.rows(found.columns), abs=1e-12)
    assert float(np.linalg.norm(rows[:, :-1], axis=1).max()) <= learned.outline.bound
    raw = np.array([[float(line[0]), line[1]] for line in lines], dtype=object)
    scores = rows @ bundle.parameters
    assert pipeline_of(bundle).decision_function(raw) == pytest.approx(scores, abs=1e-9)
    told = json.loads(to_json(bundle))
    assert np.array(told["turn"]).shape == (len(told["features"]), len(told["weights"]))
    if prepare.get("whiten"):  # what varies most no longer rules
        spread = np.std(rows[:, : 1 if prepare.get("components") else 2], axis=0)
        assert spread.max() < 2.5 * spread.min()
