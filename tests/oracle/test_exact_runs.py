"""Certified numbers lie above exact laws: every order, random stops, units that leave, groups; and what they gain."""

from dataclasses import replace
from itertools import pairwise
from math import log
from typing import Any

import numpy as np
import pytest

from fedveil import LastIterate, account_for, calibrate
from fedveil.privacy.mechanism import FurtherRounds, going_on
from fedveil.privacy.mechanism_file import last_iterate_table, mechanism_of
from fedveil.theory.concentrated import gaussian_epsilon
from fedveil.theory.numerics import smallest_epsilon
from oracle.exact_runs import Line, random_lines, random_run

DELTA = 1e-5
LOOSE = 2e-3, 2e-7  # what merging states into cells between rounds may add, relative and absolute


@pytest.mark.parametrize("leaves", [None, True])
@pytest.mark.parametrize("order", ["public", "secret", "poisson", "independent"])
def test_no_exact_run_is_above_its_certificate(order: str, leaves: bool | None) -> None:
    for run, line, epsilon in random_lines(11, 24 if leaves else 12, order=order, leaves=leaves):
        certified = account_for(run, epsilon=epsilon).delta
        assert certified * (1 + LOOSE[0]) + LOOSE[1] >= line.delta(epsilon), (run, epsilon)


@pytest.mark.parametrize("order", ["public", "secret", "poisson", "independent"])
def test_no_group_that_leaves_is_above_its_certificate(order: str) -> None:
    for run, line, epsilon in random_lines(5, 4, group=2, order=order, leaves=True):
        certified = account_for(run, epsilon=epsilon, group=2).delta
        assert certified * (1 + LOOSE[0]) + LOOSE[1] >= line.delta(epsilon), (run, epsilon)


@pytest.mark.parametrize("order", ["public", "secret", "poisson", "independent"])
def test_what_is_left_of_who_leaves_is_near_the_exact_number_for_linear_losses(order: str) -> None:
    ratios = []
    for index in range(24):
        rng = np.random.default_rng([100, index])
        run = random_run(rng, leaves=True, order=order, stopping="end")
        line = Line(run, rng, 1, linear=True)
        exact = smallest_epsilon(lambda e, line=line: log(max(line.delta(e), 1e-300)), 1e-3, tolerance=1e-4)
        if exact > 0.01:
            ratios.append(account_for(run, delta=1e-3).epsilon / exact)
    assert len(ratios) >= 12
    assert min(ratios) >= 1 - 1e-3
    assert np.median(ratios) <= 1.5


@pytest.mark.parametrize(("rounds", "passes"), [(50, 1), (50, 2), (50, 4), (400, 2)])
@pytest.mark.parametrize("keep", [1.0, 0.5])
def test_whatever_the_passes_much_noise_after_the_run_hides_whoever_leaves(
    rounds: int, passes: int, keep: float
) -> None:
    """Linear losses attain a Gaussian pair: every pass moves the model as far, whichever round a record has drawn."""
    further = FurtherRounds(rounds=10, batch=100, step_size=0.5, noise_std=1.0, keep=keep)
    run = LastIterate(
        rounds=rounds, passes=passes, batch=100, order="independent", records=100 * rounds, step_size=0.5,
        lipschitz=1.0, smoothness=1.0, noise_std=0.1, neighbours="zero-out", further=further,
    )  # fmt: skip
    moved, noise = 0.005, 0.005  # of one record; of a round
    left = keep ** np.arange(10.0)
    variance = rounds * passes * (noise * keep**10) ** 2 + float(np.sum((10 * noise * left) ** 2))
    exact = gaussian_epsilon(passes * moved * keep**10 / variance**0.5, DELTA)
    assert exact <= account_for(run, delta=DELTA).epsilon <= 1.25 * exact


