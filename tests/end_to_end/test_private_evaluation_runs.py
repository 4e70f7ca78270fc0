"""Whole runs with a private evaluation: one charge, nothing exact published, the same numbers when begun again."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from wards import Command

from fedveil.certificate.certify import certify_written
from fedveil.jobs.local import open_study, plan_study, run_study
from fedveil.ledger.entry import read_export
from fedveil.planning.plan import read_plan
from fedveil.planning.promises import promise
from fedveil.version import __version__

N = 900


@pytest.fixture
def tables(tmp_path: Path) -> dict[str, Any]:
    draw = np.random.default_rng(0)
    size, ward = draw.normal(0.0, 1.0, N), np.arange(N) % 6
    ill = np.where(size + draw.normal(0.0, 0.7, N) > 0, "yes", "no")
    rows = [f"{a:.4f},w{b},{c}" for a, b, c in zip(size, ward, ill, strict=True)]
    (tmp_path / "wards.csv").write_text("\n".join(["size,ward,ill", *rows]) + "\n")
    return {
        "data": {
            "source": str(tmp_path / "wards.csv"),
            "target": "ill",
            "classes": ["no", "yes"],
            "client_column": "ward",
            "feature_bound": 1.0,
            "scale": {"size": [-4, 4]},
            "held_out": {"fraction": 0.4},
        },
        "clients": {"kind": "column"},
        "model": {"kind": "logistic", "radius": 20.0},
        "privacy": {"epsilon": 4.0, "delta": 1e-5, "neighbours": "zero-out"},
        "algorithm": {"kind": "dpsgd", "rate": 0.2, "rounds": 30},
        "evaluation": {"private": True},
    }


def test_held_out_records_leave_nothing_but_noisy_counts(tables: dict[str, Any], tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = run_study(tables, out)
    plan = read_plan((out / "plan.toml").read_text())
    assert plan.evaluation
    assert not plan.evaluation.trains
    entries = read_export(out / "ledger.jsonl")
    assert [entry.kind for entry in entries] == ["charge", "release"]
    charged = {cost["adversary"]: cost["epsilon"] for cost in entries[0].payload["costs"]}
    assert charged["final-model"] == promise(plan, "final-model").epsilon <= 4.0
    assert result.metrics["test"] is None
    found = result.metrics["evaluation"]
    truth = json.loads((out / "private" / "metrics.json").read_text())["test"]
    assert found["intervals"]["auc"][0] <= truth["auc"] <= found["intervals"]["auc"][1]
    assert found["accuracy"] == pytest.approx(truth["accuracy"], abs=0.15)
    rows = json.loads((out / "certificate.json").read_text())["released"]
    assert all(row["covered"] for row in rows)
    assert any("a private evaluation" in row["what"] for row in rows)
    assert certify_written(out, __version__)[1] == []
    page = (out / "report.html").read_text()
    assert "Measured privately" in page
    for name in ("metrics.json", "report.html", "certificate.json"):
        assert str(truth["auc"]) not in (out / name).read_text()


def test_clients_who_share_the_noise_count_alike_with_masks_and_without(tables: dict[str, Any], tmp_path: Path) -> None:
    tables["study"] = {"seed": 3}
    tables["evaluation"] = {"records": "training", "share": 0.3}
    tables["algorithm"]["rounds"] = 3
    found = []
    for server in ("trusted", "secure-aggregation"):
        trust = {"trust": {"server": server, "dropouts": 1}}
        result = run_study({**tables, **trust}, tmp_path / server)
        found.append(result.metrics["evaluation"])
        assert not (tmp_path / server / "private" / "answers_of_evaluation").exists()
    assert found[0]["counts"] == found[1]["counts"]
    plan = plan_study({**tables, "trust": {"dropouts": 1}}).plan
    assert plan.evaluation
    planned = plan.evaluation.sums["scores"].noise
    assert found[0]["noise"] == pytest.approx(
        planned * (6 / 5) ** 0.5, rel=1e-9
    )  # all six answered, five are counted on


def test_a_private_preparation_goes_before_it(tables: dict[str, Any], tmp_path: Path) -> None:
    del tables["data"]["scale"], tables["data"]["feature_bound"]
    tables["evaluation"] = {"records": "training"}
    result = run_study(tables, tmp_path / "out")
    plan = result.certificate.plan
    assert plan.preparation
    assert plan.evaluation
    assert promise(plan, "final-model").epsilon <= 4.0
    assert result.metrics["test"] is None  # nothing exact about the held-out records leaves
    assert result.metrics["evaluation"]["on"] == "training"
    assert result.model.predict({"size": [3.0, -3.0]}).tolist() == ["yes", "no"]


def test_the_command_tells_the_intervals(tables: dict[str, Any], tmp_path: Path, command: Command) -> None:
    study = tmp_path / "study.toml"
    study.write_text(
        f"""
        [data]
        source = "{tables["data"]["source"]}"
        target = "ill"
        classes = ["no", "yes"]
        client_column = "ward"
        feature_bound = 1.0
        scale.size = [-4, 4]
        held_out.fraction = 0.4
        [clients]
        kind = "column"
        [model]
        kind = "logistic"
        [privacy]
        epsilon = 4.0
        delta = 1e-5
        [algorithm]
        kind = "dpsgd"
        rate = 0.2
        rounds = 30
        [evaluation]
        private = true
        """
    )
    assert "evaluation counts scores in 12 bins on held-out records" in " ".join(command("plan", study).out.split())
    assert json.loads(command("plan", study, "--json").out)["evaluation"]["records"] == "held-out"
    ran = command("run", study, "--out", tmp_path / "ran", "--quiet", "--json")
    assert ran.code == 0
    assert json.loads(ran.out)["metrics"]["evaluation"]["intervals"]["auc"]
    told = json.loads(command("certify", tmp_path / "ran", "--answers", "--json").out)
    said = {row["question"]: row["answer"] for row in told["answers"]}
    assert said["Utility"].startswith("Measured privately on")
    assert "recall and precision by class, from noisy counts" in said["Bias"]
    assert [row["what"] for row in told["unprotected"]]
    assert "answers" not in json.loads(command("certify", tmp_path / "ran", "--json").out)
    assert "A regulator's questions" in command("certify", tmp_path / "ran", "--answers").out
    assert command("card", tmp_path / "ran", "--format", "markdown").code == 0
    assert "Measured privately on" in (tmp_path / "ran" / "card.md").read_text()
    compared = command("compare", study, "--algorithms", "dpsgd", "--runs", "1", "--json")
    assert compared.code == 0
    assert json.loads(compared.out)["counted"]


def test_where_exact_numbers_are_asked_for_it_is_refused(tables: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"\[evaluation\] must be left out here"):
        open_study(tables)
    with pytest.raises(ValueError, match=r"report\.baselines must be left out with a private evaluation"):
        plan_study({**tables, "report": {"baselines": True}})
    dealt = {**tables, "clients": {"kind": "equal", "count": 4}, "privacy": {**tables["privacy"], "unit": "client"}}
    del dealt["data"]["client_column"]
    dealt["data"]["ignore"] = ["ward"]
    with pytest.raises(ValueError, match=r"evaluation\.records must be training when privacy\.unit is client"):
        plan_study({**dealt, "algorithm": {"kind": "fedavg"}})


def test_across_sites_held_out_records_are_somebodys(tables: dict[str, Any], tmp_path: Path) -> None:
    """Records held out before clients were dealt have no site that could count them: said before anything starts."""
    pytest.importorskip("flwr")
    from fedveil.jobs.remote import run_local

    dealt = {**tables, "clients": {"kind": "equal", "count": 4}, "trust": {}}
    dealt["data"] = {key: value for key, value in tables["data"].items() if key != "client_column"}
    dealt["data"]["ignore"] = ["ward"]
    with pytest.raises(ValueError, match=r"\[data\.held_out\] must leave every client records on both sides"):
        run_local(dealt, tmp_path / "out", sites=2)
    assert not (tmp_path / "out").exists()
