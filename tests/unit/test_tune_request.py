"""What a [tune] table may say; every mistake is one sentence, before anything is read or charged."""

from pathlib import Path
from typing import Any

import pytest

from fedveil.core.errors import BadValue
from fedveil.data.records import DataShape
from fedveil.federation.agreements import plan_of
from fedveil.planning.plan import write_plan
from fedveil.planning.study import Study, study_of
from fedveil.planning.tuning import read_tune
from fedveil.wire.content import Content
from fedveil.wire.envelope import Refused
from unit.audit_plans import game_plan, tuned_game_plan

TABLES: dict[str, Any] = {
    "data": {"source": "rows.csv", "target": "label", "classes": 2, "feature_bound": 1.0},
    "model": {"kind": "logistic"},
    "privacy": {"epsilon": 1.0, "delta": 1e-5},
}


def study(tune: dict[str, Any], **changes: Any) -> Study:
    return study_of({**TABLES, **changes, "tune": tune}, base=Path())


def test_a_space_is_the_product_of_its_lists_and_ranges() -> None:
    log = {"from": 0.001, "to": 0.1, "count": 3, "scale": "log"}
    whole = {"from": 10, "to": 30, "count": 3}
    found = study({"space": {"model": {"l2": log}, "schedule.rounds": whole, "algorithm.order": ["secret"]}}).tune
    assert found is not None
    assert len(found.candidates) == 9
    assert [c.model.l2 for c in found.candidates[::3]] == pytest.approx([0.001, 0.01, 0.1])
    assert [c.schedule.rounds for c in found.candidates[:3]] == [10, 20, 30]
    assert {type(c.schedule.rounds) for c in found.candidates} == {int}
    assert found.candidates[0].words == "model.l2 = 0.001, schedule.rounds = 10, algorithm.order = secret"


def test_candidates_may_be_listed_one_by_one() -> None:
    listed = [{"algorithm.kind": "dpsgd", "algorithm.optimizer.momentum": 0.5}, {"algorithm.kind": "hidden"}]
    found = study({"candidates": listed}).tune
    assert found is not None
    assert [c.algorithm.kind for c in found.candidates] == ["dpsgd", "hidden"]


@pytest.mark.parametrize(
    ("tune", "said"),
    [
        ({"space": {}}, "tune.space must name at least one setting"),
        ({"space": {"model.l2": []}}, "tune.space model.l2 must have at least one value"),
        ({"space": {"model.l2": 0.1}}, "must be a list of values, or a table with from, to and count"),
        ({"space": {"privacy.epsilon": [1, 8]}}, "'privacy.epsilon' of tune.space must be a setting that tuning may"),
        ({"space": {"data.feature_bound": [1, 2]}}, "'data.feature_bound' of tune.space must be a setting that tuning"),
        ({"space": {"schedule.noise_std": [1.0]}}, "'schedule.noise_std' of tune.space must be a setting that tuning"),
        ({"space": {"algorithm": {"noise_multiplier": [1.0]}}}, "'algorithm.noise_multiplier' of tune.space must be"),
        ({"space": {"trust.noise": ["clients"]}}, "'trust.noise' of tune.space must be a setting that tuning may vary"),
        ({"space": {"l2": [0.1]}}, "Key 'l2' of tune.space must be a setting that tuning may vary"),
        ({"space": {"model.l2": [float(k) for k in range(65)]}}, "tune.space must have at most 64 combinations"),
        (
            {"space": {"model.l2": {"from": 1.0, "to": 0.1, "count": 3}}},
            "go from a number to one that is no",
        ),
        ({"space": {"model.l2": {"from": 0.0, "to": 0.1, "count": 3, "scale": "log"}}}, "be positive on a log scale"),
        ({"space": {"model.l2": {"from": 0.0, "to": 0.1}}}, "must state count"),
        ({"space": {"model.l2": [-1.0]}}, "model.l2 must lie in"),
        ({"candidates": []}, "tune.candidates must be 1 to 64 tables"),
        ({"candidates": [{"books.ledger": "x"}]}, "'books.ledger' of tune.candidates 1 must be a setting that tuning"),
        ({}, "[tune] must have either a space or candidates"),
        ({"space": {"model.l2": [0.1]}, "candidates": [{}]}, "[tune] must have either a space or candidates"),
        ({"space": {"model.l2": [0.1]}, "trials": 1}, "tune.trials must lie above 1, up to 1000"),
        ({"space": {"model.l2": [0.1]}, "trials": float("nan")}, "tune.trials must"),
        ({"space": {"model.l2": [0.1]}, "eta": -1.0}, "tune.eta must lie in (-1, 10]"),
        ({"space": {"model.l2": [0.1]}, "score": "secret"}, "tune.score must be one of public, private"),
        ({"space": {"model.l2": [0.1]}, "metric": "f1"}, "tune.metric must be one of accuracy"),
        ({"space": {"model.l2": [0.1]}, "score": "private", "metric": "auc"}, "for a private score"),
        ({"space": {"model.l2": [0.1]}, "number": 3}, "Key 'number' must be known to [tune]"),
    ],
)
def test_a_mistake_is_one_sentence(tune: dict[str, Any], said: str) -> None:
    with pytest.raises(BadValue) as found:
        study(tune)
    assert said in str(found.value)
    assert "\n" not in str(found.value)


