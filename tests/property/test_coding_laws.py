"""Laws of compression: norms kept, means kept, errors bounded, limits exact. Chances of false alarm are stated."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from fedveil.core.errors import BadValue
from fedveil.noise.entropy import Entropy
from fedveil.stages.train.dpsgd.client import compressed, subset
from fedveil.stages.train.dpsgd.method import DpSgd
from fedveil.stages.train.dpsgd.settings import ClientSettings
from fedveil.stages.train.settings import CompressionRequest
from fedveil.sums.coding import (
    bits_for,
    block_of,
    by_coin,
    hadamard,
    message_bytes,
    norm_limit,
    packed,
    public_signs,
    random_k,
    rotated,
    rotated_back,
    rounded_within,
    sensitivity,
    to_levels,
    top_k,
    unpacked,
)
from fedveil.sums.exact import squared_norm

KEY = Entropy.from_seed(11)
VECTORS = arrays.arrays(np.float64, st.integers(1, 70), elements=st.floats(-1e6, 1e6))
TINY = 1e-140  # squares of less underflow
SEEDS = st.binary(min_size=1, max_size=64)


class Constant:
    """A source whose every word is the same: the coin at its edges."""

    def __init__(self, word: int) -> None:
        self.word = word

    def words(self, count: int) -> np.ndarray:
        return np.full(count, self.word, dtype=np.uint64)


def coin_error(size: int, largest: float, levels: int) -> float:
    """Statement 3 of docs/theory/coding.md: by coins in the mean, to the nearest for every outcome."""
    return size * (largest / levels) ** 2 / 4


def largest_after(norm: float, size: int, failure: float) -> float:
    """Statement 2: some coordinate of a rotated vector is larger with a chance below ``failure`` only."""
    return norm * math.sqrt(2 * math.log(2 * size / failure) / block_of(size))


class TestRotation:
    @given(VECTORS, SEEDS)
    def test_norms_stay_and_the_way_back_is_the_inverse(self, values: np.ndarray, seed: bytes) -> None:
        turned = rotated(values, seed)
        norm = float(np.linalg.norm(values))
        assert np.linalg.norm(turned) == pytest.approx(norm, rel=1e-12, abs=TINY)
        assert np.abs(rotated_back(turned, seed) - values).max() <= 2.0**-50 * norm + TINY

    @pytest.mark.parametrize("size", [1, 2, 8, 12, 37])
    def test_it_is_an_orthogonal_matrix(self, size: int) -> None:
        matrix = np.array([rotated(row, b"x") for row in np.eye(size)])
        np.testing.assert_allclose(matrix @ matrix.T, np.eye(size), atol=1e-14)
        assert np.abs(matrix).max() <= 1.0 if size < 2 else np.abs(matrix).max() < 1.0

    def test_hadamard_is_sylvesters(self) -> None:
        two = np.array([[1.0, 1.0], [1.0, -1.0]])
        eight = np.kron(np.kron(two, two), two) / math.sqrt(8)
        np.testing.assert_allclose([hadamard(row) for row in np.eye(8)], eight, atol=1e-15)

    def test_a_spike_is_spread(self) -> None:
        """Over 200 seeds no coordinate passes the limit, which one does with a chance below 200 * 1e-9 = 2e-7."""
        for size in (1024, 1500):
            values = np.zeros(size)
            values[3] = 5.0
            limit = largest_after(5.0, size, 1e-9)
            assert limit < 5.0 / 3
            assert max(np.abs(rotated(values, bytes([k + 1]))).max() for k in range(200)) <= limit

    @pytest.mark.parametrize("bad", [[1.0], np.zeros((2, 2)), np.zeros(0), np.zeros(3, np.int64), np.array([np.nan])])
    def test_other_things_are_refused(self, bad: np.ndarray) -> None:
        with pytest.raises(BadValue, match="values must be"):
            rotated(bad, b"x")
        with pytest.raises(BadValue, match="power of two"):
            hadamard(np.zeros(3))

    def test_blocks(self) -> None:
        assert [block_of(n) for n in (1, 2, 3, 4, 1023, 1024)] == [1, 2, 2, 4, 512, 1024]


class TestRounding:
    @given(VECTORS, st.sampled_from([0, 2**63, 2**64 - 1]))
    def test_a_coin_moves_by_one_at_most(self, values: np.ndarray, word: int) -> None:
        found = by_coin(values, np.full(values.size, word, dtype=np.uint64))
        assert np.all(np.abs(found - values) <= 1)  # less, but a float next to zero does not show it
        assert np.all(found == np.rint(found))

    def test_coins_keep_the_mean(self) -> None:
        """Hoeffding: a mean of 20,000 in [0, 1] is .03 off with chance below 2 exp(-36) a coordinate."""
        values = np.array([0.1, -0.7, 3.5, 2.0, -1e-3])
        mean = np.mean([by_coin(values, KEY.words("a", k, 5)) for k in range(20_000)], axis=0)
        assert np.abs(mean - values).max() < 0.03

    @given(VECTORS, st.integers(1, 300))
    def test_levels(self, values: np.ndarray, levels: int) -> None:
        largest = float(np.abs(values).max())
        for words in (None, KEY.words("levels", 0, values.size)):
            found = to_levels(values, levels, words)
            error = np.abs(found - values)
            step = largest / levels
            assert error.max() <= step * (0.5 if words is None else 1.0) * (1 + 1e-9) + TINY
            assert np.abs(found).max() <= largest * (1 + 1e-15) + TINY
        nearest = to_levels(values, levels, None) - values
        assert float(nearest @ nearest) <= coin_error(values.size, largest, levels) * (1 + 1e-6) + TINY

    def test_error_of_levels_by_coins(self) -> None:
        """The mean of 2,000 errors, each below 4 times its bound: 0.25 over it with chance below exp(-2000/128)."""
        values, levels = np.linspace(-1.0, 0.9, 50), 4
        bound = coin_error(50, 1.0, levels)
        errors = [to_levels(values, levels, KEY.words("e", k, 50)) - values for k in range(2000)]
        assert np.mean([e @ e for e in errors]) <= 1.25 * bound
        assert np.mean([e @ e for e in errors]) >= 0.3 * bound  # it is not loose by an order

    @given(VECTORS, st.floats(1.0, 1e6), st.integers(0, 2**32))
    def test_the_limit_holds_whatever_comes_in(self, values: np.ndarray, bound: float, index: int) -> None:
        limit = norm_limit(bound, values.size)
        found = rounded_within(values, limit, KEY.stream("limit", index))
        assert found is not None
        assert sum(Fraction(int(v)) ** 2 for v in found) <= limit
        assert Fraction(sensitivity(limit)) ** 2 >= limit

    @pytest.mark.parametrize("word", [0, 2**64 - 1])
    def test_a_vector_within_its_bound_is_never_lost(self, word: int) -> None:
        """Even if all coins fall up (or down) for ever: then it is cut towards zero."""
        values = np.full(100, 10.5)
        limit = norm_limit(float(np.linalg.norm(values)), 100)
        found = rounded_within(values, limit, Constant(word))
        assert found is not None
        assert set(np.abs(found).tolist()) == {10}
        assert squared_norm(np.full(100, 11)) > limit

    def test_the_limit_is_seldom_passed(self) -> None:
        """Hoeffding's bound says at most 1 in 1000; of 3,000 draws more than 30 have a chance below 1e-15."""
        rng = np.random.default_rng(3)
        values = rng.normal(size=400)
        values *= 25.0 / np.linalg.norm(values)
        limit = norm_limit(25.0, 400)
        draws = [by_coin(values, KEY.words("seldom", k, 400)).astype(np.int64) for k in range(3000)]
        assert sum(squared_norm(d) > limit for d in draws) <= 30
        assert sum(squared_norm(d) > 625 for d in draws) > 2900  # without a limit rounding does enlarge the norm

    def test_larger_than_agreed_sends_zeros(self) -> None:
        assert rounded_within(np.full(4, 1e6), norm_limit(1.0, 4), KEY.stream("z", 0)).tolist() == [0] * 4  # type: ignore[union-attr]

    @pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 2.0**53])
    def test_what_is_not_finite_is_dropped(self, bad: float) -> None:
        assert rounded_within(np.array([0.0, bad]), 100, KEY.stream("n", 0)) is None

    @given(arrays.arrays(np.int64, st.integers(0, 20), elements=st.integers(-(2**63), 2**63 - 1)))
    def test_squared_norm_is_exact(self, steps: np.ndarray) -> None:
        assert squared_norm(steps) == sum(int(v) ** 2 for v in steps)

    @pytest.mark.parametrize(
        ("bound", "size", "failure"), [(0.0, 1, 0.1), (np.nan, 1, 0.1), (1.0, 0, 0.1), (1.0, 1, 0)]
    )
    def test_senseless_limits(self, bound: float, size: int, failure: float) -> None:
        with pytest.raises(BadValue, match="must"):
            norm_limit(bound, size, failure)


