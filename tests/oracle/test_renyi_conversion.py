"""The conversions against the definition they solve, in sixty digits, and against coins that attain them."""

import math
import random
from collections.abc import Callable

import mpmath
import numpy as np
import pytest
from dp_accounting.rdp import rdp_privacy_accountant as peer

from fedveil.theory import renyi
from fedveil.theory.divergence import hockey_stick
from fedveil.theory.numerics import ROUNDING

REFERENCE = [(2.0, 0.1, 7.87484, 8.5678, 11.6129), (10.0, 1.0, 1.917997, 1.918011, 2.279214)]


@mpmath.workdps(60)
def zeta_by_definition(alpha: float, epsilon: float, delta: float) -> mpmath.mpf:
    """The minimum over p of the printed formula, found where its derivative changes sign."""
    order, e, d = mpmath.mpf(alpha), mpmath.mpf(epsilon), mpmath.mpf(delta)
    if order * d >= 1:
        return e - mpmath.log(1 - d)
    a, width, rest = order - 1, 1 - order * d, mpmath.expm1(e) + d

    def logs(t: mpmath.mpf) -> tuple[mpmath.mpf, ...]:
        above, below = width / (1 + mpmath.exp(-t)), width / (1 + mpmath.exp(t))  # p - alpha delta, 1 - p
        parts = above, order * d + above, a * d + above, below, rest + below
        return (*map(mpmath.log, parts), mpmath.log(order * rest + below))

    def rising(t: mpmath.mpf) -> bool:
        above, p, past, below, other, slope = logs(t)
        return bool(above + a * p - order * past > slope + a * below - order * other)

    low, high = mpmath.mpf(-(10**12)), mpmath.mpf(10**12)
    for _ in range(180):
        middle = (low + high) / 2
        low, high = (low, middle) if rising(middle) else (middle, high)
    _, p, past, below, other, _ = logs(low)
    first, second = order * p - a * past, order * below - a * other
    top = max(first, second)
    return e + (top + mpmath.log(mpmath.exp(first - top) + mpmath.exp(second - top))) / a


def questions(count: int) -> list[tuple[float, float, float, float]]:
    """Orders, epsilons, deltas and zetas spread over everything that is meant to be answered."""
    draw = random.Random(5)
    made = []
    for turn in range(count):
        delta = 10 ** draw.uniform(-30, -0.01) if turn % 8 else 1 - 10 ** draw.uniform(-9, -0.5)
        epsilon = 10 ** draw.uniform(-6, 4) if turn % 9 else 0.0
        made.append((1 + 10 ** draw.uniform(-4, 6), epsilon, delta, 10 ** draw.uniform(-10, 5)))
    return made


QUESTIONS = questions(60)


@pytest.mark.parametrize(("alpha", "zeta", "exact", "closed", "mironov"), REFERENCE)
def test_published_values(alpha: float, zeta: float, exact: float, closed: float, mironov: float) -> None:
    assert renyi.least_epsilon(alpha, zeta, 1e-5) == pytest.approx(exact, abs=5e-6)
    assert renyi.closed_epsilon(alpha, zeta, 1e-5) == pytest.approx(closed, abs=5e-5)
    assert renyi.mironov_epsilon(alpha, zeta, 1e-5) == pytest.approx(mironov, abs=5e-5)


@pytest.mark.parametrize(("alpha", "epsilon", "delta", "_zeta"), QUESTIONS)
def test_zeta_is_the_minimum_from_below(alpha: float, epsilon: float, delta: float, _zeta: float) -> None:
    truth = zeta_by_definition(alpha, epsilon, delta)
    found = renyi.largest_zeta(alpha, epsilon, delta)
    assert found <= truth
    assert found == pytest.approx(float(truth), rel=1e-8, abs=1e-14)


