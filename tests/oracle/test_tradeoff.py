"""Trade-off functions against closed forms, linear programs over all tests, and another accountant."""

import math

import mpmath
import numpy as np
import pytest
from scipy.integrate import quad
from scipy.optimize import linprog
from scipy.spatial import ConvexHull
from scipy.stats import binom, norm

from fedveil.core.values import Vector
from fedveil.theory.central_limit import central_limit
from oracle.tradeoff import (
    GaussianTradeOff,
    TradeOff,
    approximate_dp,
    delta_of,
    epsilon_of,
    evaluate,
)
from oracle.tradeoff_limits import quieter_last_pass, shuffled_passes
from oracle.tradeoff_ops import (
    chain,
    group,
    sampled_one_way,
    sharpen,
    strongest,
    subsample,
    symmetrise,
    tensor,
    tensor_power,
    weakest,
)
from oracle.tradeoff_thin import discretise

ALPHAS = np.concatenate((np.logspace(-14, -1, 40), np.linspace(0.1, 1.0, 40)))
LEVELS = [0.0, 0.01, 0.2, 0.5, 0.9, 1.0]


def least_type_two_error(p: Vector, q: Vector, alpha: float) -> float:
    """The definition: the best randomised test, by linear programming."""
    best = linprog(-q, A_ub=p[None, :], b_ub=[alpha], bounds=(0, 1))
    assert best.fun is not None
    return 1 + float(best.fun)


def random_pair(seed: int, atoms: int = 6) -> tuple[Vector, Vector]:
    rng = np.random.default_rng(seed)
    p, q = rng.dirichlet(np.ones(atoms), size=2)
    p[0], q[1] = 0.0, 0.0  # outputs that give one of the laws away
    return p / p.sum(), q / q.sum()


@pytest.mark.parametrize("mu", [0.1, 1.0, 4.0])
@pytest.mark.parametrize("alpha", [1e-12, 0.05, 0.7])
def test_gaussian_is_its_definition(mu: float, alpha: float) -> None:
    with mpmath.workdps(40):
        cut = mpmath.findroot(lambda x: mpmath.ncdf(-x) / alpha - 1, -norm.ppf(alpha))
        expected = float(mpmath.ncdf(cut - mu))
    assert float(evaluate(GaussianTradeOff(mu), alpha)) == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("mu", [1e-3, 0.1, 1.0, 5.0])
def test_tangents_lie_below_and_near(mu: float) -> None:
    exact, knots = GaussianTradeOff(mu), discretise(GaussianTradeOff(mu))
    gap = evaluate(exact, ALPHAS) - evaluate(knots, ALPHAS)
    assert np.all(gap >= -2e-15)
    assert np.all(gap <= 1e-4 * mu)
    for delta in (1e-3, 1e-6, 1e-12):
        true = epsilon_of(exact, delta)
        assert true * (1 - 1e-8) <= epsilon_of(knots, delta) <= true * 1.001 + 1e-12


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("alpha", LEVELS)
def test_a_pair_gives_the_best_test(seed: int, alpha: float) -> None:
    p, q = random_pair(seed)
    expected = least_type_two_error(p, q, alpha)
    assert float(evaluate(TradeOff(p, q), alpha)) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("alpha", LEVELS)
def test_the_tensor_product_is_the_best_test_of_both(seed: int, alpha: float) -> None:
    (p, q), (r, s) = random_pair(seed, 4), random_pair(seed + 50, 5)
    product = tensor(TradeOff(p, q), TradeOff(r, s))
    expected = least_type_two_error(np.outer(p, r).ravel(), np.outer(q, s).ravel(), alpha)
    assert float(evaluate(product, alpha)) == pytest.approx(expected, abs=1e-9)


def test_knots_compose_like_the_closed_form() -> None:
    small = discretise(GaussianTradeOff(0.25), 400)
    composed, exact = tensor_power(small, 16, size=400), GaussianTradeOff(1.0)
    assert np.all(evaluate(composed, ALPHAS) <= evaluate(exact, ALPHAS) + 1e-13)
    for delta in (1e-3, 1e-6, 1e-10):
        assert epsilon_of(exact, delta) <= epsilon_of(composed, delta) <= 1.005 * epsilon_of(exact, delta)


@pytest.mark.parametrize("times", [1, 10, 100])
def test_randomised_response_composes_like_the_binomial(times: int) -> None:
    epsilon, lies = 1.0, np.arange(times + 1)
    truth = 1 / (1 + math.exp(-epsilon))
    p, q = binom.pmf(lies, times, truth), binom.pmf(lies, times, 1 - truth)
    composed = tensor_power(approximate_dp(epsilon, 0.0), times)
    assert np.allclose(evaluate(composed, ALPHAS), evaluate(TradeOff(p, q), ALPHAS), rtol=0, atol=1e-12)
    assert epsilon_of(composed, 1e-5) == pytest.approx(epsilon_of(TradeOff(p, q), 1e-5), rel=1e-9)


