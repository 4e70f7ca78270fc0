"""How close synthetic rows are to public ones: marginals, dependence, and how near single rows are.

Everything here compares rows that may be seen by anybody, so nothing is charged. On private rows each number would be
a release.
"""

import csv
import io
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np

from fedveil.core.errors import require
from fedveil.core.values import Indices, Matrix, Vector
from fedveil.stages.synthesise.fit import Clique, Table, Tree
from fedveil.stages.synthesise.generator import Generator

_NEAREST: Final = 400  # public rows for which the nearest synthetic row is looked for
_AMONG: Final = 5000  # among so many


def compared(generator: Generator, synthetic: Indices, real: Indices) -> dict[str, Any]:
    """Return how far apart the marginals are, and how columns depend on each other in both; codes are fine cells."""
    merged = [own[synthetic[:, c]] for c, own in enumerate(generator.groups)]
    truth = [own[real[:, c]] for c, own in enumerate(generator.groups)]
    return compared_cells(generator.names, generator.sizes, merged, truth)


def compared_cells(
    names: Sequence[str], sizes: Sequence[int], merged: Sequence[Indices], truth: Sequence[Indices]
) -> dict[str, Any]:
    """Return the same of cells, a column at a time: those of synthetic rows, and those of public ones."""
    ones = {name: distance(shares(truth[c], sizes[c]), shares(merged[c], sizes[c])) for c, name in enumerate(names)}
    pairs, links = {}, {"synthetic": np.eye(len(names)), "real": np.eye(len(names))}
    for first, second in itertools.combinations(range(len(names)), 2):
        size = sizes[first] * sizes[second]
        tables = {
            "synthetic": shares(merged[first] * sizes[second] + merged[second], size),
            "real": shares(truth[first] * sizes[second] + truth[second], size),
        }
        pairs[first, second] = distance(tables["real"], tables["synthetic"])
        for key, table in tables.items():
            link = dependence(table.reshape(sizes[first], sizes[second]))
            links[key][first, second] = links[key][second, first] = link
    return {
        "ones": ones,
        "pairs": [[names[a], names[b], value] for (a, b), value in pairs.items()],
        "mean_one": float(np.mean(list(ones.values()))),
        "mean_pair": float(np.mean(list(pairs.values()))),
        "dependence": {key: matrix.round(4).tolist() for key, matrix in links.items()},
    }


def shares(codes: Indices, size: int) -> Vector:
    """Return the share of rows in each cell."""
    return np.asarray(np.bincount(codes, minlength=size) / max(codes.size, 1), dtype=np.float64)


def distance(first: Vector, second: Vector) -> float:
    """Return the total-variation distance: the largest difference of any event's chance.

    >>> distance(np.array([0.5, 0.5]), np.array([0.75, 0.25]))
    0.25
    """
    return float(np.abs(first - second).sum() / 2)


def dependence(table: Matrix) -> float:
    """Return Cramer's V of a table of shares: 0 for independent columns, 1 if one decides the other.

    >>> dependence(np.eye(2) / 2), dependence(np.full((2, 2), 0.25))
    (1.0, 0.0)
    """
    table = table[table.sum(axis=1) > 0][:, table.sum(axis=0) > 0]
    if min(table.shape) < 2:
        return 0.0
    expected = np.outer(table.sum(axis=1), table.sum(axis=0))
    squares = float(((table - expected) ** 2 / expected).sum())
    return min(1.0, math.sqrt(squares / (min(table.shape) - 1)))


def nearest(synthetic: Indices, rows: Indices, most: int = _NEAREST) -> Vector:
    """Return in how many columns each of the first rows differs from the synthetic row that is nearest to it."""
    result = np.full(min(rows.shape[0], most), synthetic.shape[1], dtype=np.float64)
    among = synthetic[:_AMONG]
    for place in range(result.size):
        result[place] = (among != rows[place]).sum(axis=1).min(initial=synthetic.shape[1])
    return result


def one_hot(generator: Generator, codes: Indices) -> Matrix:
    """Return rows of zeros and ones for all columns but the last, the target, and a constant."""
    blocks = [
        np.eye(size)[own[codes[:, c]]]
        for c, (own, size) in enumerate(zip(generator.groups, generator.sizes, strict=True))
    ]
    return np.hstack([*blocks[:-1], np.ones((codes.shape[0], 1))])


# Rows drawn from a generator: as many as wanted, at no cost to anybody's privacy.
#
# Columns are drawn clique by clique along the junction tree. Within each group of equal rows the next columns get their
# expected counts, rounded, so that drawing adds less to the errors than independent rows would.

MOST_ROWS: Final = 10**9
BLOCK: Final = 2**17  # rows that are drawn and held at a time
_TRIES: Final = 100  # blocks in a row without a single allowed row, after which declared zeros count as everything


