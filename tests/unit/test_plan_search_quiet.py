"""The search for a plan says nothing to the user, however little privacy a run has."""

import math
import warnings

import numpy as np
import pytest

from fedveil.accounting.sampled import sampled_rounds
from fedveil.privacy.mechanism import LastIterate
from fedveil.theory.closing import at_once
from fedveil.theory.plan_search import PoissonCost, scattered_cost


def run(noise: float, rate: float) -> LastIterate:
    return LastIterate(
        rounds=4,
        batch=20,
        records=400,
        order="poisson",
        rate=rate,
        step_size=0.5,
        lipschitz=1.0,
        smoothness=1.0,
        noise_std=noise,
        neighbours="zero-out",
    )


@pytest.mark.parametrize("way", ["present", "exchange"])
@pytest.mark.parametrize("widest", [1e-6, 1.0, 40.0, 900.0, 1e4, 1e8])
@pytest.mark.parametrize(("noise", "rate"), [(4.0, 0.05), (0.3, 0.5), (0.01, 0.05), (0.01, 1.0), (1e-4, 1.0)])
def test_no_warning_reaches_the_user(noise: float, rate: float, widest: float, way: str) -> None:
    rounds = sampled_rounds(run(noise, rate), 1e-5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cost = PoissonCost(rounds, rate, 1e-5, widest, 1, True, way)(at_once(4))  # type: ignore[arg-type]
        scattered = scattered_cost(rounds, np.full(4, 0.25), True)(at_once(4))
    assert 0 <= cost < math.inf
    assert scattered >= 0


def test_more_noise_costs_less() -> None:
    costs = [PoissonCost(sampled_rounds(run(n, 0.1), 1e-5), 0.1, 1e-5, 60.0)(at_once(4)) for n in (0.3, 0.6, 1.2, 4.0)]
    assert costs == sorted(costs, reverse=True)
    assert costs[-1] < 0.5 < costs[0]
