"""What is said about a model on held-out records, and about the best constant answer beside it.

The definitions are scikit-learn's, and tests hold every number against it. They are computed here, because an interval
needs what each record adds to a number and not the number alone, and because loading ``sklearn.metrics`` takes 0.8
seconds, as long as all of fedveil: the same numbers to the last bit (areas: to 1e-16) then take 3 to 16 times as long.

The constant answer is the commonest class (or the median) of the *held-out* records: that of the training records would
be a fact about them that no noise covers. On records that are not public each of these numbers is a release of its own.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fedveil.core.errors import require
from fedveil.core.values import Indices, Matrix, Vector
from fedveil.models.adjusted import Adjusted, likeliest, probabilities
from fedveil.models.intervals import Interval, area, around, wilson
from fedveil.models.loss import Loss
from fedveil.models.survival import concordance, constant_loss

BINS = 10  # of the calibration curve, of equal width
_LEAST = float(np.finfo(np.float64).eps)  # a probability of 0 counts as this, as in scikit-learn


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
    result = {"loss": loss.value(w, X, y)}
    if loss.predicts == "survival":
        ranking = concordance(loss.predict(w, X), y.astype(np.int64))
        return result if ranking is None else result | {"concordance": ranking}
    if loss.classes:
        return result | {"accuracy": accuracy(loss, w, X, y)}
    return result | {"r2": r2(loss, w, X, y), "mean_absolute_error": mean_absolute_error(loss, w, X, y)}


def _errors(loss: Loss, w: Vector, X: Vector, y: Vector) -> Vector:
    require(loss.classes == 0, "loss", "be one for regression", loss.kind, "Use accuracy.")
    require(X.shape[0] > 0, "X", "have at least one row", X.shape)
    return np.asarray(loss.predict(w, X) - y)


def deviance(counts: Vector, expected: Vector) -> float:
    """Return the mean Poisson deviance, as scikit-learn defines it; infinite if a count was not expected at all."""
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.where(counts > 0, counts * np.log(counts / expected), 0.0)
    return float(2.0 * np.mean(logs - counts + expected))


def evaluate(
    loss: Loss, w: Vector, X: Matrix, y: Vector, names: Sequence[str], own_unit: Callable[[Vector], Vector]
) -> dict[str, Any]:
    """Return all that these records say about a model of this loss.

    ``names``: of the classes; ``own_unit``: turns a target from [-1, 1] into its own unit.
    """
    if loss.predicts == "survival":
        lost = constant_loss(y.astype(np.int64), loss.outputs)
        return {"baseline": {"kind": "life table", "loss": lost, "concordance": 0.5}}
    if loss.classes:
        return evaluate_classes(loss, w, X, y, names)
    predicted, truth = own_unit(loss.predict(w, X)), own_unit(y)
    result = evaluate_numbers(predicted, truth)
    return _with_deviance(result, predicted, truth) if loss.predicts == "count" else result


def evaluate_classes(loss: Loss, w: Vector, X: Matrix, y: Vector, names: Sequence[str]) -> dict[str, Any]:
    """Return ranking, probabilities, confusion and each class's scores for a model of classes.

    Two classes are told apart at ``threshold``: a probability, or a score where there are no probabilities. Of more
    classes the likeliest is taken.
    """
    ranked, truth = loss.scores(w, X), y.astype(np.int64)
    stated = loss.threshold if isinstance(loss, Adjusted) else None
    predicted, count = likeliest(ranked, stated), truth.size
    shares = probabilities(loss, ranked)
    right = float(np.mean(predicted == truth))
    result: dict[str, Any] = {"threshold": stated or _threshold(len(names), shares is not None)}
    intervals: dict[str, Any] = {"accuracy": wilson(right, count)}
    result["auc"], intervals["auc"] = _areas(ranked if shares is None else shares, truth)
    if shares is not None:
        for key, each in (("log_loss", _log_losses(shares, truth)), ("brier", _squares(shares, truth))):
            result[key] = float(each.mean())
            intervals[key] = around(result[key], each, low=0.0)
        result["calibration"] = _calibration(shares, truth)
    confusion = np.zeros((len(names), len(names)), dtype=np.int64)
    np.add.at(confusion, (truth, predicted), 1)
    result |= {"classes": list(names), "confusion": confusion.tolist()}
    hits = np.diag(confusion)
    for key, totals in (("recall", confusion.sum(axis=1)), ("precision", confusion.sum(axis=0))):
        pairs = list(zip(names, hits.tolist(), totals.tolist(), strict=True))
        result[key] = {name: hit / total if total else None for name, hit, total in pairs}
        intervals[key] = {name: wilson(hit / total, total) if total else None for name, hit, total in pairs}
    known = [value for value in result["recall"].values() if value is not None]
    result["balanced_accuracy"] = float(np.mean(known))
    result["baseline"] = majority(truth, names)
    return {**result, "intervals": intervals}


def evaluate_numbers(predicted: Vector, truth: Vector) -> dict[str, Any]:
    """Return the errors of a model of a number, in the target's own unit."""
    errors, spread = predicted - truth, truth - truth.mean()
    size, squares, whole = np.abs(errors), errors**2, spread**2
    left, total = float(squares.mean()), float(whole.mean())
    result: dict[str, Any] = {"mae": float(size.mean()), "rmse": left**0.5, "median_error": float(np.median(size))}
    intervals: dict[str, Interval | None] = {"mae": around(result["mae"], size, low=0.0), "r2": None, "rmse": None}
    if left > 0:
        intervals["rmse"] = around(result["rmse"], squares / (2 * left**0.5), low=0.0)
    if total > 0:
        influence = left * whole / total**2 - squares / total
        intervals["r2"] = around(1.0 - left / total, influence, high=1.0)
    constant = truth - np.median(truth)  # the median itself is a value of a record, and stays here
    r2 = 1.0 - float(np.sum(constant**2)) / float(np.sum(whole)) if total > 0 else None
    baseline = {"kind": "median", "mae": float(np.abs(constant).mean())}
    result["baseline"] = {**baseline, "rmse": float(np.mean(constant**2) ** 0.5), "r2": r2}
    return {**result, "intervals": intervals}


