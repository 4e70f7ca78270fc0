"""Answers of the front door: every place by its best bound, and comparisons that step aside instead of refusing."""

import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from scipy.special import ndtr, ndtri

from fedveil.accounting.compare import account_for
from fedveil.accounting.evaluator import Evaluator, bound_of
from fedveil.accounting.places import place_curve
from fedveil.privacy.mechanism import Gaussian, LastIterate, Repeat, SampledGaussian
from fedveil.report.trade_off import write_trade_off
from fedveil.theory.concentrated import gaussian_epsilon

SHORT: dict[str, Any] = {"step_size": 0.5, "lipschitz": 1.0, "smoothness": 0.5, "diameter": 1.0, "noise_std": 2.0}


@pytest.mark.parametrize(
    "run",
    [
        LastIterate(rounds=4, **SHORT),
        LastIterate(rounds=6, passes=2, **SHORT),
        LastIterate(rounds=6, step_size=0.5, lipschitz=1.0, diameter=1.0, noise="laplace", noise_std=2.0),
    ],
    ids=["one pass", "two passes", "laplace"],
)
def test_every_place_gets_what_account_certifies_there(run: LastIterate) -> None:
    curve = place_curve(run, delta=1e-5)
    for place, epsilon in zip(curve.places, curve.epsilons, strict=True):
        best = account_for(replace(run, place=place), delta=1e-5).epsilon
        assert epsilon == pytest.approx(best, rel=3e-7, abs=1e-9)


def test_the_last_but_one_place_by_transport() -> None:
    curve = place_curve(LastIterate(rounds=40, **SHORT), delta=1e-5, most=2)  # the first and the last, and all others
    assert curve.places == (1, 40)
    curve = place_curve(LastIterate(rounds=2, **SHORT), delta=1e-5)  # the same two rounds end the longer run
    assert curve.epsilons[0] == pytest.approx(1.32336, abs=1e-4)
    assert curve.epsilons[1] == pytest.approx(4.377178, abs=1e-5)


@pytest.mark.parametrize("noise", [0.03, 0.01, 0.002])
@pytest.mark.parametrize("asked", [{"delta": 1e-5}, {"epsilon": 3.0}])
def test_a_comparison_that_cannot_be_computed_steps_aside(noise: float, asked: dict[str, float]) -> None:
    mechanism = Repeat(of=SampledGaussian(sampling="poisson", rate=0.01, noise_multiplier=noise), times=10)
    answer = account_for(mechanism, **asked)  # type: ignore[arg-type]
    assert answer.certified_by == "loss-distribution"
    assert answer["central-limit"].status == "does-not-apply"
    assert "at least 0.04" in answer["central-limit"].reason


def test_one_sampled_release_of_tiny_noise_is_the_closed_form() -> None:
    """Amplification by sampling is exact for one release: delta is the rate times theta at ln(1 + (e^eps - 1)/rate)."""
    mechanism = SampledGaussian(sampling="poisson", rate=0.01, noise_multiplier=0.03)
    expected = gaussian_epsilon(1 / 0.03, 1e-5 / 0.01) + math.log(0.01)
    assert account_for(mechanism, delta=1e-5).epsilon == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("status", ["comparison", "numerical"])
@pytest.mark.parametrize("error", [ValueError("no"), OverflowError("no"), ZeroDivisionError("no")])
def test_only_a_certified_bound_may_refuse(status: Any, error: Exception) -> None:
    def fails(epsilon: float) -> float:
        raise error

    for asked in ((1e-5, None), (None, 1.0)):
        found = bound_of(Evaluator("paper", status, "a figure", fails), *asked)
        assert (found.status, found.epsilon, found.delta) == ("does-not-apply", None, None)
        with pytest.raises(type(error)):
            bound_of(Evaluator("proof", "certified", "a theorem", fails), *asked)


def test_a_trade_off_function_lies_below_the_exact_one_and_near_it() -> None:
    answer = account_for(Gaussian(noise_multiplier=1.0), delta=1e-5)
    for alpha in (0.0, 0.001, 0.05, 0.3, 0.9, 1.0):
        exact = float(ndtr(-ndtri(alpha) - 1.0))
        assert exact - 0.01 <= answer.trade_off(alpha) <= exact + 1e-12
    with pytest.raises(ValueError, match="alpha must lie in"):
        answer.trade_off(1.5)


def test_a_trade_off_function_is_written_as_a_table(tmp_path: Path) -> None:
    path = write_trade_off(account_for(Gaussian(noise_multiplier=2.0), delta=1e-5), tmp_path / "curve.csv")
    rows = [tuple(map(float, line.split(","))) for line in path.read_text().splitlines()[1:]]
    assert rows[0][0] == 0.0
    assert rows[-1] == (1.0, 0.0)
    assert all(after[1] <= before[1] for before, after in pairwise(rows))
