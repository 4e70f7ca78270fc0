"""Whole studies with fedavg and simfl: planned, run, certified, and what is refused."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedveil import run_study
from fedveil.core.errors import BadValue, CannotCertify
from fedveil.data.records import Records
from fedveil.jobs.local import plan_study
from unit.plans import some_records

EVERY = some_records(count=800, clients=40)


def part(first: int, last: int, clients: int) -> Records:
    """Some of the records, dealt evenly."""
    owner = (np.arange(last - first) * clients // (last - first)).astype(np.int64)
    rows, targets = EVERY.features[first:last], EVERY.targets[first:last]
    return replace(EVERY, features=rows, targets=targets, owner=owner, clients=clients, names=())


RECORDS, HELD = part(0, 600, 30), part(600, 800, 1)


def study(algorithm: dict[str, Any], **privacy: Any) -> dict[str, Any]:
    unit = "client" if algorithm["kind"] == "fedavg" else "record"
    target = {"epsilon": 4.0, "delta": 1e-4, "unit": unit, "neighbours": "zero-out", **privacy}
    return {"data": {"public": True}, "model": {"kind": "logistic"}, "privacy": target, "algorithm": algorithm}


def certificate(folder: Path) -> dict[str, dict[str, Any]]:
    read = json.loads((folder / "certificate.json").read_text())
    return {row["adversary"]: row for row in read["guarantees"]}


@pytest.mark.parametrize(
    "algorithm",
    [
        {"kind": "fedavg"},
        {"kind": "fedavg", "rate": 0.4, "weights": "records", "local": {"epochs": 2, "batch": 8}},
        {"kind": "fedavg", "cohort": 12, "noise": "shared"},
        {"kind": "simfl"},
        {"kind": "simfl", "rate": 0.3},
    ],
)
def test_a_study_trains_and_is_certified(algorithm: dict[str, Any], tmp_path: Path) -> None:
    result = run_study(study(algorithm), tmp_path / "out", data=(RECORDS, HELD))
    rows = certificate(tmp_path / "out")
    assert 3.9 < rows["final-model"]["epsilon"] <= 4.0
    assert result.metrics["test"]["accuracy"] > 0.75
    if algorithm["kind"] == "fedavg":
        assert (rows["server"]["epsilon"] is not None) == (algorithm.get("noise") == "shared")
    assert (tmp_path / "out" / "report.html").stat().st_size > 1000


def test_the_certificate_says_what_each_party_has_seen(tmp_path: Path) -> None:
    run_study({**study({"kind": "simfl"}), "schedule": {"rounds": 40}}, tmp_path / "out", data=(RECORDS, HELD))
    row = certificate(tmp_path / "out")["curious-client"]
    seen = {a["name"]: a["value"] for a in row["assumptions"]}
    assert seen["parties 1 to 10"].startswith("led 2 rounds and was sent 58 noised gradients of single parties")
    assert seen["parties 11 to 30"].endswith("was sent the model in the other 39 rounds")
    own = {b["name"]: b["epsilon"] for b in row["bounds"]}
    assert own["parties 11 to 30"] < own["parties 1 to 10"] <= row["epsilon"] * (1 + 1e-9)


def test_without_noise_the_certificate_promises_nothing(tmp_path: Path) -> None:
    result = run_study(study({"kind": "fedavg", "noise": "none"}), tmp_path / "out", data=(RECORDS, HELD))
    rows = certificate(tmp_path / "out")
    assert all(row["epsilon"] is None and row["certified_by"] is None for row in rows.values())
    assert all("nothing is promised" in str(row["assumptions"]) for row in rows.values())
    assert result.metrics["test"]["accuracy"] > 0.9


def test_the_target_may_be_meant_for_any_observer_that_does_not_know_the_noise() -> None:
    for adversary in ("curious-client", "every-model", "server-with-secure-aggregation", "server"):
        for algorithm in ({"kind": "fedavg", "noise": "shared", "cohort": 10}, {"kind": "simfl"}):
            assert plan_study(study(algorithm, adversary=adversary), data=RECORDS).plan.target.adversary == adversary
    with pytest.raises(CannotCertify, match="a server that adds the noise itself knows it"):
        plan_study(study({"kind": "fedavg"}, adversary="server"), data=RECORDS)


def test_given_noise_is_checked_and_not_calibrated() -> None:
    tables = {**study({"kind": "fedavg", "update_norm": 0.5}), "schedule": {"noise_std": 3.0, "rounds": 5}}
    found = plan_study(tables, data=RECORDS).plan.method.table()
    assert found["noise_multiplier"] == pytest.approx(3.0 * np.sqrt(30) / 0.5)
    for kind in ("fedavg", "simfl"):
        with pytest.raises(BadValue, match=r"schedule.noise_std must be enough for epsilon 4"):
            plan_study({**study({"kind": kind}), "schedule": {"noise_std": 1e-3}}, data=RECORDS)


@pytest.mark.parametrize(
    ("algorithm", "schedule", "rule"),
    [
        ({"kind": "fedavg", "rate": 64}, {}, r"algorithm.rate must lie in \(0, 1\]"),
        ({"kind": "fedavg", "rate": 0.5, "cohort": 3}, {}, "algorithm.rate must be left out with cohort"),
        ({"kind": "fedavg", "sampling": "poisson"}, {}, "algorithm.sampling must come with a cohort"),
        ({"kind": "fedavg", "cohort": 31}, {}, "algorithm.cohort must be at most the number of clients, 30"),
        (
            {"kind": "fedavg", "sampling": "fixed-size", "rate": 0.5},
            {},
            "algorithm.rate must be left out with sampling other",
        ),
        ({"kind": "fedavg", "noise": "no"}, {}, "noise must be one of central, shared, none"),
        ({"kind": "fedavg", "clip": 1.0}, {}, "algorithm.clip must be adaptive for fedavg"),
        ({"kind": "fedavg", "most_records": 9}, {}, "most_records must be left out with uniform weights"),
        ({"kind": "fedavg", "update_norm": 0.0}, {}, "algorithm.update_norm must be at least 1e-09"),
        ({"kind": "fedavg", "local": {"epochs": "two"}}, {}, "algorithm.local.epochs must be"),
        ({"kind": "fedavg", "local": {"step": float("nan")}}, {}, "algorithm.local.step must be"),
        ({"kind": "fedavg"}, {"passes": 3}, "schedule.passes must be left out with fedavg"),
        ({"kind": "fedavg"}, {"step_size": [1.0, 0.5]}, "schedule.step_size must be one number"),
        ({"kind": "fedavg"}, {"rounds": "converged"}, "schedule.rounds must be a whole number"),
        ({"kind": "simfl"}, {"batch": 3}, "schedule.batch must be left out with simfl"),
        ({"kind": "simfl", "rate": 0}, {}, "algorithm.rate must lie in"),
        ({"kind": "simfl", "noise": "none"}, {}, "algorithm.noise must be a setting of simfl"),
    ],
)
def test_senseless_studies_are_refused_in_one_sentence(
    algorithm: dict[str, Any], schedule: dict[str, Any], rule: str
) -> None:
    with pytest.raises(BadValue, match=rule) as refused:
        plan_study({**study(algorithm), "schedule": schedule}, data=RECORDS)
    assert "\n" not in str(refused.value)


def test_units_that_a_method_does_not_protect_are_refused() -> None:
    with pytest.raises(BadValue, match=r"privacy.unit must be client for fedavg"):
        plan_study(study({"kind": "fedavg"}, unit="record"), data=RECORDS)
    with pytest.raises(BadValue, match=r"privacy.unit must be record for simfl"):
        plan_study(study({"kind": "simfl"}, unit="client"), data=RECORDS)
