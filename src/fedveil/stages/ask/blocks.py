"""What one record adds for one question: a vector of norm at most 1, in whole grid steps.

The blocks of all questions stand side by side in one sum. With Gaussian noise, any two contributions to a block are at
most the root of 2 apart: a record is in one cell (or adds a column of a matrix without negative entries), or it adds
the products of a row with itself, and the inner product of two such matrices is a square. With Laplace noise the norm
is the sum of magnitudes, and two contributions are at most 2 apart. Proofs: docs/theory/statistics.md.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Protocol

import numpy as np
from scipy.linalg import toeplitz

from fedveil.core.values import Indices, Matrix, Vector
from fedveil.stages.sums import STEPS
from fedveil.sums.seam import Whole
from fedveil.theory.grid import NoiseLaw

_CHUNK: Final = 2**19  # numbers at a time


class Block(Protocol):
    """What records add for one question."""

    def total(self, rows: Indices, scale: int) -> Whole:
        """Return the sum over these rows, in grid steps; ``scale``: steps of one unit."""


def steps_of(share: float, each: int, law: NoiseLaw) -> int:
    """Return how many grid steps one unit of a block is, if it may take this share of a contribution's squared norm.

    ``each``: how many numbers of one record are not zero at most. Rounding moves each by half a step, so two rounded
    contributions are at most root(2) * steps + root(each) apart: within root(2 * share) units. With Laplace noise
    shares are of the sum of magnitudes, and steps + each (a number and its centre are rounded) is within share units.
    """
    if law == "laplace":
        return math.floor(share * STEPS - each - 1)
    return math.floor(math.sqrt(share) * STEPS - math.sqrt(each / 2) - 1)


@dataclass(frozen=True, slots=True, eq=False)
class Coded:
    """Each row is one of ``count`` codes, or none (-1), and adds that column of ``matrix``; without one, a one.

    The codes of several groups stand one group after another; each has the columns of the matrix.
    """

    codes: Indices
    count: int
    matrix: Matrix | None = None

    def total(self, rows: Indices, scale: int) -> Whole:
        """Return the sum over these rows, in grid steps."""
        codes = self.codes[rows]
        counts = np.bincount(codes[codes >= 0], minlength=self.count).astype(np.int64)
        if self.matrix is None:
            return counts * scale
        steps = np.rint(self.matrix * scale).astype(np.int64)
        return np.asarray((steps @ counts.reshape(-1, self.matrix.shape[1]).T).T.ravel(), dtype=np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Centred:
    """Each row adds what it adds to ``block``, less a public vector: a ball about that holds all contributions.

    Every row does, also one that is not asked about, so the number of rows times the vector is added back.
    """

    block: Block
    centre: Vector

    def total(self, rows: Indices, scale: int) -> Whole:
        """Return the sum over these rows, in grid steps."""
        return self.block.total(rows, scale) - rows.size * np.rint(self.centre * scale).astype(np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Lettered:
    """Each row is one of several codes, or none (-1), and adds one at every place that its code lists (-1: nowhere)."""

    codes: Indices
    places: Indices
    size: int

    def total(self, rows: Indices, scale: int) -> Whole:
        """Return the sum over these rows, in grid steps; the numbers of each row have norm 1 together."""
        codes = self.codes[rows]
        counts = np.bincount(codes[codes >= 0], minlength=len(self.places)).astype(np.int64)
        listed = self.places >= 0
        steps = np.floor(scale / np.sqrt(np.maximum(listed.sum(axis=1), 1))).astype(np.int64)
        result = np.zeros(self.size, dtype=np.int64)
        np.add.at(result, self.places[listed], np.broadcast_to((counts * steps)[:, None], self.places.shape)[listed])
        return result


@dataclass(frozen=True, slots=True, eq=False)
class Valued:
    """Each row of a group adds ``vectors(rows)``, of norm at most 1; rows of group -1 add nothing."""

    group: Indices
    groups: int
    size: int
    vectors: Callable[[Indices], Matrix]

    def total(self, rows: Indices, scale: int) -> Whole:
        """Return the sum over these rows, in grid steps."""
        result = np.zeros((self.groups, self.size), dtype=np.int64)
        own, many = self.group[rows], max(1, _CHUNK // self.size)
        for place in range(self.groups):
            chosen = rows[own == place]
            for start in range(0, chosen.size, many):
                part = self.vectors(chosen[start : start + many])
                result[place] += np.rint(part * scale).astype(np.int64).sum(axis=0)
        return result.ravel()


@lru_cache(maxsize=64)
def _upper(width: int) -> tuple[Indices, Indices, Vector]:
    rows, columns = np.triu_indices(width)
    return rows, columns, np.where(rows == columns, 1.0, math.sqrt(2))


def products(rows: Matrix) -> Matrix:
    """Return the products of each row with itself, as the upper triangle, whose norm is that of the row squared.

    >>> products(np.array([[0.6, 0.8]])).round(3).tolist()
    [[0.36, 0.679, 0.64]]
    """
    first, second, weight = _upper(rows.shape[1])
    return np.asarray(rows[:, first] * rows[:, second] * weight)


def product_size(width: int) -> int:
    """Return how many products a row of this width has."""
    return width * (width + 1) // 2


def symmetric(sums: Vector, width: int) -> Matrix:
    """Return the matrix whose upper triangle :func:`products` lists."""
    first, second, weight = _upper(width)
    result = np.zeros((width, width))
    result[first, second] = sums / weight
    result[second, first] = result[first, second]
    return result


def entry_noise(width: int) -> Matrix:
    """Return the deviation of each entry of :func:`symmetric` where each number has deviation 1."""
    return symmetric(np.ones(product_size(width)), width)


@lru_cache(maxsize=8)
def prefix_root(cells: int) -> tuple[Matrix, float]:
    """Return the square root R of the matrix that adds up cells from the left, and the norm of its largest column.

    R @ R is that matrix, so cells that are measured as R @ counts give every sum from the left with noise that grows
    with the logarithm of the number of cells (Fichtenberger, Henzinger and Upadhyay, Constant Matters, 2023).
    """
    k = np.arange(1, cells)
    entries = np.concatenate([[1.0], np.cumprod((2 * k - 1) / (2 * k))])
    root = toeplitz(entries, np.zeros(cells))
    norm = math.nextafter(float(np.linalg.norm(entries)), math.inf)
    return root, norm
