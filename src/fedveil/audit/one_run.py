r"""The one-run audit: many canaries in one run, guess who was in, count right guesses, and test a whole curve.

The coins are fair and independent; from what was released somebody makes exactly g guesses about m coins, c of them
right. If the release satisfies a trade-off curve $f$ in every coin, write $p_i$ for the chance of i right guesses; then
$\sum_{i\in T} \frac im p_i \le 1 - f\bigl(\sum_{i\in T} \frac{g-i+1}m p_{i-1}\bigr)$ for every set T, which bounds the
chance of c or more [MMC25]. A single pair (epsilon, delta) bounds it too, by a binomial law [SNJ23], which is smaller
if far more guesses are right than the claim allows. Theory page: one-run-audit.md (statements and proofs).

References:
    [MMC25] Mahloujifar, Melis, Chaudhuri. Auditing f-Differential Privacy in One Run. ICML 2025.
    [SNJ23] Steinke, Nasr, Jagielski. Privacy Auditing with One (1) Training Run. NeurIPS 2023.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from fedveil.audit.claim import Claim, Curve, GaussianCurve
from fedveil.audit.confidence import at_most, exactly
from fedveil.audit.finding import Finding, Verdict
from fedveil.core.errors import BadValue, CannotCertify, require
from fedveil.core.values import Vector
from fedveil.theory.concentrated import gaussian_epsilon

Coins = NDArray[np.bool_]
Guesses = NDArray[np.int64]
Family = Callable[[float], Curve]  # the curve of the same mechanism with its noise multiplied
BROKEN = 1e-6  # the chance of calling a valid certificate broken
_OUTWARD = 1 + 1e-9  # more than the rounding error of the recursion
_SMALLEST = 1e-300
_LARGEST = 500.0  # epsilons beyond this are not distinguished
_LOUDEST, _QUIETEST = 2.0**10, 2.0**-6  # multiples of the noise beyond which a family is not searched


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The number of ``right`` ones among ``guesses`` about ``canaries``."""

    canaries: int
    guesses: int
    right: int

    def __post_init__(self) -> None:
        inside = 0 <= self.right <= self.guesses <= self.canaries and self.canaries >= 1
        require(inside, "Outcome", "have right <= guesses <= canaries", (self.right, self.guesses, self.canaries))


def guesses_each_way(canaries: int) -> int:
    """Return how many canaries to guess "in", and as many "out": a fifth, and of more than 400 four times the root.

    The number must not depend on the coins. Few guesses show most if canaries are many and easily seen.

    >>> [guesses_each_way(count) for count in (20, 150, 1000)]
    [4, 30, 126]
    """
    return max(1, min(round(canaries / 5), round(4 * math.sqrt(canaries))))


def guess(scores: Vector, each: int) -> Guesses:
    """Return 1 (in) for the ``each`` highest scores, -1 (out) for as many lowest, 0 for the rest.

    >>> guess(np.array([0.3, -2.0, 0.1, 5.0, 0.2]), 1).tolist()
    [0, -1, 0, 1, 0]
    """
    require(scores.ndim == 1 and scores.size >= 5, "scores", "be at least 5 in one row", scores.shape)
    require(np.isfinite(scores).all(), "scores", "be finite", "a score that is not")
    order = np.argsort(scores, kind="stable")
    guesses = np.zeros(scores.size, dtype=np.int64)
    guesses[order[:each]], guesses[order[-each:]] = -1, 1
    return guesses


def outcome_of(scores: Vector, coins: Coins, each: int | None = None) -> Outcome:
    """Guess from the scores, ``each`` many each way, and compare with the coins."""
    require(coins.shape == scores.shape, "coins", f"be one for each of {scores.size} scores", coins.shape)
    guesses = guess(scores, guesses_each_way(scores.size) if each is None else each)
    right = int(np.count_nonzero((guesses == 1) & coins) + np.count_nonzero((guesses == -1) & ~coins))
    return Outcome(canaries=scores.size, guesses=int(np.count_nonzero(guesses)), right=right)


def is_refuted(outcome: Outcome, curve: Curve, alarm: float) -> bool:
    """Return whether the chance of so many right guesses or more is below ``alarm`` under this curve [MMC25].

    Suppose it were ``alarm``. ``right`` and ``wrong`` are lower bounds on the mass of right and of wrong guesses, a
    canary, of outcomes with i or more right ones; if all outcomes together need more mass than there is, it was not.
    """
    total, guesses = outcome.guesses / outcome.canaries * _OUTWARD, outcome.guesses
    right = alarm * outcome.right / outcome.canaries
    wrong = alarm * (guesses - outcome.right) / outcome.canaries
    for i in range(outcome.right - 1, -1, -1):
        least = curve.least(right)
        if not least > wrong:  # nothing more is needed from here on
            break
        right += i / (guesses - i) * (least - wrong)
        wrong = least
        if right + wrong > total:
            return True
    return right + wrong > total


