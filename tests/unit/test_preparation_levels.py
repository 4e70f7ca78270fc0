"""Spreads from counts of distances: right to a part of themselves, at any scale, and ranges that end near the bulk."""

import numpy as np
import pytest

from fedveil.stages.prepare.learned import LEVELS, levels_of, narrowed, spread_of
from fedveil.stages.prepare.ranges import Range

N = 20_000


@pytest.mark.parametrize("spread", [0.5, 0.1, 0.02, 0.003])
@pytest.mark.parametrize("noise", [0.0, 0.01])
def test_a_spread_of_any_size_is_told_to_a_part_of_itself(spread: float, noise: float) -> None:
    """A mean of squares with this noise could not tell a spread of .02 from one of .1: both squares are below it."""
    generator = np.random.default_rng(2)
    numbers = np.clip(generator.normal(0.0, spread, N), -2.0, 2.0)
    counts = np.bincount(levels_of(numbers[:, None]).ravel(), minlength=LEVELS + 1)[:LEVELS]
    found = spread_of(counts + generator.normal(0.0, noise * N, LEVELS), N, noise * N)
    assert 0.7 < found / spread < 1.4


def test_without_anything_above_the_noise_the_spread_is_the_usual_one() -> None:
    assert spread_of(np.full(LEVELS, 10.0), 100, 50.0) == 0.35


@pytest.mark.parametrize("unit", [0.0, 2.0])
def test_a_narrow_range_keeps_every_number_near_the_mean_where_it_was(unit: float) -> None:
    given, numbers = Range(1024.0, 2048.0, unit), np.array([1700.0, 1703.0, 1690.0])
    mean, spread = float(given.scaled(numbers[:1])[0]), 0.01
    found, centre, width = narrowed(given, mean, spread)
    assert 1024.0 < found.low < 1690.0 < 1703.0 < found.high < 2048.0
    before, after = (given.scaled(numbers) - mean) / spread, (found.scaled(numbers) - centre) / width
    assert after == pytest.approx(before, rel=1e-9, abs=1e-9)
    assert float(np.abs((found.scaled(np.array([-1e9, 1e9])) - centre) / width).max()) == pytest.approx(8.0, rel=1e-9)
    assert narrowed(given, 0.1, 0.3) == (given, 0.1, 0.3)