def check_rows(rows: int) -> int:
    """Return how many rows to draw; refuse none, and more than anybody can store."""
    require(1 <= rows <= MOST_ROWS, "--rows", f"lie between 1 and {MOST_ROWS}", rows)
    return rows


def draw_codes(generator: Generator, rows: int, random: np.random.Generator) -> Indices:
    """Return the cells of so many rows, a column a column of the generator."""
    model = generator.model
    tables, tree = model.tables(), model.tree
    found = np.full((rows, len(tree.sizes)), -1, dtype=np.int64)
    for table, clique in zip(tables, tree.cliques, strict=True):
        _draw_clique(found, table, clique, tree, random)
    fine = np.empty_like(found)
    for column, groups in enumerate(generator.groups):
        within = generator.within(column)
        for group in range(generator.sizes[column]):
            own, cells = np.flatnonzero(found[:, column] == group), np.flatnonzero(groups == group)
            fine[own, column] = cells[_rounded(within[cells], own.size, random)]
    return fine


def _draw_clique(found: Indices, table: Table, clique: Clique, tree: Tree, random: np.random.Generator) -> None:
    """Draw the columns of a clique that are not drawn yet, given those that are."""
    known = [column for column in clique if found[0, column] >= 0]
    new = [column for column in clique if found[0, column] < 0]
    if not new:
        return
    sizes = tree.sizes
    ways = math.prod(sizes[column] for column in known)
    chances = np.transpose(table, [clique.index(column) for column in known + new]).reshape(ways, -1)
    key = np.zeros(found.shape[0], dtype=np.int64)
    for column in known:
        key = key * sizes[column] + found[:, column]
    order = np.argsort(key, kind="stable")
    starts = np.flatnonzero(np.diff(key[order], prepend=-1))
    drawn = np.zeros(found.shape[0], dtype=np.int64)
    for start, end in zip(starts.tolist(), [*starts[1:].tolist(), order.size], strict=True):
        own = order[start:end]
        drawn[own] = _rounded(chances[key[own[0]]], own.size, random)
    for column in reversed(new):
        found[:, column] = drawn % sizes[column]
        drawn //= sizes[column]


def _rounded(chances: Vector, count: int, random: np.random.Generator) -> Indices:
    """Return ``count`` places in random order, each about as often as its chance says: rounded down, the rest drawn."""
    total = float(chances.sum())
    shares = chances / total if total > 0 else np.full(chances.size, 1.0 / chances.size)
    expected = shares * count
    each = np.floor(expected).astype(np.int64)
    left, rest = count - int(each.sum()), expected - each
    if left > 0:
        rest = rest / rest.sum() if rest.sum() > 0 else shares
        each += random.multinomial(left, rest / rest.sum())
    places = np.repeat(np.arange(chances.size), np.maximum(each, 0))[:count]
    random.shuffle(places)
    return np.asarray(places, dtype=np.int64)


def draw_rows(generator: Generator, rows: int, random: np.random.Generator) -> Iterator[list[tuple[str, ...]]]:
    """Yield so many rows as texts, a block at a time; rows with a declared zero are left out and drawn again."""
    left, vain = check_rows(rows), 0
    while left > 0:
        codes = draw_codes(generator, min(left, BLOCK), random)
        columns = {cells.name: cells.drawn(codes[:, place], random) for place, cells in enumerate(generator.columns)}
        for total, parts in generator.sums.items():
            whole = not set(parts) & set(generator.fractions)
            columns[total] = [_total(values, whole) for values in zip(*(columns[part] for part in parts), strict=True)]
        allowed = np.ones(codes.shape[0], dtype=np.bool_)
        for zero in generator.zeros:
            allowed &= ~np.all([np.array(columns[name]) == word for name, word in zero.items()], axis=0)
        rows_drawn = zip(*(columns[name] for name in generator.order), strict=True)
        block = [row for row, kept in zip(rows_drawn, allowed.tolist(), strict=True) if kept]
        vain = 0 if block else vain + 1
        require(vain < _TRIES, "generator.zeros", "leave rows that can be drawn", list(generator.zeros))
        left -= len(block)
        yield block


def _total(values: tuple[str, ...], whole: bool) -> str:
    """The sum of numbers as they are written; nothing if one is missing."""
    if "" in values:
        return ""
    total = math.fsum(float(value) for value in values)
    return f"{total:.0f}" if whole else f"{total:.6g}"


def header(generator: Generator) -> tuple[str, ...]:
    """Return the names of the columns of the rows that are drawn, in the order of the source."""
    return generator.order


def csv_parts(generator: Generator, rows: int, random: np.random.Generator) -> Iterator[bytes]:
    """Yield so many rows as CSV, with a header, a block at a time."""
    for block in itertools.chain([[header(generator)]], draw_rows(generator, rows, random)):
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(block)
        yield text.getvalue().encode()
