"""A released model on other records: charged to their own ledger and certified, or measured exactly on public ones."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import norm
from sklearn.metrics import mean_absolute_error, r2_score, roc_auc_score

from end_to_end.conftest import Command
from fedveil import load_model, run_study
from fedveil.certificate.certify import certify_measured
from fedveil.core.errors import BadValue, FedveilError
from fedveil.jobs.evaluation import evaluate_model, evaluate_publicly
from fedveil.planning.plan import read_any_plan
from fedveil.planning.promises import ADVERSARIES
from fedveil.stages.measured.plan import MeasuredPlan


def write(path: Path, count: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    age, ward = draw.integers(20, 90, count), draw.choice(["A", "B"], count)
    ill = np.where((age - 55) / 15 + draw.normal(size=count) > 0, "yes", "no")
    rows = [
        f"{'' if k % 40 == 0 else a},{w},{f'person {k % 100}'},{'' if k % 41 == 0 else i},{2 * a + e:.2f}"
        for k, (a, w, i, e) in enumerate(zip(age, ward, ill, draw.normal(0, 10, count), strict=True))
    ]
    path.write_text("\n".join(["age,ward,who,ill,cost", *rows]) + "\n")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of classes and one of a number, and records that neither has seen."""
    folder = tmp_path_factory.mktemp("evaluated")
    write(folder / "old.csv", 800, 0)
    write(folder / "new.csv", 1200, 1)
    tables: dict[str, Any] = {
        "study": {"seed": 1},
        "data": {
            "source": str(folder / "old.csv"),
            "target": "ill",
            "classes": ["no", "yes"],
            "feature_bound": 1.5,
            "ignore": ["cost", "who"],
            "categories": {"ward": ["A", "B"]},
            "fill": {"age": 50.0, "ill": "drop-row"},
            "scale": {"age": [0.0, 100.0]},
        },
        "clients": {"kind": "equal", "count": 4},
        "model": {"kind": "logistic", "radius": 20.0},
        "privacy": {"epsilon": 2.0, "delta": 1e-5, "neighbours": "zero-out"},
        "algorithm": {"kind": "dpsgd", "rate": 0.1, "rounds": 30},
    }
    run_study(tables, folder / "classes")
    number = {**tables["data"], "target": "cost", "target_scale": [0.0, 250.0], "ignore": ["ill", "who"]}
    del number["classes"]
    number["fill"] = {"age": 50.0}
    run_study({**tables, "data": number, "model": {"kind": "huber"}}, folder / "number")
    return folder


def cells(path: Path) -> dict[str, list[str]]:
    head, *lines = path.read_text().splitlines()
    return dict(zip(head.split(","), map(list, zip(*(line.split(",") for line in lines), strict=True)), strict=True))


def test_it_is_charged_to_the_records_own_ledger_and_certified(place: Path, command: Command) -> None:
    out = place / "measured"
    ran = command("evaluate", place / "classes", place / "new.csv", "--epsilon", "0.5", "--out", out, "--json")
    assert ran.code == 0, ran.err
    told = json.loads(ran.out)
    found = json.loads((out / "evaluation.json").read_text())
    assert told["evaluation"] == found
    assert found["intervals"]["auc"][0] < found["auc"] < found["intervals"]["auc"][1]
    assert (found["records"], found["units"]) == (1200, 1200)
    assert (place / ".fedveil" / "new.csv.sqlite").exists()
    held = json.loads(command("ledger", place / "new.csv", "--json").out)
    assert len(held["runs"]) == 1
    matched = command("certify", out, "--json")
    assert json.loads(matched.out)["matches"] is True
    assert json.loads((out / "certificate.json").read_text())["released"][0]["covered"] is True
    assert "Certificate of an evaluation" in command("certify", out).out
    for other in ("report", "card"):
        assert "must be the folder of a run, got 'an evaluation'" in command(other, out).err
    attacked = command("audit", out, "--json")
    assert (attacked.code, json.loads(attacked.out)["verdict"]) == (0, "consistent")


def test_its_epsilon_is_that_of_all_counts_together(place: Path) -> None:
    """Worked out here from the noise of each sum alone: the privacy curve of the whole Gaussian mechanism."""
    found = evaluate_model(place / "classes", place / "new.csv", epsilon=0.7, delta=1e-6, out=place / "exact")
    assert found.certificate is not None
    plan = found.certificate.plan
    mu = 2 * math.sqrt(sum(1 / one.noise**2 for one in plan.evaluation.sums.measurements))

    def excess(epsilon: float) -> float:
        a, b = mu / 2 - epsilon / mu, -mu / 2 - epsilon / mu
        return float(norm.cdf(a) - math.exp(epsilon) * norm.cdf(b)) - 1e-6

    answers = {one.adversary: one.answer.epsilon for one in found.certificate.guarantees}
    assert set(answers) == set(ADVERSARIES)
    assert answers["final-model"] == pytest.approx(brentq(excess, 1e-3, 10.0), rel=1e-3)
    assert 0.69 < answers["final-model"] <= 0.7
    assert MeasuredPlan.read(plan.text()) == plan
    assert read_any_plan(plan.text()) == plan


