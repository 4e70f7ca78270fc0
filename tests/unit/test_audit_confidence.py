"""Counts and what they prove: Clopper-Pearson against the binomial itself, and refusals."""

import math

import pytest
from scipy import stats

from fedveil.audit.confidence import least_epsilon, least_rate, most_rate, runs_needed


@pytest.mark.parametrize("alarm", [1e-9, 1e-6, 0.025])
@pytest.mark.parametrize(("hits", "trials"), [(0, 10), (1, 10), (7, 10), (10, 10), (30_000, 50_000), (3, 100_000)])
def test_the_limits_are_where_the_binomial_tail_is_the_alarm(hits: int, trials: int, alarm: float) -> None:
    low, high = least_rate(hits, trials, alarm), most_rate(hits, trials, alarm)
    assert 0 <= low <= hits / trials <= high <= 1
    if hits:
        assert stats.binom.sf(hits - 1, trials, low) == pytest.approx(alarm, rel=1e-5)
    if hits < trials:
        assert stats.binom.cdf(hits, trials, high) == pytest.approx(alarm, rel=1e-5)


def test_nothing_is_proved_by_nothing() -> None:
    assert least_epsilon(0, 0, 100, 1e-5, 1e-6) == 0.0
    assert least_epsilon(50, 50, 100, 1e-5, 1e-6) == 0.0
    assert least_epsilon(1, 0, 100, 0.5, 1e-6) == 0.0


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 1.0, 4.0, 8.0])
def test_the_runs_needed_are_just_enough_for_a_perfect_attack(epsilon: float) -> None:
    needed = runs_needed(epsilon, 1e-5, 1e-6)
    assert least_epsilon(needed, 0, needed, 1e-5, 1e-6) > epsilon
    assert least_epsilon(needed - 1, 0, needed - 1, 1e-5, 1e-6) <= epsilon
    assert runs_needed(epsilon, 1e-5, 1e-6, 0.5) >= 2 * needed


@pytest.mark.parametrize("bad", [(-1, 10, 0.1), (11, 10, 0.1), (1, 0, 0.1), (1, 10, 0.0), (1, 10, math.nan)])
def test_senseless_counts_are_refused(bad: tuple[int, int, float]) -> None:
    with pytest.raises(ValueError, match="must"):
        least_rate(*bad)


def test_an_epsilon_beyond_counting_is_refused() -> None:
    with pytest.raises(ValueError, match="audit by counting"):
        runs_needed(31.0, 1e-5, 1e-6)
