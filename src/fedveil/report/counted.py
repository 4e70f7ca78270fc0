"""What metrics.json says of a private evaluation: estimates from noisy counts, each with its interval."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedveil.evaluate.words import told
from fedveil.report.quality import Pair, pair_of

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
class Counted:
    """``on``: training or held-out records. ``units`` of them were counted. ``unclear``: a sentence, or None."""

    on: str
    units: int
    unit: str
    noise: float
    estimates: tuple[Estimate, ...]
    curve: tuple[tuple[float, Estimate], ...]
    unclear: str | None


def counted_of(found: Mapping[str, Any] | None) -> Counted | None:
    """From the ``evaluation`` of metrics.json; None where there is none."""
    if found is None:
        return None
    ends = found["intervals"]
    rows = [_estimate(title, found.get(key), ends[key]) for key, title in _NAMES.items() if key in ends]
    for key in ("recall", "precision"):
        rows += [
            _estimate(f"{key} of {name}", value, ends[key][name]) for name, value in (found.get(key) or {}).items()
        ]
    bins = (found.get("calibration") or {}).get("bins") or ()
    return Counted(
        on=str(found["on"]),
        units=int(found["units"]),
        unit=str(found["unit"]),
        noise=float(found["noise"]),
        estimates=tuple(rows),
        curve=tuple((float(row["predicted"]), _estimate("", row["observed"], row["interval"])) for row in bins),
        unclear=told(found),
    )


def _estimate(name: str, value: Any, ends: Any) -> Estimate:
    return Estimate(name=name, value=None if value is None else float(value), interval=pair_of(ends))
