"""The one-run bound against mechanisms whose law of right guesses is known exactly, and against a simulation."""

import itertools
import math

import numpy as np
import pytest
from scipy.stats import binom

from fedveil.audit.one_run import Outcome, epsilon_lower, outcome_of, p_value
from oracle.gaussian_accountant import GaussianAccountant

SIGNS = (-1, 1)


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0, 4.0])
@pytest.mark.parametrize("delta", [0.0, 1e-6, 1e-3, 0.2])
@pytest.mark.parametrize("canaries", [1, 7, 100])
def test_randomised_response_that_sometimes_tells_all(epsilon: float, delta: float, canaries: int) -> None:
    """Each coin told outright with chance delta, else by randomised response: (epsilon, delta), and right by a law."""
    q = 1 / (1 + math.exp(-epsilon))
    for right in range(canaries + 1):
        exact = binom.sf(right - 1, canaries, delta + (1 - delta) * q)
        assert exact <= p_value(Outcome(canaries=canaries, guesses=canaries, right=right), epsilon, delta)


def test_without_delta_it_is_the_law_of_randomised_response() -> None:
    for right in range(41):
        exact = binom.sf(right - 1, 40, 1 / (1 + math.exp(-1.5)))
        found = p_value(Outcome(canaries=90, guesses=40, right=right), 1.5, 0.0)
        assert exact <= found <= min(1.0, exact * (1 + 1e-8) + 1e-300)


def worst_delta(law: dict[tuple[int, ...], np.ndarray], epsilon: float) -> float:
    """By definition: the largest hockey stick over all data sets and all coins."""
    found = 0.0
    for coins, first in law.items():
        for place in range(len(coins)):
            other = law[tuple(-c if k == place else c for k, c in enumerate(coins))]
            found = max(found, float(np.maximum(first - math.exp(epsilon) * other, 0).sum()))
    return found


def right_guesses(coins: tuple[int, ...], told: tuple[int, ...]) -> int:
    return sum(t == c for t, c in zip(told, coins, strict=True) if t)


def check_everywhere(law: dict[tuple[int, ...], np.ndarray], outputs: list[tuple[int, ...]], guesses: int) -> float:
    """P(right >= v) against the bound at several epsilons; the smallest room that was left above a chance of 1."""
    size, room = len(next(iter(law))), math.inf
    for epsilon in (0.0, 0.2, 0.7, 1.5, 3.0):
        delta = min(1.0, worst_delta(law, epsilon))
        for right in range(1, guesses + 1):
            exact = np.mean(
                [sum(p[k] for k, told in enumerate(outputs) if right_guesses(s, told) >= right) for s, p in law.items()]
            )
            bound = p_value(Outcome(canaries=size, guesses=guesses, right=right), epsilon, delta)
            assert exact <= bound + 1e-12, (epsilon, delta, right)
            room = min(room, bound - exact)
    return float(room)


@pytest.mark.parametrize(("size", "guesses"), [(1, 1), (2, 1), (2, 2), (3, 1), (3, 2), (3, 3)])
def test_any_mechanism_on_few_coins(size: int, guesses: int) -> None:
    """Random laws, from nearly private to nearly deterministic, with abstentions: all enumerated, none above."""
    generator = np.random.default_rng(size * 10 + guesses)
    outputs = [t for t in itertools.product((-1, 0, 1), repeat=size) if sum(map(abs, t)) == guesses]
    for sharpness in (0.1, 1.0, 4.0):
        for _ in range(15):
            law = {}
            for coins in itertools.product(SIGNS, repeat=size):
                lean = np.array([right_guesses(coins, told) for told in outputs]) * generator.exponential(sharpness)
                weights = np.exp(lean + sharpness * generator.standard_normal(len(outputs)))
                law[coins] = weights / weights.sum()
            check_everywhere(law, outputs, guesses)


def test_a_mechanism_that_tells_where_it_matters() -> None:
    """With chance a half all coins are told, else nothing: all right guesses at once, which is what delta buys."""
    size = 3
    outputs = list(itertools.product(SIGNS, repeat=size))
    law = {}
    for coins in outputs:
        told = np.array([float(t == coins) for t in outputs])
        law[coins] = 0.5 * told + 0.5 / len(outputs)
    assert check_everywhere(law, outputs, size) < 0.5  # and the bound says more than "at most 1" somewhere


@pytest.mark.parametrize("mu", [0.3, 1.0, 3.0])
def test_gaussian_mechanisms_are_seldom_accused(mu: float) -> None:
    """Sums with normal noise, mu-Gaussian private in each coin; 3000 audits at 5%.

    The number of bounds above the truth is at most binomial(3000, 0.05): beyond its 1e-7 quantile is a false bound.
    """
    delta, alarm, audits, canaries = 1e-4, 0.05, 3000, 100
    truth = GaussianAccountant().epsilon(mu, delta)
    generator = np.random.default_rng(7)
    bounds = {
        right: epsilon_lower(Outcome(canaries=canaries, guesses=40, right=right), delta, alarm) for right in range(41)
    }
    above, found = 0, []
    for _ in range(audits):
        coins = generator.random(canaries) < 0.5
        outcome = outcome_of(mu * coins + generator.standard_normal(canaries), coins)
        found.append(bounds[outcome.right])
        above += found[-1] > truth
    assert above <= binom.isf(1e-7, audits, alarm)
    if mu == 3.0:
        assert np.mean(found) > 2.0  # the test could fail: it measures something


def test_luck_alone_is_accused_as_often_as_stated() -> None:
    """Nothing released: bounds above 0 with chance at most alarm, not far below. 20000 audits, 1e-7 each side."""
    canaries, alarm = 100, 0.05
    shown = [epsilon_lower(Outcome(canaries=canaries, guesses=40, right=right), 0.0, alarm) for right in range(41)]
    chance = max(binom.sf(right - 1, 40, 0.5) for right in range(41) if shown[right] > 0)
    assert 0.01 < chance <= alarm
    generator = np.random.default_rng(3)
    hits = 0
    for _ in range(20_000):
        coins = generator.random(canaries) < 0.5
        hits += shown[outcome_of(generator.standard_normal(canaries), coins).right] > 0
    assert binom.ppf(1e-7, 20_000, chance) <= hits <= binom.isf(1e-7, 20_000, chance)
