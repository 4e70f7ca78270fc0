"""What one unit adds to each measurement: whole numbers of grid steps, of bounded norm whatever the record holds.

Contributions are cut toward zero onto the grid, so their norm is at most the stated bound, exactly. A blank record adds
nothing. Where whole clients are protected, a client adds the mean of its records' contributions, cut toward zero again.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedveil.core.values import Indices, Matrix, Vector
from fedveil.data.rows import cut_rows
from fedveil.stages.prepare.columns import Columns
from fedveil.stages.prepare.learned import CELLS, LEVELS, levels_of
from fedveil.stages.prepare.ranges import BINS, Range, bins_of
from fedveil.stages.sums import STEPS, Sums
from fedveil.sums.seam import Whole

_CHUNK = 2**20  # products at a time
_ROWS = 2**16  # records counted at a time


def range_counts(columns: Columns, places: Sequence[int]) -> Sums:
    """Each record adds one count in each of these columns of numbers: norm sqrt(columns)."""
    bins = np.empty((len(columns), len(places)), dtype=np.int32)
    for own, place in enumerate(places):
        bins[:, own] = bins_of(columns.numbers[:, place]) + BINS * own
    return counts_in(bins, BINS * len(places))


def counts_in(places: NDArray[np.signedinteger[Any]], size: int) -> Sums:
    """Each record adds one count in each of its places, one row a record; a place from ``size`` on is not counted."""

    def add_up(rows: Indices) -> Whole:
        total = np.zeros(size, dtype=np.int64)
        for first in range(0, rows.size, _ROWS):
            total += np.bincount(places[rows[first : first + _ROWS]].ravel(), minlength=size)[:size]
        return total * STEPS

    return add_up


def level_counts(centred: Matrix) -> Sums:
    """Each record adds one count in each column, for its distance from the mean, unless its number is missing."""
    width = centred.shape[1]
    levels = levels_of(centred)
    return counts_in(np.where(levels < LEVELS, levels + LEVELS * np.arange(width), LEVELS * width), LEVELS * width)


def cell_counts(scaled: Matrix) -> Sums:
    """Each record adds one count in each column, for the cell of its number, unless that is missing."""
    width = scaled.shape[1]
    places = np.empty(scaled.shape, dtype=np.int32)
    for own in range(width):
        numbers = scaled[:, own]
        cells = np.clip(np.floor((np.nan_to_num(numbers) + 1) * (CELLS / 2)), 0, CELLS - 1) + CELLS * own
        places[:, own] = np.where(np.isnan(numbers), CELLS * width, cells)
    return counts_in(places, CELLS * width)


def class_counts(targets: Vector, classes: int) -> Sums:
    """Each record adds one count in its class: norm 1."""

    def add_up(rows: Indices) -> Whole:
        return np.bincount(targets[rows].astype(np.int64), minlength=classes).astype(np.int64) * STEPS

    return add_up


def word_counts(codes: Indices, words: int) -> Sums:
    """Each record adds one count for its word in each column: norm sqrt(columns). ``codes``: one row a record."""
    return counts_in(codes, words)


def vectors(rows: Matrix, bound: float) -> Sums:
    """Each record adds its own row of finite numbers, cut to norm ``bound`` and toward zero onto the grid."""
    cut = np.array(rows, dtype=np.float64, order="C")
    cut_rows(cut, bound)
    steps = np.trunc(cut * STEPS).astype(np.int64)

    def add_up(chosen: Indices) -> Whole:
        return np.asarray(steps[chosen].sum(axis=0), dtype=np.int64)

    return add_up


def second_moments(rows: Matrix, bound: float) -> Sums:
    """Each record adds the products of all pairs of entries of its row, cut to norm ``bound`` and toward zero.

    With what is off the diagonal multiplied by the root of 2, the upper triangle has the norm of the row squared.
    """
    upper = np.triu_indices(rows.shape[1])
    weights = np.where(upper[0] == upper[1], 1.0, math.sqrt(2))
    chunk = max(1, _CHUNK // upper[0].size)

    def add_up(chosen: Indices) -> Whole:
        total = np.zeros(upper[0].size, dtype=np.int64)
        for start in range(0, chosen.size, chunk):
            part = rows[chosen[start : start + chunk]]
            products = part[:, upper[0]] * part[:, upper[1]] * weights
            cut_rows(products, bound)
            total += np.trunc(products * STEPS).astype(np.int64).sum(axis=0)
        return total

    return add_up


def matrix_of(moments: Vector, width: int) -> Matrix:
    """The symmetric matrix of which :func:`second_moments` adds up the upper triangle."""
    result = np.zeros((width, width))
    upper = np.triu_indices(width)
    result[upper] = moments / np.where(upper[0] == upper[1], 1.0, math.sqrt(2))
    return result + np.triu(result, 1).T


def scaled_numbers(columns: Columns, ranges: Sequence[Range]) -> Matrix:
    """All numbers on the scales of their ranges, from -1 to 1; NaN where one is missing."""
    result = [one.scaled(columns.numbers[:, place]) for place, one in enumerate(ranges)]
    return np.column_stack(result) if result else np.zeros((len(columns), 0))
