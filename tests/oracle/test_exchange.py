"""An exchange under independent draws: two likelihood ratios that share their normal variables, by other means."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import norm

from fedveil import account_for
from fedveil.privacy.mechanism import IndependentGaussian, LastIterate, Repeat
from fedveil.theory.allocation import AllocationLaw, Summands
from fedveil.theory.composition import profile, two_hops
from fedveil.theory.concentrated import gaussian_epsilon
from fedveil.theory.divergence import log_theta
from fedveil.theory.exchange import exchange_delta, exchange_epsilon, exchange_law

DELTA = 1e-5


def by_quadrature(mus: tuple[float, ...], shares: tuple[float, ...], epsilon: float) -> float:
    """The definition, on a grid of two normal variables; the third (if any) as well."""
    x = np.linspace(-8.5, 8.5, 161 if len(mus) == 3 else 1501)
    mass = norm.pdf(x) * (x[1] - x[0])
    ahead, back, weight = np.zeros(1), np.zeros(1), np.ones(1)
    for mu, share in zip(mus, shares, strict=True):
        ahead = np.add.outer(ahead, share * np.exp(mu * x - mu * mu / 2)).ravel()
        back = np.add.outer(back, share * np.exp(-mu * x - mu * mu / 2)).ravel()
        weight = np.multiply.outer(weight, mass).ravel()
    return float(weight @ np.maximum(ahead - math.exp(epsilon) * back, 0.0))


@pytest.mark.parametrize(
    ("mus", "shares"),
    [((0.5, 0.5), (0.5, 0.5)), ((0.2, 1.1), (0.7, 0.3)), ((1.2, 0.3), (0.1, 0.9)), ((0.4, 0.4, 0.9), (0.4, 0.4, 0.2))],
)
@pytest.mark.parametrize("epsilon", [0.0, 0.2, 0.9, 2.5])
def test_it_is_the_definition_from_above(mus: tuple[float, ...], shares: tuple[float, ...], epsilon: float) -> None:
    summands: Summands = tuple((((mu, share),), 1) for mu, share in zip(mus, shares, strict=True))
    exact, found = by_quadrature(mus, shares, epsilon), exchange_delta(summands, epsilon)
    assert exact * (1 - 2e-4) <= found <= exact * (1 + 3e-3) + 1e-9


@pytest.mark.parametrize("mu", [0.01, 0.3, 1.5])
@pytest.mark.parametrize("scale", [0.0, 1.0, 3.0])
def test_one_round_is_twice_the_distance(mu: float, scale: float) -> None:
    epsilon = scale * 2 * mu
    exact = math.exp(float(log_theta(epsilon, np.array([2 * mu]))[0]))
    found = exchange_delta(((((mu, 1.0),), 1),), epsilon, 1e-8)
    assert exact <= found * (1 + 1e-9)
    assert found <= exact * 1.005 + 1e-7


def test_never_more_than_two_hops_and_much_less_where_the_ratio_is_skew() -> None:
    for rounds, noise, most in ((50, 2.683, 0.3616), (500, 1.0, 0.3330), (20, 1.0, 2.01)):
        summands: Summands = ((((1 / noise, 1 / rounds),), rounds),)
        ahead, back = (AllocationLaw(summands, way, tail=1e-9) for way in ("present", "null"))
        hops = two_hops(profile([(ahead, 1)]), profile([(back, 1)]))[1](DELTA)
        together = exchange_epsilon(summands, DELTA, hops)
        assert gaussian_epsilon(2 / (noise * math.sqrt(rounds)), DELTA) <= together <= most < hops


@pytest.mark.parametrize(("rounds", "noise"), [(50, 2.683), (50, 10.0), (1000, 10.0), (5000, 20.0)])
def test_in_the_gaussian_limit_it_is_twice_the_distance(rounds: int, noise: float) -> None:
    run = LastIterate(
        rounds=rounds,
        order="independent",
        batch=20,
        step_size=0.5,
        lipschitz=1.0,
        smoothness=0.1,
        noise_std=noise / math.sqrt(20),
    )
    limit = gaussian_epsilon(2 / (noise * math.sqrt(rounds)), DELTA)
    seen = account_for(
        IndependentGaussian(rounds=rounds, noise_multiplier=noise, neighbours="replace-one"), delta=DELTA
    )
    for found in (account_for(run, delta=DELTA).epsilon, seen.epsilon):
        assert limit * 0.9999 <= found <= 1.01 * limit


def test_passes_compose() -> None:
    once = IndependentGaussian(rounds=50, noise_multiplier=2.683, neighbours="replace-one")
    found = account_for(Repeat(of=once, times=4), delta=DELTA).epsilon
    assert gaussian_epsilon(2 * math.sqrt(4 / 50) / 2.683, DELTA) <= found <= 0.772  # two hops: 0.798
    law = exchange_law(AllocationLaw(((((0.5, 0.1),), 10),)))
    for epsilon in (0.0, 0.3, 1.0):
        tails = law.tails(np.array([epsilon]))
        exact = exchange_delta(((((0.5, 0.1),), 10),), epsilon)
        assert exact * (1 - 1e-6) <= float(tails.p_above[0] - math.exp(epsilon) * tails.q_above[0]) <= 1.02 * exact


@pytest.mark.parametrize("mu", [0.05, 0.3])
@pytest.mark.parametrize("far", [5.5, 6.5, 7.2])
def test_tiny_deltas_are_relative(mu: float, far: float) -> None:
    exact = math.exp(float(log_theta(2 * mu * far, np.array([2 * mu]))[0]))
    delta = exchange_delta(((((mu, 1.0),), 1),), 2 * mu * far, 1e-3 * exact)
    assert exact <= delta <= 1.03 * exact


def test_a_pass_at_a_tiny_delta_is_near_its_gaussian_limit() -> None:
    run = LastIterate(rounds=170, order="independent", step_size=0.5, lipschitz=1.0, smoothness=1.0, noise_std=3.52)
    limit = gaussian_epsilon(2 * math.sqrt(math.expm1(3.52**-2) / 170), 1e-12)
    assert 0.9 * limit < account_for(run, delta=1e-12).epsilon < 1.02 * limit
    assert account_for(replace(run, neighbours="zero-out"), delta=1e-12).epsilon < 1.02 * limit
