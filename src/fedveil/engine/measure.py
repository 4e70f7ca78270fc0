"""Measure the last model on the held-out records, next to models that were trained without privacy."""

import json
from pathlib import Path
from typing import Any

from fedveil.core.values import Vector
from fedveil.data.load import Loaded
from fedveil.data.records import Records
from fedveil.data.row_rule import Labels
from fedveil.engine.baselines import centralised, non_private
from fedveil.engine.files import write_atomically
from fedveil.models.metrics import evaluate, scores
from fedveil.noise.entropy import Entropy
from fedveil.planning.plan import Plan
from fedveil.privacy.guarantee import finite_or_none

PER_CLIENT = "per_client.json"  # in the private folder
CALIBRATION = "calibration.json"  # likewise
EXACT = "metrics.json"  # in the private folder, where nothing exact is published


def measure(plan: Plan, loaded: Loaded, model: Vector, entropy: Entropy) -> dict[str, Any]:
    """Return the metrics of a model; nothing is measured on training records."""
    task = "classification" if plan.data.classes else "regression"
    found: dict[str, Any] = {"format": 1, "task": task, "test": None, "baselines": {}}
    scored = plan.selection.private
    generates = plan.model.generates  # how good a generator is, its rows tell
    # a private score is all that may be told of the records it is measured on
    if loaded.test is None or scored or generates:
        return found
    held, labels = loaded.test.present(), None if loaded.preparation is None else loaded.preparation.labels
    exact = measured_exactly(plan, model, held, labels)
    found["test"] = {"records": len(loaded.test), "public": plan.held_out.public, **exact}
    if plan.held_out.baselines:
        train = loaded.train.present()
        models = {"non-private": non_private(plan, train, entropy), "centralised": centralised(plan.model, train)}
        found["baselines"] = {
            name: {**_measured(plan, other, held), **_briefly(_told(plan, other, held, labels))}
            for name, other in models.items()
        }
    return found


def measured_exactly(plan: Plan, model: Vector, held: Records, labels: Labels | None) -> dict[str, Any]:
    """Return all metrics of a model on records without blank ones; no noise covers them."""
    return {**_measured(plan, model, held), **_told(plan, model, held, labels)}


def published(plan: Plan, metrics: dict[str, Any], private: Path) -> dict[str, Any]:
    """What of the metrics may leave. All of it may where the records it is computed from are public.

    Otherwise none of it may, unless the plan says that exact metrics are published, and is charged for it; they are
    kept in the private folder, for the data holder. Even then what may tell about one client or one record at a time
    stays there: scores of single clients, and the bins of the calibration curve, some of which hold few records.
    """
    if plan.held_out.public or metrics["test"] is None:
        return metrics
    if not plan.held_out.exact:
        _keep(private / EXACT, {"test": metrics["test"]})
        return {**metrics, "test": None}
    tables = {"test": metrics["test"], **metrics["baselines"]}
    single = {name: row["per_client"] for name, row in tables.items() if "per_client" in row}
    if single:
        _keep(private / PER_CLIENT, {"per_client": single})
    test, *others = ({key: v for key, v in row.items() if key != "per_client"} for row in tables.values())
    if "calibration" in test:
        _keep(private / CALIBRATION, test["calibration"])
        test["calibration"] = {"error": test["calibration"]["error"]}
    return {**metrics, "test": test, "baselines": dict(zip(metrics["baselines"], others, strict=True))}


def _keep(path: Path, values: dict[str, Any]) -> None:
    text = json.dumps({"format": 1, **values}, indent=1, allow_nan=False) + "\n"
    write_atomically(path, text.encode())


def _measured(plan: Plan, model: Vector, held: Records) -> dict[str, Any]:
    loss = plan.model.loss
    row: dict[str, Any] = _finite(scores(loss, model, held.features, held.targets))
    if held.clients > 1:
        parts = {}
        for client in range(held.clients):
            mine = held.owner == client
            parts[held.name(client)] = _finite(scores(loss, model, held.features[mine], held.targets[mine]))
        row["per_client"] = parts
    return row


def _told(plan: Plan, model: Vector, held: Records, labels: Labels | None) -> dict[str, Any]:
    """Return all that the held-out records say about a model, with classes by their names and numbers in their own
    unit.
    """
    loss = plan.model.loss
    names = [str(k) for k in range(plan.data.classes)] if labels is None else labels.classes
    unit = Labels(span=(-1.0, 1.0)) if labels is None else labels
    return _settled(evaluate(loss, model, held.features, held.targets, names, unit.own_unit))


def _briefly(told: dict[str, Any]) -> dict[str, Any]:
    """Return the numbers that models are compared by."""
    return {
        key: told[key]
        for key in ("auc", "log_loss", "brier", "balanced_accuracy", "mae", "rmse", "deviance")
        if key in told
    }


def _settled(told: dict[str, Any]) -> dict[str, Any]:
    return {key: plain(value) for key, value in told.items()}


def plain(value: Any) -> Any:
    """Plain values for JSON: lists for pairs, and null for a number that is not finite."""
    match value:
        case dict():
            return {key: plain(item) for key, item in value.items()}
        case list() | tuple():
            return [plain(item) for item in value]
        case float():
            return finite_or_none(value)
        case _:
            return value


def _finite(values: dict[str, float]) -> dict[str, float | None]:
    return {name: finite_or_none(value) for name, value in values.items()}