@pytest.mark.parametrize(("alpha", "_epsilon", "delta", "zeta"), QUESTIONS)
def test_epsilon_is_the_inverse_from_above(alpha: float, _epsilon: float, delta: float, zeta: float) -> None:
    found = renyi.least_epsilon(alpha, zeta, delta)
    assert zeta_by_definition(alpha, found, delta) >= zeta
    less = found * (1 - 1e-9) - 1e-12
    assert less < 0 or zeta_by_definition(alpha, less, delta) < zeta


@pytest.mark.parametrize(("alpha", "epsilon", "_delta", "zeta"), QUESTIONS)
def test_delta_is_the_inverse_from_above(alpha: float, epsilon: float, _delta: float, zeta: float) -> None:
    found = renyi.least_delta(alpha, zeta, epsilon)
    assert found == 1 or zeta_by_definition(alpha, epsilon, found) >= zeta
    less = found * (1 - 1e-4) - 1e-13  # at order 1e6 and epsilon 1e4 an ulp of epsilon moves delta by 1e-6
    assert less <= 0 or zeta_by_definition(alpha, epsilon, less) < zeta


def bernoulli_with_divergence(alpha: float, zeta: float, p: float) -> float:
    """The q < p at which Bernoulli(p) is exactly zeta away from Bernoulli(q), by bisection on log q."""

    def divergence(log_q: float) -> float:
        terms = [
            alpha * math.log(p) + (1 - alpha) * log_q,
            alpha * math.log1p(-p) + (1 - alpha) * math.log(-math.expm1(log_q)),
        ]
        return float(np.logaddexp(*terms)) / (alpha - 1)

    low, high = math.log(p) - 2 * zeta - 200 / min(alpha - 1, 1), math.log(p)
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if divergence(middle) > zeta else (low, middle)
    return math.exp(high)


def greatest(value: Callable[[float], float], alpha: float, delta: float) -> float:
    """The greatest value over coins p = 1/(1 + e^-t): a wide grid, then a finer one about its best point."""
    centre = min(alpha * delta, 0.5)
    middle = math.log(centre / (1 - centre))
    low, high = middle - 12, middle + 14
    for _ in range(3):
        grid = np.linspace(low, high, 201).tolist()
        values = [value(1 / (1 + math.exp(-t))) for t in grid]
        place = int(np.argmax(values))
        low, high = grid[max(place - 1, 0)], grid[min(place + 1, 200)]
    return max(values)


@pytest.mark.parametrize(
    ("alpha", "zeta", "delta"), [(2, 0.1, 1e-5), (10, 1, 1e-5), (1.5, 2, 1e-3), (30, 0.05, 1e-4), (3, 1, 0.2)]
)
def test_no_coins_break_the_promise_and_some_attain_it(alpha: float, zeta: float, delta: float) -> None:
    epsilon = renyi.least_epsilon(alpha, zeta, delta)

    def broken_by(p: float) -> float:
        q = bernoulli_with_divergence(alpha, zeta, p)
        return hockey_stick(np.array([p, 1 - p]), np.array([q, 1 - q]), epsilon)

    def epsilon_needed(p: float) -> float:
        return math.log((p - delta) / bernoulli_with_divergence(alpha, zeta, p)) if p > delta else 0.0

    worst = greatest(broken_by, alpha, delta)
    assert delta * (1 - 1e-6) <= worst <= delta * (1 + 1e-9)
    assert epsilon - 1e-6 <= greatest(epsilon_needed, alpha, delta) <= epsilon + 1e-9


@pytest.mark.parametrize("alpha", [2, 3, 8, 20])
@pytest.mark.parametrize(("q", "sigma"), [(0.01, 1.0), (0.3, 0.7), (1e-4, 4.0)])
def test_the_binomial_sum_is_the_integral(alpha: int, q: float, sigma: float) -> None:
    with mpmath.workdps(40):
        rate, noise = mpmath.mpf(q), mpmath.mpf(sigma)

        def moment(x: mpmath.mpf) -> mpmath.mpf:
            ratio = 1 - rate + rate * mpmath.exp((2 * x - 1) / (2 * noise**2))
            return mpmath.npdf(x, 0, noise) * ratio**alpha

        reach = alpha + 14 * noise
        points = [-14 * noise, *[k * reach / 12 for k in range(13)]]
        expected = float(mpmath.log(mpmath.quad(moment, points)) / (alpha - 1))
    assert renyi.renyi_sampled_gaussian(alpha, q, sigma) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("alpha", [2, 16, 64, 1000])
