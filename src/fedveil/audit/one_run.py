r"""The audit of Steinke, Nasr and Jagielski (2023): many canaries in one run, guess who was in, count right guesses.

The coins S are fair and independent. T, computed from what was released, says in, out or nothing for each, r times in
or out. If the release is (epsilon, delta)-private in every coin, then
$P(\text{right} \ge v) \le P(B_r \ge v) + \frac{m\delta}{1+e^\varepsilon} \bar M_r$, with $B_n$ binomial of success
$q = e^\varepsilon/(1+e^\varepsilon)$ and $\bar M_r$ the mean over n < r of the largest atom of $B_n$.
Theory page: one-run-audit.md (a proof, also of this form of the term in delta, which is smaller than the paper's).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedveil.audit.binomial import at_most, exactly
from fedveil.audit.claim import Claim
from fedveil.audit.finding import Finding, Verdict
from fedveil.core.checks import require
from fedveil.core.values import Vector

Coins = NDArray[np.bool_]
Guesses = NDArray[np.int64]
BROKEN = 1e-6  # the chance of calling a valid certificate broken
_OUTWARD = 1 + 1e-9  # more than the rounding error of the binomial law
_LARGEST = 500.0  # epsilons beyond this are not distinguished


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The number of ``right`` ones among ``guesses`` about ``canaries``."""

    canaries: int
    guesses: int
    right: int

    def __post_init__(self) -> None:
        inside = 0 <= self.right <= self.guesses <= self.canaries and self.canaries >= 1
        require(inside, "Outcome", "have right <= guesses <= canaries", (self.right, self.guesses, self.canaries))


def guess(scores: Vector) -> Guesses:
    """Return 1 (in) for the highest fifth of the scores, -1 (out) for the lowest, 0 for the rest.

    The rule is fixed beforehand. A fifth on each side is near the best for weak and strong canaries alike, and does not
    depend on the coins.

    >>> guess(np.array([0.3, -2.0, 0.1, 5.0, 0.2])).tolist()
    [0, -1, 0, 1, 0]
    """
    require(scores.ndim == 1 and scores.size >= 5, "scores", "be at least 5 in one row", scores.shape)
    require(np.isfinite(scores).all(), "scores", "be finite", "a score that is not")
    order, each = np.argsort(scores, kind="stable"), round(scores.size / 5)
    found = np.zeros(scores.size, dtype=np.int64)
    found[order[:each]], found[order[-each:]] = -1, 1
    return found


def outcome_of(scores: Vector, coins: Coins) -> Outcome:
    """Guess from the scores and compare with the coins."""
    require(coins.shape == scores.shape, "coins", f"be one for each of {scores.size} scores", coins.shape)
    found = guess(scores)
    right = int(np.count_nonzero((found == 1) & coins) + np.count_nonzero((found == -1) & ~coins))
    return Outcome(canaries=scores.size, guesses=int(np.count_nonzero(found)), right=right)


def p_value(outcome: Outcome, epsilon: float, delta: float) -> float:
    """Return a bound on the chance of so many right guesses or more under (epsilon, delta); rounded up."""
    require(epsilon >= 0, "epsilon", "be non-negative", epsilon)
    require(0 <= delta <= 1, "delta", "lie in [0, 1]", delta)
    if epsilon > _LARGEST:
        return 1.0
    miss = 1 / (1 + math.exp(epsilon))
    return min(1.0, _tail(outcome, miss) + _slack(outcome, miss, delta))


