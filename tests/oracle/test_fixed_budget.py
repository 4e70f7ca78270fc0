"""Choices that depend on what was released before: simulated attackers stay below the fixed budget's promise.

An attacker chooses each release by the likelihood ratio so far. Its delta at epsilon is the mean, with the record, of
(1 - exp(epsilon - log ratio)) above 0: numbers in [0, 1], so that by Hoeffding a mean of ``PLAYS`` games exceeds its
expectation by ``TOLERANCE`` with a chance below 1e-7 each.
"""

from collections.abc import Callable
from fractions import Fraction
from math import log, sqrt

import numpy as np
import pytest

from fedveil.accounting.calibrate import at_most, costs_of
from fedveil.accounting.compare import account_for
from fedveil.core.values import Vector
from fedveil.privacy.mechanism import Gaussian, Repeat, SampledGaussian
from fedveil.theory.divergence import gaussian_delta

PLAYS = 60_000
TOLERANCE = sqrt(log(1e7) / (2 * PLAYS))
EPSILON = 0.5
MUS = (0.5, 0.3, 0.2)
Strategy = Callable[[Vector], np.ndarray]


def careful(ratio: Vector) -> np.ndarray:
    """Small steps once the attacker is ahead, large ones while it is behind."""
    return np.where(ratio > EPSILON, 2, np.where(ratio > 0, 1, 0))


def stop_while_ahead(ratio: Vector) -> np.ndarray:
    return np.where(ratio > EPSILON, -1, 1)


def always_small(ratio: Vector) -> np.ndarray:
    return np.full(ratio.shape, 2)


def delta_of(strategy: Strategy, budget: Fraction) -> float:
    """Play until the budget allows nothing more: an unaffordable choice becomes the next smaller that fits, or none."""
    source = np.random.default_rng(7)
    squares = np.array([mu * mu for mu in MUS])
    ratio, left, open_ = np.zeros(PLAYS), np.full(PLAYS, float(budget)), np.ones(PLAYS, dtype=bool)
    while open_.any():
        wanted = strategy(ratio)
        for index in range(len(MUS) - 1):
            wanted = np.where((wanted == index) & (left < squares[index] - 1e-12), index + 1, wanted)
        open_ &= (wanted >= 0) & (left >= squares[wanted] - 1e-12)
        mu = np.where(open_, np.asarray(MUS)[wanted], 0.0)
        seen = mu + source.standard_normal(PLAYS)  # with the record: N(mu, 1); without: N(0, 1)
        ratio += mu * seen - mu * mu / 2
        left -= mu * mu
    return float(np.mean(np.maximum(1 - np.exp(EPSILON - ratio), 0.0)))


@pytest.mark.parametrize("strategy", [careful, stop_while_ahead, always_small])
def test_no_strategy_beats_the_budget(strategy: Strategy) -> None:
    assert delta_of(strategy, Fraction(1)) <= gaussian_delta(EPSILON, 1.0) + TOLERANCE


def test_the_budget_is_attained_and_more_would_show() -> None:
    """Twenty-five small releases use up the budget exactly; twice the budget is told apart by the same game."""
    assert abs(delta_of(always_small, Fraction(1)) - gaussian_delta(EPSILON, 1.0)) <= TOLERANCE
    assert delta_of(always_small, Fraction(2)) > gaussian_delta(EPSILON, 1.0) + TOLERANCE


def test_the_budget_is_one_gaussian() -> None:
    rows = [Repeat(of=Gaussian(noise_multiplier=z, neighbours="zero-out"), times=n) for z, n in ((8.0, 4), (4.0, 1))]
    assert costs_of(rows) == (Fraction(4, 64), Fraction(1, 16))
    found = account_for(at_most(rows, 0.125), delta=1e-5).epsilon
    whole = account_for(Gaussian(noise_multiplier=sqrt(8), neighbours="zero-out"), delta=1e-5).epsilon
    assert whole <= found <= whole * (1 + 1e-9)


def test_releases_that_are_alike_are_counted() -> None:
    once = SampledGaussian(sampling="poisson", rate=0.1, noise_multiplier=2.0, neighbours="zero-out")
    rows = [Repeat(of=once, times=10), Repeat(of=once, times=3)]
    assert costs_of(rows) == (10, 3)
    assert at_most(rows, 17.5) == Repeat(of=once, times=17)
    other = SampledGaussian(sampling="poisson", rate=0.2, noise_multiplier=2.0, neighbours="zero-out")
    with pytest.raises(ValueError, match="alike in rate and noise"):
        costs_of([once, other])
