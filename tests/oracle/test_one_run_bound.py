"""The one-run test against mechanisms whose law of right guesses is known exactly, and against simulations."""

import itertools
import math

import numpy as np
import pytest
from scipy.stats import binom

from fedveil.audit.claim import Claim, Curve, GaussianCurve
from fedveil.audit.one_run import (
    Outcome,
    claim_p_value,
    epsilon_lower,
    guesses_each_way,
    p_value,
    pair_p_value,
    reachable,
)
from oracle.gaussian_accountant import GaussianAccountant

SIGNS = (-1, 1)


def laplace_claim(scale: float) -> Claim:
    """The exact curve of a number of sensitivity 1 with Laplace noise: delta = 1 - exp((epsilon - 1/scale)/2)."""
    return Claim(tuple((e, -math.expm1((e - 1 / scale) / 2)) for e in np.linspace(0, 1 / scale, 40)))


def simulated(kind: str, strength: float, canaries: int, audits: int, generator: np.random.Generator) -> np.ndarray:
    """Return the number of right guesses of so many audits of releases that have exactly the claimed curve."""
    coins = generator.random((audits, canaries)) < 0.5
    if kind == "gaussian":
        scores = strength * coins + generator.standard_normal(coins.shape)
    elif kind == "laplace":
        scores = coins + generator.laplace(scale=strength, size=coins.shape)
    else:
        scores = np.where(generator.random(coins.shape) < 1 / (1 + math.exp(-strength)), coins, ~coins).astype(float)
    each, order = guesses_each_way(canaries), np.argsort(scores, axis=1, kind="stable")
    lowest, highest = (np.take_along_axis(coins, part, axis=1) for part in (order[:, :each], order[:, -each:]))
    return np.asarray((~lowest).sum(axis=1) + highest.sum(axis=1))


CURVES: dict[str, tuple[str, float, Curve]] = {
    "gaussian 0.5": ("gaussian", 0.5, GaussianCurve(0.5)),
    "gaussian 1.5": ("gaussian", 1.5, GaussianCurve(1.5)),
    "laplace 1": ("laplace", 1.0, laplace_claim(1.0)),
    "laplace 4": ("laplace", 4.0, laplace_claim(4.0)),
    "randomised response 1": ("response", 1.0, Claim(((1.0, 0.0),))),
    "randomised response 3": ("response", 3.0, Claim(((3.0, 0.0),))),
}


@pytest.mark.parametrize("name", CURVES)
def test_right_releases_are_accused_at_most_at_the_stated_rate(name: str) -> None:
    """4000 audits a curve; more accusations than the 1e-7 quantile of binomial(4000, alarm) are a false p-value."""
    kind, strength, curve = CURVES[name]
    right = simulated(kind, strength, 150, 4000, np.random.default_rng(11))
    each = 2 * guesses_each_way(150)
    chances = np.array([p_value(Outcome(canaries=150, guesses=each, right=c), curve) for c in range(each + 1)])
    assert (np.diff(chances) <= 1e-6 * chances[:-1]).all()  # more right guesses are never less surprising
    for alarm in (0.5, 0.05, 0.01):
        assert np.sum(chances[right] <= alarm) <= binom.isf(1e-7, 4000, alarm)


def test_releases_with_too_little_noise_are_accused() -> None:
    """The test can fail: an eighth of the claimed noise shows at 1e-6, half of it at 5%, with 1000 canaries."""
    for times, claimed, alarm in ((8, 0.5, 1e-6), (2, 0.925, 0.05)):
        right = simulated("gaussian", times * claimed, 1000, 9, np.random.default_rng(5))
        chances = [p_value(Outcome(canaries=1000, guesses=252, right=int(c)), GaussianCurve(claimed)) for c in right]
        assert np.median(chances) < alarm


@pytest.mark.parametrize(("epsilon", "bar"), [(2.0, 0.75), (4.0, 1.8), (8.0, 4.0)])
def test_a_thousand_canaries_show_half_of_a_gaussian(epsilon: float, bar: float) -> None:
    accountant, mu = GaussianAccountant(), {2.0: 0.5018, 4.0: 0.9251, 8.0: 1.6655}[epsilon]
    assert abs(accountant.epsilon(mu, 1e-5) - epsilon) < 0.01
    right = simulated("gaussian", mu, 1000, 20, np.random.default_rng(2))
    shown = [epsilon_lower(Outcome(canaries=1000, guesses=252, right=int(c)), 1e-5, 0.05) for c in right]
    assert np.mean(shown) >= bar
    assert abs(reachable(GaussianCurve(mu), 1000, 1e-5, 0.05) - np.mean(shown)) < 0.25 * epsilon**0.5


