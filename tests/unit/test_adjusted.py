"""Class weights keep every bound of the loss; a decision threshold changes predictions and nothing else."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedveil.core.errors import BadValue
from fedveil.data.arrays import records_from_arrays
from fedveil.jobs.local import run_study
from fedveil.models.adjusted import Adjusted, likeliest, probabilities, score_at
from fedveil.models.margin import Logistic
from fedveil.models.metrics import evaluate_classes
from fedveil.models.softmax import Softmax
from fedveil.models.spec import ModelPlan
from fedveil.planning.plan import read_plan, write_plan
from fedveil.planning.promises import promise
from fedveil.release.bundle import Bundle
from unit.plans import some_plan, some_records

PLAN = some_plan(some_records())
GENERATOR = np.random.default_rng(4)
X = GENERATOR.normal(size=(60, 3))
Y = (X[:, 0] + 0.5 * GENERATOR.normal(size=60) > 0.7).astype(float)
W = np.array([0.8, -0.3, 0.1])


@pytest.mark.parametrize("grain", [None, 2.0**-40])
def test_the_gradient_is_each_records_own_times_its_weight(grain: float | None) -> None:
    loss = Adjusted(Logistic(), class_weights=(1.0, 4.0))
    found, _ = loss.gradient(W, X, Y, clip=0.3, weights=np.full(60, 0.5), grain=grain)
    singles = [Logistic().gradient(W, X[[k]], Y[[k]], clip=0.3)[0] * (0.125, 0.5)[int(Y[k])] for k in range(60)]
    assert found == pytest.approx(np.sum(singles, axis=0), abs=1e-9)
    assert loss.value(W, X, Y) == pytest.approx(
        np.mean([Logistic().value(W, X[[k]], Y[[k]]) * (0.25, 1.0)[int(Y[k])] for k in range(60)])
    )


def test_no_record_exceeds_the_clip_and_the_design_sees_the_same_loss() -> None:
    for base, targets in ((Logistic(), Y), (Softmax(3), np.arange(60) % 3.0)):
        loss = Adjusted(base, class_weights=tuple(GENERATOR.uniform(0.1, 9.0, base.classes)))
        for k in range(60):
            own, _ = loss.gradient(np.zeros(loss.size(3)), 50 * X[[k]], targets[[k]], clip=0.3)
            assert np.linalg.norm(own) <= 0.3 * (1 + 1e-12)
        assert loss.constants(2.0, 0.3) == base.constants(2.0, 0.3)
        assert (loss.usual_clip(2.0), loss.usual_reach) == (base.usual_clip(2.0), base.usual_reach)


def test_a_blank_record_adds_nothing() -> None:
    loss = Adjusted(Logistic(), class_weights=(1.0, 2.0))
    rows, targets = np.vstack([X[:2], np.zeros(3)]), np.append(Y[:2], np.nan)
    assert loss.gradient(W, rows, targets, clip=1.0)[0] == pytest.approx(loss.gradient(W, X[:2], Y[:2], clip=1.0)[0])


def test_a_threshold_decides_by_probability() -> None:
    loss = Adjusted(Logistic(), threshold=0.2)
    shares = probabilities(loss, loss.scores(W, X))
    assert shares is not None
    assert (loss.predict(W, X) == (shares[:, 1] > 0.2)).all()
    assert (likeliest(loss.scores(W, X), 0.2) == loss.predict(W, X)).all()
    told = evaluate_classes(loss, W, X, Y, ["no", "yes"])
    assert told["threshold"] == 0.2
    strict = evaluate_classes(Adjusted(Logistic(), threshold=0.8), W, X, Y, ["no", "yes"])
    assert told["recall"]["yes"] > strict["recall"]["yes"]
    assert told["recall"]["no"] < strict["recall"]["no"]
    assert told["auc"] == evaluate_classes(Logistic(), W, X, Y, ["no", "yes"])["auc"]
    assert score_at(0.2) == pytest.approx(-np.log(4))


def test_a_plan_without_them_is_written_as_before() -> None:
    text = write_plan(PLAN)
    assert "class_weights" not in text
    assert "decision_threshold" not in text
    adjusted = replace(PLAN, model=replace(PLAN.model, class_weights=(1.0, 3.0), decision_threshold=0.3))
    assert read_plan(write_plan(adjusted)) == adjusted
    assert adjusted.hash != PLAN.hash
    assert promise(adjusted, "final-model").epsilon == promise(PLAN, "final-model").epsilon


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"class_weights": (1.0,)}, "model.class_weights must be one for each of the 2 classes"),
        ({"class_weights": (1.0, 0.0)}, "model.class_weights must lie in"),
        ({"class_weights": (1.0, float("nan"))}, "model.class_weights must lie in"),
        ({"class_weights": "balanced"}, "model.class_weights must be a list of numbers, one for each class"),
        ({"class_weights": (1.0, 2.0), "kind": "huber", "classes": 0}, "be one for each of the 0 classes"),
        ({"decision_threshold": 0.0}, "model.decision_threshold must lie in"),
        ({"decision_threshold": 1}, "model.decision_threshold must lie in"),
        ({"decision_threshold": 0.3, "kind": "softmax", "classes": 3}, "be left out with a kind other than logistic"),
        ({"decision_threshold": 0.3, "kind": "smoothed-hinge"}, "be left out with a kind other than logistic"),
    ],
)
def test_a_mistake_is_one_sentence(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(BadValue) as found:
        ModelPlan(**({"kind": "logistic", "classes": 2} | changes))
    assert said in str(found.value)


def test_a_study_trains_with_them_and_its_bundle_decides_by_them(tmp_path: Path) -> None:
    def study(**model: Any) -> dict[str, Any]:
        return {
            "study": {"seed": 3},
            "data": {"public": True},
            "model": {"kind": "logistic", **model},
            "privacy": {"epsilon": 8.0, "delta": 1e-4, "neighbours": "zero-out"},
            "algorithm": {"kind": "dpsgd", "rate": 0.5, "rounds": 20},
        }

    records = records_from_arrays(X, Y, bound=2.0, classes=2)
    plain = run_study(study(), tmp_path / "plain", data=(records, records))
    heavy = run_study(
        study(class_weights=[1.0, 8.0], decision_threshold=0.4), tmp_path / "heavy", data=(records, records)
    )
    epsilons = [result.certificate.guarantees[0].answer.epsilon for result in (plain, heavy)]
    assert epsilons[0] == epsilons[1]  # the certificate is that of the same bounds
    assert heavy.metrics["test"]["threshold"] == 0.4
    assert heavy.metrics["test"]["recall"]["1"] > plain.metrics["test"]["recall"]["1"]
    model, shares = heavy.model, heavy.model.predict_proba(X)[:, 1]
    assert (model.predict(X) == (shares > 0.4)).all()
    assert Bundle.read(tmp_path / "heavy").plan.model.decision_threshold == 0.4
