"""Canaries in torch models and under correlated noise: sound runs are not accused, runs without their noise are.

Randomness is the system's interface with fixed bytes, so every outcome here is the same each time.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from end_to_end.test_canary_run import run, system
from fedveil import load_model, run_study
from fedveil.audit.finding import Finding
from fedveil.data.arrays import records_from_arrays
from fedveil.data.records import Records
from fedveil.jobs.attack.one_run import one_run
from fedveil.noise import correlated
from fedveil.planning.plan import read_plan
from fedveil.stages.train.dpsgd import client as dpsgd

FEATURES = 600
ALGORITHMS: dict[str, dict[str, Any]] = {
    "independent": {"kind": "dpsgd"},
    "cyclic": {"kind": "dpsgd", "correlation": {}, "sampling": "cyclic"},
    "classes": {"kind": "dpsgd", "correlation": {}},
    "clients": {"kind": "fedavg", "correlation": {}},
}


def network() -> Any:
    from torch import nn

    return nn.Sequential(nn.Linear(FEATURES, 16), nn.Tanh(), nn.Linear(16, 2))


def records(clients: int) -> Records:
    X = np.random.default_rng(5).standard_normal((120, FEATURES))
    return records_from_arrays(X, X[:, 0] > 0, np.arange(120) % clients, bound=1.0, classes=2, intercept=0.0)


def audited(folder: Path, model: str, algorithm: str, neighbours: str, canaries: int, epsilon: float) -> Finding:
    whole = algorithm == "clients"
    kinds = {
        "torch": {"kind": "torch", "module": f"{__name__}:network", "clip": 1.0},
        "logistic": {"kind": "logistic", "radius": 10.0},
    }
    unit = "client" if whole else "record"
    batch = {} if whole else {"batch": 45, "passes": 15}
    wanted = {
        "study": {"name": "canaries"},
        "model": kinds[model],
        "algorithm": ALGORITHMS[algorithm],
        "privacy": {"epsilon": epsilon, "delta": 1e-4, "neighbours": neighbours, "unit": unit},
        "schedule": {"rounds": 12} if whole else batch | ({"step_size": 2.0} if model == "torch" else {}),
        "audit": {"canaries": canaries},
    }
    return one_run(run(wanted, folder, records(40 if whole else 1), system=system(3)))


def silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the noise away: in rounds of their own, and in correlated ones."""

    def faulty(stream: Any, deviation: float, size: int) -> Any:
        return np.zeros(size, dtype=np.int64)

    monkeypatch.setattr(dpsgd, "rounded_normal", faulty)
    monkeypatch.setattr(correlated, "rounded_normal", faulty)


@pytest.mark.parametrize("algorithm", ["cyclic", "classes", "clients"])
def test_linear_models_under_correlated_noise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, algorithm: str) -> None:
    found = audited(tmp_path / "sound", "logistic", algorithm, "zero-out", 200, 8.0)
    assert (found.kind, found.verdict) == ("lower-bound", "consistent"), found.evidence
    assert found.details["scores_in"] > found.details["scores_out"]
    silence(monkeypatch)
    found = audited(tmp_path / "silent", "logistic", algorithm, "zero-out", 200, 1.0)
    assert found.verdict == "broken", found.evidence


@pytest.mark.parametrize(("algorithm", "neighbours"), [("independent", "zero-out"), ("cyclic", "replace-one")])
def test_torch_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, algorithm: str, neighbours: str) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed: pip install fedveil[torch]")
    found = audited(tmp_path / "sound", "torch", algorithm, neighbours, 60, 4.0)
    assert (found.kind, found.verdict) == ("lower-bound", "consistent"), found.evidence
    plan = read_plan((tmp_path / "sound" / "plan.toml").read_text())
    assert (plan.canaries, plan.data.records, plan.real_features, plan.data.features) == (60, 180, FEATURES, FEATURES)
    silence(monkeypatch)
    found = audited(tmp_path / "silent", "torch", algorithm, neighbours, 250, 0.3)
    assert found.verdict == "broken", found.evidence


def test_a_torch_model_that_was_audited_is_used_like_any_other(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed: pip install fedveil[torch]")
    wanted = {
        "study": {"seed": 1},
        "model": {"kind": "torch", "module": f"{__name__}:network", "clip": 1.0},
        "algorithm": {"kind": "dpsgd"},
        "privacy": {"epsilon": 4.0, "delta": 1e-4},
        "schedule": {"batch": 45, "passes": 1, "step_size": 1.0},
        "audit": {"canaries": 20},
    }
    result = run_study(wanted, tmp_path / "run", data=(records(1), records(1)))
    rows = records(1).features[:7]
    loaded = load_model(tmp_path / "run")
    with np.load(tmp_path / "run" / "model.npz") as file:
        scores = result.certificate.plan.model.loss.scores(file["parameters"], rows)
    assert np.array_equal(loaded.predict(rows), scores.argmax(axis=1))