class TestSparse:
    def test_every_set_of_places_has_its_share(self) -> None:
        """All 10 pairs of 5 places; each count of 5,000 is binomial(.1): 150 off is 7 deviations, below 1e-10."""
        counts: dict[tuple[int, ...], int] = {}
        for k in range(5000):
            places = tuple(sorted(subset(KEY.stream("places", k), 2, 5).tolist()))
            counts[places] = counts.get(places, 0) + 1
        assert len(counts) == 10
        assert all(abs(count - 500) < 150 for count in counts.values())

    def test_mean_and_error_over_all_sets_exactly(self) -> None:
        values = np.array([1.0, -2.0, 4.0, 0.5])
        sets = [np.array([i, j]) for i in range(4) for j in range(i + 1, 4)]
        found = [random_k(values, chosen) for chosen in sets]
        np.testing.assert_allclose(np.mean(found, axis=0), values)
        errors = [float((row - values) @ (row - values)) for row in found]
        assert np.mean(errors) == pytest.approx((4 / 2 - 1) * float(values @ values))

    @given(VECTORS, st.data())
    def test_the_largest_lose_least(self, values: np.ndarray, data: st.DataObject) -> None:
        kept = data.draw(st.integers(1, values.size))
        lost = top_k(values, kept) - values
        squared = float(values @ values)
        assert float(lost @ lost) <= (1 - kept / values.size) * squared + 1e-9 * squared + TINY

    def test_signs_are_functions_of_seed_and_label(self) -> None:
        assert np.array_equal(public_signs(b"a", "b", 100), public_signs(b"a", "b", 100))
        others = [public_signs(seed, label, 100) for seed, label in ((b"a", "c"), (b"ab", ""), (b"b", "b"))]
        assert not any(np.array_equal(public_signs(b"a", "b", 100), other) for other in others)
        with pytest.raises(BadValue, match="public bytes"):
            public_signs(b"", "x", 1)