def linear(further: int, **changes: Any) -> LastIterate:
    values = {"rounds": 20, "batch": 21, "step_size": 1.0, "lipschitz": 1.0, "smoothness": 1.0, "diameter": 20.0}
    run = LastIterate(**{**values, "place": 20, "noise_std": 3.0, **changes})  # type: ignore[arg-type]
    return going_on(run, further)


@pytest.mark.parametrize(
    ("penalty", "expected"),
    [
        (0.0, [1.0, 0.684, 0.548, 0.376, 0.270, 0.190, 0.117, 0.081]),
        (0.05, [1.0, 0.665, 0.518, 0.324, 0.199, 0.098, 0.017, 0.0008]),
    ],
)
def test_a_record_is_forgotten_round_by_round(penalty: float, expected: list[float]) -> None:
    _, run = calibrate(linear(0, strong_convexity=penalty), epsilon=1.0, delta=DELTA)
    assert isinstance(run, LastIterate)
    epsilons = [account_for(going_on(run, k), delta=DELTA).epsilon for k in (0, 1, 2, 5, 10, 20, 50, 100)]
    assert epsilons[0] == account_for(run, delta=DELTA).epsilon
    assert np.all(np.diff(epsilons) < 0)
    assert epsilons == pytest.approx(expected, abs=6e-4)


@pytest.mark.parametrize("order", ["public", "secret", "poisson", "independent"])
@pytest.mark.parametrize("stopping", ["end", "random"])
def test_further_rounds_never_raise_epsilon(order: str, stopping: str) -> None:
    rate = 0.2 if order == "poisson" else None
    records = 400 if order in ("poisson", "independent") else None
    run = LastIterate(
        rounds=5, batch=80, order=order, rate=rate, records=records, stopping=stopping, step_size=0.3,  # type: ignore[arg-type]
        lipschitz=1.0, smoothness=1.0, noise_std=9.0, neighbours="zero-out",
    )  # fmt: skip
    alone = account_for(run, delta=DELTA).epsilon
    epsilons = [alone, *(account_for(going_on(run, k), delta=DELTA).epsilon for k in (2, 30))]
    for before, after in pairwise(epsilons):
        assert after <= before * (1 + 1e-4)
    assert epsilons[-1] < 0.7 * alone
    quiet = replace(run, further=FurtherRounds(rounds=3, batch=80, step_size=0.1, noise_std=1.0))
    assert account_for(quiet, delta=DELTA).epsilon <= alone * (1 + 1e-4)


@pytest.mark.parametrize(("order", "stays_below"), [("secret", 0.4622), ("poisson", 0.1943), ("independent", 0.1771)])
def test_a_random_stop_does_not_cost_the_secret(order: str, stays_below: float) -> None:
    run = LastIterate(
        rounds=50, order=order, rate=0.02 if order == "poisson" else None, stopping="random", step_size=0.5,  # type: ignore[arg-type]
        lipschitz=1.0, smoothness=1.0, noise_std=2.683, neighbours="zero-out",
    )  # fmt: skip
    assert account_for(run, delta=DELTA).epsilon < stays_below


def test_further_rounds_are_written_and_read_back() -> None:
    run = replace(linear(0), further=FurtherRounds(rounds=2, batch=(3, 4), step_size=(0.5, 0.25), noise_std=2.0))
    table = {key: value for key, value in last_iterate_table(run).items() if value is not None}
    assert mechanism_of({**table, "further": {**table["further"], "batch": [3, 4], "step_size": [0.5, 0.25]}}) == run
    assert "further" not in last_iterate_table(linear(0))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"rounds": 0}, "FurtherRounds.rounds must lie between 1"),
        ({"noise_std": 0.0}, "FurtherRounds.noise_std must be positive"),
        ({"noise_std": float("nan")}, "FurtherRounds.noise_std must be positive"),
        ({"step_size": (0.1, 0.2)}, "one per further round"),
    ],
)
def test_senseless_further_rounds_are_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        FurtherRounds(**{"rounds": 3, "batch": 2, "step_size": 0.1, "noise_std": 1.0, **changes})
