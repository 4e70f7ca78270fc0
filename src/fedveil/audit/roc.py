"""How well scores separate two groups: the whole curve, and the true-positive rate where false alarms are rare."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedveil.audit.claim import Claim
from fedveil.audit.confidence import least_rate, most_rate
from fedveil.core.checks import require
from fedveil.core.values import Vector

LEVELS = (0.01, 0.001)  # rates of false positives
_SHOWN = 200  # most points of a curve in a file


@dataclass(frozen=True, slots=True, eq=False)
class Roc:
    """The rates of every threshold, from "nobody" to "everybody"; both arrays rise from 0 to 1."""

    false_positives: Vector
    true_positives: Vector
    outs: int
    ins: int

    def at(self, level: float) -> float:
        """Return the best true-positive rate among thresholds with at most this rate of false positives."""
        allowed = self.false_positives <= level
        return float(self.true_positives[allowed].max())

    @property
    def area(self) -> float:
        """Return the area under the curve: 1/2 for random guesses."""
        return float(np.trapezoid(self.true_positives, self.false_positives))

    def summary(self, claim: Claim, alarm: float) -> dict[str, Any]:
        """Return rates at 1% and 0.1% with Clopper-Pearson intervals, the thinned curve, and what the claim allows.

        ``exceeds``: whether the lower end lies above what the claim allows at the upper end of the false positives. The
        intervals assume independent trials and a fixed threshold, so they help a reader but prove nothing.
        """
        keep = np.unique(np.linspace(0, self.false_positives.size - 1, _SHOWN).astype(int))
        shown, most = self.false_positives[keep], None if claim.empty else claim.most(self.false_positives[keep])
        rows = []
        for level in LEVELS:
            rate = self.at(level)
            hits = round(rate * self.ins)
            low, high = (limit(hits, self.ins, alarm / 2) for limit in (least_rate, most_rate))
            worst = most_rate(int(level * self.outs), self.outs, alarm / 2)
            allowed, reached = (None, None) if claim.empty else claim.most(np.array([level, worst])).tolist()
            row = {"false_positives": level, "true_positives": rate, "low": low, "high": high, "allowed": allowed}
            rows.append(row | {"exceeds": None if reached is None else low > reached})
        curve = {"false_positives": shown.tolist(), "true_positives": self.true_positives[keep].tolist()}
        return {"area": self.area, "rates": rows, "roc": curve | {"allowed": None if most is None else most.tolist()}}


def roc(scores_in: Vector, scores_out: Vector) -> Roc:
    """Return the curve of "in if the score is at least the threshold".

    >>> curve = roc(np.array([2.0, 3.0]), np.array([1.0, 2.0]))
    >>> curve.false_positives.tolist(), curve.true_positives.tolist()
    ([0.0, 0.0, 0.5, 1.0], [0.0, 0.5, 1.0, 1.0])
    """
    for name, given in (("scores_in", scores_in), ("scores_out", scores_out)):
        require(given.ndim == 1 and given.size >= 1, name, "be at least one score in one row", given.shape)
        require(not np.isnan(given).any(), name, "be numbers", "NaN")
    thresholds = np.unique(np.concatenate([scores_in, scores_out]))[::-1]
    rates = []
    for scores in (scores_out, scores_in):
        below = np.searchsorted(np.sort(scores), thresholds, side="left")
        rates.append(np.append(0.0, 1 - below / scores.size))
    return Roc(rates[0], rates[1], scores_out.size, scores_in.size)