def p_value(outcome: Outcome, curve: Curve) -> float:
    """Return a bound on the chance of so many right guesses or more under this curve; rounded up."""
    if not is_refuted(outcome, curve, 1.0):
        return 1.0
    low, high = math.log(_SMALLEST), 0.0
    if is_refuted(outcome, curve, _SMALLEST):
        return _SMALLEST
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (low, middle) if is_refuted(outcome, curve, math.exp(middle)) else (middle, high)
    return min(1.0, math.exp(high) * _OUTWARD)


def pair_p_value(outcome: Outcome, claim: Claim) -> float:
    """Return the least bound on the same chance by any single pair of the claim [SNJ23]; rounded up.

    All pairs hold at once and bound the chance of one event, so choosing among them costs nothing.
    """
    return min((_by_pair(outcome, epsilon, delta) for epsilon, delta in claim.points), default=1.0)


def _by_pair(outcome: Outcome, epsilon: float, delta: float) -> float:
    """Return P(B_g >= c) + m delta (1 - q) times the mean of the largest atoms of B_n, n < g, B binomial with q."""
    if epsilon > _LARGEST or outcome.guesses == 0:
        return 1.0
    wrong = 1 / (1 + math.exp(epsilon))
    tail = float(at_most(outcome.guesses - outcome.right, outcome.guesses, wrong))
    trials = np.arange(outcome.guesses)
    modes = np.minimum(np.floor((trials + 1) * wrong), trials)
    atoms: Vector = np.zeros(outcome.guesses)
    for shift in (-1, 0, 1):  # the floor may be off by one
        atoms = np.maximum(atoms, exactly(np.clip(modes + shift, 0, trials), trials, wrong))
    return min(1.0, (tail + outcome.canaries * delta * wrong * float(np.mean(atoms))) * _OUTWARD)


def claim_p_value(scores: Vector, coins: Coins, claim: Claim) -> float:
    """Return the p-value of a whole claim: few sure guesses or many, each by its curve and by its pairs.

    Few guesses show most of epsilon; guessing four fifths tells a release with hardly any noise. Two tests cost a
    factor of two.
    """
    if claim.empty:
        return 1.0
    tests = (outcome_of(scores, coins, each) for each in (None, round(0.4 * scores.size)))
    return min(1.0, 2 * min(min(p_value(one, claim), pair_p_value(one, claim)) for one in tests))


def gaussian_family(times: float) -> GaussianCurve:
    """Return the curve of a Gaussian release with so many times the noise."""
    return GaussianCurve(1 / times)


def epsilon_lower(
    outcome: Outcome,
    delta: float,
    alarm: float,
    family: Family = gaussian_family,
    *,
    start: float = 1.0,
    stride: float = 2.0,
    precision: float = 1e-6,
) -> float:
    """Return a lower bound on epsilon at ``delta`` if the truth lies in the family; too large with chance ``alarm``.

    ``start``, ``stride``: where and in which steps to look.
    """
    require(0 <= delta <= 1, "delta", "lie in [0, 1]", delta)
    found = refuted_member(outcome, alarm, family, start=start, stride=stride, precision=precision)
    return 0.0 if found is None else found.epsilon_at(delta)


def refuted_member(
    outcome: Outcome,
    alarm: float,
    family: Family = gaussian_family,
    *,
    start: float = 1.0,
    stride: float = 2.0,
    precision: float = 1e-6,
) -> Curve | None:
    """Return the member with the least noise that these guesses refute; None if they refute none.

    A curve with less noise lies above one with more, so the refuted members are those with more noise than some
    multiple. If the truth lies in the family, it is refuted with chance at most ``alarm``; else it lies above this one.
    """
    require(0 < alarm < 1, "alarm", "lie strictly between 0 and 1", alarm)
    if not is_refuted(outcome, GaussianCurve(0.0), alarm):
        return None

    def refuted(times: float) -> bool:
        try:
            return is_refuted(outcome, family(times), alarm)
        except (BadValue, CannotCertify):  # the family has no such member
            return False

    low = high = start  # at high the curve is refuted, at low it is not
    while not refuted(high):
        low, high = high, high * stride
        if high > _LOUDEST:
            return None
    while low == high and refuted(low := low / stride):
        high = low
        if low < _QUIETEST:
            break
    while high / low > 1 + precision:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if refuted(middle) else (middle, high)
    return family(high)


