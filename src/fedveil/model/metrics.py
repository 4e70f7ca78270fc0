"""Measures of how well a model does. On private data, each of them is itself a release."""

import numpy as np

from fedveil.checks import require
from fedveil.model.loss import Loss
from fedveil.model.survival import concordance
from fedveil.values import Vector


def accuracy(loss: Loss, w: Vector, X: Vector, y: Vector) -> float:
    """Return the share of rows whose class is predicted correctly."""
    require(loss.classes > 0, "loss", "be one for classes", loss.kind, "Use r2 or mean_absolute_error.")
    require(X.shape[0] > 0, "X", "have at least one row", X.shape)
    return float(np.mean(loss.predict(w, X) == y))


def mean_absolute_error(loss: Loss, w: Vector, X: Vector, y: Vector) -> float:
    """Return the mean absolute difference between predictions and targets."""
    return float(np.mean(np.abs(_errors(loss, w, X, y))))


def r2(loss: Loss, w: Vector, X: Vector, y: Vector) -> float:
    """Return one minus the unexplained share of the targets' variance; NaN if all targets are equal."""
    left = float(np.sum(_errors(loss, w, X, y) ** 2))
    whole = float(np.sum((y - y.mean()) ** 2))
    return 1.0 - left / whole if whole > 0 else float("nan")


def scores(loss: Loss, w: Vector, X: Vector, y: Vector) -> dict[str, float]:
    """Return all measures that apply to this loss, by name."""
    found = {"loss": loss.value(w, X, y)}
    if loss.kind == "survival":
        ranked = concordance(loss.predict(w, X), y.astype(np.int64))
        return found if ranked is None else found | {"concordance": ranked}
    if loss.classes:
        return found | {"accuracy": accuracy(loss, w, X, y)}
    return found | {"r2": r2(loss, w, X, y), "mean_absolute_error": mean_absolute_error(loss, w, X, y)}


def _errors(loss: Loss, w: Vector, X: Vector, y: Vector) -> Vector:
    require(loss.classes == 0, "loss", "be one for regression", loss.kind, "Use accuracy.")
    require(X.shape[0] > 0, "X", "have at least one row", X.shape)
    return np.asarray(loss.predict(w, X) - y)