class TestPacking:
    @given(st.integers(1, 2**31), st.data())
    def test_there_and_back(self, levels: int, data: st.DataObject) -> None:
        codes = data.draw(arrays.arrays(np.int64, st.integers(0, 30), elements=st.integers(-levels, levels)))
        text = packed(codes, levels)
        assert len(text) == math.ceil(codes.size * bits_for(levels) / 8)
        assert np.array_equal(unpacked(text, levels, codes.size), codes)

    def test_the_stated_bytes_are_the_real_ones(self) -> None:
        codes = np.random.default_rng(0).integers(-127, 127, 1000, endpoint=True)
        scale = 8
        assert message_bytes("quantised", 1000, keep=1.0, levels=127) == len(packed(codes, 127)) + scale
        assert message_bytes("rotated", 1000, keep=1.0, levels=127) == len(packed(codes, 127)) + scale + 8

    def test_refusals(self) -> None:
        with pytest.raises(BadValue, match="lie between -3 and 3"):
            packed(np.array([4]), 3)
        with pytest.raises(BadValue, match="hold 3 numbers"):
            unpacked(b"a", 3, 3)
        with pytest.raises(BadValue, match="numbers up to 2 only"):
            unpacked(b"\xff", 2, 2)


def test_rotated_messages_of_a_spiky_update_lose_less() -> None:
    """Unbiased: a mean of 1,500; each errs by a level (.6) at most, so by Hoeffding .07 has chance 1e-14."""
    settings = ClientSettings(rate=0.5, rounds=1, clip=1.0, noise=1.0, step_size=1.0)
    update = np.full(200, 0.01)
    update[17] = 4.0
    errors = {}
    for kind in ("quantised", "rotated"):
        method = DpSgd(client_settings=(settings,), compression=CompressionRequest(kind=kind, levels=7))
        found = np.array([compressed(method, update, KEY.stream(kind, k)) for k in range(1500)])
        errors[kind] = float(np.mean(np.sum((found - update) ** 2, axis=1)))
        assert np.abs(found.mean(axis=0) - update).max() < 0.07
    assert errors["rotated"] < errors["quantised"] / 2
