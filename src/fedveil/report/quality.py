"""What metrics.json says beyond one number a model.

Class by class, and how far its probabilities can be trusted; and of a private evaluation the estimates from noisy
counts, each with its interval.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedveil.core.errors import require
from fedveil.stages.evaluate.words import why_unclear

Pair = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class ByClass:
    """One class: how many records it has, how many of them are found, and how many of those found are right."""

    name: str
    records: int
    recall: float | None
    recall_interval: Pair | None
    precision: float | None
    precision_interval: Pair | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bin:
    """Records whose probability was about ``predicted``, and the share of them of which it was so."""

    records: int
    predicted: float
    observed: float
    interval: Pair | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """``confusion``: a row a true class, a column a predicted one. ``threshold``: None where the likeliest is taken."""

    threshold: float | None
    classes: tuple[ByClass, ...]
    confusion: tuple[tuple[int, ...], ...]
    bins: tuple[Bin, ...]
    error: float | None


def quality_of(test: Mapping[str, Any]) -> Quality | None:
    """From the ``test`` of metrics.json; None where it has no confusion (of a number)."""
    if test.get("confusion") is None:
        return None
    names = [str(name) for name in test["classes"]]
    table = tuple(tuple(int(count) for count in row) for row in test["confusion"])
    square = len(table) == len(names) and all(len(row) == len(names) for row in table)
    require(square, "metrics.json: confusion", f"have {len(names)} rows and columns", len(table))
    intervals, bins = test.get("intervals") or {}, test.get("calibration") or {}
    classes = tuple(
        ByClass(
            name=name,
            records=sum(row),
            recall=_number(test["recall"].get(name)),
            recall_interval=pair_of((intervals.get("recall") or {}).get(name)),
            precision=_number(test["precision"].get(name)),
            precision_interval=pair_of((intervals.get("precision") or {}).get(name)),
        )
        for name, row in zip(names, table, strict=True)
    )
    return Quality(
        threshold=_number(test.get("threshold")),
        classes=classes,
        confusion=table,
        bins=tuple(
            Bin(
                records=int(row["records"]),
                predicted=float(row["predicted"]),
                observed=float(row["observed"]),
                interval=pair_of(row.get("interval")),
            )
            for row in bins.get("bins") or ()
        ),
        error=_number(bins.get("error")),
    )


def intervals_of(test: Mapping[str, Any]) -> dict[str, Pair]:
    """Return the intervals of the metrics that are one number."""
    stated = test.get("intervals") or {}
    intervals = {str(key): pair_of(value) for key, value in stated.items() if not isinstance(value, Mapping)}
    return {key: pair for key, pair in intervals.items() if pair is not None}


def answer_name(constant: Mapping[str, Any]) -> str:
    """What the best constant answer is called."""
    if constant["kind"] == "life table":
        return "the same chances for everybody"
    return "always the median" if constant["kind"] == "median" else f"always “{constant['class']}”"


def pair_of(value: Any) -> Pair | None:
    """Return both ends as floats; None where one of them is not finite."""
    if value is None:
        return None
    low, high = (float(end) for end in value)
    return (low, high) if math.isfinite(low) and math.isfinite(high) else None


def _number(value: Any) -> float | None:
    return None if value is None or not math.isfinite(float(value)) else float(value)


_NAMES = {
    "accuracy": "accuracy",
    "auc": "AUC",
    "log_loss": "log loss",
    "brier": "Brier score",
    "r2": "R2",
    "mae": "mean absolute error",
    "rmse": "root mean squared error",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """One number: its name, its value and its interval (None: nothing is known)."""

    name: str
    value: float | None
    interval: Pair | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivateEvaluation:
    """``on``: training or held-out records. ``units`` of them were counted. ``unclear``: a sentence, or None."""

    on: str
    units: int
    unit: str
    noise: float
    estimates: tuple[Estimate, ...]
    curve: tuple[tuple[float, Estimate], ...]
    unclear: str | None
    classes: tuple[str, ...] = ()


def counted_of(evaluation: Mapping[str, Any] | None) -> PrivateEvaluation | None:
    """From the ``evaluation`` of metrics.json; None where there is none."""
    if evaluation is None:
        return None
    ends = evaluation["intervals"]
    rows = [_estimate(title, evaluation.get(key), ends[key]) for key, title in _NAMES.items() if key in ends]
    for key in ("recall", "precision"):
        rows += [
            _estimate(f"{key} of {name}", value, ends[key][name]) for name, value in (evaluation.get(key) or {}).items()
        ]
    bins = (evaluation.get("calibration") or {}).get("bins") or ()
    return PrivateEvaluation(
        on=str(evaluation["on"]),
        units=int(evaluation["units"]),
        unit=str(evaluation["unit"]),
        noise=float(evaluation["noise"]),
        estimates=tuple(rows),
        curve=tuple((float(row["predicted"]), _estimate("", row["observed"], row["interval"])) for row in bins),
        unclear=why_unclear(evaluation),
        classes=tuple(map(str, evaluation.get("recall") or ())),
    )


def _estimate(name: str, value: Any, ends: Any) -> Estimate:
    return Estimate(name=name, value=None if value is None else float(value), interval=pair_of(ends))
