"""Tuned studies: one plan, one charge, one certificate, and nothing of the other trials."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from wards import Command

import fedveil.engine.here as here
import fedveil.engine.study as study
from fedveil.certificate.certify import certify_written
from fedveil.core.errors import BadValue
from fedveil.core.tables import write_tables
from fedveil.jobs.local import Result, plan_study, run_study, tune_study
from fedveil.ledger.costs import charged, together
from fedveil.ledger.entry import read_export
from fedveil.planning.plan import Plan, read_plan, write_plan
from fedveil.planning.promises import promise
from fedveil.version import __version__

N = 300


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder, generator = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    rows = generator.normal(size=(N, 2))
    label = (rows[:, 0] - rows[:, 1] + 0.3 * generator.normal(size=N) > 0).astype(int)
    lines = [f"{a:.4f},{b:.4f},{c}" for (a, b), c in zip(rows.tolist(), label.tolist(), strict=True)]
    (folder / "rows.csv").write_text("\n".join(["a,b,label", *lines]) + "\n")
    return {
        "study": {"name": "tuned", "seed": 1},
        "data": {
            "source": str(folder / "rows.csv"),
            "target": "label",
            "classes": 2,
            "feature_bound": 2.0,
            "held_out": {"fraction": 0.25, "public": True},
        },
        "clients": {"kind": "equal", "count": 5},
        "model": {"kind": "logistic"},
        "privacy": {"epsilon": 2.0, "delta": 1e-4, "neighbours": "zero-out"},
        "algorithm": {"kind": "dpsgd", "rate": 0.2},
        "tune": {"trials": 4, "space": {"algorithm.rounds": [5, 20], "model": {"l2": [0.0, 0.1]}}},
    }


@pytest.fixture(scope="module")
def whole(tables: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Result:
    """A search whose noise is secret."""
    study = {key: value for key, value in tables.items() if key != "study"}
    return tune_study(study, tmp_path_factory.mktemp("tuned") / "out")


def test_one_plan_one_charge_one_certificate(whole: Result) -> None:
    plan = whole.certificate.plan
    assert plan.selection
    assert len(plan.candidates) == 4
    charge, release = read_export(whole.folder / "ledger.jsonl")
    costs = {row["adversary"]: row["epsilon"] for row in charge.payload["costs"]}
    assert 0.98 * 2 <= costs["final-model"] <= 2
    assert costs["final-model"] == promise(plan, "final-model").epsilon
    # Whoever sees every trial is charged for as many as there can be, which costs several times as much.
    for adversary in ("every-model", "curious-client", "server", "server-with-secure-aggregation"):
        assert costs[adversary] > 2 * costs["final-model"]
    assert charge.payload["plan"] == plan.hash == plan.with_chosen(0).hash
    assert release.payload.get("at") is None  # the time between the two would tell how many trials there were
    assert certify_written(whole.folder, __version__)[1] == []
    names = {a.name for a in whole.certificate.guarantees[0].assumptions}
    assert {"number of trials", "score of a trial", "what is seen of the other trials"} <= names


def test_what_is_left_says_nothing_of_the_other_trials(whole: Result) -> None:
    assert whole.metrics["tuning"] == {
        "candidates": 4,
        "chosen": whole.certificate.plan.selection.chosen + 1,  # type: ignore[union-attr]
        "score": "public",
        "metric": "accuracy",
        "expected_trials": pytest.approx(4.0),
    }
    assert whole.metrics["test"]["accuracy"] > 0.7
    assert {path.name for path in (whole.folder / "private").iterdir()}.isdisjoint({"trials", "key", "checkpoint"})
    assert whole.model.plan.method == whole.certificate.plan.method  # the bundle predicts with the chosen model


def test_the_books_add_it_up_with_other_runs(whole: Result) -> None:
    once = charged(read_export(whole.folder / "ledger.jsonl"))
    epsilon = together(once, ("final-model", "record", "zero-out"), 1e-4)
    assert epsilon == pytest.approx(promise(whole.certificate.plan, "final-model").epsilon, rel=1e-3)
    twice = together([*once, *once], ("final-model", "record", "zero-out"), 2e-4)
    assert epsilon < twice <= 2 * epsilon * (1 + 1e-9)


def test_the_plan_reads_back_whichever_is_chosen(whole: Result) -> None:
    plan = whole.certificate.plan
    for number in range(4):
        other = plan.with_chosen(number)
        assert read_plan(write_plan(other)) == other
        assert other.hash == plan.hash
        assert promise(other, "final-model") == promise(plan, "final-model")
    with pytest.raises(BadValue, match="be that of the chosen candidate"):
        replace(plan, selection=replace(plan.selection, chosen=(plan.selection.chosen + 1) % 4))  # type: ignore[union-attr]
    with pytest.raises(BadValue, match="differ in model, method and grid alone"):
        replace(plan, name="another")


def test_a_seed_repeats_it_and_a_crash_changes_nothing(
    tables: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed in every trial in turn, the search ends with the same bytes as one that was not."""
    tune_study(tables, tmp_path / "whole")
    trials, real = 0, here.train

    class Killed(Exception):
        pass

    def dies(plan: Plan, records: Any, entropy: Any, **how: Any) -> Any:
        nonlocal trials
        trials += 1
        if trials % 2 == 0:
            raise Killed
        return real(plan, records, entropy)

    monkeypatch.setattr(here, "train", dies)
    released, release = 0, study.release_of

    def stops(*given: Any, **named: Any) -> Any:
        nonlocal released
        released += 1
        if released == 1:
            raise Killed
        return release(*given, **named)

    monkeypatch.setattr(study, "release_of", stops)  # once after the choice is on the disk
    attempts = 0
    while True:
        attempts += 1
        try:
            tune_study(tables, tmp_path / "killed", resume=attempts > 1)
            break
        except Killed:
            continue
    assert attempts >= 2
    for name in ("plan.toml", "model.npz", "metrics.json", "ledger.jsonl", "certificate.json"):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name
    assert [entry.kind for entry in read_export(tmp_path / "killed" / "ledger.jsonl")] == ["charge", "release"]


