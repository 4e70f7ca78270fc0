"""The cells of a source's rows, and what each record adds to counts of them: features by column, and the target."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

import numpy as np

from fedveil.core.errors import BadValue, require
from fedveil.core.values import Indices, Vector
from fedveil.data.records import Records
from fedveil.data.row_rule import Labels
from fedveil.stages.prepare.columns import Columns, Outline
from fedveil.stages.prepare.loading import Unprepared
from fedveil.stages.sums import STEPS, Measurement
from fedveil.stages.synthesise.cells import Cells, NumberCells, WordCells
from fedveil.stages.synthesise.fit import Clique
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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Table:
    """``columns``: the features by name; ``targets``: as training reads them; ``target``: the name of their column.

    Without a target every column is a feature. ``owner``: the number of each row's client among all ``clients``.
    """

    outline: Outline
    columns: Columns
    targets: Vector
    labels: Labels
    target: str | None
    owner: Indices = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    clients: int = 1

    @property
    def all_columns(self) -> Outline:
        """The outline with the target as one more column, unless it is seen in intervals of time."""
        if self.target is None or self.labels.ends:
            return self.outline
        if self.labels.span is not None:
            numbers, scale = (*self.outline.numbers, self.target), {**self.outline.scale, self.target: self.labels.span}
            return replace(self.outline, numbers=numbers, scale=scale)
        categories = {**self.outline.categories, self.target: self.labels.classes}
        return replace(self.outline, texts=(*self.outline.texts, self.target), categories=categories)

    def codes(self, cells: Sequence[Cells]) -> Indices:
        """Return the cell of each row in each of these columns, a target last; of a blank row, any."""
        place = {name: index for index, name in enumerate(self.outline.numbers)}
        found = []
        for one in cells if self.target is None else cells[:-1]:
            if isinstance(one, NumberCells):
                found.append(one.codes(self.columns.numbers[:, place[one.name]]))
            else:
                words = self.columns.texts[one.name]
                found.append(one.codes(words.spelt, words.codes))
        if self.target is None:
            return np.column_stack(found)
        last = cells[-1]
        if isinstance(last, NumberCells):
            found.append(last.codes(self.labels.own_unit(self.targets)))
        elif isinstance(last, WordCells):
            found.append(last.codes(last.words, np.nan_to_num(self.targets).astype(np.int64)))
        else:
            raise TypeError("a target is a class or a number")
        return np.column_stack(found)


def table_of(found: Unprepared) -> Table:
    """Return the cells of the rows to measure."""
    return _table(found, found.training_columns, found.train)


def public_table(found: Unprepared) -> Table | None:
    """Return the cells of the held-out rows, where these are public; None where there are none."""
    if found.test is None or not found.test_public:
        return None
    rows = np.flatnonzero(~found.test.blank).astype(np.int64)
    numbers = np.asarray(found.test.features[rows, 0], dtype=np.int64) - 1  # rows are kept by their numbers, from 1
    return _table(found, found.test_columns.rows(numbers), found.test, rows)


def _table(found: Unprepared, columns: Columns, records: Records, rows: Indices | None = None) -> Table:
    if found.source is None or (found.target is None and not found.source.labelling.unlabelled):
        raise BadValue("data.target must name a column for a generator.")
    return Table(
        outline=found.outline,
        columns=columns,
        targets=records.targets if rows is None else records.targets[rows],
        labels=Labels.of(found.source, found.target),
        target=found.target,
        owner=records.owner if rows is None else records.owner[rows],
        clients=records.clients,
    )
