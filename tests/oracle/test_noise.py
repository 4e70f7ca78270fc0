"""The samplers against the laws they stand for: by enumeration, in fifty digits, and by tests on what they draw.

Every statistical test has a fixed seed and would reject a right sampler with a chance below 1e-7.
"""

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import chi2

from fedveil.core.errors import BadValue
from fedveil.noise import grid as noise
from fedveil.noise.entropy import Entropy
from fedveil.noise.grid import Sampler, rounded_laplace, rounded_normal
from fedveil.theory.grid import SAMPLER_DISTANCE

ALARM = 1e-7
SHAPES = {"normal": noise._NORMAL, "laplace": noise._LAPLACE}
DRAWS = {"normal": rounded_normal, "laplace": rounded_laplace}
Whole = NDArray[np.int64]


def distribution(name: str, x: float) -> float:
    """Chance below x, in fifty digits, for noise 1."""
    with mpmath.workdps(50):
        if name == "normal":
            return float(mpmath.ncdf(mpmath.mpf(x)))
        return float(mpmath.exp(x) / 2 if x < 0 else 1 - mpmath.exp(-x) / 2)


def chance(name: str, steps: float, value: int) -> float:
    """Of the rounded law at ``value``."""
    low, high = sorted(abs(value + end) for end in (-0.5, 0.5))  # in the tail, away from cancellation
    if value == 0:
        return 1 - 2 * distribution(name, -0.5 / steps)
    return distribution(name, -low / steps) - distribution(name, -high / steps)


def source(seed: int = 1) -> noise.Source:
    return Entropy.from_seed(seed).stream("noise", 0)


