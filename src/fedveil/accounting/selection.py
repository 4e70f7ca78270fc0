"""What the best of several trials costs, from certified points of each candidate's own curve.

Which candidate a trial draws does not depend on the data and counts as known, so the profile of one trial is at most
the mean of the candidates' profiles. Between certified points it lies below the chord, since every privacy profile is
convex in exp(epsilon).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import final

import numpy as np

from fedveil.core.errors import CannotCertify
from fedveil.privacy.guarantee import Answer, Bound
from fedveil.theory.composition import worst_upper
from fedveil.theory.divergence import gaussian_delta
from fedveil.theory.loss import law_of_profile
from fedveil.theory.numerics import SMALLEST_DELTA
from fedveil.theory.selection import TruncatedNegativeBinomial, selected_epsilon

Points = Sequence[tuple[float, float]]  # certified (epsilon, delta)
_WIDEST = 500.0  # largest epsilon of a curve; its exponential must be a number


@final
@dataclass(frozen=True, slots=True)
class TrialCurve:
    """The profile of one trial from above: points of each candidate, and ``score_mu`` of a private score (0: none).

    A private score is measured on records of other units than those trained on, so one unit is in one of the two: the
    worse of both profiles holds.
    """

    candidates: tuple[tuple[tuple[float, float], ...], ...]
    score_mu: float = 0.0

    @classmethod
    def of(cls, candidates: Sequence[Points], score_mu: float = 0.0) -> "TrialCurve":
        """Return the curve of these candidates; refuse a candidate of which nothing is certified."""
        kept = []
        for points in candidates:
            result = sorted((e, d) for e, d in points if 0 <= e < _WIDEST and 0 <= d <= 1)
            if not result:
                raise CannotCertify("one of the candidates promises nothing against this observer")
            kept.append(_falling(result))
        return cls(tuple(kept), score_mu)

    def delta(self, epsilon: float) -> float:
        """Return the mean of the candidates' deltas, or that of the score if it is larger."""
        mean = math.fsum(_chord(points, epsilon) for points in self.candidates) / len(self.candidates)
        score = gaussian_delta(epsilon, self.score_mu) if self.score_mu else 0.0
        return min(1.0, max(mean, score) * (1 + 1e-12))

    def selected(self, law: TruncatedNegativeBinomial, most: int, slip: float, delta: float) -> float:
        """Return the epsilon of who sees the selected trial alone."""
        return selected_epsilon(self.delta, law, delta, most, slip)

    def all_seen(self, most: int, delta: float) -> float:
        """Return the epsilon of who sees every trial: of the largest number of them, composed."""
        at = sorted({e for points in self.candidates for e, _ in points} | {0.0})
        if len(at) < 2 or not SMALLEST_DELTA <= delta < 1:
            return math.inf
        deltas = [self.delta(e) for e in at]
        try:
            return worst_upper([[(law_of_profile(np.array(at), np.array(deltas)), most)]], delta)
        except CannotCertify:
            return math.inf


def selected_answer(
    curve: TrialCurve, law: TruncatedNegativeBinomial, most: int, slip: float, delta: float, *, sees_all: bool
) -> Answer:
    """Return what is promised to an observer of the selected trial, or of all trials."""
    if sees_all:
        epsilon, name = curve.all_seen(most, delta), "every-trial"
        why = f"this observer sees every trial, so the largest number of them, {most}, is composed"
    else:
        epsilon, name = curve.selected(law, most, slip, delta), "selection"
        why = (
            f"the best of a random number of trials, {law.mean:.4g} expected and at most {most} (truncated negative "
            f"binomial, eta {law.eta:g}), drawn among {len(curve.candidates)} candidates; nothing else is seen"
        )
    bound = Bound(name=name, status="certified", reason=why, epsilon=epsilon)
    return Answer(epsilon=epsilon, delta=delta, certified_by=name if epsilon < math.inf else None, bounds=(bound,))


def _falling(points: Points) -> tuple[tuple[float, float], ...]:
    """Points of rising epsilon and falling delta, from epsilon 0 on.

    For an (epsilon, delta) private pair no event's probability differs by more than the first delta.
    """
    start = min(1.0, *((math.expm1(e) + 2 * d) / (math.exp(e) + 1) for e, d in points))
    result = [(0.0, start)]
    for epsilon, delta in points:
        if epsilon == result[-1][0]:
            result[-1] = (epsilon, min(delta, result[-1][1]))
        elif delta < result[-1][1]:
            result.append((epsilon, delta))
    return tuple(result)


def _chord(points: Points, epsilon: float) -> float:
    """Return the delta on the chord between two certified points, from above; the last delta beyond them."""
    for (low, high_delta), (high, low_delta) in pairwise(points):
        if epsilon < high:
            # exp(epsilon - low) - 1 over exp(high - low) - 1: how far along the chord in exp(epsilon).
            share = math.expm1(epsilon - low) / math.expm1(high - low)
            return high_delta - (high_delta - low_delta) * share * (1 - 1e-12)
    return points[-1][1]
