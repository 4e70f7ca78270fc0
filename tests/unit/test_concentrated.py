"""Concentrated privacy and Gaussian privacy: conversions, composition, groups."""

import math

import pytest

from fedveil.core.errors import CannotCertify
from fedveil.theory import concentrated
from fedveil.theory.concentrated import Concentrated
from fedveil.theory.divergence import gaussian_delta
from fedveil.theory.renyi import closed_epsilon, least_epsilon


@pytest.mark.parametrize("mu", [1e-3, 0.1, 1.0, 5.0, 40.0])
@pytest.mark.parametrize("delta", [1e-12, 1e-5, 0.1])
def test_the_gaussian_is_below_its_concentrated_bound(mu: float, delta: float) -> None:
    exact = concentrated.gaussian_epsilon(mu, delta)
    assert gaussian_delta(exact, mu) <= delta
    assert exact == 0 or gaussian_delta(exact * (1 - 1e-6), mu) > delta
    promise = Concentrated(mu * mu / 2)
    assert exact <= promise.epsilon(delta)
    assert promise.delta(promise.epsilon(delta)) <= delta * (1 + 1e-3)


@pytest.mark.parametrize("rho", [1e-6, 0.01, 0.5, 20.0])
def test_the_search_finds_the_best_order(rho: float) -> None:
    found = Concentrated(rho).epsilon(1e-5)
    fine = [1 + 10 ** (k / 400) for k in range(-1600, 2800)]
    best = min(fine, key=lambda alpha: closed_epsilon(alpha, rho * alpha, 1e-5))
    assert found <= least_epsilon(best, rho * best, 1e-5) * (1 + 1e-7)
    assert found < rho + 2 * math.sqrt(rho * math.log(1e5))  # the textbook conversion


def test_a_bound_on_fewer_orders_promises_less() -> None:
    full, cut = Concentrated(0.5), Concentrated(0.5, omega=2.0)
    assert cut.epsilon(1e-5) == pytest.approx(least_epsilon(2.0, 1.0, 1e-5), rel=1e-7)
    assert cut.epsilon(1e-5) > full.epsilon(1e-5)
    assert cut.delta(3.0) > full.delta(3.0)
    assert cut.zeta(2.0) == 1.0
    assert cut.zeta(2.001) == math.inf
    assert math.isfinite(Concentrated(0.5, omega=1 + 1e-9).epsilon(0.5))


def test_groups() -> None:
    assert Concentrated(0.5).group(3) == Concentrated(4.5)
    assert Concentrated(0.5**2 / 2).group(4) == Concentrated(2.0**2 / 2)  # four times the mu of a Gaussian
    with pytest.raises(CannotCertify, match="group of 4 needs omega above 4"):
        Concentrated(0.5, omega=4.0).group(4)


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("epsilon", [0.0, 1e-12, 0.3, 2.0])
def test_group_delta_is_the_sum_of_its_steps(epsilon: float, size: int) -> None:
    total, delta = concentrated.group_epsilon_delta(epsilon, 1e-9, size)
    steps = 1e-9 * math.fsum(math.exp(k * epsilon) for k in range(size))
    assert total == pytest.approx(size * epsilon)
    assert steps * (1 - 1e-14) <= delta <= steps * (1 + 1e-7)


def test_group_delta_covers_the_exact_gaussian() -> None:
    delta = gaussian_delta(1.0, 0.3)
    total, grown = concentrated.group_epsilon_delta(1.0, delta, 3)
    assert gaussian_delta(total, 3 * 0.3) <= grown


def test_group_delta_neither_overflows_nor_vanishes() -> None:
    assert concentrated.group_epsilon_delta(1e5, 1e-30, 10) == (1e6, 1.0)
    assert concentrated.group_epsilon_delta(1.0, 0.0, 10) == (10.0, 0.0)
    assert concentrated.group_epsilon_delta(1e308, 1e-9, 10) == (math.inf, 1.0)
    assert concentrated.group_epsilon_delta(0.0, 1.0, 3) == (0.0, 1.0)


@pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf])
def test_senseless_values_are_refused_at_birth(bad: float) -> None:
    with pytest.raises(ValueError, match=r"Concentrated\.rho must be finite and non-negative"):
        Concentrated(bad)
    with pytest.raises(ValueError, match="mu must be finite and non-negative"):
        concentrated.gaussian_epsilon(bad, 1e-5)
    with pytest.raises(ValueError, match="size must be a whole number"):
        concentrated.group_epsilon_delta(0.1, 1e-5, bad)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="epsilon must be finite and non-negative"):
        Concentrated(0.1).delta(bad)


@pytest.mark.parametrize("bad", [1.0, 0.0, math.nan])
def test_an_empty_range_of_orders_is_refused(bad: float) -> None:
    with pytest.raises(ValueError, match=r"Concentrated\.omega must be above 1"):
        Concentrated(0.5, omega=bad)
    with pytest.raises(ValueError, match="between must be two finite orders"):
        concentrated.epsilon_of_curve(lambda alpha: alpha, 1e-5, (bad, 2.0))


def test_a_curve_that_knows_nothing_promises_nothing() -> None:
    assert concentrated.epsilon_of_curve(lambda alpha: math.inf, 1e-5) == math.inf
    assert concentrated.delta_of_curve(lambda alpha: math.inf, 1.0) == 1.0
    with pytest.raises(ValueError, match="zeta must be non-negative"):
        concentrated.epsilon_of_curve(lambda alpha: math.nan, 1e-5)
