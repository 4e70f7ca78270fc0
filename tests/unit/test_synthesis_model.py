"""The graphical model behind synthetic rows: its marginals, its fit, what it chooses, and what is drawn from it."""

import itertools
import math

import numpy as np
import pytest

from fedveil.core.errors import BadValue
from fedveil.stages.prepare.ranges import Range
from fedveil.stages.synthesise.fit import Limits, Marginal, chosen_pairs, fitted, junction_tree, marginals, summed
from fedveil.stages.synthesise.generator import Generator
from fedveil.stages.synthesise.learn import counted_units
from fedveil.stages.synthesise.quality import draw_codes, draw_rows
from fedveil.stages.synthesise.table import (
    FINE,
    NumberCells,
    WordCells,
    indicator,
    merged_numbers,
    merged_words,
    shares_of,
)

SIZES = (3, 2, 4, 2, 3)
CYCLE = ((0, 1), (1, 2), (2, 3), (0, 3))  # its junction tree needs a clique of three; column 4 stands alone


def joint_of(potentials: dict[tuple[int, ...], np.ndarray]) -> np.ndarray:
    """The whole table, cell by cell, by the definition."""
    found = np.zeros(SIZES)
    for cell in itertools.product(*(range(size) for size in SIZES)):
        found[cell] = math.exp(sum(table[tuple(cell[c] for c in key)] for key, table in potentials.items()))
    return found / found.sum()


@pytest.fixture
def potentials() -> dict[tuple[int, ...], np.ndarray]:
    draw = np.random.default_rng(3)
    keys = [*CYCLE, (4,)]
    return {key: draw.normal(size=[SIZES[column] for column in key]) for key in keys}


def test_belief_propagation_is_the_sum_over_all_cells(potentials: dict[tuple[int, ...], np.ndarray]) -> None:
    tree, joint = junction_tree(SIZES, CYCLE), joint_of(potentials)
    assert max(map(len, tree.cliques)) == 3
    for clique, table in zip(tree.cliques, marginals(tree, potentials), strict=True):
        np.testing.assert_allclose(table, summed(joint, tuple(range(5)), clique), atol=1e-12)


def test_a_fit_to_exact_marginals_finds_them(potentials: dict[tuple[int, ...], np.ndarray]) -> None:
    """Also where a pair was counted in groups: only the sums over the groups are known, and are met."""
    joint = joint_of(potentials)
    tree = junction_tree(SIZES, CYCLE)
    measured = [Marginal(pair, summed(joint, tuple(range(5)), pair), 1e-3) for pair in CYCLE[:3]]
    groups = (indicator(np.array([0, 0, 1])), indicator(np.array([0, 1])))
    whole = summed(joint, tuple(range(5)), (0, 3))
    measured.append(Marginal((0, 3), groups[0] @ whole @ groups[1].T, 1e-3, groups))
    model = fitted(tree, measured, 2000)
    tables = model.tables()
    for one in measured:
        home = tree.home(one.columns)
        own = one.counted(summed(tables[home], tree.cliques[home], one.columns))
        np.testing.assert_allclose(own, one.shares, atol=2e-4)


def planted(limit: int = 2**12) -> tuple[list[tuple[int, ...]], bool]:
    """Four columns: the first two are equal, the last two nearly independent."""
    one, equal = np.full(4, 0.25), np.eye(4) / 4
    ones = [Marginal((column,), one, 1e-3) for column in range(4)]
    pairs = {pair: np.outer(one, one) for pair in itertools.combinations(range(4), 2)}
    pairs[0, 1] = equal
    coarse = {pair: Marginal(pair, table, 1e-3, (np.eye(4), np.eye(4))) for pair, table in pairs.items()}
    return chosen_pairs([4] * 4, ones, coarse, {}, Limits(pairs=6, measured=1000, model=limit, noise=1e-3))


def test_the_pair_that_depends_is_chosen_and_no_other() -> None:
    assert planted() == ([(0, 1)], False)


def test_a_model_that_would_outgrow_its_limit_leaves_the_pair_out_and_says_so() -> None:
    assert planted(limit=16) == ([], True)


def test_noisy_counts_become_shares() -> None:
    found = shares_of(np.array([70.0, -5.0, 40.0, 1.0]), 2.0, 100)
    assert found.sum() == pytest.approx(1.0)
    assert found[1] == found[3] == 0
    assert found[0] - found[2] == pytest.approx(0.3)


def test_what_clear_counts_leave_goes_to_faint_ones_and_never_to_a_cell_that_cannot_be() -> None:
    found = shares_of(np.array([70.0, 20.0, 1.0, -1.0, -np.inf]), 2.0, 100)
    assert found == pytest.approx([0.7, 0.2, 0.06, 0.04, 0.0])  # 10 are left, and the two faint cells are 2 apart


@pytest.mark.parametrize(("there", "found"), [(1000, 1000.0), (800, 800.0)])
def test_rows_that_are_in_no_cell_are_not_counted(there: int, found: float) -> None:
    counts = [np.full(size, there / size) for size in (2, 5, 40)]
    assert counted_units(counts, 10.0, 1000) == pytest.approx(found)
    assert counted_units([one * 1.001 for one in counts], 10.0, there) == there  # never more than there can be