def test_bounds_are_above_the_truth_no_more_often_than_stated() -> None:
    """3000 audits of Gaussian releases at 5%; 1e-7 for a false alarm of this test."""
    each = 2 * guesses_each_way(100)
    bounds = np.array(
        [epsilon_lower(Outcome(canaries=100, guesses=each, right=c), 1e-4, 0.05) for c in range(each + 1)]
    )
    for mu in (0.3, 1.0, 3.0):
        shown = bounds[simulated("gaussian", mu, 100, 3000, np.random.default_rng(7))]
        assert np.sum(shown > GaussianAccountant().epsilon(mu, 1e-4)) <= binom.isf(1e-7, 3000, 0.05)
    assert np.mean(shown) > 4.0  # it measures something


def right_guesses(coins: tuple[int, ...], guesses: tuple[int, ...]) -> int:
    return sum(t == c for t, c in zip(guesses, coins, strict=True) if t)


def exact_claim(law: dict[tuple[int, ...], np.ndarray]) -> Claim:
    """By definition: the largest hockey stick over all data sets and all coins, at many epsilons."""
    pairs = []
    for epsilon in np.linspace(0, 6, 60):
        found = 0.0
        for coins, first in law.items():
            for place in range(len(coins)):
                other = law[tuple(-c if k == place else c for k, c in enumerate(coins))]
                found = max(found, float(np.maximum(first - math.exp(epsilon) * other, 0).sum()))
        pairs.append((float(epsilon), min(1.0, found)))
    return Claim(tuple(pairs))


@pytest.mark.parametrize(("size", "guesses"), [(1, 1), (2, 1), (2, 2), (3, 1), (3, 2), (3, 3)])
def test_any_mechanism_on_few_coins(size: int, guesses: int) -> None:
    """Random laws, from nearly private to nearly deterministic, with abstentions: all enumerated, none above."""
    generator = np.random.default_rng(size * 10 + guesses)
    outputs = [t for t in itertools.product((-1, 0, 1), repeat=size) if sum(map(abs, t)) == guesses]
    room = math.inf
    for sharpness in (0.1, 1.0, 4.0):
        for _ in range(5):
            law = {}
            for coins in itertools.product(SIGNS, repeat=size):
                lean = np.array([right_guesses(coins, out) for out in outputs]) * generator.exponential(sharpness)
                weights = np.exp(lean + sharpness * generator.standard_normal(len(outputs)))
                law[coins] = weights / weights.sum()
            claim = exact_claim(law)
            for right in range(1, guesses + 1):
                exact = np.mean(
                    [
                        sum(p[k] for k, out in enumerate(outputs) if right_guesses(s, out) >= right)
                        for s, p in law.items()
                    ]
                )
                outcome = Outcome(canaries=size, guesses=guesses, right=right)
                bound = min(p_value(outcome, claim), pair_p_value(outcome, claim))
                assert exact <= bound + 1e-12, (sharpness, right)
                room = min(room, bound - exact)
    assert room < 0.2  # it says more than "at most 1" somewhere


def test_one_coin_is_exact() -> None:
    """With one coin the best guess is right with chance (1 + total variation)/2, and the bound says so."""
    for mu in (0.2, 1.0, 3.0):
        exact = float(GaussianCurve(mu).most(np.array([GaussianCurve(mu / 2).least(0.5)]))[0])
        assert p_value(Outcome(canaries=1, guesses=1, right=1), GaussianCurve(mu)) == pytest.approx(exact, rel=1e-5)


def test_nothing_released_is_a_fair_coin() -> None:
    """Under a curve that allows nothing the chance lies above the binomial law, and near it where it matters."""
    for right in range(30, 41):
        found = p_value(Outcome(canaries=100, guesses=40, right=right), GaussianCurve(0.0))
        exact = binom.sf(right - 1, 40, 0.5)
        assert exact <= found <= 3 * exact


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 4.0])
@pytest.mark.parametrize("delta", [0.0, 1e-6, 1e-3, 0.2])
@pytest.mark.parametrize("canaries", [1, 7, 100])
def test_randomised_response_that_sometimes_tells_all(epsilon: float, delta: float, canaries: int) -> None:
    """Each coin told outright with chance delta, else by randomised response: (epsilon, delta), and right by a law."""
    claim, share = Claim(((epsilon, delta),)), delta + (1 - delta) / (1 + math.exp(-epsilon))
    for right in range(canaries + 1):
        exact, outcome = binom.sf(right - 1, canaries, share), Outcome(canaries=canaries, guesses=canaries, right=right)
        assert exact <= pair_p_value(outcome, claim)
        assert delta > 0 or pair_p_value(outcome, claim) <= exact * (1 + 1e-8) + 1e-300
        if right % 10 == 0:
            assert exact <= p_value(outcome, claim)


def test_a_release_without_noise_breaks_a_claim_of_four() -> None:
    """Few guesses could not show it: the chance of all of them right is above 1e-4 under epsilon 4."""
    coins = np.random.default_rng(0).random(1000) < 0.5
    claim = Claim(tuple((GaussianCurve(0.925).epsilon_at(d), d) for d in (1e-7, 1e-5, 1e-3, 0.01, 0.1, 0.3)))
    assert claim_p_value(coins.astype(float), coins, claim) <= 1e-6
    assert p_value(Outcome(canaries=1000, guesses=252, right=252), claim) > 1e-4
