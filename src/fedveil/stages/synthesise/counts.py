"""What a record adds to each sum: one count in a cell of each table, by a weight that is the same for all records.

Counts are not negative, so the contributions of two records have an inner product of at least zero. Replacing one
record by another therefore moves a sum by at most the root of 2 times the norm of a contribution, and not by twice it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from fedveil.core.checks import require
from fedveil.core.values import Indices, Vector
from fedveil.stages.sums import STEPS, Measurement
from fedveil.stages.synthesise.junction import Clique
from fedveil.sums.seam import Whole


@dataclass(frozen=True, slots=True, eq=False)
class Counted:
    """One table: its columns, the cell of each of their codes, how many cells each has, and the weight of a count."""

    columns: Clique
    groups: tuple[Indices, ...]
    weight: float = 1.0

    @property
    def shape(self) -> tuple[int, ...]:
        """How many groups each column has."""
        return tuple(int(own.max()) + 1 for own in self.groups)

    @property
    def size(self) -> int:
        """How many cells the table has."""
        return math.prod(self.shape)

    @property
    def steps(self) -> int:
        """What one record adds, in grid steps: the weight, cut toward zero."""
        return math.floor(self.weight * STEPS)


def check_norm(tables: Sequence[Counted], planned: Measurement) -> None:
    """Refuse tables to which one record would add more than the plan says, in exact numbers of grid steps."""
    squares = sum(one.steps**2 for one in tables)
    most = (Fraction(planned.bound) * STEPS) ** 2
    rule = f"have contributions of norm at most {planned.bound:g}"
    require(squares <= most, f"prepare.{planned.name}", rule, squares)


@dataclass(frozen=True, slots=True, eq=False)
class TableCounts:
    """Each record adds one count to each table; ``codes``: a row a record, a column a column of the data."""

    codes: Indices
    tables: Sequence[Counted]

    def __call__(self, rows: Indices, /) -> Whole:
        """Return the counts of these records in all tables, one after another, in grid steps."""
        own = self.codes[rows]
        found = []
        for one in self.tables:
            place = np.zeros(rows.size, dtype=np.int64)
            for column, groups, size in zip(one.columns, one.groups, one.shape, strict=True):
                place = place * size + groups[own[:, column]]
            found.append(np.bincount(place, minlength=one.size).astype(np.int64) * one.steps)
        return np.concatenate(found)


def table_counts(codes: Indices, tables: Sequence[Counted]) -> TableCounts:
    """Return what records add to these tables; ``codes``: a row a record, a column a column of the data."""
    return TableCounts(codes, tables)


def tables_of(sums: Vector, tables: Sequence[Counted]) -> list[Vector]:
    """Return the counts of each table, in records, from the sums that :class:`TableCounts` adds up."""
    found, start = [], 0
    for one in tables:
        part = sums[start : start + one.size].reshape(one.shape)
        found.append(part / (one.steps / STEPS))
        start += one.size
    return found
