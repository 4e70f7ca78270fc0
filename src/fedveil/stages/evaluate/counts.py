"""From scores to counts: where the parts begin and end, and what each record adds."""

import numpy as np

from fedveil.core.values import Indices, Matrix, Vector
from fedveil.models.loss import Loss
from fedveil.models.probabilities import likeliest, probabilities
from fedveil.stages.evaluate.statement import CONFUSED
from fedveil.stages.sums import STEPS, Sums
from fedveil.sums.seam import Whole

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
    found = np.interp(shares, passed, ends)
    return np.sort(np.concatenate([found, [0.0]]))


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
