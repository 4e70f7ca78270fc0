"""Every row about a plan counts the same stages: who sees more is promised no more, and one holder is one client."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedveil import plan_study
from fedveil.core.errors import FedveilError
from fedveil.jobs.entry import Wish, profile_data
from fedveil.planning.plan import Plan
from fedveil.planning.promises import ADVERSARIES, every_model_seen, promise

UP = 1 + 1e-6
SHORT = {"passes": 1, "rounds": 4}


def study(more: dict[str, Any] | None = None, **data: Any) -> dict[str, Any]:
    given = {"source": "data.csv", "target": "y", "classes": 2, **data}
    return {
        "data": given,
        "model": {"kind": "logistic"},
        "privacy": {"epsilon": 1.0, "delta": 1e-5},
        "schedule": SHORT,
        **(more or {}),
    }


HIDDEN = {
    "learned columns": study(),
    "learned columns, dealt secretly": study({"algorithm": {"kind": "hidden", "order": "secret"}}),
    "learned columns, coins": study({"algorithm": {"kind": "hidden", "order": "poisson", "rate": 0.1}}),
    "learned columns, zero-out": study({"privacy": {"epsilon": 0.5, "delta": 1e-6, "neighbours": "zero-out"}}),
    "learned columns, public order": study({"algorithm": {"kind": "hidden", "order": "public"}}),
    "stated columns": study(feature_bound=2.0),
    "measured on its own records": study({"evaluation": {"private": True}}, feature_bound=2.0),
    "measured on held-out records": study({"evaluation": {"private": True}}, held_out={"fraction": 0.3}),
    "four clients": study({"clients": {"kind": "equal", "count": 4}}),
    "a client each": study({"clients": {"kind": "record"}}),
    "shares of noise": study({"clients": {"kind": "equal", "count": 4}, "trust": {"server": "trusted"}}),
    "shares of noise, one holder, dealt": study(
        {
            "clients": {"kind": "equal", "count": 1},
            "trust": {"server": "trusted"},
            "algorithm": {"kind": "hidden", "order": "secret"},
        }
    ),
    "shares of noise, one holder": study({"clients": {"kind": "equal", "count": 1}, "trust": {"server": "trusted"}}),
}
OTHERS = {
    "dpsgd": study({"algorithm": {"kind": "dpsgd", "rate": 0.2, "rounds": 5}, "schedule": {}}),
    "dpsgd, stated": study(
        {"algorithm": {"kind": "dpsgd", "rate": 0.2, "rounds": 5}, "schedule": {}}, feature_bound=2.0
    ),
    "auto": study({"algorithm": {"kind": "auto"}, "schedule": {}}, feature_bound=2.0),
}
ALONE = {name: one for name, one in {**HIDDEN, **OTHERS}.items() if "clients" not in one}


@pytest.fixture(autouse=True)
def _data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(3).normal(size=(400, 2))
    lines = [f"{a:.4f},{b:.4f},{int(a > 0)}" for a, b in draw]
    Path("data.csv").write_text("\n".join(["a,b,y", *lines]) + "\n", encoding="utf-8")


_KEPT: dict[str, Plan] = {}


def plan(name: str) -> Plan:
    if name not in _KEPT:
        _KEPT[name] = plan_study({**HIDDEN, **OTHERS}[name]).plan
    return _KEPT[name]


@pytest.mark.parametrize("name", [*HIDDEN, *OTHERS])
def test_who_sees_more_is_promised_no_more(name: str) -> None:
    found = {who: promise(plan(name), who).epsilon for who in ADVERSARIES}
    assert found["final-model"] <= found["every-model"] * UP
    assert found["final-model"] <= found["curious-client"] * UP
    assert found["every-model"] <= found["server-with-secure-aggregation"] * UP
    assert found["server-with-secure-aggregation"] <= found["server"] * UP


@pytest.mark.parametrize("name", HIDDEN)
def test_the_row_with_every_model_seen_is_that_of_the_certificate(name: str) -> None:
    one = plan(name)
    seen = every_model_seen(one)
    assert seen is not None
    own = {"poisson": seen.poisson, "independent": seen.independent}.get(one.hidden.run.order, seen.known)
    assert own == pytest.approx(promise(one, "every-model").epsilon, rel=1e-6)
    assert own is not None
    assert own * UP >= promise(one, "final-model").epsilon


@pytest.mark.parametrize("name", ALONE)
def test_records_that_nobody_divided_are_one_holders(name: str) -> None:
    one = plan(name)
    assert one.data.clients == 1
    assert one.data.holders == "one client"
    inside = {promise(one, who).epsilon for who in ADVERSARIES[1:]}
    assert max(inside) < float("inf")
    assert max(inside) == pytest.approx(promise(one, "every-model").epsilon, rel=1e-6)


def test_a_profile_of_one_holders_data_knows_one_client(tmp_path: Path) -> None:
    found = profile_data(Wish(data="data.csv", target="y"), 1.0, tmp_path / "profile")
    assert found.certificate.plan.data.clients == 1
    assert {one.answer.epsilon < 1.001 for one in found.certificate.guarantees} == {True}
    drafted = plan_study(tmp_path / "profile" / "study.toml").plan
    assert drafted.data.clients == 1


@pytest.mark.parametrize(
    "more",
    [
        {"privacy": {"epsilon": 1.0, "delta": 1e-5, "unit": "client"}},
        {"trust": {"server": "secure-aggregation"}},
        {"algorithm": {"kind": "simfl"}, "schedule": {}},
        {"algorithm": {"kind": "fedavg"}, "schedule": {}, "privacy": {"epsilon": 1.0, "delta": 1e-5, "unit": "client"}},
    ],
)
def test_what_needs_several_clients_asks_for_them(more: dict[str, Any]) -> None:
    with pytest.raises(FedveilError, match=r"\[clients\]"):
        plan_study(study(more, feature_bound=2.0))
