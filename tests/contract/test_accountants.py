"""One suite for all: a new accountant joins the list and inherits every law."""

import math
from typing import Any

import pytest

from fedveil.accounting.base import curve_of
from fedveil.accounting.central_limit import CentralLimitAccountant
from fedveil.accounting.loss_distribution import LossDistributionAccountant
from fedveil.accounting.renyi import RenyiAccountant
from fedveil.core.errors import CannotCertify
from fedveil.privacy.mechanism import (
    ApproximateDP,
    Compose,
    Gaussian,
    Laplace,
    LastIterate,
    Mechanism,
    Primitive,
    Repeat,
    SampledGaussian,
)
from oracle.gaussian_accountant import GaussianAccountant

GAUSSIAN = Gaussian(noise_multiplier=2.0)
KNOWN: list[Primitive] = [
    GAUSSIAN,
    Gaussian(noise_multiplier=2.0, neighbours="replace-one"),
    Laplace(noise_multiplier=3.0),
    SampledGaussian(sampling="poisson", rate=0.05, noise_multiplier=1.5),
    SampledGaussian(sampling="poisson", rate=0.05, noise_multiplier=1.5, neighbours="replace-one"),
    SampledGaussian(sampling="fixed-size", rate=0.05, noise_multiplier=1.5, neighbours="replace-one"),
    ApproximateDP(epsilon=0.3, delta=1e-7),
]
ACCOUNTANTS: list[Any] = [
    GaussianAccountant(),
    LossDistributionAccountant(),
    RenyiAccountant(),
    CentralLimitAccountant(),
]
CERTIFYING = ACCOUNTANTS[:3]


def cases(accountants: list[Any]) -> list[Any]:
    """Every accountant with every mechanism it knows."""
    found = []
    for accountant in accountants:
        for mechanism in KNOWN:
            try:
                accountant.primitive(mechanism)
            except CannotCertify:
                continue
            label = f"{type(accountant).__name__}-{KNOWN.index(mechanism)}-{type(mechanism).__name__}"
            found.append(pytest.param(accountant, mechanism, id=label))
    return found


def epsilon(accountant: Any, mechanism: Mechanism, delta: float = 1e-5) -> float:
    return float(accountant.epsilon(curve_of(accountant, mechanism), delta))


def test_each_accountant_knows_the_gaussian() -> None:
    assert all(epsilon(accountant, GAUSSIAN) > 0 for accountant in ACCOUNTANTS)


@pytest.mark.parametrize(("accountant", "mechanism"), cases(ACCOUNTANTS))
@pytest.mark.parametrize("times", [1, 2, 17])
def test_repeating_is_composing(accountant: Any, mechanism: Primitive, times: int) -> None:
    repeated = epsilon(accountant, Repeat(of=mechanism, times=times))
    composed = epsilon(accountant, Compose(parts=(mechanism,) * times))
    assert repeated == pytest.approx(composed, rel=1e-9)


@pytest.mark.parametrize(("accountant", "mechanism"), cases(ACCOUNTANTS))
def test_repeats_multiply(accountant: Any, mechanism: Primitive) -> None:
    nested = Repeat(of=Repeat(of=mechanism, times=3), times=4)
    assert epsilon(accountant, nested) == pytest.approx(epsilon(accountant, Repeat(of=mechanism, times=12)), rel=1e-9)


@pytest.mark.parametrize(("accountant", "mechanism"), cases(CERTIFYING))
def test_more_uses_never_cost_less(accountant: Any, mechanism: Primitive) -> None:
    values = [epsilon(accountant, Repeat(of=mechanism, times=times)) for times in (1, 4, 16)]
    assert values[0] <= values[1] * 1.002
    assert values[1] <= values[2] * 1.002


@pytest.mark.parametrize(("accountant", "mechanism"), cases(CERTIFYING))
def test_epsilon_and_delta_are_inverse_on_the_safe_side(accountant: Any, mechanism: Primitive) -> None:
    curve = curve_of(accountant, Repeat(of=mechanism, times=5))
    e = accountant.epsilon(curve, 1e-5)
    # Two different grids stand behind the two answers: both are upper bounds, so they agree up to their widths.
    assert accountant.delta(curve, e * 1.004) <= 1e-5
    assert accountant.delta(curve, e * 0.98) >= 1e-5 or e < 1e-9 or not isinstance(mechanism, Gaussian)


@pytest.mark.parametrize(("accountant", "mechanism"), cases(ACCOUNTANTS))
def test_epsilon_falls_as_delta_grows(accountant: Any, mechanism: Primitive) -> None:
    curve = curve_of(accountant, mechanism)
    values = [accountant.epsilon(curve, delta) for delta in (1e-9, 1e-6, 1e-3)]
    assert values[0] * 1.001 >= values[1]
    assert values[1] * 1.001 >= values[2] >= 0


@pytest.mark.parametrize("times", [1, 100])
def test_certifying_accountants_bound_the_exact_gaussian(times: int) -> None:
    exact = epsilon(GaussianAccountant(), Repeat(of=GAUSSIAN, times=times))
    for accountant in CERTIFYING:
        assert epsilon(accountant, Repeat(of=GAUSSIAN, times=times)) >= exact * (1 - 1e-9)


def test_losses_are_never_above_renyi() -> None:
    for mechanism in KNOWN[2:4]:
        work = Repeat(of=mechanism, times=50)
        assert epsilon(LossDistributionAccountant(), work) <= epsilon(RenyiAccountant(), work)


def test_replacing_a_record_counts_twice() -> None:
    """Peers keep the sensitivity of add/remove here: 4.73 for 9.997."""
    once = Gaussian(noise_multiplier=1.0, neighbours="replace-one")
    assert epsilon(GaussianAccountant(), once) == pytest.approx(9.99726, abs=1e-4)
    assert epsilon(LossDistributionAccountant(), once) == pytest.approx(9.99726, abs=1e-4)


def test_pure_privacy_composes_to_the_exact_binomial() -> None:
    """Randomised response with epsilon 1, a hundred times: 79.84 at 1e-5 (peers have said 69.98 and 1.10)."""
    value = epsilon(LossDistributionAccountant(), Repeat(of=ApproximateDP(epsilon=1.0), times=100))
    assert 79.84 <= value <= 79.84 * 1.005


@pytest.mark.parametrize("accountant", ACCOUNTANTS, ids=lambda a: type(a).__name__)
def test_what_is_not_known_is_refused(accountant: Any) -> None:
    run = LastIterate(rounds=3, step_size=0.1, lipschitz=1.0, noise_std=1.0)
    with pytest.raises(CannotCertify):
        accountant.primitive(run)


@pytest.mark.parametrize("accountant", ACCOUNTANTS, ids=lambda a: type(a).__name__)
@pytest.mark.parametrize("bad", [0.0, 1.0, -1.0, math.nan, math.inf])
def test_a_senseless_delta_is_refused(accountant: Any, bad: float) -> None:
    with pytest.raises(ValueError, match="delta must lie strictly between 0 and 1"):
        accountant.epsilon(curve_of(accountant, GAUSSIAN), bad)


def test_asking_after_every_round_is_the_same_as_asking_once() -> None:
    accountant = LossDistributionAccountant()
    once = accountant.primitive(KNOWN[3])
    curve = once
    for _ in range(49):
        curve = accountant.compose(curve, once)
    assert curve == accountant.repeat(once, 50)
