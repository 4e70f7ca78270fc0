"""An exchange under independent draws is slow to account for: few accounts are made, each on few grids."""

import math
from collections.abc import Callable

import pytest

from fedveil.accounting.calibrate import few_factor
from fedveil.theory.allocation import Summands
from fedveil.theory.exchange import exchange_delta, exchange_epsilon

TOLERANCE = 1e-5


@pytest.mark.parametrize("root", [-6.0, -0.64, -1e-3, 0.0, 0.3, 5.0])
@pytest.mark.parametrize(
    "shape",
    [
        lambda x: -x,
        lambda x: -2.5 * x,
        lambda x: math.expm1(-3 * x) if x > -1 else math.inf,
        lambda x: -x if x > -0.2 else math.nan,
    ],
)
def test_few_evaluations_and_the_target_is_met(root: float, shape: Callable[[float], float]) -> None:
    seen: dict[float, float] = {}

    def excess(at: float) -> float:
        seen[at] = shape(at - root)
        return seen[at]

    found = few_factor(excess, TOLERANCE)
    met = [at for at, value in seen.items() if math.isclose(math.exp(at), found, rel_tol=1e-12) and value <= 0]
    assert met
    assert root - 1e-12 <= math.log(found) <= root + TOLERANCE
    assert len(seen) <= 26


@pytest.mark.parametrize(("rounds", "noise"), [(20, 1.0), (50, 2.683), (500, 0.7)])
def test_the_epsilon_is_one_at_which_the_fine_bound_holds(rounds: int, noise: float) -> None:
    summands: Summands = ((((1 / noise, 1 / rounds),), rounds),)
    found = exchange_epsilon(summands, 1e-5, 50.0, 1e-9)
    assert exchange_delta(summands, found, 1e-9) <= 1e-5 < exchange_delta(summands, found * 0.9998, 1e-9)
