"""Membership inference: the likelihood-ratio attack from shadow runs; scores in, scores and findings out.

References:
    [C22] Carlini, Chien, Nasr, Song, Terzis, Tramer. Membership Inference Attacks From First Principles. S&P 2022.
    [Y18] Yeom, Giacomelli, Fredrikson, Jha. Privacy Risk in Machine Learning. CSF 2018.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr

from fedveil.audit.claim import Claim
from fedveil.audit.finding import Finding
from fedveil.audit.one_run import finding_of_scores
from fedveil.audit.roc import roc
from fedveil.core.checks import require
from fedveil.core.values import Vector

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
