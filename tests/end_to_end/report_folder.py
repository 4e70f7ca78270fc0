"""Folders as a finished run leaves them, made without training: the report reads nothing else."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedveil.audit.finding import Finding
from fedveil.audit.record import Audit, write_audit
from fedveil.certificate.assumptions import assumptions
from fedveil.certificate.certify import Certificate, Guarantee, client_epsilons
from fedveil.data.records import DataShape
from fedveil.models.spec import ModelPlan
from fedveil.planning.plan import HeldOutRecords, Plan, write_plan
from fedveil.planning.promises import ADVERSARIES, promise
from fedveil.privacy.mechanism import LastIterate
from fedveil.privacy.target import Target
from fedveil.stages.train.dpsgd.method import DpSgd
from fedveil.stages.train.dpsgd.settings import ClientSettings
from fedveil.stages.train.hidden.method import Hidden

NAME = 'Heart <script>alert("&")</script> study'
CLIENT = "Clinic <b>A</b> & \"B\" 'C'"
MODEL = b"not really a model"
CLASSIFIED: dict[str, Any] = {
    "format": 1,
    "task": "classification",
    "test": {
        "records": 500,
        "public": False,
        "accuracy": 0.842,
        "loss": 0.4123,
        "per_client": {
            CLIENT: {"accuracy": 0.8, "loss": 0.4},
            "North": {"accuracy": 0.91},
            "South": {"accuracy": None},
        },
    },
    "baselines": {"non-private": {"accuracy": 0.856, "loss": 0.39}, "<other> & more": {"accuracy": 0.861}},
}
MEASURED: dict[str, Any] = {  # with all that a run says since it is measured beside the best constant answer
    "format": 1,
    "task": "classification",
    "test": {
        "records": 500,
        "public": True,
        "accuracy": 0.842,
        "loss": 0.4123,
        "threshold": 0.5,
        "auc": 0.71,
        "log_loss": 0.4123,
        "brier": 0.12,
        "classes": ["well <i>", "ill & old"],
        "confusion": [[421, 9], [70, 0]],
        "recall": {"well <i>": 0.979, "ill & old": 0.0},
        "precision": {"well <i>": 0.857, "ill & old": None},
        "balanced_accuracy": 0.4895,
        "calibration": {
            "error": 0.043,
            "bins": [
                {"from": 0.0, "to": 0.1, "records": 491, "predicted": 0.08, "observed": 0.14, "interval": [0.11, 0.17]},
                {"from": 0.5, "to": 0.6, "records": 9, "predicted": 0.53, "observed": 0.0, "interval": [0.0, 0.3]},
            ],
        },
        "baseline": {"kind": "majority", "class": "well <i>", "accuracy": 0.86, "log_loss": 0.405, "brier": 0.1204},
        "intervals": {
            "accuracy": [0.807, 0.871],
            "auc": [0.64, 0.78],
            "log_loss": None,
            "recall": {"well <i>": [0.961, 0.989], "ill & old": [0.0, 0.052]},
            "precision": {"well <i>": [0.823, 0.885], "ill & old": None},
        },
    },
    "baselines": {"non-private": {"accuracy": 0.856, "loss": 0.39, "auc": 0.8}},
}
REGRESSED: dict[str, Any] = {
    "format": 1,
    "task": "regression",
    "test": {"records": 30, "public": True, "loss": 0.3, "r2": -0.25, "mae": 0.21},
    "baselines": {},
}
UNTESTED: dict[str, Any] = {"format": 1, "task": "classification", "test": None, "baselines": {}}


def some_plan(*, rounds: int = 4, passes: int = 1, noise: float = 1.0, seeded: bool = False) -> Plan:
    """A small run with decaying steps."""
    records = 240
    data = DataShape(
        records=records, features=5, classes=2, clients=6, largest_client=40, smallest_client=40, bound=1.0
    )
    model = ModelPlan(kind="logistic", clip=1.0, radius=5.0)
    limits = model.constants(data.bound)
    run = LastIterate(
        rounds=rounds,
        passes=passes,
        batch=records // rounds,
        records=records,
        order="secret",
        step_size=tuple(1.0 / (1 + k) for k in range(rounds * passes)),
        lipschitz=limits.lipschitz,
        smoothness=limits.smoothness,
        diameter=10.0,
        noise_std=noise,
    )
    return Plan(
        name=NAME,
        data=data,
        model=model,
        target=Target(epsilon=1.0, delta=1e-5),
        method=Hidden(run=run, deal="records"),
        grid=-44,
        seeded=seeded,
        held_out=HeldOutRecords(records=500, public=False, baselines=True),
    )


def open_plan(*, clients: int = 6, seeded: bool = False, alike: bool = False) -> Plan:
    """A small run of a method that hides nothing; each client has noise of its own unless they are ``alike``."""
    data = replace(some_plan().data, clients=clients, records=40 * clients)
    client_settings = tuple(
        ClientSettings(rate=0.2, rounds=10, clip=1.0, noise=3.0 + client, step_size=0.5)
        for client in range(1 if alike else clients)
    )
    return replace(some_plan(seeded=seeded), data=data, method=DpSgd(client_settings=client_settings))


def write_folder(folder: Path, plan: Plan, metrics: dict[str, Any]) -> dict[str, Any]:
    """Plan, model, certificate and metrics; the certificate as it was written."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "plan.toml").write_text(write_plan(plan), encoding="utf-8")
    (folder / "model.npz").write_bytes(MODEL)
    digest = hashlib.sha256(MODEL).hexdigest()
    released = (
        {"what": "the final model", "file": "model.npz", "sha256": digest, "covered": True},
        {"what": "metrics <x>", "file": "metrics.json", "covered": False, "note": "no guarantee & no noise"},
    )
    guarantees = tuple(
        Guarantee(adversary=seen, answer=promise(plan, seen), assumptions=assumptions(plan, seen))
        for seen in ADVERSARIES
    )
    certificate = Certificate(
        plan=plan,
        run="run-<7>",
        version="0.0.test",
        guarantees=guarantees,
        released=released,
        clients=client_epsilons(plan),
    )
    (folder / "certificate.json").write_text(certificate.text(), encoding="utf-8")
    (folder / "metrics.json").write_text(json.dumps(metrics), encoding="utf-8")
    written: dict[str, Any] = json.loads(certificate.text())
    return written


