"""Counts and what they prove: Clopper-Pearson against the binomial itself, and refusals."""

import math

import pytest
from scipy import stats

from fedveil.audit.confidence import least_epsilon, least_rate, most_rate


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


@pytest.mark.parametrize("bad", [(-1, 10, 0.1), (11, 10, 0.1), (1, 0, 0.1), (1, 10, 0.0), (1, 10, math.nan)])
def test_senseless_counts_are_refused(bad: tuple[int, int, float]) -> None:
    with pytest.raises(ValueError, match="must"):
        least_rate(*bad)
