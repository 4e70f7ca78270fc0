"""Measure models on the held-out records: the last one, those trained without privacy, and those of trials.

A model trained without any protection makes every number derived from it a release. A private score of a trial adds up
at most 1 for every unit (a record, or the mean over a client's records) on a grid, and rounded normal noise is added to
the sum, so it is a Gaussian mechanism of which one unit moves the sum by at most 1.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy

from fedveil.core.values import Indices, Vector
from fedveil.data.load import Loaded
from fedveil.data.records import Records
from fedveil.data.row_rule import Labels
from fedveil.engine.files import write_atomically
from fedveil.models.metrics import evaluate, evaluate_classes, mean_absolute_error, scores
from fedveil.models.spec import ModelPlan
from fedveil.noise.entropy import Entropy, permutation
from fedveil.noise.grid import rounded_normal
from fedveil.planning.plan import Plan
from fedveil.planning.selection import SCORE_STEPS, Selection
from fedveil.privacy.guarantee import finite_or_none
from fedveil.stages.train.optimiser import project

_NO_CLIP = 1e99
_RATE = 0.1  # used if the smoothness is unknown; no rule gives a better value
_PASSES, _BATCHES = 100, 20  # without noise: enough to converge within a few seconds


def centralised(model: ModelPlan, records: Records) -> Vector:
    """Return the minimiser of the pooled loss: all data in one place, no noise."""
    loss, count = model.loss, records.targets.size
    l2 = max(model.l2, 1e-6)  # separable data would have no finite minimiser

    def value(w: Vector) -> tuple[float, Vector]:
        total, _ = loss.gradient(w, records.features, records.targets, clip=_NO_CLIP)
        return loss.value(w, records.features, records.targets) + l2 / 2 * float(w @ w), total / count + l2 * w

    first = np.zeros(loss.size(records.features.shape[1]))
    result = scipy.optimize.minimize(value, first, jac=True, method="L-BFGS-B", options={"maxiter": 500})
    return np.asarray(result.x, dtype=np.float64)


def non_private(plan: Plan, records: Records, entropy: Entropy) -> Vector:
    """Train by plain rounds over the clients without noise, with the step sizes and passes usual for open training."""
    loss, model, count = plan.model.loss, plan.model, records.targets.size
    order = permutation(entropy, count, "baseline")
    features, targets = records.features[order], records.targets[order]
    smooth = plan.constants.smoothness
    batch, rate = max(1, count // _BATCHES), _RATE if smooth is None else 1 / smooth
    w = np.zeros(plan.dimension)
    for _ in range(_PASSES):
        for first in range(0, count - batch + 1, batch):
            part = slice(first, first + batch)
            total, _ = loss.gradient(w, features[part], targets[part], clip=_NO_CLIP)
            w = w - rate * (total / batch + model.l2 * w)
    return project(w, plan.radius)


_LOWER_IS_BETTER = ("log_loss", "mae")


def score_of(plan: Plan, selection: Selection, model: Vector, held: Records, entropy: Entropy) -> float:
    """Return the score of a model of this candidate, larger for a better one."""
    if selection.score == "private":
        return _noisy(plan, selection, model, held, entropy)
    return _public(plan, selection.metric, model, held.present())


def loss_on(plan: Plan, public: Records) -> Callable[[Vector], float]:
    """Return what tells the mean loss of a model on public records."""
    known = public.present()
    return lambda model: float(plan.model.loss.value(model, known.features, known.targets))


def unit_scores(plan: Plan, model: Vector, held: Records) -> Indices:
    """Return what each unit adds to a private score, in steps of the grid: 0 to ``SCORE_STEPS``."""
    known, loss = held.present(), plan.model.loss
    if loss.classes:
        each = (loss.predict(model, known.features) == known.targets).astype(np.float64)
    else:  # targets lie in [-1, 1]
        each = 1 - np.minimum(np.abs(loss.predict(model, known.features) - known.targets) / 2, 1.0)
    each = np.where(np.isfinite(each), each, 0.0)
    if plan.target.unit == "client":
        sums, counts = np.bincount(known.owner, each), np.bincount(known.owner)
        each = sums[counts > 0] / counts[counts > 0]
    return np.asarray(np.rint(np.clip(each, 0.0, 1.0) * SCORE_STEPS), dtype=np.int64)


def _noisy(plan: Plan, selection: Selection, model: Vector, held: Records, entropy: Entropy) -> float:
    """The noisy sum, over the number of held-out units, which is public."""
    noise = rounded_normal(entropy.stream("score"), selection.score_noise * SCORE_STEPS, 1)
    units = held.clients if plan.target.unit == "client" else len(held)
    return (int(unit_scores(plan, model, held).sum()) + int(noise[0])) / SCORE_STEPS / units


def _public(plan: Plan, metric: str, model: Vector, held: Records) -> float:
    loss = plan.model.loss
    if metric == "mae":
        return -mean_absolute_error(loss, model, held.features, held.targets)
    if metric == "accuracy":
        return float(np.mean(loss.predict(model, held.features) == held.targets))
    names = [str(k) for k in range(loss.classes)]
    result = evaluate_classes(loss, model, held.features, held.targets, names).get(metric)
    value = float("nan") if result is None else float(result)
    return -value if metric in _LOWER_IS_BETTER else value


PER_CLIENT = "per_client.json"  # in the private folder
CALIBRATION = "calibration.json"  # likewise
EXACT = "metrics.json"  # in the private folder, where nothing exact is published


def measure(plan: Plan, loaded: Loaded, model: Vector, entropy: Entropy) -> dict[str, Any]:
    """Return the metrics of a model; nothing is measured on training records."""
    task = "classification" if plan.data.classes else "regression"
    result: dict[str, Any] = {"format": 1, "task": task, "test": None, "baselines": {}}
    scored = plan.selection.private
    generates = plan.model.generates  # how good a generator is, its rows tell
    # a private score is all that may be told of the records it is measured on
    if loaded.test is None or scored or generates:
        return result
    held, labels = loaded.test.present(), None if loaded.preparation is None else loaded.preparation.labels
    exact = measured_exactly(plan, model, held, labels)
    result["test"] = {"records": len(loaded.test), "public": plan.held_out.public, **exact}
    if plan.held_out.baselines:
        train = loaded.train.present()
        models = {"non-private": non_private(plan, train, entropy), "centralised": centralised(plan.model, train)}
        result["baselines"] = {
            name: {**_measured(plan, other, held), **_briefly(_evaluation(plan, other, held, labels))}
            for name, other in models.items()
        }
    return result


def measured_exactly(plan: Plan, model: Vector, held: Records, labels: Labels | None) -> dict[str, Any]:
    """Return all metrics of a model on records without blank ones; no noise covers them."""
    return {**_measured(plan, model, held), **_evaluation(plan, model, held, labels)}


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


def _evaluation(plan: Plan, model: Vector, held: Records, labels: Labels | None) -> dict[str, Any]:
    """Return all that the held-out records say about a model, with classes by their names and numbers in their own
    unit.
    """
    loss = plan.model.loss
    names = [str(k) for k in range(plan.data.classes)] if labels is None else labels.classes
    unit = Labels(span=(-1.0, 1.0)) if labels is None else labels
    return _to_json(evaluate(loss, model, held.features, held.targets, names, unit.own_unit))


def _briefly(evaluation: dict[str, Any]) -> dict[str, Any]:
    """Return the numbers that models are compared by."""
    return {
        key: evaluation[key]
        for key in ("auc", "log_loss", "brier", "balanced_accuracy", "mae", "rmse", "deviance")
        if key in evaluation
    }


def _to_json(evaluation: dict[str, Any]) -> dict[str, Any]:
    return {key: to_json_value(value) for key, value in evaluation.items()}


def to_json_value(value: Any) -> Any:
    """Plain values for JSON: lists for pairs, and null for a number that is not finite."""
    match value:
        case dict():
            return {key: to_json_value(item) for key, item in value.items()}
        case list() | tuple():
            return [to_json_value(item) for item in value]
        case float():
            return finite_or_none(value)
        case _:
            return value


def _finite(values: dict[str, float]) -> dict[str, float | None]:
    return {name: finite_or_none(value) for name, value in values.items()}
