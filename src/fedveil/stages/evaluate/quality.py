"""From noisy counts to the quality of a model, with intervals.

References:
    [F54] Fieller. Some Problems in Interval Estimation. Journal of the Royal Statistical Society B 16(2), 1954.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy

from fedveil.core.values import Indices, Matrix, Vector
from fedveil.models.adjusted import likeliest, probabilities
from fedveil.models.intervals import Interval, Z
from fedveil.models.loss import Loss
from fedveil.stages.evaluate.statement import CONFUSED
from fedveil.stages.sums import STEPS, Sums
from fedveil.sums.seam import Whole

# From scores to counts: where the parts begin and end, and what each record adds.

_CLEAR = 1.5  # deviations of its noise above which a count is taken to hold records


def even(count: int, reach: float) -> Vector:
    """Return the inner borders of ``count`` parts of [-reach, reach]; 0 is one, and parts on either side are equal."""
    below = count // 2
    sides = np.linspace(-reach, 0.0, below + 1)[1:], np.linspace(0.0, reach, count - below + 1)[1:-1]
    return np.concatenate(sides)


def places_counts(margin: Vector, borders: Vector) -> Sums:
    """Each record adds one count in the part of its margin."""
    place = np.searchsorted(borders, margin, side="left")

    def add_up(rows: Indices) -> Whole:
        return np.bincount(place[rows], minlength=borders.size + 1).astype(np.int64) * STEPS

    return add_up


def borders_of(noisy: Vector, deviation: float, even_borders: Vector, bins: int, reach: float) -> Vector:
    """Return borders of ``bins`` parts with about as many records each, 0 always among them; any borders are valid.

    ``noisy``: counts between ``even_borders``. Counts that noise may have made alone are taken for empty.
    """
    held = np.where(noisy > _CLEAR * deviation, noisy, 0.0)
    if not held.sum() > 0:
        return even(bins, reach)
    held += held.sum() * 1e-3 / held.size  # so that every place has a share, and borders are apart
    ends = np.concatenate([[-reach], even_borders, [reach]])
    passed = np.concatenate([[0.0], np.cumsum(held)]) / held.sum()
    # One of the borders is 0, where the classes part: as many parts on either side as its share of the records.
    below = float(np.interp(0.0, ends, passed))
    left = min(max(round(bins * below), 1), bins - 1)
    shares = [*np.linspace(0.0, below, left + 1)[1:-1], *np.linspace(below, 1.0, bins - left + 1)[1:-1]]
    result = np.interp(shares, passed, ends)
    return np.sort(np.concatenate([result, [0.0]]))


def score_counts(margin: Vector, targets: Vector, borders: Vector) -> Sums:
    """Each record adds one count in the part of its margin, among those of its class: norm 1."""
    bins = borders.size + 1
    place = np.searchsorted(borders, margin, side="left")

    def add_up(rows: Indices) -> Whole:
        where = targets[rows].astype(np.int64) * bins + place[rows]
        return np.bincount(where, minlength=2 * bins).astype(np.int64) * STEPS

    return add_up


def class_counts(loss: Loss, scores: Matrix, targets: Vector, classes: int, bins: int) -> Sums:
    """More than two classes: a count for what is taken for what, and one for the confidence and whether it is right."""
    taken, shares = likeliest(scores), probabilities(loss, scores)
    sure = np.zeros(taken.size) if shares is None else shares.max(axis=1)
    place = np.minimum((sure * bins).astype(np.int64), bins - 1)
    first = classes * classes if classes <= CONFUSED else 0

    def add_up(rows: Indices) -> Whole:
        truth, found = targets[rows].astype(np.int64), taken[rows]
        where = [first + (truth == found) * bins + place[rows]]
        if first:
            where.append(truth * classes + found)
        return np.bincount(np.concatenate(where), minlength=first + 2 * bins).astype(np.int64) * STEPS

    return add_up


# Shares and areas from noisy counts, with 95% intervals that hold the noise as well as the choice of records.
#
# A count is a number of records plus noise of a known deviation. Over draws of records it varies like a Poisson number,
# so its variance is its own size plus the noise's. Intervals follow Fieller's idea: a ratio r is kept if the difference
# ``numerator - r * denominator``, whose variance is known, is within 1.96 deviations of 0. That holds too where the
# denominator is hardly told from 0; then everything is kept. Page: docs/theory/evaluation.md.

_TRIED = 1001  # areas that are tried


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Counts:
    """Noisy counts and the deviation of the noise on each."""

    values: Vector
    deviation: float

    @property
    def variances(self) -> Vector:
        """Of each count over draws of the records and of the noise; at least one record's."""
        return np.asarray(np.maximum(self.values, 1.0) + self.deviation**2)

    def ratio(self, top: Vector, bottom: Vector, low: float, high: float) -> tuple[float | None, Interval]:
        """Return (top . counts) / (bottom . counts) and its interval within [low, high]; None if nothing is known."""
        a, b = float(top @ self.values), float(bottom @ self.values)
        v = self.variances
        square = b * b - Z * Z * float(v @ (bottom * bottom))
        value = min(max(a / b, low), high) if b > 0 else None
        if not (square > 0 and b > 0):  # the denominator may be 0: anything is possible
            return value, (low, high)
        half = a * b - Z * Z * float(v @ (top * bottom))
        rest = a * a - Z * Z * float(v @ (top * top))
        root = math.sqrt(max(half * half - square * rest, 0.0))
        result = (half - root) / square, (half + root) / square
        return value, (min(max(result[0], low), high), min(max(result[1], low), high))

    def area(self) -> tuple[float | None, Interval]:
        """Return the area under the ROC curve and its interval; the first half of the counts is of the other class.

        Pairs within a part may be ranked either way, and the interval has room for both.
        """
        others, ours = self.values[: self.values.size // 2], self.values[self.values.size // 2 :]
        noises = self.variances
        loose, tight = noises[: others.size], noises[others.size :]
        size = others.size
        below = np.tri(size, k=-1)  # [b, c]: part b lies above part c
        pairs = float(ours.sum() * others.sum())
        value = None
        if ours.sum() > 0 and others.sum() > 0:
            value = min(max(float(ours @ (below + 0.5 * np.eye(size)) @ others) / pairs, 0.0), 1.0)
        low = _kept(below, ours, others, tight, loose)[0]
        high = _kept(below + np.eye(size), ours, others, tight, loose)[1]
        return value, (low, high)


def _kept(kernel: Vector, ours: Vector, others: Vector, tight: Vector, loose: Vector) -> Interval:
    """Return the areas A for which the sum of ``kernel - A`` over all pairs is within 1.96 deviations of 0."""
    tried = np.linspace(0.0, 1.0, _TRIED)
    across, along = kernel @ others, ours @ kernel  # what each part of ours is worth, and each of the others'
    found = ours @ across - tried * ours.sum() * others.sum()
    one = (across[None, :] - tried[:, None] * others.sum()) ** 2 @ tight
    two = (along[None, :] - tried[:, None] * ours.sum()) ** 2 @ loose
    # sum over pairs of parts of (kernel - A)**2 times both noises; the kernel is 0 or 1
    hits, all_pairs = float(tight @ kernel @ loose), float(tight.sum() * loose.sum())
    both = hits * (1 - 2 * tried) + tried**2 * all_pairs
    sure = float(min(ours.sum(), others.sum())) > 0
    kept = tried[found**2 <= Z * Z * (one + two + both)] if sure else tried
    if not kept.size:  # between two areas that were tried
        kept = tried[[int(np.argmin(np.abs(found)))]]
    step = 1.0 / (_TRIED - 1)
    return max(0.0, float(kept.min()) - step), min(1.0, float(kept.max()) + step)


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
        expit = scipy.special.expit
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
    result = np.zeros(2 * bins)
    result[second * bins : (second + 1) * bins] = 1.0
    return result


def _log_loss(p: Vector) -> Vector:
    return np.asarray(-np.log(np.clip(p, 1e-15, 1.0)))


def _square(p: Vector) -> Vector:
    return np.asarray((1.0 - p) ** 2)