def test_whole_clients_are_counted_as_one_each(place: Path) -> None:
    found = evaluate_model(
        place / "classes",
        place / "new.csv",
        epsilon=3.0,
        unit="client",
        client_column="who",
        neighbours="zero-out",
        out=place / "clients",
    )
    assert found.metrics["units"] == 100
    assert found.certificate is not None
    assert found.certificate.plan.data.clients == 100
    assert "who holds which record is public" in [row.name for row in found.certificate.guarantees[0].assumptions]


def test_of_a_number_in_its_own_unit(place: Path) -> None:
    found = evaluate_model(place / "number", place / "new.csv", epsilon=4.0, out=place / "numbers").metrics
    table = cells(place / "new.csv")
    said = load_model(place / "number").predict({"age": table["age"], "ward": table["ward"]})
    truth = np.array(table["cost"], dtype=np.float64)
    for name, value in (("mae", mean_absolute_error(truth, said)), ("r2", r2_score(truth, said))):
        low, high = found["intervals"][name]
        assert low <= value <= high
    assert found["intervals"]["mae"][1] < 60  # of a range of 250


def test_public_records_are_measured_exactly_and_nothing_is_charged(place: Path, command: Command) -> None:
    write(place / "public.csv", 300, 2)
    ran = command("evaluate", place / "classes", place / "public.csv", "--public", "--json")
    assert ran.code == 0, ran.err
    test = json.loads(ran.out)["test"]
    assert not (place / ".fedveil" / "public.csv.sqlite").exists()
    table = cells(place / "public.csv")
    known = [k for k, word in enumerate(table["ill"]) if word]
    picked = {name: [table[name][k] for k in known] for name in ("age", "ward")}
    said = load_model(place / "classes").predict_proba(picked)[:, 1]
    assert test["auc"] == pytest.approx(roc_auc_score([table["ill"][k] == "yes" for k in known], said), abs=1e-12)
    assert "public" in command("evaluate", place / "classes", place / "public.csv", "--public").out
    assert "per_client" not in test
    by = evaluate_publicly(place / "classes", place / "public.csv", client_column="who").metrics
    assert len(by["per_client"]) == 100


def test_what_was_altered_is_told(place: Path, command: Command) -> None:
    out = place / "altered"
    evaluate_model(place / "classes", place / "new.csv", epsilon=0.5, out=out)
    path = out / "evaluation.json"
    path.write_text(path.read_text().replace('"records": 1200', '"records": 1201'))
    with pytest.raises(FedveilError, match=r"evaluation\.json must be the evaluation that was released"):
        certify_measured(out, "0")
    plan = out / "plan.toml"
    plan.write_text(plan.read_text().replace("epsilon = 0.5", "epsilon = 0.6"))
    refused = command("certify", out)
    assert refused.code == 2
    assert "plan.toml must be the plan that was charged" in refused.err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "--epsilon must be given, or --public, and not both"),
        (["--epsilon", "1", "--public"], "--epsilon must be given, or --public, and not both"),
        (["--epsilon", "1", "--unit", "person"], "--unit must be one of record, client"),
        (["--epsilon", "1", "--neighbours", "near"], "--neighbours must be one of"),
        (["--epsilon", "1", "--unit", "client"], "--client-column must be given where clients are protected"),
        (["--epsilon", "1", "--client-column", "whom"], "data.client_column must name columns of"),
        (["--epsilon", "-1"], "privacy.epsilon must"),
        (["--epsilon", "nan"], "privacy.epsilon must"),
        (["--epsilon", "1", "--delta", "2"], "privacy.delta must"),
    ],
)
def test_a_mistake_is_one_sentence(place: Path, command: Command, words: list[str], sentence: str) -> None:
    refused = command("evaluate", place / "classes", place / "new.csv", *words, "--out", place / "none")
    assert refused.code == 2
    assert sentence in " ".join(refused.err.split())
    assert not (place / "none" / "evaluation.json").exists()


def test_what_cannot_be_evaluated_is_refused(place: Path, tmp_path: Path) -> None:
    with pytest.raises(BadValue, match=r"DATA must be a file or folder"):
        evaluate_model(place / "classes", tmp_path / "none.csv", epsilon=1.0, out=tmp_path / "out")
    (tmp_path / "unlabelled.csv").write_text("age,ward\n30,A\n")
    with pytest.raises(BadValue, match=r"data\.target must be a column of unlabelled\.csv"):
        evaluate_model(place / "classes", tmp_path / "unlabelled.csv", epsilon=1.0, out=tmp_path / "out")