def epsilon_lower(outcome: Outcome, delta: float, alarm: float) -> float:
    """Return a lower bound on the true epsilon at ``delta``, for any mechanism, wrong with chance at most ``alarm``.

    It is the largest epsilon that is refused at level ``alarm``. The term in delta is taken at epsilon 0, where it is
    largest, so that all smaller epsilons are refused too; bisection ends on the refused side.
    """
    require(0 <= delta <= 1, "delta", "lie in [0, 1]", delta)
    require(0 < alarm < 1, "alarm", "lie strictly between 0 and 1", alarm)
    slack = _slack(outcome, 0.5, delta)

    def refused(epsilon: float) -> bool:
        return _tail(outcome, 1 / (1 + math.exp(epsilon))) + slack <= alarm

    if not refused(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while refused(high) and high < _LARGEST:
        low, high = high, 2 * high
    while high - low > 1e-9 * max(1.0, high):
        middle = (low + high) / 2
        low, high = (middle, high) if refused(middle) else (low, middle)
    return low


def canaries_needed(epsilon: float, alarm: float) -> int:
    """Return how many canaries are needed so that guessing all of them right shows this epsilon, ignoring delta."""
    require(0 <= epsilon <= 40, "epsilon", "lie in [0, 40]", epsilon)
    guesses = math.ceil(math.log(alarm) / -math.log1p(math.exp(-epsilon)))
    return math.ceil(2.5 * guesses) + 1


def _tail(outcome: Outcome, miss: float) -> float:
    """Return P(B_r >= right), computed from the misses so that a success near 1 keeps its digits."""
    return float(at_most(outcome.guesses - outcome.right, outcome.guesses, miss)) * _OUTWARD


def _slack(outcome: Outcome, miss: float, delta: float) -> float:
    """Return the term of delta: m delta (1 - q) times the mean of the largest atoms of B_n, n < r."""
    if outcome.guesses == 0:
        return 0.0
    trials = np.arange(outcome.guesses)
    modes = np.minimum(np.floor((trials + 1) * miss), trials)
    atoms: Vector = np.zeros(outcome.guesses)
    for shift in (-1, 0, 1):  # the floor may be off by one
        atoms = np.maximum(atoms, exactly(np.clip(modes + shift, 0, trials), trials, miss))
    return outcome.canaries * delta * miss * float(np.mean(atoms)) * _OUTWARD


def finding_of_scores(
    scores: Vector,
    coins: Coins,
    claim: Claim,
    *,
    delta: float,
    alarm: float = 0.05,
    attack: str = "one-run canaries",
    things: str = "canaries",
    details: Mapping[str, Any],
) -> Finding:
    """Return what these scores of canaries (or other records with fair coins) show about the final model.

    "broken" needs a chance of false alarm of at most 1e-6 under the claim. All pairs of the claim hold at once and
    bound the chance of the same event, so the least of their p-values is valid.
    """
    outcome = outcome_of(scores, coins)
    measured = epsilon_lower(outcome, delta, alarm)
    certified = None if claim.empty else claim.epsilon_at(delta)
    chance = min((p_value(outcome, epsilon, small) for epsilon, small in claim.points), default=1.0)
    ceiling = epsilon_lower(replace(outcome, right=outcome.guesses), delta, alarm)
    verdict: Verdict = "broken" if chance <= min(alarm, BROKEN) else "consistent"
    if certified is None or (verdict == "consistent" and measured > certified):
        verdict = "not-judged"
    return Finding(
        attack=attack,
        adversary="final-model",
        kind="lower-bound",
        certified=certified,
        measured=measured,
        delta=delta,
        alarm=alarm,
        verdict=verdict,
        evidence=_words(outcome, things, measured, certified, chance, delta, alarm, verdict)
        + _limit(ceiling, certified, alarm, things),
        details={
            things: outcome.canaries,
            "guesses": outcome.guesses,
            "right": outcome.right,
            "p_value": chance,
            "ceiling": ceiling,
            **details,
        },
    )


def _words(
    outcome: Outcome,
    things: str,
    measured: float,
    certified: float | None,
    chance: float,
    delta: float,
    alarm: float,
    verdict: Verdict,
) -> str:
    sure = f"{outcome.right} of {outcome.guesses} guesses about {outcome.canaries} {things} were right"
    shown = f"with {1 - alarm:.4g} confidence epsilon is at least {measured:.3g} at delta {delta:g}"
    if certified is None:
        return f"{sure}: {shown}. Nothing was promised."
    match verdict:
        case "broken":
            return f"{sure}: {shown}. Under the certificate ({certified:.4g}) the chance of that is below {chance:.1e}."
        case "not-judged":
            return (
                f"{sure}: {shown}, which is above the certificate ({certified:.4g}), but by luck that has a chance of "
                f"up to {chance:.1e}. Run again, with more {things}."
            )
        case _:
            return f"{sure}: {shown}; certified is {certified:.4g}."


def _limit(ceiling: float, certified: float | None, alarm: float, things: str) -> str:
    """Return a remark if there are too few canaries to reach the certificate."""
    if certified is None or not ceiling < certified <= 40:
        return ""
    needed = canaries_needed(certified, alarm)
    return f" No more than {ceiling:.3g} can be shown with so few: {needed} {things} could show the certified epsilon."
