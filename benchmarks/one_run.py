"""The one-run audit: how often right releases are accused (10,000 audits a curve), and how much of epsilon it shows."""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from benchmarks import Row
from fedveil.audit.claim import Claim, Curve, GaussianCurve
from fedveil.audit.one_run import Outcome, epsilon_lower, guesses_each_way, p_value

AUDITS, CANARIES, ALARM, DELTA = 10_000, 1000, 0.05, 1e-5
Coins = NDArray[np.bool_]
Scores = Callable[[Coins, np.random.Generator], NDArray[np.float64]]
BARS = {2.0: (0.5018, 0.75), 4.0: (0.9251, 1.8), 8.0: (1.6655, 4.0)}  # epsilon: mu at DELTA, least mean bound


def gaussian(mu: float) -> Scores:
    """A number with normal noise for each coin."""
    return lambda coins, generator: mu * coins + generator.standard_normal(coins.shape)


def laplace(scale: float) -> Scores:
    """A number with Laplace noise for each coin."""
    return lambda coins, generator: coins + generator.laplace(scale=scale, size=coins.shape)


def response(epsilon: float) -> Scores:
    """Each coin by randomised response."""
    truth = 1 / (1 + math.exp(-epsilon))
    return lambda coins, generator: np.where(generator.random(coins.shape) < truth, coins, ~coins).astype(np.float64)


def laplace_claim(scale: float) -> Claim:
    """The exact curve: delta = 1 - exp((epsilon - 1/scale)/2)."""
    return Claim(tuple((e, -math.expm1((e - 1 / scale) / 2)) for e in np.linspace(0, 1 / scale, 60)))


CURVES: dict[str, tuple[Scores, Curve]] = {
    **{f"Gaussian, mu {mu:g}": (gaussian(mu), GaussianCurve(mu)) for mu in (0.1, 0.5, 1.0, 2.0)},
    **{f"Laplace, scale {scale:g}": (laplace(scale), laplace_claim(scale)) for scale in (0.5, 1.0, 4.0)},
    **{f"randomised response, {e:g}": (response(e), Claim(((e, 0.0),))) for e in (0.5, 2.0, 4.0)},
}


def right_guesses(scores: Scores, audits: int, generator: np.random.Generator) -> NDArray[np.int64]:
    """Return the right guesses of so many audits."""
    each, rows = guesses_each_way(CANARIES), []
    for _ in range(audits):
        coins = generator.random(CANARIES) < 0.5
        order = np.argsort(scores(coins, generator), kind="stable")
        rows.append(int((~coins[order[:each]]).sum() + coins[order[-each:]].sum()))
    return np.array(rows)


def accused(name: str, audits: int = AUDITS) -> float:
    """Return the share of right releases whose p-value is at most the alarm."""
    scores, curve = CURVES[name]
    right = right_guesses(scores, audits, np.random.default_rng(0))
    guesses = 2 * guesses_each_way(CANARIES)
    chances = {c: p_value(Outcome(canaries=CANARIES, guesses=guesses, right=c), curve) for c in set(right.tolist())}
    return float(np.mean([chances[c] <= ALARM for c in right.tolist()]))


def shown(mu: float, audits: int = 20) -> float:
    """Return the mean lower bound on epsilon of so many audits of a Gaussian release."""
    right, guesses = right_guesses(gaussian(mu), audits, np.random.default_rng(1)), 2 * guesses_each_way(CANARIES)
    return float(
        np.mean([epsilon_lower(Outcome(canaries=CANARIES, guesses=guesses, right=int(c)), DELTA, ALARM) for c in right])
    )


def run() -> list[Row]:
    """Accusations at most at the stated rate; bounds at least their bar (as the bar over the bound, at most 1)."""
    rows = [
        Row(
            name=f"one-run audit: right releases accused, {name}", bar=ALARM, measured=accused(name), detail="of 10,000"
        )
        for name in CURVES
    ]
    for epsilon, (mu, bar) in BARS.items():
        bound = shown(mu)
        what = f"one-run audit: {bar:g} over the bound at true epsilon {epsilon:g}"
        rows.append(Row(name=what, bar=1.0, measured=bar / bound, detail=f"mean of 20: {bound:.3f}"))
    return rows
