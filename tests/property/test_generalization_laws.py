"""Laws of the generalisation bounds: shape of the inverse conjugate, and which bound lies below which."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedveil.theory.generalization import (
    GaussianMean,
    Network,
    SubGaussian,
    dataset_bound,
    federated_bound,
    locally_private_bound,
    mean_node_gap,
    private_information,
    sample_bound,
)
from oracle.generalization_tails import Cumulant, federated_sample_bound, inverse_conjugate, printed_private_information

information = st.floats(1e-9, 1e3)
shares = st.floats(0.0, 1.0)
networks = st.builds(Network, nodes=st.integers(1, 50), samples=st.integers(2, 1000))
tails = st.one_of(
    st.floats(1e-3, 1e3).map(SubGaussian),
    st.floats(1e-3, 1e3).map(lambda c: Cumulant(lambda lam: lam**2 / (2 * (1 - c * lam)), b=1 / c)),
    st.integers(1, 20).map(lambda d: Cumulant(lambda lam: lam * d - d / 2 * math.log1p(2 * lam))),
    st.floats(1e-2, 1e2).map(lambda v: Cumulant(lambda lam: v * (math.expm1(lam) - lam))),
)
SLACK = 1e-8


@given(tail=tails, y=information, more=st.floats(1.0, 100.0))
def test_inverse_increases(tail: Cumulant, y: float, more: float) -> None:
    assert 0 < tail.inverse(y) <= tail.inverse(more * y) * (1 + SLACK)


@given(tail=tails, low=information, high=information, share=shares)
def test_inverse_is_concave(tail: Cumulant, low: float, high: float, share: float) -> None:
    chord = share * tail.inverse(low) + (1 - share) * tail.inverse(high)
    assert tail.inverse(share * low + (1 - share) * high) >= chord * (1 - SLACK)


@given(tail=tails, y=information, lam=st.floats(1e-6, 1e-4))
def test_every_lambda_is_above(tail: Cumulant, y: float, lam: float) -> None:
    if isinstance(tail, Cumulant):
        assert tail.inverse(y) <= (y + tail.psi(lam)) / lam * (1 + SLACK)


@given(R=st.floats(1e-6, 1e6), y=information)
def test_sub_gaussian_closed_form_is_the_generic_one(R: float, y: float) -> None:
    generic = inverse_conjugate(lambda lam: R * R * lam * lam / 2, y)
    assert generic == pytest.approx(SubGaussian(R).inverse(y), rel=1e-12)
    assert generic >= SubGaussian(R).inverse(y) * (1 - 1e-14)  # a minimum is approached from above


@given(tail=tails, informations=st.lists(information, min_size=1, max_size=5))
def test_one_number_for_all_samples_is_looser(tail: Cumulant, informations: list[float]) -> None:
    whole = dataset_bound(tail, math.fsum(informations), len(informations))
    assert sample_bound(tail, informations) <= whole * (1 + SLACK)


@given(tail=tails, rows=st.integers(1, 3).flatmap(
    lambda n: st.lists(st.lists(information, min_size=n, max_size=n), min_size=1, max_size=3)))  # fmt: skip
def test_federated_lies_below_the_mean_of_the_nodes(tail: Cumulant, rows: list[list[float]]) -> None:
    local = mean_node_gap([sample_bound(tail, row) for row in rows])
    assert federated_sample_bound(tail, rows) == pytest.approx(local / len(rows))
    totals = [math.fsum(row) for row in rows]
    assert federated_sample_bound(tail, rows) <= federated_bound(tail, totals, len(rows[0])) * (1 + SLACK)


@given(network=networks, d=st.integers(1, 100), sigma=st.floats(1e-3, 1e3))
def test_gaussian_mean_order(network: Network, d: int, sigma: float) -> None:
    case = GaussianMean(network=network, d=d, sigma=sigma)
    assert case.gap() <= case.federated_bound() <= case.centralised_bound() * (1 + SLACK)


@given(epsilon=st.floats(0.0, 700.0), more=st.floats(0.0, 10.0))
def test_private_information_is_below_all_known_bounds(epsilon: float, more: float) -> None:
    told = private_information(epsilon)
    assert 0 <= told <= min(epsilon, epsilon**2 / 8) * (1 + SLACK)
    assert told <= printed_private_information(epsilon)
    assert told <= private_information(epsilon + more) * (1 + SLACK)


@given(tail=tails, network=networks, epsilon=st.floats(0.01, 20.0))
def test_privacy_helps_generalisation(tail: Cumulant, network: Network, epsilon: float) -> None:
    assert locally_private_bound(tail, network, epsilon / 2) <= locally_private_bound(tail, network, epsilon) * (
        1 + SLACK
    )