def reachable(curve: Curve, canaries: int, delta: float, alarm: float) -> float:
    """Return about the epsilon that the best attack shows with so many canaries if the curve is exactly true.

    The best test sorts by likelihood; of the highest k of m scores, (x + y)/2 = k/m with y the most that the curve
    allows at x, the share y/(x + y) is right. Canaries that do not disturb each other reach it on average.
    """
    each = guesses_each_way(canaries)
    top = float(brentq(lambda x: (x + float(curve.most(np.array([x]))[0])) / 2 - each / canaries, 0.0, 1.0))
    right = 1 - top / (2 * each / canaries)
    outcome = Outcome(canaries=canaries, guesses=2 * each, right=min(2 * each, round(2 * each * right)))
    return epsilon_lower(outcome, delta, alarm)


def forecast(canaries: int, others: int, epsilon: float, delta: float) -> str:
    """Return in words, before a run, what so many canaries among so many other records could show, and what they cost.

    The certified curve is taken for that of a Gaussian release.

    >>> forecast(200, 800, 4.0, 1e-5)[:79]
    '200 canaries: of epsilon 4 the strongest attack we know of could show about 1.7'
    """
    mu = float(brentq(lambda mu: gaussian_epsilon(mu, delta) - min(epsilon, _LARGEST), 0.0, 100.0))
    most, share = reachable(GaussianCurve(mu), canaries, delta, 0.05), others / (others + canaries)
    shown = f"{most:.2g}" if most > 0 else "nothing"
    return (
        f"{canaries:,} canaries: of epsilon {epsilon:.4g} the strongest attack we know of could show about {shown}. "
        f"The other {others:,} records make up {share:.0%} of every sum, and accuracy is that of {1 / share:.2g} times "
        "the noise."
    )


def finding_of_scores(
    scores: Vector,
    coins: Coins,
    claim: Claim,
    *,
    delta: float,
    family: Family | None = None,
    alarm: float = 0.05,
    broken: float = BROKEN,
    attack: str = "one-run canaries",
    things: str = "canaries",
    details: Mapping[str, Any],
) -> Finding:
    """Return what these scores of canaries (or other records with fair coins) show about the final model.

    "broken" needs a chance of false alarm of at most ``broken`` under the claim's whole curve. The measured epsilon is
    the bound within ``family``, the same plan with other noise; without one, within Gaussian releases.
    """
    outcome = outcome_of(scores, coins)
    certified = None if claim.empty else claim.epsilon_at(delta)
    shown = refuted_member(outcome, alarm)
    measured = 0.0 if shown is None else shown.epsilon_at(delta)
    if family is not None and measured > 0 and certified is not None and math.isfinite(certified):
        near = max(certified, 1e-3) / max(measured, 1e-3)
        start = min(_LOUDEST / 2, max(2 * _QUIETEST, near))
        shown = refuted_member(outcome, alarm, family, start=start, stride=1.3, precision=0.02)
        measured = 0.0 if shown is None else shown.epsilon_at(delta)
    chance = claim_p_value(scores, coins, claim)
    verdict: Verdict = "broken" if chance <= min(alarm, broken) else "consistent"
    if certified is None or (verdict == "consistent" and measured > certified):
        verdict = "not-judged"
    most = None if claim.empty else reachable(claim, outcome.canaries, delta, alarm)
    return Finding(
        attack=attack,
        adversary="final-model",
        kind="lower-bound",
        certified=certified,
        measured=measured,
        delta=delta,
        alarm=alarm,
        verdict=verdict,
        evidence=_words(outcome, things, measured, certified, chance, delta, alarm, verdict) + _limit(most, things),
        details={
            things: outcome.canaries,
            "guesses": outcome.guesses,
            "right": outcome.right,
            "p_value": chance,
            "reachable": most,
            "ceiling": epsilon_lower(replace(outcome, right=outcome.guesses), delta, alarm),
            **({} if "roc" in details else {"region": _region(scores, coins, claim, shown)}),
            **details,
        },
    )


def _region(scores: Vector, coins: Coins, claim: Claim, shown: Curve | None) -> dict[str, list[float]]:
    """Return the rates of thresholds on the scores, what the claim allows there, and the refuted curve below them."""
    if coins.all() or not coins.any():
        return {}
    places = np.linspace(0, 1, 26)[1:-1]
    cuts = np.quantile(scores, places)
    hits, errors = (np.mean(side[:, None] > cuts, axis=0) for side in (scores[coins], scores[~coins]))
    return {
        "false_positives": errors.tolist(),
        "true_positives": hits.tolist(),
        "least": (places if shown is None else shown.most(places)).tolist(),
        "worst": places.tolist(),
        "allowed": claim.most(errors).tolist(),
    }


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
            luck = f"guesses as good have a chance of up to {chance:.2g} under its whole curve"
            return f"{sure}: {shown}; certified is {certified:.4g}, and {luck}."


def _limit(most: float | None, things: str) -> str:
    if most is None:
        return ""
    return f" With so many {things} the strongest attack we know of could show at most about {most:.3g}."
