"""The papers' theorems, written out in fifty digits (misprints mended), against the linear contraction."""

import math
from itertools import pairwise
from typing import Any

import mpmath  # type: ignore[import-untyped]
import numpy as np
import pytest

from fedveil.core.values import Vector
from fedveil.theory.blocks import linear_contraction
from fedveil.theory.divergence import log_laplace, log_theta

EPSILONS = [0.0, 0.1, 1.0, 3.0]
Number = mpmath.mpf
Exact = Any  # mpmath has no types


def theta(epsilon: float, r: Exact) -> Exact:
    def tail(z: Exact) -> Exact:
        return mpmath.erfc(z / mpmath.sqrt(2)) / 2

    return tail(epsilon / r - r / 2) - mpmath.exp(epsilon) * tail(epsilon / r + r / 2)


def linear(epsilon: float, first: float, later: float, total: int) -> Vector:
    """Our bound for every place: ``first`` and ``later`` are distances over the round's noise."""
    start = log_theta(np.full(total, epsilon), np.full(total, first))
    return np.exp(linear_contraction(epsilon, start, np.full(total, later)))


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize(("n", "m", "sigma"), [(100, 10, 1.5), (100, 20, 1.5), (60, 1, 4.0), (40, 40, 2.0)])
def test_000_theorem_2(n: int, m: int, sigma: float, epsilon: float) -> None:
    eta, bound, radius = 0.5, 1.0, 0.3
    noise = eta * sigma / math.sqrt(m)
    ours = linear(epsilon, 2 * bound * eta / m / noise, 2 * radius / noise, n // m).mean()
    with mpmath.workdps(50):
        root = mpmath.sqrt(m)
        first, x = (
            theta(epsilon, 2 * bound / (root * sigma)),
            theta(epsilon, 2 * radius * root / (eta * sigma)),
        )
        closed = Number(m) / n * first * (1 - x ** (n // m)) / (1 - x)
        total = sum(first * x ** (n // m - t) for t in range(1, n // m + 1)) * m / n
    assert ours == pytest.approx(float(closed), rel=1e-9)
    assert ours == pytest.approx(float(total), rel=1e-9)


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("place", [1, 20, 36, 39, 40])
@pytest.mark.parametrize(("sigma", "eta", "lam", "beta"), [(2.0, 0.5, 0.0, 0.5), (1.0, 0.7, 0.2, 0.5)])
def test_003_theorem_4(sigma: float, eta: float, lam: float, beta: float, place: int, epsilon: float) -> None:
    n, diameter = 40, 1.0
    with mpmath.workdps(50):
        m = mpmath.sqrt(1 - 2 * Number(eta) * beta * lam / (beta + lam))
        later = m * diameter / (eta * sigma)
        expected = theta(epsilon, Number(2) / sigma) * theta(epsilon, later) ** (n - place)
    ours = linear(epsilon, 2.0 / sigma, float(later), n)[place - 1]
    assert ours == pytest.approx(float(expected), rel=1e-9, abs=1e-300)
    sharper = max(abs(1 - eta * lam), abs(1 - eta * beta))  # our Lipschitz constant
    assert linear(epsilon, 2.0 / sigma, sharper * diameter / (eta * sigma), n)[place - 1] <= ours * (1 + 1e-12)


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 1.0, 1.9, 2.1])
@pytest.mark.parametrize("place", [1, 5, 10])
def test_003_theorem_3(place: int, epsilon: float) -> None:
    n, bound, v, eta, m, width = 10, 1.0, 1.0, 0.3, 0.9, 1.0
    with mpmath.workdps(50):
        first = max(Number(0), 1 - mpmath.exp(Number(epsilon) / 2 - bound / v))
        later = max(Number(0), 1 - mpmath.exp(Number(epsilon) / 2 - m * width / (2 * eta * v)))
        expected = float(first * later ** (n - place))
    scale = eta * v
    start = log_laplace(np.full(n, epsilon), np.full(n, 2 * bound * eta / scale))
    log_ours = linear_contraction(epsilon, start, np.full(n, m * width / scale), log_laplace)
    assert float(np.exp(log_ours[place - 1])) == pytest.approx(expected, rel=1e-9)
    if place == n:  # the last record is safe from 2 L / v on, not from the lesser of the two thresholds
        assert (expected == 0) == (epsilon >= 2 * bound / v)


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("total", [1, 7, 40])
def test_003_theorem_5_and_its_finite_sum(total: int, epsilon: float) -> None:
    sigma, eta, m, diameter = 2.0, 0.5, 0.95, 1.0
    ours = linear(epsilon, 2 / sigma, m * diameter / (eta * sigma), total).mean()
    with mpmath.workdps(50):
        first, x = theta(epsilon, Number(2) / sigma), theta(epsilon, m * Number(diameter) / (eta * sigma))
        finite = first * (1 - x**total) / (1 - x) / total
        printed = first / (1 - x) / total  # as in the paper: the geometric series not cut off
    assert ours == pytest.approx(float(finite), rel=1e-9)
    assert ours <= float(printed) * (1 + 1e-12)


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_random_stopping_without_convexity(epsilon: float) -> None:
    eta, sigma, bound, diameter, total = 0.05, 5.0, 1.0, 1.0, 100
    far = (diameter + 2 * eta * bound) / (eta * sigma)
    ours = linear(epsilon, 2 * bound / sigma, far, total).mean()
    with mpmath.workdps(50):
        first, x = theta(epsilon, Number(2) * bound / sigma), theta(epsilon, Number(far))
        expected = first * (1 - x**total) / (1 - x) / total
    assert ours == pytest.approx(float(expected), rel=1e-9)


def test_earlier_places_are_safer() -> None:
    values = linear(1.0, 1.0, 2.0, 30)
    assert all(early < late for early, late in pairwise(values))
