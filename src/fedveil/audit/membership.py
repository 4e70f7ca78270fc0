"""Membership inference: the likelihood-ratio attack from shadow runs; scores in, scores and findings out.

References:
    [C22] Carlini, Chien, Nasr, Song, Terzis, Tramer. Membership Inference Attacks From First Principles. S&P 2022.
    [Y18] Yeom, Giacomelli, Fredrikson, Jha. Privacy Risk in Machine Learning. CSF 2018.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr

from fedveil.audit.claim import Claim
from fedveil.audit.confidence import least_rate, most_rate
from fedveil.audit.finding import Finding
from fedveil.audit.one_run import finding_of_scores
from fedveil.core.errors import require
from fedveil.core.values import Vector

# How well scores separate two groups: the whole curve, and the true-positive rate where false alarms are rare.

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


Coins = NDArray[np.bool_]
OWN_VARIANCE = 64  # with this many shadow runs each record has its own variance; with fewer all share one [C22]
_LEAST = 1e-12


@dataclass(frozen=True, slots=True, eq=False)
class Shadows:
    """Runs by records: the logit of the confidence in the right answer, and whether the record was in that run."""

    confidence: Vector
    coins: Coins

    def __post_init__(self) -> None:
        fits = self.confidence.ndim == 2 and self.confidence.shape == self.coins.shape
        require(fits, "Shadows", "be tables of runs by records, of one size", (self.confidence.shape, self.coins.shape))
        require(np.isfinite(self.confidence).all(), "Shadows.confidence", "be finite", "a number that is not")
        ins = self.coins.sum(axis=0)
        enough = bool((ins >= 2).all() and (self.coins.shape[0] - ins >= 2).all())
        hint = "Take more shadow runs."
        require(enough, "Shadows", "have every record in and out at least twice", self.coins.shape[0], hint)

    def fits(self, present: bool) -> tuple[Vector, Vector]:
        """Return mean and standard deviation of each record's confidence over the runs where it was in, or out."""
        chosen = self.coins if present else ~self.coins
        count = chosen.sum(axis=0)
        mean = np.where(chosen, self.confidence, 0.0).sum(axis=0) / count
        squares = np.where(chosen, (self.confidence - mean) ** 2, 0.0).sum(axis=0)
        if self.coins.shape[0] >= OWN_VARIANCE:
            variance = squares / (count - 1)
        else:
            variance = np.full_like(mean, squares.sum() / (count - 1).sum())
        return mean, np.sqrt(np.maximum(variance, _LEAST))


def lira_online(shadows: Shadows, confidence: Vector) -> Vector:
    """Return the log-likelihood ratio of "in" against "out" for every record, by normal fits to its shadows [C22]."""
    (inside, wide), (outside, narrow) = shadows.fits(True), shadows.fits(False)
    ratio = ((confidence - outside) / narrow) ** 2 - ((confidence - inside) / wide) ** 2
    return np.asarray(ratio / 2 + np.log(narrow / wide))


def lira_offline(shadows: Shadows, confidence: Vector) -> Vector:
    """Return how surprisingly high the confidence is for a record that was out.

    Shadow runs that contained the record are not used [C22].
    """
    mean, deviation = shadows.fits(False)
    return np.asarray(-log_ndtr(-(confidence - mean) / deviation))


def membership_finding(
    attack: str,
    scores: Vector,
    coins: Coins,
    claim: Claim,
    *,
    pooled: tuple[Vector, Coins] | None = None,
    delta: float,
    alarm: float = 0.05,
) -> Finding:
    """Return what the scores of one attacked run prove, and their curve next to the one that the claim allows.

    The coins of the run must be fair, independent and unknown to the scores; then the bound is that of the one-run
    audit. The curve is of ``pooled`` scores and coins (of many attacked runs), or of this run alone. Its intervals
    assume independent trials, which those of one run are not, so they prove nothing.
    """
    all_scores, all_coins = (scores, coins) if pooled is None else pooled
    curve = roc(all_scores[all_coins], all_scores[~all_coins])
    details = {"trials": int(all_coins.size), **curve.summary(claim, alarm)}
    return finding_of_scores(
        scores, coins, claim, delta=delta, alarm=alarm, attack=attack, things="records", details=details
    )
