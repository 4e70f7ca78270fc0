"""Rounds that more records join than planned: an exact run whose steps expand, against what is certified for it.

Ten times as many records join as the batch is planned for. Their losses are quadratics; the step times the steepest is
2, so in that direction a round multiplies by about -19, and the first round's noise drowns all that follows. In a
second direction the round forgets (the factor is about 0), and only the last round's noise is left. A third is linear.
The record pushes along the first in the first round, along the second in the last, and along the third in between.
"""

import math

import numpy as np
import pytest
from scipy.stats import binom, norm

from fedveil import account_for
from fedveil.privacy.mechanism import LastIterate

RATE, ROUNDS, MULTIPLIER, DELTA = 0.001, 50, 0.4, 1e-5
BATCH, RECORDS = 100, 1_000_000
CROWD = RATE * RECORDS / BATCH  # ten times the planned batch
WIDE = 6  # standard deviations of the number that joins


def likelihood_ratio(ratio: float, x: np.ndarray) -> np.ndarray:
    """Of a direction in which one round shows, with ``ratio`` of its push to the noise that is left."""
    return 1 + RATE * np.expm1(ratio * x - ratio * ratio / 2)


def linear_ratio(x: np.ndarray) -> np.ndarray:
    """Of the direction in which all rounds add up, the first and the last left out."""
    rounds = ROUNDS - 2
    shift = 1 / (MULTIPLIER * math.sqrt(ROUNDS))  # all rounds leave their noise
    heads = np.arange(12)
    weights = binom.pmf(heads, rounds, RATE)
    return np.exp(np.outer(x, heads * shift) - (heads * shift) ** 2 / 2) @ weights


def exact_delta(epsilon: float) -> float:
    """At the least ratios that any usual number of records leaves; lost: the chance of an unusual one."""
    spread = WIDE / math.sqrt(RATE * RECORDS)
    grown, forgotten = 2 * CROWD * (1 - spread) - 1, spread
    first = math.sqrt(1 - 1 / grown**2) / MULTIPLIER
    last = math.sqrt(1 - forgotten**2) / MULTIPLIER
    x = np.linspace(-7, 10, 341)
    mass = norm.pdf(x) * (x[1] - x[0])
    ahead = np.multiply.outer(likelihood_ratio(first, x), likelihood_ratio(last, x))
    weights = np.multiply.outer(mass, mass)
    total = 0.0
    for value, weight in zip(linear_ratio(x), mass, strict=True):
        total += float(weight * np.sum(weights * np.maximum(ahead * value - math.exp(epsilon), 0.0)))
    usual = 1 - 2 * ROUNDS * norm.sf(WIDE - 0.5)
    return usual * total


def crowded(**changes: object) -> LastIterate:
    values = {
        "rounds": ROUNDS,
        "order": "poisson",
        "rate": RATE,
        "batch": BATCH,
        "records": RECORDS,
        "step_size": 1.0,
        "lipschitz": 1.0,
        "smoothness": 2.0,
        "noise_std": MULTIPLIER / math.sqrt(BATCH),
        "neighbours": "zero-out",
    }
    return LastIterate(**{**values, **changes})  # type: ignore[arg-type]


def test_what_is_certified_covers_steps_that_expand() -> None:
    """Steps taken for contractions whoever joined would be certified at 1.96; the run itself shows 2.00."""
    found = account_for(crowded(), delta=DELTA).epsilon
    assert exact_delta(found) <= DELTA
    calm = account_for(crowded(smoothness=0.1), delta=DELTA).epsilon  # never steeper than 1: does contract
    assert exact_delta(calm) > DELTA  # so the quadratics above tell more than any contraction may


@pytest.mark.parametrize("joined", [850, 1000, 1150])
def test_the_directions_are_as_stated(joined: int) -> None:
    """By the recursion itself, at the ends of what is usual."""
    factors = np.array([1 - 2.0 * joined / BATCH, 1 - joined / (CROWD * BATCH), 1.0])
    noise, pushed = np.zeros(3), np.zeros(3)
    for number in range(ROUNDS):
        push = np.array([number == 0, number == ROUNDS - 1, 0 < number < ROUNDS - 1], dtype=float)
        pushed, noise = factors * pushed + push / (ROUNDS - 2 if push[2] else 1), factors**2 * noise + MULTIPLIER**2
    ratios = np.abs(pushed) / np.sqrt(noise)
    spread = WIDE / math.sqrt(RATE * RECORDS)
    assert ratios[0] >= math.sqrt(1 - 1 / (2 * CROWD * (1 - spread) - 1) ** 2) / MULTIPLIER
    assert ratios[1] >= math.sqrt(1 - spread**2) / MULTIPLIER
    assert ratios[2] == pytest.approx(1 / (MULTIPLIER * math.sqrt(ROUNDS)))