def _with_deviance(result: dict[str, Any], predicted: Vector, truth: Vector) -> dict[str, Any]:
    """Add the mean Poisson deviance, of the model and of the mean count of these records."""
    own, constant = deviance(truth, predicted), deviance(truth, np.full(truth.size, truth.mean()))
    return {**result, "deviance": own, "baseline": {**result["baseline"], "deviance": constant}}


def no_better(test: dict[str, Any]) -> str | None:
    """One sentence where a model does no better than the best constant answer; None where it does.

    A model of classes is judged by how it ranks records (AUC) and by its probabilities (log loss), where it has them:
    where one class is rare, a good model may be right no more often than the answer that it never occurs.
    """
    constant = test.get("baseline") or {}
    if constant.get("kind") == "majority" and test.get("accuracy") is not None:
        if _ranks_better(test) or _likelier(test, constant):
            return None
        if test.get("auc") is None and test.get("log_loss") is None and test["accuracy"] > constant["accuracy"]:
            return None
        missed = [name for name, share in test["recall"].items() if share == 0.0]
        area = "" if test.get("auc") is None else f", and its AUC is {test['auc']:.3f}"
        never = f" It never finds {', '.join(repr(name) for name in missed[:5])}." if missed else ""
        return (
            f"This model does no better than always answering {constant['class']!r}: it is right on "
            f"{test['accuracy']:.1%} of the held-out records, and that answer on {constant['accuracy']:.1%}"
            f"{area}.{never}"
        )
    if constant.get("kind") == "median" and test.get("mae") is not None and not test["mae"] < constant["mae"]:
        return (
            f"This model does no better than always answering the median: its mean absolute error is "
            f"{test['mae']:.4g}, and that answer's is {constant['mae']:.4g}."
        )
    return None


def _ranks_better(test: dict[str, Any]) -> bool:
    """Whether the AUC is above one half by more than chance."""
    ends = (test.get("intervals") or {}).get("auc")
    return test.get("auc") is not None and (test["auc"] if ends is None else ends[0]) > 0.5


def _likelier(test: dict[str, Any], constant: dict[str, Any]) -> bool:
    return test.get("log_loss") is not None and test["log_loss"] < constant.get("log_loss", 0.0)


def _threshold(classes: int, shares: bool) -> float | None:
    if classes > 2:
        return None
    return 0.5 if shares else 0.0


def _areas(ranked: Matrix, truth: Indices) -> tuple[float | None, Interval | None]:
    """Return the area under the ROC curve; of more than two classes the mean of each against the rest."""
    width = ranked.shape[1]
    columns = [(1, ranked[:, -1])] if width <= 2 else [(k, ranked[:, k]) for k in range(width)]
    parts = []
    for kind, column in columns:
        positive = truth == kind
        if positive.all() or not positive.any():
            return None, None
        parts.append(area(column, positive))
    value = float(np.mean([one for one, _ in parts]))
    return value, around(value, np.mean([each for _, each in parts], axis=0), low=0.0, high=1.0)


def _log_losses(shares: Matrix, truth: Indices) -> Vector:
    own = shares[np.arange(truth.size), truth]
    return np.asarray(-np.log(np.clip(own, _LEAST, 1.0 - _LEAST)))


def _squares(shares: Matrix, truth: Indices) -> Vector:
    """Return each record's Brier score: the squared error of one of two probabilities, or the sum over more."""
    if shares.shape[1] == 2:
        return np.asarray((shares[:, 1] - truth) ** 2)
    wanted = np.zeros_like(shares)
    wanted[np.arange(truth.size), truth] = 1.0
    return np.asarray(((shares - wanted) ** 2).sum(axis=1))


def _calibration(shares: Matrix, truth: Indices) -> dict[str, Any]:
    """Return the calibration curve: how often a class occurs among records that have it with some probability.

    The class is the second of two, or the likeliest of more. ``error`` is the expected calibration error: the mean
    distance between predicted and observed shares, weighted by the records of each bin.
    """
    if shares.shape[1] == 2:
        said, was = shares[:, 1], truth == 1
    else:
        said, was = shares.max(axis=1), shares.argmax(axis=1) == truth
    place = np.minimum((said * BINS).astype(np.int64), BINS - 1)
    rows, error = [], 0.0
    for index in range(BINS):
        here = place == index
        count = int(here.sum())
        if count:
            predicted, true = float(said[here].mean()), float(was[here].mean())
            error += count / truth.size * abs(predicted - true)
            ends = {"from": index / BINS, "to": (index + 1) / BINS}
            interval = list(wilson(true, count))
            rows.append({**ends, "records": count, "predicted": predicted, "observed": true, "interval": interval})
    return {"error": error, "bins": rows}


def majority(truth: Indices, names: Sequence[str]) -> dict[str, Any]:
    """Always the commonest class; its probabilities are how often each class occurs."""
    counts = np.bincount(truth, minlength=len(names))
    shares = np.tile(counts / truth.size, (truth.size, 1))
    return {
        "kind": "majority",
        "class": names[int(counts.argmax())],
        "accuracy": float(counts.max() / truth.size),
        "log_loss": float(_log_losses(shares, truth).mean()),
        "brier": float(_squares(shares, truth).mean()),
    }
