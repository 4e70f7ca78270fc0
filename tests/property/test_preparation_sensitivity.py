"""Whatever a record holds, it moves no measurement by more than the stated norm: in whole numbers, to the bit."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedveil.core.values import Matrix
from fedveil.stages.prepare.columns import Columns, Outline, Words
from fedveil.stages.prepare.contributions import (
    class_counts,
    level_counts,
    matrix_of,
    range_counts,
    scaled_numbers,
    second_moments,
    vectors,
    word_counts,
)
from fedveil.stages.prepare.learned import LEVELS, LearnedRule, Number, codes_of
from fedveil.stages.prepare.ranges import Range
from fedveil.stages.sums import STEPS, Measurement, NoisySums, Sums, root_up, whole_client

ROWS, WIDTH = 5, 3
EVERY = np.arange(ROWS, dtype=np.int64)
cells = st.one_of(
    st.floats(-1e308, 1e308, allow_nan=False), st.just(float("nan")), st.sampled_from([0.0, -0.0, 1e300, 2.0**-31])
)
tables = arrays(np.float64, (ROWS, WIDTH), elements=cells)
ranges = st.sampled_from([Range(-1.0, 1.0), Range(0.0, 3.0, 0.5), Range(2.0**49, 2.0**50), Range(-5.0, 1e9, 2.0**-30)])


def moved(before: Sums, after: Sums) -> Fraction:
    """The squared norm of the change, exactly."""
    change = before(EVERY) - after(EVERY)
    return Fraction(sum(int(step) ** 2 for step in change.tolist()))


def changed(numbers: Matrix, row: Matrix) -> Columns:
    """The columns with the first record replaced."""
    return Columns(numbers=np.vstack([row, numbers[1:]]), texts={})


def limit(bound: float, times: int) -> Fraction:
    return (times * Fraction(bound) * STEPS) ** 2


def charged(name: str, bound: float, *, counts: bool) -> Fraction:
    """The squared distance of two contributions that the accountant charges for, when a unit is replaced."""
    one = Measurement(name=name, size=9, bound=bound, noise=1.0, counts=counts)
    found = NoisySums(measurements=(one,), share=0.5).mechanism("replace-one")
    return (Fraction(found.mu) * Fraction(bound) * STEPS) ** 2


@given(numbers=tables, row=arrays(np.float64, (1, WIDTH), elements=cells))
def test_counts_of_magnitudes_move_by_one_count_a_column(numbers: Matrix, row: Matrix) -> None:
    places = range(WIDTH)
    before, after = (
        range_counts(columns, places) for columns in (Columns(numbers=numbers, texts={}), changed(numbers, row))
    )
    assert moved(before, after) <= charged("ranges", root_up(WIDTH), counts=True)
    without = before(EVERY) - before(EVERY[1:])
    assert sum(int(step) ** 2 for step in without.tolist()) <= limit(root_up(WIDTH), 1)


@given(
    numbers=tables,
    row=arrays(np.float64, (1, WIDTH), elements=cells),
    scale=st.tuples(ranges, ranges, ranges),
    mean=st.floats(-1.0, 1.0),
)
def test_counts_of_distances_move_by_one_count_a_column(
    numbers: Matrix, row: Matrix, scale: tuple[Range, Range, Range], mean: float
) -> None:
    def sums(columns: Columns) -> Sums:
        return level_counts(scaled_numbers(columns, scale) - mean)

    before, after = sums(Columns(numbers=numbers, texts={})), sums(changed(numbers, row))
    assert before(EVERY).size == LEVELS * WIDTH
    assert moved(before, after) <= charged("spreads", root_up(WIDTH), counts=True)
    without = before(EVERY) - before(EVERY[1:])
    assert sum(int(step) ** 2 for step in without.tolist()) <= limit(root_up(WIDTH), 1)


@given(
    numbers=tables,
    row=arrays(np.float64, (1, WIDTH), elements=cells),
    scale=st.tuples(ranges, ranges, ranges),
    bound=st.floats(2.0**-10, 10.0),
    squared=st.booleans(),
)
def test_means_and_squares_move_by_the_bound(
    numbers: Matrix, row: Matrix, scale: tuple[Range, Range, Range], bound: float, squared: bool
) -> None:
    def sums(columns: Columns) -> Sums:
        found = np.nan_to_num(scaled_numbers(columns, scale))
        return vectors((found - 0.3) ** 2 if squared else found, bound)

    before, after = sums(Columns(numbers=numbers, texts={})), sums(changed(numbers, row))
    least = charged("spreads", bound, counts=True) if squared else charged("means", bound, counts=False)
    assert moved(before, after) <= least <= limit(bound, 2) * (1 + Fraction(1, 2**30))
    for place in range(ROWS):
        alone = before(EVERY[place : place + 1])
        assert sum(int(step) ** 2 for step in alone.tolist()) <= limit(bound, 1)


@given(numbers=tables, scale=st.tuples(ranges, ranges, ranges), bound=st.floats(2.0**-10, 10.0))
def test_a_whole_client_moves_no_more_than_one_record(
    numbers: Matrix, scale: tuple[Range, Range, Range], bound: float
) -> None:
    columns = Columns(numbers=numbers, texts={})
    for sums, most in (
        (vectors(np.nan_to_num(scaled_numbers(columns, scale)), bound), bound),
        (range_counts(columns, range(WIDTH)), root_up(WIDTH)),
    ):
        part = whole_client(sums)(EVERY)
        assert sum(int(step) ** 2 for step in part.tolist()) <= limit(most, 1)


@given(
    rows=arrays(np.float64, (ROWS, WIDTH), elements=st.floats(-2.0, 2.0)),
    row=arrays(np.float64, (1, WIDTH), elements=st.floats(-2.0, 2.0)),
    bound=st.sampled_from([0.25, 1.0, 4.0]),
)
def test_products_of_entries_move_by_the_bound(rows: Matrix, row: Matrix, bound: float) -> None:
    before, after = (second_moments(given, bound) for given in (rows, np.vstack([row, rows[1:]])))
    assert moved(before, after) <= limit(bound, 2)
    alone = before(EVERY[:1])
    assert sum(int(step) ** 2 for step in alone.tolist()) <= limit(bound, 1)


def test_the_triangle_is_the_matrix_of_products() -> None:
    rows = np.random.default_rng(0).uniform(-0.3, 0.3, size=(ROWS, WIDTH))
    found = matrix_of(second_moments(rows, 1.0)(EVERY) / STEPS, WIDTH)
    assert found == pytest.approx(rows.T @ rows, abs=ROWS / STEPS)
    assert np.array_equal(found, found.T)


@given(words=st.lists(st.tuples(st.sampled_from("abc"), st.text(max_size=3)), min_size=ROWS, max_size=ROWS))
def test_counts_of_words_and_classes_move_by_one_a_column(words: list[tuple[str, str]]) -> None:
    texts = {}
    for name, column in zip("xy", zip(*words, strict=True), strict=True):
        spelt, codes = np.unique(np.array(column), return_inverse=True)
        texts[name] = Words(spelt=tuple(sorted(set(column))), codes=codes.astype(np.int64))
        assert [texts[name].spelt[code] for code in codes] == list(column), spelt
    columns = Columns(numbers=np.zeros((ROWS, 0)), texts=texts)
    codes, listed = codes_of(columns, ["x", "y"], EVERY)
    sums = word_counts(codes, len(listed))
    assert int(sums(EVERY).min()) >= STEPS  # a word that nobody holds is not counted at all
    alone = sums(EVERY[:1])
    assert sum(int(step) ** 2 for step in alone.tolist()) == 2 * STEPS**2 <= limit(root_up(2), 1)
    single = class_counts(np.array([0.0, 1.0, 2.0, 1.0, 0.0]), 3)(EVERY[1:2])
    assert single.tolist() == [0, STEPS, 0]


@given(
    numbers=tables,
    scale=st.tuples(ranges, ranges, ranges),
    mean=st.floats(-1.0, 1.0),
    spread=st.floats(0.05, 1.0),
    factor=st.floats(1e-3, 1e3),
    bound=st.sampled_from([0.5, 1.0, 7.0]),
)
def test_rows_of_a_learned_rule_are_bounded_whatever_a_record_holds(
    numbers: Matrix, scale: tuple[Range, Range, Range], mean: float, spread: float, factor: float, bound: float
) -> None:
    outline = Outline(numbers=("a", "b", "c"), texts=(), bound=bound)
    learned = LearnedRule(
        outline=outline,
        numbers=tuple(Number(name, span, mean, spread) for name, span in zip("abc", scale, strict=True)),
        categories=(),
        others=(),
        factor=factor,
    )
    rows = learned.rows(Columns(numbers=numbers, texts={}))
    assert rows.shape == (ROWS, outline.width)
    exact = [sum(Fraction(value) ** 2 for value in row) for row in rows.tolist()]
    assert max(exact) <= Fraction(outline.total) ** 2
    one = learned.rows(Columns(numbers=numbers[:1], texts={}))
    assert np.array_equal(one[0], rows[0])  # a row depends on its own record alone


@pytest.mark.parametrize("count", [1, 2, 3, 4, 30, 10**6 + 1])
def test_the_root_is_never_below(count: int) -> None:
    assert Fraction(root_up(count)) ** 2 >= count


def test_counts_are_charged_for_what_the_farthest_records_move_and_no_more() -> None:
    before, after = (range_counts(Columns(numbers=np.full((1, WIDTH), x), texts={}), range(WIDTH)) for x in (1.0, -9.0))
    only = np.zeros(1, dtype=np.int64)
    change = before(only) - after(only)
    exact = Fraction(sum(int(step) ** 2 for step in change.tolist()))
    assert exact <= charged("ranges", root_up(WIDTH), counts=True) <= exact * (1 + Fraction(1, 2**30))


@pytest.mark.parametrize("name", ["means", "moments", "scores", "errors"])
def test_what_may_point_apart_is_never_charged_as_counts(name: str) -> None:
    with pytest.raises(ValueError, match=r"prepare\.counts must be true or false, and false for means, moments"):
        Measurement(name=name, size=3, bound=1.0, noise=2.0, counts=True)
    ahead, back = (vectors(np.array([[sign, 0.0, 0.0]]), 1.0)(np.zeros(1, dtype=np.int64)) for sign in (1.0, -1.0))
    apart = sum(int(step) ** 2 for step in (ahead - back).tolist())
    assert charged("x", 1.0, counts=True) < apart <= limit(1.0, 2)