def test_a_private_score_is_charged_and_is_all_that_is_told(tables: dict[str, Any], tmp_path: Path) -> None:
    data = {**tables["data"], "held_out": {"fraction": 0.25}}
    study = {**tables, "data": data}
    with pytest.raises(BadValue, match=r"tune\.score must be private for records that are not public"):
        plan_study(study)
    result = tune_study({**study, "tune": {**tables["tune"], "score": "private"}}, tmp_path / "out")
    plan = result.certificate.plan
    assert plan.selection
    assert result.metrics["test"] is None
    assert "noisy_score" in result.metrics["tuning"]
    assert all(row["covered"] is False for row in result.certificate.released)  # by the seed, and by nothing else
    assert "held-out records that were not declared public" not in json.dumps(result.certificate.released)
    loud = replace(plan.selection, score_noise=plan.selection.score_noise / 3)
    assert promise(replace(plan, selection=loud), "final-model").epsilon > 1.5 * promise(plan, "final-model").epsilon


def test_a_preparation_is_learned_anew_in_every_trial(tables: dict[str, Any], tmp_path: Path) -> None:
    data = {key: value for key, value in tables["data"].items() if key != "feature_bound"}
    study = {**tables, "data": data, "tune": {"trials": 2, "candidates": [{"algorithm.rounds": 5}]}}
    result = tune_study(study, tmp_path / "out")
    assert result.certificate.plan.preparation
    assert result.certificate.guarantees[0].answer.epsilon <= 2
    assert certify_written(tmp_path / "out", __version__)[1] == []
    assert result.model.bundle.preparation


def test_the_command(command: Command, tables: dict[str, Any], tmp_path: Path) -> None:
    """One object on standard output; a mistake is one sentence, exit 2, and nothing was written or charged."""
    data = tables["data"]
    study = tmp_path / "study.toml"
    parts = {"study": tables["study"], "data": {k: v for k, v in data.items() if k != "held_out"}}
    parts |= {key: tables[key] for key in ("clients", "model", "privacy", "algorithm")}
    head = write_tables(parts) + "[data.held_out]\nfraction = 0.25\npublic = true\n[tune]\ntrials = 2\n[tune.space]\n"
    study.write_text(head + '"privacy.epsilon" = [1.0, 8.0]\n')
    refused = command("tune", study, "--out", tmp_path / "out")
    assert refused.code == 2
    assert "'privacy.epsilon' of tune.space must be a setting that tuning may vary" in refused.err
    assert not (tmp_path / "out").exists()
    study.write_text(head + '"model.l2" = [0.0, 0.1]\n"algorithm.rounds" = [5]\n')
    found = json.loads(command("tune", study, "--out", tmp_path / "out", "--json", "--quiet").out)
    assert found["metrics"]["tuning"]["candidates"] == 2
    assert found["guarantees"][0]["adversary"] == "final-model"
    assert command("certify", tmp_path / "out").code == 0
    assert "have no [tune] table to be run" in command("run", study, "--out", tmp_path / "run").err


def test_run_and_tune_are_not_taken_for_each_other(tables: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(BadValue, match=r"have no \[tune\] table to be run"):
        run_study(tables, tmp_path / "out")
    plain = {key: value for key, value in tables.items() if key != "tune"}
    with pytest.raises(BadValue, match=r"have a \[tune\] table to be tuned"):
        tune_study(plain, tmp_path / "out")
    assert not (tmp_path / "out").exists()
