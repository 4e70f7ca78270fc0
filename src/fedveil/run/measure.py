"""Measure the last model on the held-out records, next to models that were trained without privacy."""

import json
from pathlib import Path
from typing import Any

from fedveil.data.load import Loaded
from fedveil.data.records import Records
from fedveil.guarantee import finite_or_none
from fedveil.model.metrics import scores
from fedveil.noise.entropy import Entropy
from fedveil.plan import Plan
from fedveil.run.baselines import centralised, non_private
from fedveil.run.files import write_atomically
from fedveil.values import Vector

PER_CLIENT = "per_client.json"  # in the private folder


def measure(plan: Plan, loaded: Loaded, model: Vector, entropy: Entropy) -> dict[str, Any]:
    """Return the metrics of a model; nothing is measured on training records."""
    task = "classification" if plan.data.classes else "regression"
    found: dict[str, Any] = {"format": 1, "task": task, "test": None, "baselines": {}}
    if loaded.test is None:
        return found
    held = loaded.test.present()
    found["test"] = {"records": len(loaded.test), "public": plan.test_public, **_measured(plan, model, held)}
    if plan.baselines:
        train = loaded.train.present()
        models = {"non-private": non_private(plan, train, entropy), "centralised": centralised(plan.model, train)}
        found["baselines"] = {name: _measured(plan, other, held) for name, other in models.items()}
    return found


def published(plan: Plan, metrics: dict[str, Any], private: Path) -> dict[str, Any]:
    """Return the part of the metrics that may be published.

    Scores of single clients tell about one client at a time. They are published only if they come from public records;
    otherwise they are written to the private folder, for the data holder.
    """
    tables = {"test": metrics["test"] or {}, **metrics["baselines"]}
    single = {name: row["per_client"] for name, row in tables.items() if "per_client" in row}
    if plan.test_public or not single:
        return metrics
    text = json.dumps({"format": 1, "per_client": single}, indent=1, allow_nan=False) + "\n"
    write_atomically(private / PER_CLIENT, text.encode())
    test, *others = ({key: v for key, v in row.items() if key != "per_client"} for row in tables.values())
    return {**metrics, "test": test, "baselines": dict(zip(metrics["baselines"], others, strict=True))}


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


def _finite(values: dict[str, float]) -> dict[str, float | None]:
    return {name: finite_or_none(value) for name, value in values.items()}
