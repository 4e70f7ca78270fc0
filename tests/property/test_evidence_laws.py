"""Laws of bets against a claimed curve: the mean fortune is at most 1 while the claim holds, and grows otherwise.

The laws here are known exactly, so the mean of the fortune is an exact integral, not a simulation.
"""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.special import ndtr

from fedveil.audit.claim import Claim
from fedveil.audit.game import Bet, Events, Seen, choose, log_growth, play, runs_needed
from fedveil.theory.divergence import gaussian_delta

Vector = NDArray[np.float64]


def gaussian_claim(mu: float, largest: float = 8.0, points: int = 60) -> Claim:
    return Claim(tuple((e, gaussian_delta(e, mu)) for e in np.linspace(0.0, largest, points).tolist()))


@given(
    mu=st.floats(0.1, 3.0),
    shift=st.floats(-4.0, 4.0),
    seed=st.integers(0, 1000),
    planted=st.sampled_from(["right", "stronger", "nothing"]),
)
@settings(max_examples=60)
def test_the_mean_gain_is_never_positive_while_the_claim_holds(
    mu: float, shift: float, seed: int, planted: str
) -> None:
    """Whatever the choosing runs looked like (also misleading ones), the exact mean of every bet is at most 0."""
    random = np.random.default_rng(seed)
    apart = {"right": mu, "stronger": 3 * mu, "nothing": 0.0}[planted]
    bets = choose(gaussian_claim(mu), random.normal(shift + apart, 1, 500), random.normal(shift, 1, 500))
    assert len(bets) >= 2
    for bet in bets:
        assert _mean_gain(bet.events, bet.weights, mu, shift) <= 1e-12
        assert _mean_gain(bet.events, bet.weights, -mu, shift) <= 1e-12
        gains = bet.gains(random.normal(size=200) * 5, random.normal(size=200) * 5)
        assert gains.min() >= -1 - 1e-9  # a stake of one half is never lost whole


def _mean_gain(events: Events, weights: Vector, mu: float, shift: float) -> float:
    above_first = ndtr(shift + mu - events.thresholds)
    above_second = ndtr(shift - events.thresholds)
    ahead = above_first - events.ratio * above_second
    behind = (1 - above_second) - events.ratio * (1 - above_first)
    return float(weights @ (np.where(events.forward, ahead, behind) - events.offset))


def test_gains_are_sums_of_their_definition() -> None:
    events = Events(np.array([0.0, 1.0]), np.array([True, False]), np.array([2.0, 3.0]), np.array([0.1, 0.2]))
    weights, first, second = np.array([0.5, 0.25]), np.array([-1.0, 0.5, 2.0, 0.0]), np.array([0.5, 2.0, -1.0, 1.0])
    expected = [
        0.5 * ((x > 0) - 2.0 * (y > 0) - 0.1) + 0.25 * ((y <= 1) - 3.0 * (x <= 1) - 0.2)
        for x, y in zip(first, second, strict=True)
    ]
    np.testing.assert_allclose(events.gains(weights, first, second), expected, atol=1e-15)


# Found on 200 repeats of each claim (python -m benchmarks audit): caught in at least 95 of 100.
@pytest.mark.parametrize(("epsilon", "mu", "less"), [(1.0, 0.5330, 0.085), (2.0, 0.8962, 0.05), (4.0, 1.4950, 0.03)])
def test_noise_a_little_too_small_is_caught_and_the_right_noise_is_not(epsilon: float, mu: float, less: float) -> None:
    """Claims at delta 1e-2, 100,000 runs, false alarm 1e-6 a game."""
    assert gaussian_delta(epsilon, mu) == pytest.approx(1e-2, rel=1e-2)
    random, claim, caught = np.random.default_rng(1), gaussian_claim(mu), 0
    for _ in range(10):
        second = random.normal(size=100_000)
        for distance, faulty in ((mu / (1 - less), True), (mu, False)):
            first = random.normal(distance, 1, second.size)
            found = _play(first, second, claim)
            caught += faulty and found == "broken"
            assert faulty or found == "consistent"
    assert caught >= 8


def _play(first: Vector, second: Vector, claim: Claim) -> str:
    none = np.zeros((first.size, 0))
    sides = (Seen(none, side[:, None]) for side in (first, second))
    return play(*sides, claim, adversary="final-model", delta=1e-2, alarm=1e-6).verdict


def test_a_law_that_is_not_normal_raises_no_false_alarm() -> None:
    """A mixture that keeps its claim; a normal law fitted to it would not."""
    random = np.random.default_rng(2)
    claim = Claim(((0.0, 0.3), (math.log(2.0), 0.3)))  # total variation .3, all of it in one rare place
    first = np.where(random.random(100_000) < 0.3, 50.0, random.normal(size=100_000))
    assert _play(first, random.normal(size=100_000), claim) == "consistent"


def test_a_repeated_number_is_no_trouble() -> None:
    claim = gaussian_claim(1.0)
    assert _play(np.zeros(5000), np.zeros(5000), claim) == "consistent"
    assert _play(np.ones(5000), np.zeros(5000), claim) == "broken"


@pytest.mark.parametrize("mu", [0.3, 1.0, 3.0])
def test_a_perfect_attack_is_caught_with_thrice_the_runs_needed_and_too_few_judge_nothing(mu: float) -> None:
    claim = gaussian_claim(mu, largest=20.0)
    needed = int(runs_needed(claim, 1e-6))
    assert _play(np.ones(3 * needed), np.zeros(3 * needed), claim) == "broken"
    assert _play(np.zeros(needed), np.zeros(needed), claim) == "consistent"
    assert _play(np.zeros(needed - 1), np.zeros(needed - 1), claim) == "not-judged"


def test_growth_is_the_logarithm_of_a_product() -> None:
    events = Events(np.array([0.0]), np.array([True]), np.array([1.0]), np.array([0.5]))
    bet = Bet.on(1.0, events, np.array([5.0]))
    gains = bet.gains(np.array([1.0, 1.0]), np.array([-1.0, -1.0]))
    by_hand = [2 * math.log(1 + 0.5**k / 3) for k in range(1, 11)]
    assert log_growth(gains[None, :])[0] == pytest.approx(by_hand)