def test_noise_is_calibrated_and_cannot_be_stated() -> None:
    with pytest.raises(BadValue, match=r"schedule\.noise_std must be left out with \[tune\]"):
        study({"space": {"model.l2": [0.1]}}, schedule={"noise_std": 1.0})
    with pytest.raises(BadValue, match=r"algorithm\.noise_multiplier must be left out with \[tune\]"):
        study({"space": {"model.l2": [0.1]}}, algorithm={"kind": "dpsgd", "noise_multiplier": 1.0})


def test_without_the_table_there_is_none() -> None:
    assert not read_tune(TABLES)


def test_other_observers_and_missing_records_are_refused() -> None:
    shape = DataShape(records=100, features=2, classes=2, clients=10, largest_client=10, smallest_client=10, bound=1.0)
    tune = {"space": {"model.l2": [0.1]}}
    with pytest.raises(BadValue, match=r"\[data\.held_out\] must be there for a tuned study"):
        study(tune).planned(shape)
    seen = {**TABLES["privacy"], "adversary": "server"}
    with pytest.raises(BadValue, match=r"privacy\.adversary must be final-model for a tuned study"):
        study(tune, privacy=seen).planned(shape, 10)
    one = {**TABLES["privacy"], "unit": "client"}
    with pytest.raises(BadValue, match=r"tune\.score must be public for clients"):
        study({**tune, "score": "private"}, privacy=one, clients={"kind": "record"}).planned(shape, 10)
    dealt = {"data": {**TABLES["data"], "held_out": {"fraction": 0.2}}, "clients": {"kind": "equal", "count": 10}}
    with pytest.raises(BadValue, match=r"tune\.score must be public for clients that the data do not name"):
        study({**tune, "score": "private"}, privacy=one, **dealt).planned(shape, 10)
    with pytest.raises(BadValue, match=r"tune\.metric must be mae for numbers, and another for classes"):
        study({**tune, "metric": "mae"}, algorithm={"kind": "dpsgd", "rate": 0.1, "rounds": 3}).planned(shape, 10)


def test_a_site_refuses_a_plan_of_several_candidates() -> None:
    """It would be charged for a secret choice among them, and train the one that it is told to."""
    plan = tuned_game_plan(game_plan())
    proposal = Content(values={"plan": plan.hash}, blocks={"plan": write_plan(plan).encode()})
    with pytest.raises(Refused, match="not-by-parts"):
        plan_of(proposal, ())
