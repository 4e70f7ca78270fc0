"""Accounts of exchanged records in many passes: what is quick is as sure as what is slow."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from fedveil.accounting.calibrate import calibrate, exchange_factor, guided_factor
from fedveil.accounting.compare import account_for
from fedveil.accounting.observers import Participation, calibrate_views, observe, views
from fedveil.accounting.sampled import certified_epsilon, hidden_pairs, sampled_evaluators
from fedveil.privacy.guarantee import Adversary
from fedveil.privacy.mechanism import LastIterate
from fedveil.theory.exchange import quick_window


@pytest.mark.parametrize("seed", range(6))
def test_hardly_anything_lies_outside_a_quick_window(seed: int) -> None:
    generator = np.random.default_rng(seed)
    pieces = []
    total = np.ones(1)
    for _ in range(3):
        mass = generator.gamma(0.05, size=int(generator.integers(40, 900)))
        mass, count = mass / mass.sum(), int(generator.integers(1, 4))
        pieces.append((mass, count))
        for _ in range(count):
            total = np.convolve(total, mass)
    for log_outside in (-3.0, -8.0, -20.0):
        low, high = quick_window(pieces, log_outside)
        outside = math.exp(log_outside) * (1 + 1e-9)
        assert total[: max(low, 0)].sum() <= outside
        assert total[high + 1 :].sum() <= outside
    narrow = quick_window(pieces, -3.0)
    assert narrow[1] - narrow[0] < total.size


def test_passes_that_differ_by_rounding_are_counted_as_one() -> None:
    run = independent(passes=30, rounds=20, noise=3.0, neighbours="zero-out")
    laws = hidden_pairs(run, 1, 1e-5).forward
    assert sum(times for _, times in laws) == 30
    assert len(laws) <= 5  # the first, the last ones, and all between


def test_a_calibrated_exchange_counts_on_the_better_bound() -> None:
    """Here every model seen promises more than the plan that the hidden bound happens to choose."""
    run = independent(passes=1, rounds=50, noise=1.4466, neighbours="zero-out")
    each = {e.name: e.epsilon(3e-6) for e in sampled_evaluators(run) if e.epsilon is not None}
    assert each["unhidden"] < each["sampled-shift"]
    assert certified_epsilon(run, 3e-6) == each["unhidden"]
    assert calibrate(run, epsilon=each["unhidden"], delta=3e-6)[0] == pytest.approx(1.0, abs=2e-4)


@pytest.mark.parametrize("aim", [0.6, 1.5])
def test_an_exchange_is_calibrated_to_its_own_account(aim: float) -> None:
    run = independent(passes=4, rounds=6, noise=5.0, neighbours="replace-one")
    target = aim * account_for(run, delta=1e-5).epsilon
    who = Participation(clients=1000, every_round=False)
    _, found = calibrate_views(run, lambda noisy: views(noisy, "final-model", who), epsilon=target, delta=1e-5)
    assert 0.999 * target <= account_for(found, delta=1e-5).epsilon <= target
    by_hand, _ = calibrate(run, epsilon=target, delta=1e-5)
    assert account_for(replace(run, noise_std=run.noise_std * by_hand), delta=1e-5).epsilon <= target  # type: ignore[operator]


def test_a_slow_account_is_asked_only_near_its_end() -> None:
    asked: list[float] = []

    def noted(excess: Callable[[float], float]) -> Callable[[float], float]:
        def asking(at: float) -> float:
            asked.append(at)
            return excess(at)

        return asking

    found = exchange_factor(noted(lambda at: 3.02 - at), lambda at: 3.0 - math.log(2) - at, 1e-4)
    assert math.log(found) == pytest.approx(3.02, abs=1e-4)
    assert math.log(found) >= 3.02
    assert len(asked) <= 6


def bent(at: float) -> float:
    """An excess that is steep where noise is scarce."""
    return 2.2 * math.exp(-4 * at) - 0.4 - at


@pytest.mark.parametrize(
    ("guide", "most"),
    [
        (lambda at: bent(at) + 0.05, 3),  # a guess that is near
        (lambda at: bent(at - 0.7) * 1.3, 12),  # one that leads astray
        (lambda at: math.inf, 20),  # none at all
    ],
)
def test_a_slow_account_is_asked_where_a_guess_points_to(guide: Callable[[float], float], most: int) -> None:
    asked: list[float] = []

    def excess(at: float) -> float:
        asked.append(at)
        return bent(at)

    found = math.log(guided_factor(excess, guide, 1e-4))
    assert bent(found) <= 0 < bent(found - 3e-4)
    assert len(asked) <= most


@pytest.mark.parametrize("order", ["independent", "poisson"])
def test_draws_are_calibrated_to_their_account(order: str) -> None:
    run = independent(passes=1, rounds=12, noise=1.5, neighbours="zero-out")
    run = run if order == "independent" else replace(run, order="poisson", rate=1 / 12)
    _, found = calibrate(run, epsilon=1.0, delta=1e-5, tolerance=1e-4)
    assert isinstance(found, LastIterate)
    assert 0.998 <= account_for(found, delta=1e-5).epsilon <= 1.0


def independent(*, passes: int, rounds: int, noise: float, neighbours: str) -> LastIterate:
    """Equal rounds that contract, of a thousand records; ``noise`` is a multiplier."""
    batch = 1000 // rounds
    return LastIterate(
        rounds=rounds,
        passes=passes,
        batch=batch,
        records=1000,
        order="independent",
        step_size=0.25,
        lipschitz=1.0,
        smoothness=1.0,
        noise_std=noise / math.sqrt(batch),
        neighbours=neighbours,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("neighbours", ["zero-out", "replace-one"])
@pytest.mark.parametrize("order", ["independent", "poisson"])
def test_an_observer_who_knows_the_draws_can_be_the_target(neighbours: str, order: str) -> None:
    run = LastIterate(
        rounds=4 if order == "independent" else 80,
        passes=20 if order == "independent" else 1,
        batch=25,
        records=100,
        order=order,  # type: ignore[arg-type]
        rate=0.25 if order == "poisson" else None,
        step_size=0.5,
        lipschitz=1.0,
        smoothness=0.5,
        noise_std=1.0,
        neighbours=neighbours,  # type: ignore[arg-type]
    )
    who = Participation(clients=5, every_round=False)
    adversary: Adversary = "server-with-secure-aggregation"
    _, found = calibrate_views(run, lambda one: views(one, adversary, who), epsilon=2.0, delta=1e-5)
    assert 1.9 < observe(found, adversary, who, delta=1e-5).epsilon <= 2.0
