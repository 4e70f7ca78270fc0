"""Laws of the conversions: safe on every round trip, monotone in every argument, never below zero."""

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp

from fedveil.core.values import Vector
from fedveil.theory import renyi
from fedveil.theory.divergence import hockey_stick, laplace_delta, log_gaussian_delta


def powers(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(low, high).map(lambda power: 10.0**power)


orders = powers(-4, 6).map(lambda above: 1 + above)
zetas = st.one_of(st.just(0.0), powers(-10, 5))
epsilons = st.one_of(st.just(0.0), powers(-6, 4))
deltas = st.one_of(powers(-30, -0.001), powers(-9, -0.5).map(lambda short: 1 - short))
factors = st.floats(1.0, 3.0)
SLACK = 1e-8


def renyi_finite(alpha: float, p: Vector, q: Vector) -> float:
    """ln(sum p**alpha q**(1 - alpha)) / (alpha - 1): the definition, for laws without zeros."""
    log_p, log_q = np.log(p), np.log(q)
    return max(0.0, float(logsumexp(log_p + (alpha - 1) * (log_p - log_q))) / (alpha - 1))


def close_above(larger: float, smaller: float) -> bool:
    """At least as large, up to what rounding on the safe side may add to either."""
    return larger >= smaller - SLACK * smaller - 1e-12


@given(alpha=orders, zeta=zetas, delta=deltas)
def test_epsilon_lies_between_zero_and_the_closed_bounds(alpha: float, zeta: float, delta: float) -> None:
    exact, closed = renyi.least_epsilon(alpha, zeta, delta), renyi.closed_epsilon(alpha, zeta, delta)
    assert exact >= 0
    assert close_above(closed, exact)
    assert zeta == 0 or close_above(renyi.mironov_epsilon(alpha, zeta, delta), closed)


@given(alpha=orders, zeta=zetas, delta=deltas)
def test_there_and_back_from_zeta(alpha: float, zeta: float, delta: float) -> None:
    epsilon = renyi.least_epsilon(alpha, zeta, delta)
    back = renyi.largest_zeta(alpha, epsilon, delta)
    assert close_above(back, zeta)
    assert epsilon == 0 or back <= zeta * (1 + 1e-6) + 1e-9


@given(alpha=orders, epsilon=epsilons, delta=deltas)
def test_there_and_back_from_epsilon(alpha: float, epsilon: float, delta: float) -> None:
    zeta = renyi.largest_zeta(alpha, epsilon, delta)
    assert 0 <= zeta < math.inf
    assert renyi.least_epsilon(alpha, zeta, delta) <= epsilon * (1 + SLACK) + 1e-9
    assert renyi.least_delta(alpha, zeta, epsilon) <= delta * (1 + 1e-4) + 1e-13


@given(alpha=orders, zeta=zetas, delta=deltas, epsilon=epsilons, factor=factors)
def test_epsilon_and_delta_grow_with_zeta(
    alpha: float, zeta: float, delta: float, epsilon: float, factor: float
) -> None:
    more = zeta * factor
    assert close_above(renyi.least_epsilon(alpha, more, delta), renyi.least_epsilon(alpha, zeta, delta))
    before, after = renyi.least_delta(alpha, zeta, epsilon), renyi.least_delta(alpha, more, epsilon)
    assert 0 <= before <= 1
    assert after >= before * (1 - 1e-4)


@given(alpha=orders, zeta=zetas, delta=deltas, factor=factors)
def test_epsilon_falls_with_delta_and_with_the_order(alpha: float, zeta: float, delta: float, factor: float) -> None:
    here = renyi.least_epsilon(alpha, zeta, delta)
    assert close_above(here, renyi.least_epsilon(alpha, zeta, min(delta * factor, 1 - 1e-9)))
    # A bound on a higher order is the stronger promise, for the divergence grows with its order.
    assert close_above(here, renyi.least_epsilon(1 + (alpha - 1) * factor, zeta, delta))


@given(alpha=orders, epsilon=epsilons, delta=deltas, factor=factors)
def test_zeta_grows_with_epsilon_and_delta(alpha: float, epsilon: float, delta: float, factor: float) -> None:
    here = renyi.largest_zeta(alpha, epsilon, delta)
    assert close_above(renyi.largest_zeta(alpha, epsilon * factor, delta), here)
    assert close_above(renyi.largest_zeta(alpha, epsilon, min(delta * factor, 1 - 1e-9)), here)


@given(alpha=orders, zeta=zetas, epsilon=epsilons, factor=factors)
def test_delta_falls_with_epsilon(alpha: float, zeta: float, epsilon: float, factor: float) -> None:
    before, after = (renyi.least_delta(alpha, zeta, e) for e in (epsilon, epsilon * factor))
    assert after <= before * (1 + 1e-4)


weights = st.floats(min_value=1e-3, max_value=1.0)
laws = st.lists(weights, min_size=4, max_size=4).map(lambda w: np.array(w) / math.fsum(w))


@given(p=laws, q=laws, alpha=powers(-2, 2).map(lambda above: 1 + above), epsilon=st.floats(0, 5))
def test_finite_laws_keep_the_converted_promise(p: Vector, q: Vector, alpha: float, epsilon: float) -> None:
    zeta = renyi_finite(alpha, p, q)
    assert hockey_stick(p, q, epsilon) <= renyi.least_delta(alpha, zeta, epsilon) + 1e-12
    assert renyi_finite(2 * alpha, p, q) >= zeta - 1e-12


@given(alpha=powers(-2, 3).map(lambda above: 1 + above), r=powers(-3, 1), epsilon=st.floats(0, 30))
def test_known_mechanisms_keep_the_converted_promise(alpha: float, r: float, epsilon: float) -> None:
    gaussian = renyi.least_delta(alpha, renyi.renyi_gaussian(alpha, r), epsilon)
    assert math.log(gaussian) >= log_gaussian_delta(epsilon, r)
    laplace = renyi.renyi_laplace(alpha, r)
    assert laplace <= r * (1 + 1e-12)
    assert renyi.least_delta(alpha, laplace, epsilon) >= laplace_delta(epsilon, r)


@settings(max_examples=50)
@given(alpha=st.integers(2, 300), q=powers(-6, 0), sigma=powers(-2, 2))
def test_sampling_only_helps(alpha: int, q: float, sigma: float) -> None:
    sampled = renyi.renyi_sampled_gaussian(alpha, q, sigma)
    assert 0 <= sampled <= renyi.renyi_gaussian(alpha, 1 / sigma) * (1 + 1e-9)
    assume(alpha < 300)
    assert renyi.renyi_sampled_gaussian(alpha + 1, q, sigma) >= sampled * (1 - 1e-9)


NAN = math.nan


@pytest.mark.parametrize(
    ("alpha", "zeta", "delta", "name"),
    [(1.0, 1.0, 0.1, "alpha"), (NAN, 1.0, 0.1, "alpha"), (2.0, -1.0, 0.1, "zeta"), (2.0, NAN, 0.1, "zeta")]
    + [(2.0, 1.0, bad, "delta") for bad in (0.0, 1.0, NAN, -1.0)]
    + [(math.inf, 1.0, 0.1, "alpha")],
)
def test_senseless_questions_are_refused(alpha: float, zeta: float, delta: float, name: str) -> None:
    for convert in (renyi.least_epsilon, renyi.closed_epsilon, renyi.mironov_epsilon):
        with pytest.raises(ValueError, match=f"^{name} must"):
            convert(alpha, zeta, delta)


def test_no_promise_stays_none_and_a_perfect_one_stays_perfect() -> None:
    assert renyi.least_epsilon(2.0, math.inf, 1e-5) == math.inf
    assert renyi.least_delta(2.0, math.inf, 1.0) == 1.0
    assert renyi.least_epsilon(2.0, 0.0, 1e-5) == renyi.least_delta(2.0, 0.0, 1.0) == 0.0
    assert renyi.epsilon_over_orders([2.0, 4.0], [math.inf, math.inf], 1e-5)[0] == math.inf


def test_one_bad_order_is_refused_rather_than_skipped() -> None:
    with pytest.raises(ValueError, match="zeta must"):
        renyi.epsilon_over_orders([2.0, 4.0], [1.0, NAN], 1e-5)
    with pytest.raises(ValueError, match="zetas must pair"):
        renyi.epsilon_over_orders([2.0, 4.0], [1.0], 1e-5)


def test_figures_state_where_their_formulas_end() -> None:
    assert renyi.moments_rho(0.04, 4.0) == pytest.approx(0.0016 / 0.96 / 16)
    assert renyi.moments_order_limit(0.04, 4.0) == 1.0
    assert renyi.stopped_zeta(4.0, 1.0, 5.0, 100) == pytest.approx(16 * 5.187377517639621 / 2500)
    assert renyi.stopped_zeta(4.1, 1.0, 5.0, 100) == math.inf  # alpha* = 4.07...
    assert renyi.iteration_kappa(1.0, 2.0, 1.0, 0) == 0.5
    assert renyi.iteration_kappa(1.0, 2.0, 0.5, 4) == pytest.approx(0.5 * 0.5**5 / 4)
    assert renyi.iteration_delta(0.5, 0.5) == 1.0
    assert renyi.iteration_delta(1.5, 0.5) == pytest.approx(math.exp(-0.5))
