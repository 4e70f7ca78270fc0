"""Discrete-time survival: in which interval an event happens, if it does, with the person as the unit.

A person's row has one score for each interval, and the chance of the event in an interval that the person enters is
the logistic function of its score. All intervals of a person are one record: they are clipped together, so a person
weighs the same however long it was watched (docs/theory/losses.md).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
import scipy
from numpy.typing import NDArray

from fedveil.core.errors import BadValue, require
from fedveil.core.values import Indices, Matrix, Vector, whole
from fedveil.models.intervals import area
from fedveil.models.loss import (
    Constants,
    LinearLoss,
    Prediction,
    check_batch,
    check_bound,
    check_clip,
    clipped_lipschitz,
)
from fedveil.models.rows import row_norms, scores, weighted_sum

Marks = NDArray[np.bool_]


@final
@dataclass(frozen=True, slots=True)
class Survival(LinearLoss):
    """-ln of the chance of what was seen of a person. ``w`` is features by intervals, row after row.

    Class 2k: the person was last seen alive at the end of interval k; class 2k + 1: the event was in interval k.
    """

    classes: int

    kind = "survival"
    predicts: ClassVar[Prediction] = "survival"
    fixed_clip: ClassVar[str | None] = "Intervals are clipped each by itself, and no single norm says when."
    usual_reach = 2.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "classes", whole("Survival.classes", self.classes))
        hint = 'For each interval one class for "seen until its end" and one for "event in it".'
        paired = 2 <= self.classes <= 400 and self.classes % 2 == 0
        require(paired, "Survival.classes", "be two for each of 1 to 200 intervals", self.classes, hint)

    @property
    def outputs(self) -> int:
        """Number of scores: one per interval."""
        return self.classes // 2

    def usual_clip(self, bound: float) -> float | None:
        """Return the gradient norm of a person who entered every interval, at one half in each."""
        return bound * math.sqrt(self.outputs) / 2

    def constants(self, bound: float, clip: float | None) -> Constants:
        """Return the constants: every interval's slope is below 1, and changes by at most a quarter of its score."""
        check_bound(bound)
        natural = math.sqrt(self.outputs) * bound * (1 + 2.0**-50)
        return Constants(lipschitz=clipped_lipschitz(natural, clip), smoothness=0.25 * bound * bound)

    def gradient(
        self,
        w: Vector,
        X: Vector,
        y: Vector,
        *,
        clip: float,
        weights: Vector | None = None,
        norms: Vector | None = None,
        grain: float | None = None,
    ) -> tuple[Vector, int]:
        """Return the weighted sum of the clipped gradients, and how many records were left out of it.

        Of a person who entered m intervals each slope is cut to clip / (sqrt(m) |x|): together at most ``clip``.
        """
        check_clip(clip)
        check_batch(self.size(X.shape[1]), w, X, y, weights, norms)
        norms = row_norms(X) if norms is None else norms
        with np.errstate(all="ignore"):
            entered, event, known = self._observations(y)
            against = np.where(event, -1.0, 1.0)
            slopes = scipy.special.expit(against * scores(X, w.reshape(X.shape[1], self.outputs), grain))
            slopes *= against
            limits = (clip / np.sqrt(entered.sum(axis=1)) / norms)[:, None]
            slopes = np.maximum(np.minimum(slopes, limits), -limits)
            slopes[~entered] = 0.0
            usable = known & np.isfinite(slopes).all(axis=1) & np.isfinite(norms)
            return weighted_sum(X, slopes, usable, weights, grain), X.shape[0] - int(np.count_nonzero(usable))

    def lengths(self, w: Vector, X: Vector, y: Vector, norms: Vector) -> Vector:
        """Refuse: intervals are cut each by itself, and no single length says when."""
        raise BadValue('algorithm.clip must be a number for a survival model, got "adaptive". State the clip.')

    def value(self, w: Vector, X: Vector, y: Vector) -> float:
        """Return the mean loss of a person, not clipped; NaN if a target is not a class."""
        check_batch(self.size(X.shape[1]), w, X, y, None, None)
        with np.errstate(all="ignore"):
            entered, event, known = self._observations(y)
            logs = scipy.special.log_expit(np.where(event, 1.0, -1.0) * self.scores(w, X))
            return float(np.mean(np.where(known, -np.where(entered, logs, 0.0).sum(axis=1), np.nan)))

    def predict(self, w: Vector, X: Vector) -> Vector:
        """Return each person's risk: the chance of the event in any of the intervals."""
        return risks(self.scores(w, X))

    def scores(self, w: Vector, X: Vector) -> Matrix:
        """Return the score of each interval."""
        z: Matrix = X @ w.reshape(X.shape[1], self.outputs)
        return z

    def _observations(self, y: Vector) -> tuple[Marks, Marks, Marks]:
        """Which intervals each person entered, in which the event was, and which targets are classes."""
        known = (y >= 0) & (y < self.classes) & (y == np.floor(y))
        code = np.where(known, y, 0.0).astype(np.int64)
        last, place = (code // 2)[:, None], np.arange(self.outputs)[None, :]
        return place <= last, (place == last) & (code % 2 == 1)[:, None], known


def survivals(scores: Matrix) -> Matrix:
    """Return the chance to be without the event after each interval, one column each."""
    return np.asarray(np.exp(np.cumsum(scipy.special.log_expit(-scores), axis=1)))


def risks(scores: Matrix) -> Vector:
    """Return the chance of the event in any of the intervals."""
    return np.asarray(-np.expm1(scipy.special.log_expit(-scores).sum(axis=1)))


def concordance(risk: Vector, targets: Indices) -> float | None:
    """Return Harrell's concordance index: of two persons, how often the one with the earlier event has the larger risk.

    Pairs count where it is known whose event came first; equal risks count half. None where there is no such pair.
    """
    last, event = targets // 2, targets % 2 == 1
    right = pairs = 0.0
    for interval in np.unique(last[event]).tolist():
        ours = event & (last == interval)
        later = (last > interval) | ((last == interval) & ~event)
        if later.any():
            inside = ours | later
            count = float(ours.sum()) * float(later.sum())
            right, pairs = right + area(risk[inside], ours[inside])[0] * count, pairs + count
    return right / pairs if pairs else None


def constant_loss(targets: Indices, intervals: int) -> float:
    """Return the mean loss of the best model that gives everybody the same chances: the life table of these records."""
    last, event, total = targets // 2, targets % 2 == 1, 0.0
    for interval in range(intervals):
        entered = float(np.sum(last >= interval))
        died = float(np.sum(event & (last == interval)))
        for count in (died, entered - died):
            total -= count * math.log(count / entered) if count > 0 else 0.0
    return total / targets.size


def labels(times: Sequence[float], events: Sequence[bool], ends: Sequence[float]) -> list[str]:
    """Return the label of each person for intervals that end at ``ends``: "3" for an event in the third, "2+" for last
    seen without one after the end of the second, "0+" if not even the first was survived to its end.

    >>> labels([0.5, 1.5, 9.0, 0.2], [True, False, False, False], ends=[1.0, 2.0, 3.0])
    ['1', '1+', '3+', '0+']
    """
    edges = np.asarray(ends, dtype=np.float64)
    rising = edges.size >= 1 and bool(np.all(np.diff(edges) > 0)) and bool(np.isfinite(edges).all())
    require(rising, "ends", "be finite and rise", list(ends)[:5])
    names = []
    for time, event in zip(times, events, strict=True):
        require(0 <= time < math.inf, "times", "be finite and not negative", time)
        place = int(np.searchsorted(edges, time, side="left"))  # intervals that ended before
        inside = bool(event) and place < edges.size
        whole_ones = place if inside else int(np.searchsorted(edges, time, side="right"))
        names.append(f"{place + 1}" if inside else f"{whole_ones}+")
    return names