def lattice(positions: int, coins: int) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """All slots, with evenly spread positions and coins, another phase in every slot: the law without chance."""
    slot = np.arange(4096, dtype=np.uint64)[:, None, None]
    phase = slot * np.uint64(0x9E3779B97F4A7C15)  # multiples of the golden ratio, modulo 1
    inner = np.arange(positions, dtype=np.uint64)[None, :, None] * np.uint64(2**52 // positions)
    inner = inner + (phase >> np.uint64(12)) // np.uint64(positions)
    coin = np.arange(coins, dtype=np.uint64)[None, None, :] * np.uint64(2**64 // coins)
    coin = coin + phase * np.uint64(0xD1342543DE82EF95) // np.uint64(coins)
    places, flips = np.broadcast_arrays((slot << np.uint64(52)) + inner, coin)
    return places.ravel(), flips.ravel()


@pytest.mark.parametrize("steps", [0.3, 1.0, 1.7, 6.5])
@pytest.mark.parametrize("name", SHAPES)
def test_the_law_by_enumeration(name: str, steps: float) -> None:
    places, coins = lattice(16, 32)
    values = Sampler.of(SHAPES[name], steps).accepted(places, coins, source())
    for value in range(-8, 9):
        found = float(np.mean(values == value))
        assert found == pytest.approx(chance(name, steps, value), abs=1e-4)


@pytest.mark.parametrize("eighths", range(32, 65))
@pytest.mark.parametrize("name", SHAPES)
def test_the_envelope(name: str, eighths: int) -> None:
    """Slots times share is the same for all blocks, so the accepted density is the true one; no chance passes 1."""
    shape, table = SHAPES[name], noise._table(SHAPES[name], eighths)
    starts, where, counts = np.unique(table.start, return_inverse=True, return_counts=True)
    assert table.start.size == 4096
    assert np.array_equal(counts[where], table.slots)
    assert np.array_equal(np.diff(starts), np.full(starts.size - 1, 2**52))
    assert np.allclose(table.slots * table.share, table.scale, rtol=1e-15)
    block = table.start >> 52
    inner = np.where(block >= 0, block, block + 1) * 8 / eighths  # the edge next to zero, for the widest noise
    assert np.all(table.share * np.exp(-shape.fall(inner)) <= 1 - 1e-10)
    assert block.max() == -1 - block.min()
    assert (block.max() + 1) * 8 / eighths >= shape.reach
    width = eighths / 8 - 1 / 8  # the narrowest noise that uses this table
    mass = np.sqrt(2 * np.pi) if name == "normal" else 2.0
    assert table.scale * mass * width / 4096 > 0.5  # accepted at least every other time


def test_the_stated_distance() -> None:
    """The terms of the total variation, as the theory page adds them up."""
    with mpmath.workdps(60):
        coin = mpmath.mpf(2) ** -126  # coins of 128 bits, accepted at least every other time
        cell = mpmath.mpf(2) ** -54  # widest, in units of noise
        normal = 2 * mpmath.ncdf(-12) + (13**2 + 1) * cell**2 / 4 + coin
        laplace = mpmath.exp(-70) + coin
        assert max(normal, laplace) < SAMPLER_DISTANCE


@pytest.mark.parametrize("steps", [2.0**24, 2.0**30 * 1.1, 2.0**45])
@pytest.mark.parametrize("name", SHAPES)
def test_doubt_decides_as_floats_do(name: str, steps: float) -> None:
    """With every comparison made in eighty digits the same proposals are taken."""
    words = Entropy.from_seed(4).words("proposals", 0, 1200)
    fast = Sampler.of(SHAPES[name], steps)
    slow = replace(fast, doubt=2.0)
    taken = fast.accepted(words[:600], words[600:], source())
    assert taken.size > 300
    assert np.array_equal(taken, slow.accepted(words[:600], words[600:], source()))


@pytest.mark.parametrize("name", SHAPES)
def test_floats_err_less_than_the_doubt(name: str) -> None:
    """The acceptance probability in floats against fifty digits, over cells near and far."""
    sampler = Sampler.of(SHAPES[name], 1.37 * 2.0**33)
    places = Entropy.from_seed(5).words("places", 0, 400).copy()
    places[::2] &= np.uint64(2**52 - 1)
    places[::4] |= np.uint64(4095 << 52)
    slot = places >> np.uint64(52)
    cell = sampler.table.start[slot] + (places & np.uint64(2**52 - 1)).astype(np.int64)
    unit = 2.0 ** (sampler.block - 52) / sampler.steps
    floats = sampler.table.share[slot] * np.exp(-sampler.shape.fall((cell + 0.5) * unit))
    with mpmath.workdps(50):
        for i in range(400):
            exact = Fraction(2 * int(cell[i]) + 1) * Fraction(2) ** (sampler.block - 53) / Fraction(sampler.steps)
            fall = sampler.shape.exact(exact)
            ratio = mpmath.mpf(sampler.table.scale) / int(sampler.table.slots[slot[i]])
            true = ratio * mpmath.exp(-mpmath.mpf(fall.numerator) / fall.denominator)
            assert abs(floats[i] - true) <= 2.0**-43 * min(1.0, float(true)) + 1e-300


@pytest.mark.parametrize("steps", [2.0**24, 1.23 * 2.0**36, 2.0**45])
@pytest.mark.parametrize("name", DRAWS)
def test_coarse_bins_and_low_bits(name: str, steps: float) -> None:
    """48 bins of equal chance and the 16 values of the low bits, jointly: 768 cells, chi-square."""
    values = DRAWS[name](source(7), steps, 400_000)
    edges = [_quantile(name, i / 48) * steps for i in range(1, 48)]
    cells = np.searchsorted(edges, values) * 16 + (values & 15)
    counts = np.bincount(cells, minlength=768)
    expected = values.size / 768
    statistic = float(np.sum((counts - expected) ** 2) / expected)
    assert chi2.ppf(ALARM, 767) < statistic < chi2.isf(ALARM, 767)


def _quantile(name: str, share: float) -> float:
    if name == "normal":
        return float(mpmath.sqrt(2) * mpmath.erfinv(2 * share - 1))
    return float(np.log(2 * share) if share < 0.5 else -np.log(2 * (1 - share)))


def loudness_is_right(values: Whole, steps: float) -> bool:
    """The sum of squares lies where a chi-square law puts all but 2e-7 of its mass."""
    total = float(np.sum((values / steps) ** 2))
    return bool(chi2.ppf(ALARM, values.size) <= total <= chi2.isf(ALARM, values.size))


@pytest.mark.parametrize("steps", [2.0**24, 1.9 * 2.0**40])
def test_noise_a_tenth_too_small_is_noticed(steps: float) -> None:
    assert loudness_is_right(rounded_normal(source(8), steps, 20_000), steps)
    assert not loudness_is_right(rounded_normal(source(8), 0.9 * steps, 20_000), steps)
    assert not loudness_is_right(rounded_normal(source(8), 1.1 * steps, 20_000), steps)


@pytest.mark.parametrize("draw", DRAWS.values())
def test_laplace_and_normal_are_repeatable_and_independent(draw: Callable[[noise.Source, float, int], Whole]) -> None:
    entropy, steps = Entropy.from_seed(9), 2.0**30
    first = draw(entropy.stream("noise", 1), steps, 5000)
    assert np.array_equal(first, draw(Entropy.from_seed(9).stream("noise", 1), steps, 5000))
    other = draw(entropy.stream("noise", 2), steps, 5000)
    product = float(np.mean(first / steps * (other / steps)))
    assert abs(product) < 8 * float(np.std(first) * np.std(other)) / steps**2 / 5000**0.5  # eight deviations: 1e-14


def test_sizes_and_limits() -> None:
    assert rounded_normal(source(), 2.0**24, 0).size == 0
    assert rounded_normal(source(), 2.0**24, 1).dtype == np.int64
    for steps in (0.0, -1.0, 2.0**-9, 2.0**46, float("nan"), float("inf")):
        with pytest.raises(BadValue, match="steps must lie between"):
            rounded_normal(source(), steps, 1)