@pytest.mark.parametrize("rate", [0.01, 0.3, 1.0])
@pytest.mark.parametrize("mu", [0.5, 2.0])
def test_sampling_is_the_hull_of_both_mixture_tests(rate: float, mu: float) -> None:
    cut = np.linspace(-9, 9 + mu, 4001)
    first, second = norm.sf(cut), (1 - rate) * norm.cdf(cut) + rate * norm.cdf(cut - mu)
    corners = np.array([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    points = np.concatenate((np.stack((first, second), 1), np.stack((second, first), 1), corners))
    vertices = points[ConvexHull(points).vertices]
    lower = vertices[vertices.sum(axis=1) <= 1 + 1e-12]
    lower = lower[np.argsort(lower[:, 0])]
    alpha = np.linspace(0.001, 0.999, 200)
    expected = np.interp(alpha, lower[:, 0], lower[:, 1])
    got = evaluate(subsample(GaussianTradeOff(mu), rate), alpha)
    assert np.all(got <= expected + 1e-12)
    assert np.all(got >= expected - 3e-4 * rate * mu)


@pytest.mark.parametrize("epsilon", [0.0, 0.01, 0.5, 1.0])
def test_sampled_profile_is_the_worse_integral(epsilon: float) -> None:
    rate, mu = 0.1, 1.0

    def excess(x: float, sign: int) -> float:
        plain, mixed = norm.pdf(x), (1 - rate) * norm.pdf(x) + rate * norm.pdf(x - mu)
        one, other = (mixed, plain) if sign > 0 else (plain, mixed)
        return max(float(one - math.exp(epsilon) * other), 0.0)

    both = [quad(excess, -10, 11, args=(sign,), points=[0.5, 2.0, 3.0], limit=500)[0] for sign in (1, -1)]
    got = float(delta_of(subsample(GaussianTradeOff(mu), rate), epsilon))
    assert max(both) - 1e-9 <= got <= max(both) * 1.003 + 1e-9


def test_sampled_composition_agrees_with_another_accountant() -> None:
    pld = pytest.importorskip("dp_accounting.pld.privacy_loss_distribution")
    peer = pld.from_gaussian_mechanism(1.0, sampling_prob=0.05, value_discretization_interval=1e-3)
    one_way = sampled_one_way(GaussianTradeOff(1.0), 0.05, size=500)
    ours = symmetrise(tensor_power(one_way, 32, size=500), size=2000)
    for delta in (1e-3, 1e-5, 1e-8):
        theirs = peer.self_compose(32).get_epsilon_for_delta(delta)
        assert theirs * 0.999 <= epsilon_of(ours, delta) <= theirs * 1.01


def test_symmetrising_every_round_only_loses() -> None:
    late = symmetrise(tensor_power(sampled_one_way(GaussianTradeOff(1.0), 0.05, 300), 16, 300), 300)
    early = tensor_power(subsample(GaussianTradeOff(1.0), 0.05, 300), 16, 300)
    assert epsilon_of(late, 1e-5) < epsilon_of(early, 1e-5)


def test_groups_of_a_gaussian() -> None:
    exact, knots = GaussianTradeOff(1.5), group(discretise(GaussianTradeOff(0.5)), 3)
    assert np.all(evaluate(knots, ALPHAS) <= evaluate(exact, ALPHAS) + 1e-14)
    assert epsilon_of(knots, 1e-6) == pytest.approx(epsilon_of(exact, 1e-6), rel=1e-3)


def test_chain_is_composition_of_functions() -> None:
    f, g = TradeOff(*random_pair(3)), TradeOff(*random_pair(8))
    expected = evaluate(g, 1 - evaluate(f, ALPHAS))
    assert np.allclose(evaluate(chain(f, g), ALPHAS), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_maximum_is_pointwise_and_minimum_its_hull(seed: int) -> None:
    f, g = TradeOff(*random_pair(seed)), TradeOff(*random_pair(seed + 20))
    alpha = np.linspace(0, 1, 2001)
    values = np.stack((evaluate(f, alpha), evaluate(g, alpha)))
    assert np.allclose(evaluate(strongest(f, g), alpha), values.max(axis=0), rtol=0, atol=1e-12)
    low = values.min(axis=0)
    corners = [[1.0, 1.0], [0.0, 1.0]]
    knots = np.concatenate([np.stack((c.alpha, c.beta), 1) for c in (f, g)])
    points = np.concatenate((np.stack((alpha, low), 1), knots, corners))
    vertices = points[ConvexHull(points).vertices]
    lower = vertices[~((vertices[:, 1] == 1) & (vertices[:, 0] == 1))]
    lower = lower[np.lexsort((-lower[:, 1], lower[:, 0]))]
    start = np.flatnonzero(lower[:, 0] == 0)[-1]
    expected = np.interp(alpha, lower[start:, 0], lower[start:, 1])
    assert np.allclose(evaluate(weakest(f, g), alpha), expected, rtol=0, atol=1e-9)
    assert np.all(evaluate(sharpen(f), alpha) >= evaluate(f, alpha) - 1e-12)


def test_central_limit_is_the_formula() -> None:
    with mpmath.workdps(40):
        x = mpmath.mpf(1) / 50
        inside = mpmath.exp(x**2) * mpmath.ncdf(1.5 * x) + 3 * mpmath.ncdf(-x / 2) - 2
        expected = float(mpmath.mpf("0.01") * mpmath.sqrt(2 * 1000 * inside))
    answer = central_limit(noise_multiplier=50.0, rate=0.01, rounds=1000)
    assert answer == pytest.approx(expected, rel=1e-12)


def test_central_limit_is_near_the_symmetrised_product() -> None:
    product = tensor_power(subsample(GaussianTradeOff(0.5), 0.02, 400), 512, 400)
    near = GaussianTradeOff(central_limit(noise_multiplier=2.0, rate=0.02, rounds=512))
    assert np.max(np.abs(evaluate(product, ALPHAS) - evaluate(near, ALPHAS))) < 0.01


def test_shuffled_passes_bracket_one_gaussian_a_pass() -> None:
    low, high = shuffled_passes(noise_multiplier=4.0, passes=20, members=2)
    plain = quieter_last_pass(noise_multiplier=4.0, passes=20, last_noise_multiplier=4.0, members=2)
    assert plain.curve.mu == pytest.approx(math.sqrt(40) / 4)
    assert low.curve.mu == pytest.approx(math.sqrt((1 + 1 / math.sqrt(80)) * 40) / 4)
    assert high.curve.mu < plain.curve.mu < low.curve.mu
