"""What noisy counts say of a model: the metrics of an exact evaluation, each with its interval."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import expit

from fedveil.core.values import Vector
from fedveil.models.intervals import Interval
from fedveil.stages.evaluate.estimates import Counts
from fedveil.stages.evaluate.statement import CONFUSED

_GROUPS = 8  # points of a calibration curve


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TwoClasses:
    """Counts of the first class and then of the second, part by part; ``borders`` lie between the parts.

    ``probable``: whether a margin stands for a probability.
    """

    counts: Counts
    borders: Vector
    reach: float
    probable: bool
    names: Sequence[str]

    def metrics(self) -> dict[str, Any]:
        """Return every metric that two classes have."""
        bins, upper = self.borders.size + 1, self._upper()
        first, second = _half(bins, 0), _half(bins, 1)
        right = np.concatenate([~upper, upper]).astype(np.float64)
        taken = np.concatenate([upper, upper]).astype(np.float64)
        told: dict[str, Any] = {"threshold": 0.5 if self.probable else 0.0}
        told["auc"], ends = self.counts.area()
        ranges: dict[str, Any] = {"auc": ends}
        told["accuracy"], ranges["accuracy"] = self.counts.ratio(right, np.ones(2 * bins), 0.0, 1.0)
        for key, bottoms in (("recall", (first, second)), ("precision", (1 - taken, taken))):
            pairs = [
                self.counts.ratio(right * own * bottom, bottom, 0.0, 1.0)
                for own, bottom in zip((first, second), bottoms, strict=True)
            ]
            told[key] = {name: pair[0] for name, pair in zip(self.names, pairs, strict=True)}
            ranges[key] = {name: pair[1] for name, pair in zip(self.names, pairs, strict=True)}
        known = [value for value in told["recall"].values() if value is not None]
        told["balanced_accuracy"] = float(np.mean(known)) if known else None
        told["baseline"] = majority(self.counts, [first, second], self.names)
        if self.probable:
            for key in ("log_loss", "brier"):
                told[key], ranges[key] = self._mean(key)
            told["calibration"] = self._calibration()
        return {**told, "intervals": ranges}

    def _upper(self) -> Any:
        """Which parts lie above the threshold: those that begin at 0 or above it."""
        return np.concatenate([[-self.reach], self.borders]) >= 0.0

    def _edges(self) -> tuple[Vector, Vector, Vector]:
        """The probabilities of the second class at both ends of each part, and in its middle."""
        ends = np.concatenate([[-self.reach], self.borders, [self.reach]])
        return expit(ends[:-1]), expit(ends[1:]), expit((ends[:-1] + ends[1:]) / 2)

    def _mean(self, key: str) -> tuple[float | None, Interval]:
        """Return the mean loss: its value in the middles of the parts; its interval has room for both ends of each."""
        low, high, middle = self._edges()
        loss = _log_loss if key == "log_loss" else _square
        ends = [np.concatenate([loss(1 - p), loss(p)]) for p in (low, high)]
        whole, most = np.ones(2 * low.size), float(np.maximum(*ends).max())
        value, _ = self.counts.ratio(np.concatenate([loss(1 - middle), loss(middle)]), whole, 0.0, most)
        _, least = self.counts.ratio(np.minimum(*ends), whole, 0.0, most)
        _, largest = self.counts.ratio(np.maximum(*ends), whole, 0.0, most)
        return value, (least[0], largest[1])

    def _calibration(self) -> dict[str, Any]:
        """Return how often what was said with some probability is so, and by how much all of it is off on average."""
        low, high, middle = self._edges()
        bins = low.size
        second = _half(bins, 1)
        sizes = np.maximum(self.counts.values[:bins] + self.counts.values[bins:], 0.0) + 1e-12
        rows = []
        for group in np.array_split(np.arange(bins), min(_GROUPS, bins)):
            inside = np.zeros(2 * bins)
            inside[group] = inside[group + bins] = 1.0
            value, ends = self.counts.ratio(inside * second, inside, 0.0, 1.0)
            said = float(np.average(middle[group], weights=sizes[group]))
            edge = {"from": float(low[group[0]]), "to": float(high[group[-1]])}
            records = float(inside @ self.counts.values)
            rows.append({**edge, "records": records, "predicted": said, "observed": value, "interval": list(ends)})
        whole = np.ones(2 * bins)
        value, _ = self.counts.ratio(second - np.tile(middle, 2), whole, -1.0, 1.0)
        _, least = self.counts.ratio(second - np.tile(high, 2), whole, -1.0, 1.0)
        _, most = self.counts.ratio(second - np.tile(low, 2), whole, -1.0, 1.0)
        return {"bias": value, "interval": [least[0], most[1]], "bins": rows}


def many_classes(counts: Counts, classes: int, bins: int, names: Sequence[str], probable: bool) -> dict[str, Any]:
    """Return the metrics of more than two classes: what is taken for what, and how far the likeliest can be trusted."""
    first = classes * classes if classes <= CONFUSED else 0
    sure = Counts(values=counts.values[first:], deviation=counts.deviation)
    right = np.concatenate([np.zeros(bins), np.ones(bins)])
    told: dict[str, Any] = {"threshold": None, "auc": None}
    ranges: dict[str, Any] = {}
    if first:
        table = Counts(values=counts.values[:first], deviation=counts.deviation)
        diagonal = np.eye(classes).ravel()
        told["accuracy"], ranges["accuracy"] = table.ratio(diagonal, np.ones(first), 0.0, 1.0)
        rows = [np.repeat(np.eye(classes)[k], classes) for k in range(classes)]
        columns = [np.tile(np.eye(classes)[k], classes) for k in range(classes)]
        for key, bottoms in (("recall", rows), ("precision", columns)):
            pairs = [table.ratio(diagonal * bottom, bottom, 0.0, 1.0) for bottom in bottoms]
            told[key] = {name: pair[0] for name, pair in zip(names, pairs, strict=True)}
            ranges[key] = {name: pair[1] for name, pair in zip(names, pairs, strict=True)}
        known = [value for value in told["recall"].values() if value is not None]
        told["balanced_accuracy"] = float(np.mean(known)) if known else None
        told["baseline"] = majority(table, rows, names)
    else:
        told["accuracy"], ranges["accuracy"] = sure.ratio(right, np.ones(2 * bins), 0.0, 1.0)
    if probable:
        told["calibration"] = {"bins": _confidences(sure, bins)}
    return {**told, "intervals": ranges}


def majority(counts: Counts, classes: Sequence[Vector], names: Sequence[str]) -> dict[str, Any]:
    """Always the class that looks commonest."""
    whole = np.ones(counts.values.size)
    pairs = [counts.ratio(own, whole, 0.0, 1.0) for own in classes]
    best = max(range(len(pairs)), key=lambda k: pairs[k][0] or 0.0)
    value, ends = pairs[best]
    return {"kind": "majority", "class": names[best], "accuracy": value, "interval": list(ends)}


def _confidences(sure: Counts, bins: int) -> list[dict[str, Any]]:
    rows = []
    for index in range(bins):
        inside = np.zeros(2 * bins)
        inside[[index, bins + index]] = 1.0
        hit = np.zeros(2 * bins)
        hit[bins + index] = 1.0
        value, ends = sure.ratio(hit, inside, 0.0, 1.0)
        edge = {"from": index / bins, "to": (index + 1) / bins, "predicted": (index + 0.5) / bins}
        rows.append({**edge, "records": float(inside @ sure.values), "observed": value, "interval": list(ends)})
    return rows


def _half(bins: int, second: int) -> Vector:
    found = np.zeros(2 * bins)
    found[second * bins : (second + 1) * bins] = 1.0
    return found


def _log_loss(p: Vector) -> Vector:
    return np.asarray(-np.log(np.clip(p, 1e-15, 1.0)))


def _square(p: Vector) -> Vector:
    return np.asarray((1.0 - p) ** 2)
