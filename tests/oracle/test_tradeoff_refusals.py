"""A senseless trade-off function is refused at birth, a senseless question when asked."""

import math
from collections.abc import Callable

import numpy as np
import pytest

from fedveil.core.errors import BadValue
from fedveil.theory.central_limit import central_limit
from oracle.tradeoff import (
    GaussianTradeOff,
    TradeOff,
    approximate_dp,
    delta_of,
    epsilon_of,
    evaluate,
    through,
)
from oracle.tradeoff_limits import quieter_last_pass, shuffled_passes
from oracle.tradeoff_ops import from_profile, group, renyi, subsample, tensor_power
from oracle.tradeoff_thin import discretise

HALF = np.array([0.5, 0.5])
ONE = GaussianTradeOff(1.0)
NAN = math.nan


@pytest.mark.parametrize("bad", [[0.5, 0.4], [1.5, -0.5], [NAN, 1.0], [math.inf, 0.0]])
def test_masses_must_be_laws(bad: list[float]) -> None:
    with pytest.raises(BadValue, match=r"TradeOff\.p must be non-negative and sum to 1"):
        TradeOff(np.array(bad), HALF)
    with pytest.raises(BadValue, match=r"TradeOff\.q must be non-negative and sum to 1"):
        TradeOff(HALF, np.array(bad))


def test_shapes_must_agree() -> None:
    with pytest.raises(BadValue, match=r"TradeOff\.q must have the shape of p"):
        TradeOff(HALF, np.ones(1))
    with pytest.raises(BadValue, match=r"TradeOff\.p must be a vector"):
        TradeOff(np.eye(2), HALF)
    with pytest.raises(BadValue, match=r"TradeOff\.p must be a vector"):
        TradeOff(np.array([]), np.array([]))


@pytest.mark.parametrize("mu", [-1.0, NAN, math.inf])
def test_mu_must_be_finite_and_not_negative(mu: float) -> None:
    with pytest.raises(BadValue, match=r"GaussianTradeOff\.mu must be finite and non-negative"):
        GaussianTradeOff(mu)


@pytest.mark.parametrize(
    ("alpha", "beta", "rule"),
    [
        ([0.0, 1.0], [1.0], "one value for each"),
        ([0.0], [0.0], "at least two knots"),
        ([0.1, 1.0], [0.5, 0.0], "increase from 0 to 1"),
        ([0.0, 0.9], [0.5, 0.0], "increase from 0 to 1"),
        ([0.0, 0.5, 0.5, 1.0], [1.0, 0.2, 0.1, 0.0], "increase from 0 to 1"),
        ([0.0, NAN, 1.0], [1.0, 0.2, 0.0], "increase from 0 to 1"),
        ([0.0, 0.5, 1.0], [0.2, 0.3, 0.0], "not increase"),
        ([0.0, 0.5, 1.0], [1.2, 0.3, 0.0], "start at most at 1"),
        ([0.0, 0.5, 1.0], [1.0, 0.3, 0.1], "end at 0"),
        ([0.0, 0.5, 1.0], [1.0, NAN, 0.0], "not increase"),
        ([0.0, 0.5, 1.0], [1.0, 0.9, 0.0], "be convex"),
    ],
)
def test_knots_must_make_a_tradeoff_function(alpha: list[float], beta: list[float], rule: str) -> None:
    with pytest.raises(BadValue, match=rule):
        through(np.array(alpha), np.array(beta))


@pytest.mark.parametrize(
    "ask",
    [
        lambda x: evaluate(ONE, x),
        lambda x: subsample(ONE, x),
        lambda x: approximate_dp(1.0, x),
        lambda x: from_profile(np.array([1.0]), np.array([x])),
        lambda x: central_limit(1.0, x, 10),
    ],
)
@pytest.mark.parametrize("bad", [-0.1, 1.1, NAN])
def test_probabilities_lie_between_zero_and_one(ask: Callable[[float], object], bad: float) -> None:
    with pytest.raises(BadValue, match="must lie between 0 and 1"):
        ask(bad)


@pytest.mark.parametrize("bad", [-0.1, NAN, math.inf])
def test_epsilons_are_finite_and_not_negative(bad: float) -> None:
    for ask in (lambda: delta_of(ONE, bad), lambda: approximate_dp(bad, 0.1)):
        with pytest.raises(BadValue, match="epsilon must be finite and non-negative"):
            ask()
    with pytest.raises(BadValue, match="epsilon must lie between 0 and 700"):
        from_profile(np.array([bad]), np.array([0.1]))


def test_profiles_need_pairs() -> None:
    with pytest.raises(BadValue, match="one value for each epsilon"):
        from_profile(np.array([1.0, 2.0]), np.array([0.1]))


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, NAN])
def test_epsilon_needs_a_delta(delta: float) -> None:
    with pytest.raises(BadValue, match="delta must lie strictly between 0 and 1"):
        epsilon_of(ONE, delta)


@pytest.mark.parametrize("bad", [0, -1, 10.5, NAN])
def test_counts_are_whole(bad: int) -> None:
    for ask in (
        lambda: tensor_power(ONE, bad),
        lambda: group(ONE, bad),
        lambda: central_limit(1.0, 0.1, bad),
        lambda: shuffled_passes(1.0, 5.0, bad),
        lambda: quieter_last_pass(1.0, bad, 1.0),
    ):
        with pytest.raises(BadValue, match="must be a whole number, at least 1"):
            ask()


@pytest.mark.parametrize("bad", [0.0, -1.0, NAN, math.inf])
def test_approximations_need_noise(bad: float) -> None:
    for ask in (lambda: central_limit(bad, 0.1, 10), lambda: shuffled_passes(bad, 5.0)):
        with pytest.raises(BadValue, match="noise_multiplier must be finite and at least"):
            ask()


def test_other_refusals() -> None:
    with pytest.raises(BadValue, match="passes must be finite and at least 1"):
        shuffled_passes(1.0, NAN)
    with pytest.raises(BadValue, match="order must be finite and above 1"):
        renyi(ONE, 1.0)
    with pytest.raises(BadValue, match="size must be at least 8"):
        discretise(ONE, 2)


def test_no_privacy_is_infinite_and_perfect_privacy_zero() -> None:
    assert epsilon_of(approximate_dp(0.0, 1.0), 1e-5) == math.inf
    assert epsilon_of(GaussianTradeOff(0.0), 1e-5) == 0.0
    assert epsilon_of(TradeOff(HALF, HALF), 1e-5) == 0.0


def test_a_function_cannot_be_changed() -> None:
    curve = TradeOff(HALF, HALF)
    for array in (curve.p, curve.q, curve.alpha, curve.beta, curve.power, curve.log_ratio):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0.5