def with_target(plan: Plan, **changes: Any) -> Plan:
    """The plan with another target."""
    return replace(plan, target=replace(plan.target, **changes))


def some_finding(**changes: Any) -> Finding:
    """A lower bound that is consistent with the certificate."""
    values: dict[str, Any] = {
        "attack": "distinguishing <game>",
        "adversary": "final-model",
        "kind": "lower-bound",
        "certified": 0.9,
        "measured": 0.4321,
        "delta": 1e-5,
        "alarm": 1e-6,
        "verdict": "consistent",
        "evidence": "612 of 50,000 & 101 of 50,000",
    }
    return Finding(**(values | changes))


def some_leakage() -> dict[str, Any]:
    """Two observers at two levels of noise, with pictures of two by two."""
    row = {"attack": "analytic", "records": 1.0, "labels_right": 1.0, "epsilon": None, "psnr_least": 1.0}
    black, white = [[0, 0], [0, 255]], [[255, 255], [255, 0]]
    return {
        "format": 1,
        "victims": 2,
        "delta": 1e-5,
        "truth": [black, white],
        "blind": {"cosine": 0.5, "psnr": 9.0},
        "rows": [
            row | {"adversary": who, "noise": noise, "cosine": 0.9, "psnr": psnr, "pictures": [white, black]}
            for who, psnr in (("server", 61.5), ("final-model", 6.25))
            for noise in (0.0, 0.1, 1.0)
        ],
    }


def some_audit(plan: Plan, *findings: Finding, **changes: Any) -> Audit:
    """An audit of the run that :func:`write_folder` leaves."""
    return Audit(**({"plan": plan.hash, "run": "run-<7>", "findings": findings} | changes))


def write_audit_file(folder: Path, audit: Audit) -> None:
    """Put the audit beside the run's records."""
    (folder / "audit.json").write_text(write_audit(audit), encoding="utf-8")
