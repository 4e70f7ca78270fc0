"""Laws of composition: ordered, monotone, indifferent to order and grouping, consistent both ways."""

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from fedveil.theory.composition import Bracket, Uses, delta_bracket, epsilon_bracket, epsilon_upper
from fedveil.theory.loss import (
    FiniteLaw,
    FixedSizeLaw,
    GaussianLaw,
    GroupLaw,
    LaplaceLaw,
    LossLaw,
    SampledLaw,
    SwappedLaw,
)


def powers(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(low, high).map(lambda power: 10.0**power)


def response(epsilon: float) -> FiniteLaw:
    yes, no = 1 / (1 + math.exp(-epsilon)), 1 / (1 + math.exp(epsilon))
    return FiniteLaw((-epsilon, epsilon), (no, yes), (yes, no))


mus, rates = powers(-2, 0.5), st.one_of(st.just(1.0), powers(-4, -0.1))
laws: st.SearchStrategy[LossLaw] = st.one_of(
    mus.map(GaussianLaw),
    mus.map(LaplaceLaw),
    mus.map(response),
    st.builds(SampledLaw, mus, rates, st.booleans()),
    st.builds(SwappedLaw, mus, rates),
    st.builds(FixedSizeLaw, mus, rates),
    st.builds(GroupLaw, powers(-2, 0), rates, st.integers(1, 4), st.booleans()),
)
counts, deltas = powers(0, 3).map(int), powers(-12, -1)
few = settings(max_examples=25, deadline=None, derandomize=True)


def touch(first: Bracket, second: Bracket) -> bool:
    """Two brackets of one number have a point in common."""
    return max(first.lower, second.lower) <= min(first.upper, second.upper) * (1 + 1e-9) + 1e-300


@few
@given(law=laws, times=counts, delta=deltas)
def test_lower_is_below_upper(law: LossLaw, times: int, delta: float) -> None:
    lower, upper = epsilon_bracket([(law, times)], delta)
    assert 0 <= lower <= upper
    assert lower <= epsilon_upper([(law, times)], delta)


@few
@given(law=laws, times=counts, more=st.integers(1, 100), delta=deltas)
def test_more_rounds_tell_no_less(law: LossLaw, times: int, more: int, delta: float) -> None:
    assert epsilon_bracket([(law, times)], delta).lower <= epsilon_bracket([(law, times + more)], delta).upper


@few
@given(law=laws, times=st.integers(2, 6), delta=deltas)
def test_repeating_is_composing(law: LossLaw, times: int, delta: float) -> None:
    assert epsilon_bracket([(law, times)], delta) == epsilon_bracket([(law, 1)] * times, delta)


@few
@given(first=laws, second=laws, times=counts, delta=deltas)
def test_the_order_of_parts_is_irrelevant(first: LossLaw, second: LossLaw, times: int, delta: float) -> None:
    there: Uses = [(first, times), (second, 2)]
    assert touch(epsilon_bracket(there, delta), epsilon_bracket(there[::-1], delta))


@few
@given(law=laws, times=counts, delta=deltas)
def test_a_larger_delta_needs_no_more_epsilon(law: LossLaw, times: int, delta: float) -> None:
    assert epsilon_bracket([(law, times)], 2 * delta).lower <= epsilon_bracket([(law, times)], delta).upper


@few
@given(law=laws, times=counts, delta=deltas)
def test_delta_and_epsilon_are_inverse(law: LossLaw, times: int, delta: float) -> None:
    lower, upper = epsilon_bracket([(law, times)], delta)
    if upper < math.inf:
        assert delta_bracket([(law, times)], upper).lower <= delta * (1 + 1e-9)
    if lower > 0:
        assert delta_bracket([(law, times)], lower).upper >= delta * (1 - 1e-9)


@few
@given(mu=mus, rate=powers(-4, -0.1), removal=st.booleans(), times=counts, delta=deltas)
def test_processing_tells_no_more(mu: float, rate: float, removal: bool, times: int, delta: float) -> None:
    """Sampling, a smaller share, and a smaller group are all processing of the larger pair."""
    full = epsilon_bracket([(GaussianLaw(mu), times)], delta).upper
    sampled = epsilon_bracket([(SampledLaw(mu, rate, removal), times)], delta)
    group = epsilon_bracket([(GroupLaw(mu, rate, 2, removal), times)], delta)
    assert sampled.lower <= full
    assert sampled.lower <= group.upper
    assert sampled.lower <= epsilon_bracket([(SwappedLaw(mu, rate), times)], delta).upper
    assert sampled.lower <= epsilon_bracket([(FixedSizeLaw(mu, rate), times)], delta).upper


@few
@given(law=laws, nothing=st.integers(1, 1000), delta=deltas)
def test_what_tells_nothing_changes_nothing(law: LossLaw, nothing: int, delta: float) -> None:
    silent = FiniteLaw((0.0,), (1.0,), (1.0,))
    assert touch(epsilon_bracket([(law, 3), (silent, nothing)], delta), epsilon_bracket([(law, 3)], delta))
