"""Laws of the cut and of the splits: norms are bounded exactly; every split is a partition with nobody empty."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from fedveil.core.values import Matrix
from fedveil.data.rows import cut_rows, row_norms, total_bound
from fedveil.data.spec import Split
from fedveil.data.split import dirichlet, natural_owners, nobody_empty, owners, uneven_sizes

finite = st.floats(allow_nan=False, allow_infinity=False)
usual = st.floats(-10, 10)
matrices = arrays(np.float64, array_shapes(min_dims=2, max_dims=2, max_side=8), elements=st.one_of(usual, finite))
bounds = st.one_of(st.sampled_from([1.0, 2.0, 1e-9, 1e9]), st.floats(1e-3, 1e3))
shares = st.floats(0.0, 1.0)


def exactly_within(row: Matrix, bound: float) -> bool:
    return sum(Fraction(float(x)) ** 2 for x in row) <= Fraction(bound) ** 2


@given(rows=matrices, bound=bounds)
def test_the_true_norm_is_within_the_bound(rows: Matrix, bound: float) -> None:
    cut_rows(rows, bound)
    assert all(exactly_within(row, bound) for row in rows)
    assert (row_norms(rows) <= bound).all()
    assert (np.linalg.norm(rows, axis=1) <= bound).all()
    assert all(math.hypot(*row) <= bound for row in rows)


@given(rows=matrices, bound=bounds, ratio=st.one_of(st.sampled_from([1.0, 1000.0]), st.floats(1e-3, 1e3)))
def test_with_the_intercept_it_is_within_the_total(rows: Matrix, bound: float, ratio: float) -> None:
    intercept = ratio * bound
    cut_rows(rows, bound, intercept)
    whole = np.column_stack([rows, np.full(len(rows), intercept)])
    total = total_bound(bound, intercept)
    assert (row_norms(whole) <= total).all()
    assert all(exactly_within(row, total) for row in whole)


@given(rows=matrices, bound=bounds, intercept=st.sampled_from([0.0, 1.0]))
def test_cutting_twice_is_cutting_once(rows: Matrix, bound: float, intercept: float) -> None:
    intercept *= bound
    cut_rows(rows, bound, intercept)
    once = rows.copy()
    cut_rows(rows, bound, intercept)
    assert rows.tolist() == once.tolist()


@given(rows=arrays(np.float64, (4, 5), elements=usual), bound=bounds)
def test_short_rows_stay_and_long_rows_keep_their_direction(rows: Matrix, bound: float) -> None:
    before, norms = rows.copy(), row_norms(rows)
    cut_rows(rows, bound)
    short = norms <= bound * (1 - 1e-12)
    assert rows[short].tolist() == before[short].tolist()
    expected = before * (bound / np.maximum(norms, bound))[:, None]
    np.testing.assert_allclose(rows, expected, rtol=1e-11, atol=1e-300)


@given(data=st.data(), width=st.integers(1, 2000))
def test_wide_rows_at_the_bound(data: st.DataObject, width: int) -> None:
    row = np.random.default_rng(data.draw(st.integers(0, 99))).normal(size=(1, width))
    row /= np.linalg.norm(row)
    for bound in (1.0, float(row_norms(row)[0]), math.nextafter(1.0, 0.0)):
        mine = row.copy()
        cut_rows(mine, bound, 1.0)
        assert exactly_within(mine[0], bound)


@given(rows=st.integers(1, 3000), share=shares, alpha=st.floats(0.0, 10.0))
def test_uneven_sizes_are_a_partition(rows: int, share: float, alpha: float) -> None:
    count = max(1, round(share * rows))
    sizes = uneven_sizes(rows, count, alpha)
    assert sizes.sum() == rows
    assert sizes.min() >= 1
    assert sizes.size == count
    assert (np.diff(sizes) <= 0).all()
    equal = uneven_sizes(rows, count, 0.0)
    assert equal.max() - equal.min() <= 1


@given(
    targets=arrays(np.float64, st.integers(1, 60), elements=st.sampled_from([0.0, 1.0, 2.0])),
    share=shares,
    kind=st.sampled_from(["equal", "uneven", "dirichlet", "record"]),
    alpha=st.sampled_from([1e-3, 0.1, 1.0, 10.0]),
    seed=st.integers(0, 99),
)
def test_every_split_is_a_partition_with_nobody_empty(
    targets: Matrix, share: float, kind: str, alpha: float, seed: int
) -> None:
    count = None if kind == "record" else max(1, round(share * targets.size))
    given_alpha = alpha if kind in ("uneven", "dirichlet") else None
    split = Split(kind=kind, count=count, alpha=given_alpha, seed=seed)  # type: ignore[arg-type]
    owner, clients = owners(split, targets, np.random.default_rng(seed))
    assert clients == (count or targets.size)
    assert owner.shape == targets.shape
    assert sorted(set(owner.tolist())) == list(range(clients))
    again, _ = owners(split, targets, np.random.default_rng(seed))
    assert owner.tolist() == again.tolist()


@given(words=st.lists(st.sampled_from(["b", "a", "10", "9", "é"]), min_size=1, max_size=30))
def test_named_clients_own_what_names_them(words: list[str]) -> None:
    owner, names = natural_owners(np.array(words))
    assert [names[index] for index in owner] == words
    assert list(names) == sorted(set(words))


def test_less_alpha_is_more_skew() -> None:
    targets = np.repeat([0.0, 1.0], 5000)

    def skew(alpha: float, seed: int) -> float:
        """How far the clients' shares of ones are from a half, on average over records: 0.5 is total separation."""
        owner = dirichlet(targets, 20, alpha, np.random.default_rng(seed))
        ones = np.bincount(owner, weights=targets, minlength=20)
        sizes = np.maximum(np.bincount(owner, minlength=20), 1)
        return float(np.abs(ones - 0.5 * sizes).sum() / sizes.sum())

    strong, mild, none = (np.mean([skew(alpha, seed) for seed in range(20)]) for alpha in (0.05, 1.0, 1000.0))
    assert strong > 0.35
    assert strong > mild + 0.1 > none + 0.2
    assert none < 0.05


def test_empty_clients_take_only_what_can_be_spared() -> None:
    owner = np.array([5, 5, 5, 0, 2, 2])
    filled = nobody_empty(owner, 6, np.random.default_rng(0))
    assert sorted(filled.tolist()) == [0, 1, 2, 3, 4, 5]
    assert owner.tolist() == [5, 5, 5, 0, 2, 2]


@pytest.mark.parametrize("kind", ["equal", "uneven", "dirichlet", "record"])
def test_a_million_clients(kind: str) -> None:
    million = 10**6
    count = None if kind == "record" else million
    alpha = 0.5 if kind in ("uneven", "dirichlet") else None
    split = Split(kind=kind, count=count, alpha=alpha)  # type: ignore[arg-type]
    targets = (np.arange(million + 500) % 2).astype(np.float64)
    owner, clients = owners(split, targets, np.random.default_rng(0))
    assert clients == (count or targets.size)
    assert np.bincount(owner, minlength=clients).min() >= 1
