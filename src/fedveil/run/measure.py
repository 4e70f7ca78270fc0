"""How good the last model is on the held-out records, beside models that were trained without privacy."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedveil.data.load import Loaded
from fedveil.data.records import Records
from fedveil.guarantee import finite_or_none
from fedveil.model.metrics import scores
from fedveil.plan import Plan
from fedveil.train.baselines import centralised, non_private
from fedveil.train.entropy import Entropy

Vector = NDArray[np.float64]


def measure(plan: Plan, loaded: Loaded, model: Vector, entropy: Entropy) -> dict[str, Any]:
    """The metrics of a model; nothing is measured on training records."""
    task = "classification" if plan.data.classes else "regression"
    found: dict[str, Any] = {"format": 1, "task": task, "test": None, "baselines": {}}
    if loaded.test is None:
        return found
    held = loaded.test
    found["test"] = {"records": held.targets.size, "public": plan.test_public, **_measured(plan, model, held)}
    if plan.baselines:
        models = {
            "non-private": non_private(plan, loaded.train, entropy),
            "centralised": centralised(plan.model, loaded.train),
        }
        found["baselines"] = {name: _measured(plan, other, held) for name, other in models.items()}
    return found


def _measured(plan: Plan, model: Vector, held: Records) -> dict[str, Any]:
    loss = plan.model.loss
    row: dict[str, Any] = _finite(scores(loss, model, held.features, held.targets))
    if held.clients > 1:
        parts = {}
        for client in range(held.clients):
            mine = held.owner == client
            parts[held.names[client]] = _finite(scores(loss, model, held.features[mine], held.targets[mine]))
        row["per_client"] = parts
    return row


def _finite(values: dict[str, float]) -> dict[str, float | None]:
    return {name: finite_or_none(value) for name, value in values.items()}
