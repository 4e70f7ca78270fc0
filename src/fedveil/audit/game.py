"""The distinguishing game: runs on two neighbouring data sets, an attacker who must tell which, and a claim to test.

A first part of the runs chooses everything (which score, which events, which weights); the rest certifies. The verdict
compares the measured points with the whole claimed curve; the measured epsilon is a Clopper-Pearson lower bound.
Theory page: distinguishing-game.md.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedveil.audit.claim import Claim
from fedveil.audit.confidence import least_epsilon
from fedveil.audit.evidence import choose, log_fortune, runs_to_refute
from fedveil.audit.finding import Finding
from fedveil.core.checks import require
from fedveil.core.values import Vector
from fedveil.privacy.guarantee import Adversary

FEWEST, MOST = 40, 10_000_000
CHOOSING = 0.1  # share of the runs that only choose
_RIDGE = 1e-12  # keeps the discriminant defined if features are linearly dependent


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """What one observer saw in many runs on one data set.

    ``features``: numbers of each run, one row a run, from which a linear score is learned; ``scores``: columns that the
    attacker already considers informative (larger values suggest the first data set).
    """

    features: Vector
    scores: Vector

    def __post_init__(self) -> None:
        runs = self.features.shape[0]
        right = self.features.ndim == 2 and self.scores.ndim == 2 and self.scores.shape[0] == runs
        require(right, "Seen", "hold one row for each run", (self.features.shape, self.scores.shape))
        finite = bool(np.isfinite(self.features).all() and np.isfinite(self.scores).all())
        require(finite, "Seen", "be finite", "a number that is not")


def play(first: Seen, second: Seen, claim: Claim, *, adversary: Adversary, delta: float, alarm: float) -> Finding:
    """Return whether the runs contradict the claim, and the epsilon that they prove at ``delta``.

    Half of ``alarm`` goes to the verdict, half to the measured epsilon.
    """
    runs = first.features.shape[0]
    require(second.features.shape[0] == runs, "runs", "be as many on both data sets", second.features.shape[0])
    require(runs >= FEWEST, "runs", f"be at least {FEWEST}", runs)
    certified, needed = claim.epsilon_at(delta), runs_needed(claim, alarm)
    part = max(20, int(runs * CHOOSING))
    ones, others = _score(first, second, part)
    fortune = 0.0
    if not claim.empty:
        fortune = log_fortune(choose(claim, ones[:part], others[:part]), ones[part:], others[part:])
    measured, event = _measured(ones, others, part, delta, alarm / 2)
    broken = fortune > math.log(2 / alarm) or measured > certified
    return Finding(
        attack="distinguishing-game",
        adversary=adversary,
        kind="lower-bound",
        certified=certified if math.isfinite(certified) else None,
        measured=measured,
        delta=delta,
        alarm=alarm,
        verdict="broken" if broken else "consistent" if runs >= needed else "not-judged",
        evidence=_words(broken, fortune, measured, certified, runs, needed),
        details={"runs": runs, "log_fortune": fortune, "needed": math.log(2 / alarm), "event": event},
    )


def runs_needed(claim: Claim, alarm: float) -> float:
    """Return how many runs on each data set are needed to be able to contradict the claim at all.

    Infinite if no number is enough.
    """
    most = runs_to_refute(claim, alarm / 2)
    return max(FEWEST, math.ceil(most / (1 - CHOOSING))) if math.isfinite(most) else math.inf


def _score(first: Seen, second: Seen, part: int) -> tuple[Vector, Vector]:
    """Return the most informative score on the runs that choose.

    Those given, and the linear discriminant of the features.

    Half of these runs find the discriminant and the other half compares, because many features fit any few runs.
    """
    candidates = [(first.scores[:, k], second.scores[:, k]) for k in range(first.scores.shape[1])]
    half = part // 2
    if first.features.shape[1]:
        direction = _discriminant(first.features[:half], second.features[:half])
        candidates.append((first.features @ direction, second.features @ direction))
    require(len(candidates) >= 1, "Seen", "have a feature or a score", 0)
    turned = [(a, b) if np.median(a[:part]) >= np.median(b[:part]) else (-a, -b) for a, b in candidates]

    def telling(pair: tuple[Vector, Vector]) -> float:
        ranks = np.concatenate([side[half:part] for side in pair]).argsort().argsort()
        return float(ranks[: part - half].mean())

    return max(turned, key=telling)


def _discriminant(first: Vector, second: Vector) -> Vector:
    """Return Fisher's direction, in which the difference of the means is largest relative to the spread."""
    gap = first.mean(axis=0) - second.mean(axis=0)
    spread = np.atleast_2d(np.cov(first.T)) + np.atleast_2d(np.cov(second.T))
    scale = max(float(np.trace(spread)), 1e-300)
    found = np.linalg.lstsq(spread + _RIDGE * scale * np.eye(gap.size), gap, rcond=None)[0]
    return np.asarray(found, dtype=np.float64)


def _measured(first: Vector, second: Vector, part: int, delta: float, alarm: float) -> tuple[float, dict[str, Any]]:
    """Return the epsilon that one event proves; the event is the best one on the runs that choose."""
    rest = first.size - part
    scale = rest / part

    def proved(a: Vector, b: Vector, at: float, sign: float, factor: float) -> float:
        hits, errors = (int(factor * np.sum(sign * runs > sign * at)) for runs in (a, b))
        trials = int(factor * a.size)
        return least_epsilon(min(hits, trials), min(errors, trials), trials, delta, alarm)

    both = np.concatenate([first[:part], second[:part]])
    cuts = np.unique(np.quantile(both, np.linspace(0.002, 0.998, 200)))
    options = [(way, at) for way in (True, False) for at in cuts.tolist()]

    def sides(way: bool) -> tuple[Vector, Vector, float]:
        return (first, second, 1.0) if way else (second, first, -1.0)

    def expected(option: tuple[bool, float]) -> float:
        a, b, sign = sides(option[0])
        return proved(a[:part], b[:part], option[1], sign, scale)

    way, at = max(options, key=expected)
    a, b, sign = sides(way)
    found = proved(a[part:], b[part:], at, sign, 1.0)
    hits, errors = (int(np.sum(sign * runs[part:] > sign * at)) for runs in (a, b))
    return found, {"threshold": at, "first": way, "hits": hits, "errors": errors, "trials": rest}


def _words(broken: bool, fortune: float, measured: float, certified: float, runs: int, needed: float) -> str:
    shown = f"{runs:,} runs on each of two neighbouring data sets prove epsilon {measured:.4g}"
    if not math.isfinite(certified):
        return f"{shown}; nothing was promised against this observer."
    if not broken and runs < needed:
        enough = f"even a perfect attack needs {needed:,}" if needed <= MOST else "no attack can make enough"
        return f"{shown}; too few to contradict the certified {certified:.4g}: {enough}."
    if not broken:
        return f"{shown}, below the certified {certified:.4g}; no bet against the claimed curve paid."
    if measured > certified:
        return f"{shown}, ABOVE the certified {certified:.4g}."
    return f"{shown}; bets against the claimed curve multiplied their stake by e^{fortune:.1f}: the claim is FALSE."
