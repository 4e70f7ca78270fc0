"""The inverse stops on the safe side, soon, and never hangs."""

import math
from collections.abc import Callable

import numpy as np
import pytest

from fedveil.theory.divergence import log_theta
from fedveil.theory.numerics import (
    LARGEST_EPSILON,
    SMALLEST_DELTA,
    check_delta,
    check_epsilon,
    log_sum,
    smallest_epsilon,
)

Curve = Callable[[float], float]


def solved(curve: Curve, delta: float, guess: float = 1.0) -> tuple[float, int]:
    """The answer, and how often the curve was asked; the answer must have been asked, and hold."""
    asked: dict[float, float] = {}
    calls = 0

    def counting(epsilon: float) -> float:
        nonlocal calls
        calls += 1
        asked[epsilon] = curve(epsilon)
        return asked[epsilon]

    answer = smallest_epsilon(counting, delta, guess)
    assert answer == math.inf or asked[answer] <= math.log(delta)
    return answer, calls


def gaussian(mu: float) -> Curve:
    return lambda epsilon: float(log_theta(epsilon, mu))


@pytest.mark.parametrize("delta", [1e-30, 1e-12, 1e-5, 0.01, 0.3])
@pytest.mark.parametrize("mu", [1e-4, 0.01, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0])
def test_smooth_curves_take_few_questions(mu: float, delta: float) -> None:
    answer, calls = solved(gaussian(mu), delta)
    assert calls <= (15 if mu <= 10 else 25)  # far answers take a few more to bracket
    if answer > 0:
        shorter = answer - 1.01e-9 * max(answer, 1e-3)
        assert gaussian(mu)(shorter) > math.log(delta)


@pytest.mark.parametrize("guess", [math.nan, math.inf, -1.0, 0.0, 1e-9, 3.0, 1e9])
def test_no_guess_does_harm(guess: float) -> None:
    answer, calls = solved(lambda epsilon: -epsilon, 1e-5, guess)
    assert answer == pytest.approx(-math.log(1e-5), rel=1.01e-9)
    assert calls <= 40


def test_a_jump_is_found_from_above() -> None:
    answer, calls = solved(lambda epsilon: -math.inf if epsilon > 3 else 0.0, 1e-5)
    assert 3 < answer <= 3 * (1 + 1e-9)
    assert calls <= 50


def test_nan_is_not_satisfied() -> None:
    never, calls = solved(lambda _: math.nan, 1e-5)
    assert never == math.inf
    assert calls <= 20
    answer, calls = solved(lambda epsilon: math.nan if epsilon < 2 else -99.0, 1e-5)
    assert 2 <= answer <= 2 * (1 + 1e-9)
    assert calls <= 50


def test_a_wobbling_curve_still_holds_where_it_stops() -> None:
    answer, calls = solved(lambda epsilon: -epsilon + 0.1 * math.sin(1e9 * epsilon), 1e-5)
    assert abs(answer + math.log(1e-5)) <= 0.11
    assert calls <= 60


def test_far_ends() -> None:
    assert solved(lambda epsilon: -1e-9 * epsilon, 1e-5)[0] == math.inf
    assert solved(lambda _: -50.0, 1e-5) == (0.0, 1)
    steep, calls = solved(lambda epsilon: -1e12 * epsilon, 1e-5)
    assert 0 < steep < 1e-10
    assert calls <= 40
    last, _ = solved(lambda epsilon: -math.inf if epsilon >= LARGEST_EPSILON else 0.0, 1e-5)
    assert last == LARGEST_EPSILON


@pytest.mark.parametrize("delta", [0.0, 1.0, -1.0, math.nan])
def test_senseless_delta_is_refused(delta: float) -> None:
    for ask in (lambda: smallest_epsilon(lambda e: -e, delta), lambda: check_delta(delta)):
        with pytest.raises(ValueError, match="delta must lie strictly between 0 and 1"):
            ask()


def test_checks_name_what_they_refuse() -> None:
    check_delta(SMALLEST_DELTA)
    check_epsilon(0.0)
    with pytest.raises(ValueError, match="the least that is answered"):
        check_delta(SMALLEST_DELTA / 2)
    for bad in (-1e-9, math.inf, math.nan):
        with pytest.raises(ValueError, match="epsilon must be finite and non-negative"):
            check_epsilon(bad)


def test_log_sum() -> None:
    assert log_sum(np.array([])) == -math.inf
    assert log_sum(np.full(3, -math.inf)) == -math.inf
    assert log_sum(np.array([-1e4, -1e4])) == pytest.approx(-1e4 + math.log(2))
    assert log_sum(np.array([0.0, math.inf])) == math.inf
    assert math.isnan(log_sum(np.array([0.0, math.nan])))