@pytest.mark.parametrize(("q", "sigma"), [(0.01, 1.0), (0.5, 2.0), (1.0, 3.0)])
def test_a_peer_has_the_same_sampled_gaussian(alpha: int, q: float, sigma: float) -> None:
    expected = float(peer._compute_rdp_poisson_subsampled_gaussian(q, sigma, [alpha])[0])
    assert renyi.renyi_sampled_gaussian(alpha, q, sigma) == pytest.approx(expected, rel=1e-7)


def test_never_above_the_peer_over_the_same_orders() -> None:
    orders = np.arange(2, 200)
    zetas = [1000 * renyi.renyi_sampled_gaussian(int(order), 0.01, 1.0) for order in orders]
    epsilon, order = renyi.epsilon_over_orders(orders, zetas, 1e-5)
    theirs, _ = peer.compute_epsilon(orders, np.array(zetas), 1e-5)
    assert 0.9 * theirs < epsilon <= theirs * (1 + 1e-8)
    assert order in orders


@pytest.mark.parametrize("seed", range(12))
def test_orders_that_are_given_up_would_not_have_been_the_best(seed: int) -> None:
    draw = np.random.default_rng(seed)
    orders = np.array([*range(2, 40), 64, 128, 512], dtype=np.float64)
    rate, sigma, times = 10 ** draw.uniform(-3, 0), 10 ** draw.uniform(-0.3, 1.5), 10 ** draw.integers(0, 4)
    zetas = times * np.array([renyi.renyi_sampled_gaussian(int(order), rate, sigma) for order in orders])
    if seed % 3 == 0:  # a curve that no mechanism has: its best order may be anywhere
        zetas *= 10 ** draw.uniform(-0.5, 0.5, orders.size)
    inflated = (zetas * (1 + ROUNDING)).tolist()
    delta = 10 ** draw.uniform(-12, -1)
    every = [renyi.least_epsilon(order, zeta, delta) for order, zeta in zip(orders.tolist(), inflated, strict=True)]
    assert renyi.epsilon_over_orders(orders, zetas, delta)[0] == min(every)
    epsilon = min(every) * draw.uniform(0.5, 1.5)
    every = [renyi.least_delta(order, zeta, epsilon) for order, zeta in zip(orders.tolist(), inflated, strict=True)]
    assert renyi.delta_over_orders(orders, zetas, epsilon)[0] == min(every)


@pytest.mark.parametrize("r", [1e-6, 0.01, 0.1, 0.7, 3.0, 40.0])
@pytest.mark.parametrize("alpha", [1.0001, 1.5, 2.0, 30.0, 1e4])
def test_laplace_is_its_closed_form(alpha: float, r: float) -> None:
    with mpmath.workdps(60):
        order, x = mpmath.mpf(alpha), mpmath.mpf(r)
        ends = order * mpmath.exp((order - 1) * x) + (order - 1) * mpmath.exp(-order * x)
        expected = float(mpmath.log(ends / (2 * order - 1)) / (order - 1))
    assert renyi.renyi_laplace(alpha, r) == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("alpha", [1.5, 3.0])
def test_laplace_is_the_integral(alpha: float) -> None:
    def moment(x: mpmath.mpf) -> mpmath.mpf:
        return mpmath.exp(-alpha * abs(x) - (1 - alpha) * abs(x - 1)) / 2

    expected = float(mpmath.log(mpmath.quad(moment, [-60, -10, 0, 1, 10, 60])) / (alpha - 1))
    assert renyi.renyi_laplace(alpha, 1.0) == pytest.approx(expected, rel=1e-9)
