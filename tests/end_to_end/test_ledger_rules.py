"""Two identical runs compose to less than their sum, whatever ran, and the ledger says by which rule."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from wards import Command

from fedveil import plan_study
from fedveil.ledger.budget import Cost
from fedveil.ledger.costs import Charged, composed
from fedveil.ledger.transaction import costs_of
from fedveil.privacy.target import Target
from fedveil.stages.profile.request import Sizes, profile_plan

QUESTION = ("final-model", "record", "replace-one")
ABOUT = {"adversary": "final-model", "unit": "record", "neighbours": "replace-one"}


def study(**more: Any) -> dict[str, Any]:
    return {
        "data": {"source": "data.csv", "target": "y", "classes": 2, **more.pop("data", {})},
        "model": {"kind": "logistic"},
        "privacy": {"epsilon": 1.0, "delta": 1e-5},
        "schedule": {"passes": 1, "rounds": 4},
        **more,
    }


STUDIES = {
    "prepared": study(),
    "dealt": study(algorithm={"kind": "hidden", "order": "secret"}, data={"feature_bound": 2.0}),
    "coins": study(algorithm={"kind": "hidden", "order": "poisson", "rate": 0.1}, data={"feature_bound": 2.0}),
    "dpsgd": study(algorithm={"kind": "dpsgd", "rate": 0.2, "rounds": 5}, schedule={}),
    "tuned": study(
        algorithm={"kind": "dpsgd", "rate": 0.5},
        schedule={},
        tune={"trials": 2, "candidates": [{"algorithm.rounds": 3}, {"algorithm.rounds": 5}]},
        data={"feature_bound": 2.0, "held_out": {"fraction": 0.2, "public": True}},
    ),
}


@pytest.fixture(autouse=True)
def _data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(3).normal(size=(400, 2))
    lines = [f"{a:.4f},{b:.4f},{int(a > 0)}" for a, b in draw]
    Path("data.csv").write_text("\n".join(["a,b,y", *lines]) + "\n", encoding="utf-8")


def run_of(plan: Any) -> Charged:
    return Charged(costs_of([(plan, 1)], plan.target), ((plan.text(), 1),))


@pytest.mark.parametrize("name", [*STUDIES, "profile"])
def test_two_identical_runs_compose_by_their_curves(name: str) -> None:
    if name == "profile":
        shape = plan_study(STUDIES["dealt"]).plan.data
        plan: Any = profile_plan("p", shape, Target(epsilon=1.0, delta=1e-5), Sizes(3, 0, False), None)
    else:
        plan = plan_study(STUDIES[name]).plan
    one = run_of(plan)
    epsilon, rule = composed([one, one], QUESTION, 2e-5)
    assert rule == "curves"
    assert one.stated(QUESTION).epsilon < epsilon < 1.7 * one.stated(QUESTION).epsilon


def test_the_rule_is_named() -> None:
    known = Charged((Cost(epsilon=1.0, delta=1e-5, **ABOUT),))  # type: ignore[arg-type]
    one = run_of(plan_study(STUDIES["dealt"]).plan)
    assert composed([known], QUESTION, 1e-5) == (1.0, "sum")
    assert composed([known, known], QUESTION, 2e-5) == (2.0, "sum")
    assert composed([known] * 40, QUESTION, 1e-3)[1] == "worst-case"
    assert composed([known, one], QUESTION, 1e-3)[1] == "worst-case"
    assert composed([known], QUESTION, 1e-7) == (float("inf"), "none")


def test_the_command_says_it(command: Command) -> None:
    Path("s.toml").write_text(
        '[data]\nsource = "data.csv"\ntarget = "y"\nclasses = 2\nfeature_bound = 2.0\n[model]\nkind = "logistic"\n'
        '[privacy]\nepsilon = 1.0\ndelta = 1e-5\n[algorithm]\nkind = "dpsgd"\nrate = 0.5\nrounds = 3\n'
    )
    for name in ("one", "two"):
        assert command("run", "s.toml", "--out", name, "--quiet").code == 0
    rows = json.loads(command("ledger", "data.csv", "--json").out)["observers"]
    assert {row["fixed_in_advance"]["rule"] for row in rows} == {"curves"}
    assert rows[0]["fixed_in_advance"]["epsilon"] < 0.8 * rows[0]["added_up"]["epsilon"]
    text = command("ledger", "data.csv").out
    assert "server-with-secure-aggregation" in text
    assert "By composition: the certified curves of all runs, composed exactly." in text
