"""Laws of trade-off functions; every approximation must lie on the safe side, which is below."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedveil.core.values import Vector
from fedveil.theory.divergence import hockey_stick
from oracle.tradeoff import (
    Curve,
    GaussianTradeOff,
    TradeOff,
    approximate_dp,
    delta_of,
    epsilon_of,
    evaluate,
    through,
)
from oracle.tradeoff_ops import (
    chain,
    from_profile,
    group,
    invert,
    renyi,
    sharpen,
    subsample,
    symmetrise,
    tensor,
    tensor_power,
    weakest,
    zcdp,
)
from oracle.tradeoff_thin import discretise, thin

ALPHAS = np.concatenate((np.logspace(-12, -2, 15), np.linspace(0, 1, 101)))
EPSILONS = np.linspace(0, 6, 25)
SLACK = 1e-12

weights = st.one_of(st.just(0.0), st.floats(1e-6, 1.0))


def laws(size: int) -> st.SearchStrategy[Vector]:
    mass = arrays(np.float64, size, elements=weights).filter(lambda w: w.sum() > 1e-6)
    return mass.map(lambda w: w / w.sum())


curves = st.integers(1, 12).flatmap(lambda n: st.builds(TradeOff, laws(n), laws(n)))
gaussians = st.builds(GaussianTradeOff, st.floats(0.0, 6.0))
budgets = st.tuples(st.floats(0.0, 3.0), st.floats(0.0, 0.3))


def same(one: Curve, other: Curve, slack: float = SLACK) -> bool:
    return bool(np.all(np.abs(evaluate(one, ALPHAS) - evaluate(other, ALPHAS)) <= slack))


def below(one: Curve, other: Curve, slack: float = SLACK) -> bool:
    return bool(np.all(evaluate(one, ALPHAS) <= evaluate(other, ALPHAS) + slack))


@given(curve=st.one_of(curves, gaussians))
def test_convex_falling_and_below_guessing(curve: Curve) -> None:
    alpha = np.linspace(0, 1, 201)
    beta = evaluate(curve, alpha)
    assert np.all(np.diff(beta) <= SLACK)
    assert np.all(np.diff(beta, 2) >= -SLACK)
    assert np.all(beta <= 1 - alpha + SLACK)


@given(curve=curves)
def test_inverting_twice_changes_nothing(curve: TradeOff) -> None:
    assert same(invert(invert(curve)), curve)


@given(curve=curves, alpha=st.floats(0, 1))
def test_the_inverse_is_the_generalised_one(curve: TradeOff, alpha: float) -> None:
    back = float(evaluate(invert(curve), alpha))
    assert float(evaluate(curve, back)) <= alpha + 1e-9
    if back > 1e-6:
        assert float(evaluate(curve, back * (1 - 1e-6))) > alpha - 1e-9


@given(curve=curves)
def test_symmetrising_gives_the_largest_symmetric_function_below(curve: TradeOff) -> None:
    both = symmetrise(curve)
    assert same(both, invert(both))
    assert below(both, curve)
    assert below(both, invert(curve))
    assert same(symmetrise(both), both)
    worse = np.maximum(delta_of(curve, EPSILONS), delta_of(invert(curve), EPSILONS))
    assert np.allclose(delta_of(both, EPSILONS), worse, rtol=0, atol=1e-11)


@given(curve=curves)
def test_sharpening_gives_the_symmetric_maximum(curve: TradeOff) -> None:
    expected = np.maximum(evaluate(curve, ALPHAS), evaluate(invert(curve), ALPHAS))
    assert np.allclose(evaluate(sharpen(curve), ALPHAS), expected, rtol=0, atol=1e-9)


@given(one=curves, other=curves)
def test_tensor_commutes_and_lies_below_each_factor(one: TradeOff, other: TradeOff) -> None:
    product = tensor(one, other)
    assert same(product, tensor(other, one))
    assert below(product, one)
    assert below(product, other)
    assert same(tensor(one, GaussianTradeOff(0.0)), one)


@given(one=curves, other=curves, third=curves)
@settings(deadline=None, max_examples=30)
def test_tensor_is_associative(one: TradeOff, other: TradeOff, third: TradeOff) -> None:
    left, right = tensor(tensor(one, other, 4000), third, 4000), tensor(one, tensor(other, third, 4000), 4000)
    assert same(left, right, 1e-10)


@given(curve=curves, times=st.integers(1, 4))
@settings(deadline=None, max_examples=20)
def test_repeating_is_composing(curve: TradeOff, times: int) -> None:
    folded: Curve = GaussianTradeOff(0.0)
    for _ in range(times):
        folded = tensor(folded, curve, 300)
    assert below(tensor_power(curve, times, 300), tensor_power(curve, 1, 300))
    assert same(tensor_power(curve, times, 300), folded, 0.02)


@given(curve=curves, size=st.integers(8, 20))
def test_thinning_is_from_below(curve: TradeOff, size: int) -> None:
    assert below(thin(curve.p, curve.q, size), curve)


@given(mu=st.floats(0.01, 5), size=st.sampled_from([8, 50, 400]))
def test_discretising_is_from_below(mu: float, size: int) -> None:
    assert below(discretise(GaussianTradeOff(mu), size), GaussianTradeOff(mu))


@given(curve=curves)
def test_delta_is_the_divergence_of_the_pair(curve: TradeOff) -> None:
    expected = [hockey_stick(curve.q, curve.p, float(e)) for e in EPSILONS]
    assert np.allclose(delta_of(curve, EPSILONS), expected, rtol=0, atol=SLACK)


@given(curve=st.one_of(curves, gaussians), delta=st.floats(1e-9, 0.5))
def test_epsilon_satisfies_its_delta(curve: Curve, delta: float) -> None:
    epsilon = epsilon_of(curve, delta)
    if epsilon < math.inf:
        assert float(delta_of(curve, epsilon)) <= delta * (1 + 1e-9)
    if 1e-6 < epsilon < math.inf:
        assert float(delta_of(curve, epsilon * (1 - 1e-6))) > delta * (1 - 1e-9)


@given(curve=st.one_of(curves, gaussians))
def test_profile_round_trip_is_from_below_and_touches(curve: Curve) -> None:
    both = symmetrise(curve)
    profile = delta_of(both, EPSILONS)
    back = from_profile(EPSILONS, profile)
    assert below(back, both, 1e-10)
    assert np.all(delta_of(back, EPSILONS) <= profile + 1e-10)
    assert np.all(delta_of(back, EPSILONS) >= profile - 1e-10)


@given(guarantees=st.lists(budgets, min_size=1, max_size=5))
def test_a_profile_is_the_largest_of_its_guarantees(guarantees: list[tuple[float, float]]) -> None:
    epsilon, delta = (np.array(column) for column in zip(*guarantees, strict=True))
    expected = np.max([evaluate(approximate_dp(e, d), ALPHAS) for e, d in guarantees], axis=0)
    got = evaluate(from_profile(epsilon, delta), ALPHAS)
    assert np.all(got <= expected + 1e-10)
    assert np.all(got >= expected - 1e-6)  # a line within 1e-6 of slope -1 may be left out


@given(budget=budgets)
def test_approximate_dp_is_its_formula(budget: tuple[float, float]) -> None:
    epsilon, delta = budget
    steep = 1 - delta - math.exp(epsilon) * ALPHAS
    flat = math.exp(-epsilon) * (1 - delta - ALPHAS)
    expected = np.maximum(np.maximum(steep, flat), 0.0)
    assert np.allclose(evaluate(approximate_dp(epsilon, delta), ALPHAS), expected, rtol=0, atol=SLACK)


@given(curve=curves)
def test_a_group_of_one_is_the_function(curve: TradeOff) -> None:
    assert same(group(curve, 1), curve)
    assert below(group(curve, 3), group(curve, 2))


@given(epsilon=st.floats(0.01, 1.0), delta=st.floats(1e-9, 1e-3), members=st.integers(1, 6))
def test_groups_of_approximate_dp(epsilon: float, delta: float, members: int) -> None:
    together = group(approximate_dp(epsilon, delta), members)
    grown = delta * math.expm1(members * epsilon) / math.expm1(epsilon)
    assert below(approximate_dp(members * epsilon, min(grown, 1.0)), together)
    if grown < 0.01:
        assert float(delta_of(together, members * epsilon)) == pytest.approx(grown, rel=1e-6)


@given(mu=st.floats(0.01, 3), more=st.floats(0.01, 3), members=st.integers(1, 5))
def test_gaussians_stay_closed_forms(mu: float, more: float, members: int) -> None:
    one, other = GaussianTradeOff(mu), GaussianTradeOff(more)
    assert tensor(one, other) == GaussianTradeOff(math.hypot(mu, more))
    assert chain(one, other) == GaussianTradeOff(mu + more)
    assert group(one, members) == GaussianTradeOff(members * mu)
    assert symmetrise(one) == sharpen(one) == invert(one) == subsample(one, 1.0) == one
    assert renyi(one, 3.0) == pytest.approx(3 * zcdp(one))


@given(curve=curves, rate=st.floats(0, 1), more=st.floats(0, 1))
def test_sampling_less_is_more_private(curve: TradeOff, rate: float, more: float) -> None:
    assert below(subsample(curve, max(rate, more)), subsample(curve, min(rate, more)), 1e-11)
    assert same(subsample(curve, 1.0), symmetrise(curve))
    assert same(subsample(curve, 0.0), GaussianTradeOff(0.0))


@given(one=curves, other=curves)
def test_the_weakest_lies_below_both(one: TradeOff, other: TradeOff) -> None:
    least = weakest(one, other)
    assert below(least, one)
    assert below(least, other)
    assert same(least, weakest(other, one))


@given(curve=curves)
def test_knots_give_the_function_back(curve: TradeOff) -> None:
    wide = np.concatenate(([True], np.diff(curve.alpha) > 1e-9))
    wide[-1] = True
    if wide.all() and curve.beta[0] <= 1:
        assert same(through(curve.alpha, curve.beta), curve, 1e-9)