def test_cells_are_merged_by_their_shares_alone() -> None:
    assert merged_numbers(np.array([0.3, 0.01, 0.01, 0.3, 0.38]), 0.05, 4).tolist() == [0, 1, 1, 1, 2]
    assert merged_words(np.array([0.5, 0.01, 0.4, 0.09, 0.0]), 0.05, 3).tolist() == [0, 2, 1, 2, 0]
    shares = np.random.default_rng(1).dirichlet(np.full(64, 0.1))
    for least, most in ((0.0, 8), (0.02, 16), (0.2, 16)):
        groups = merged_numbers(shares, least, most)
        held = np.bincount(groups, weights=shares)
        assert held.size <= most
        assert held.min() >= least
        assert set(np.diff(groups).tolist()) <= {0, 1}  # neighbours alone are joined
    assert merged_numbers(np.full(16, 1 / 16), 0.01, 16).tolist() == list(range(16))  # nothing is joined without need


@pytest.mark.parametrize("unit", [0.0, 1.0])
def test_a_number_is_drawn_from_the_cell_it_is_counted_in(unit: float) -> None:
    cells = NumberCells(name="x", range=Range(-10.0, 1000.0, unit))
    codes = np.arange(FINE + 2)
    drawn = cells.drawn(codes, np.random.default_rng(0))
    assert drawn[FINE] == "0"
    assert drawn[FINE + 1] == ""
    read = np.array([float(text) if text else math.nan for text in drawn])
    assert np.mean(cells.codes(read) == codes) > 0.95  # six digits may fall beyond an edge
    assert cells.codes(np.array([-1e9, 1e9, math.nan])).tolist() == [0, FINE - 1, FINE + 1]


def test_whole_numbers_have_cells_of_their_own() -> None:
    cells = NumberCells(name="x", range=Range(-2.0, 8.0), whole=True)
    assert cells.drawn(cells.codes(np.arange(-2.0, 9.0)), np.random.default_rng(0)) == [str(k) for k in range(-2, 9)]


def test_a_column_of_a_million_values_is_refused() -> None:
    with pytest.raises(BadValue, match=r"'name' must have at most 10000 values for a generator, got 1000000\. Leave"):
        WordCells(name="name", words=tuple(map(str, range(10**6))))


@pytest.fixture
def generator() -> Generator:
    """Two words that agree in nine of ten rows, and a number."""
    words = [WordCells(name=name, words=("a", "b")) for name in ("first", "second")]
    groups = np.array([0, 1, 0, 0])  # the cells of other and missing words are never drawn
    shares = np.array([0.5, 0.5, 0.0, 0.0])
    number = NumberCells(name="count", range=Range(1.0, 4.0), whole=True)
    return Generator(
        name="test",
        target="second",
        records=100,
        columns=(*words, number),
        groups=(groups, groups, np.array([0, 1, 2, 3, 0, 0])),
        shares=(shares, shares, np.array([0.25] * 4 + [0.0, 0.0])),
        pairs=((0, 1),),
        potentials={(0, 1): np.log(np.array([[0.45, 0.05], [0.05, 0.45]])), (2,): np.log(np.full(4, 0.25))},
        errors={"ones": 0.01},
        zeros=({"first": "a", "second": "b"},),
        sums={"double": ("count", "count")},
    )


def test_rows_have_the_marginals_of_the_model(generator: Generator) -> None:
    """Expected counts are rounded, so a thousand rows are off by at most a row or two in each cell."""
    codes = draw_codes(generator, 1000, np.random.default_rng(0))
    counts = np.zeros((2, 2))
    np.add.at(counts, (codes[:, 0], codes[:, 1]), 1)
    np.testing.assert_allclose(counts, [[450, 50], [50, 450]], atol=2)
    assert np.bincount(codes[:, 2]).tolist() == pytest.approx([250] * 4, abs=2)


def test_declared_zeros_and_sums_hold_in_every_row(generator: Generator) -> None:
    rows = [row for block in draw_rows(generator, 500, np.random.default_rng(0)) for row in block]
    assert len(rows) == 500
    assert not any(row[:2] == ("a", "b") for row in rows)
    assert any(row[:2] == ("b", "a") for row in rows)
    assert all(float(row[3]) == 2 * float(row[2]) for row in rows)


def test_a_generator_reads_back_to_what_was_written(generator: Generator) -> None:
    again = Generator.read(generator.text())
    assert again.text() == generator.text()
    with pytest.raises(BadValue, match=r"generator\.json must be as a generator wrote it"):
        Generator.read(generator.text().replace('"shares"', '"Shares"'))


@pytest.mark.parametrize("rows", [0, -1, 10**9 + 1])
def test_no_rows_and_too_many_are_refused(generator: Generator, rows: int) -> None:
    with pytest.raises(ValueError, match=r"--rows must lie between 1 and 1000000000"):
        next(draw_rows(generator, rows, np.random.default_rng(0)))
