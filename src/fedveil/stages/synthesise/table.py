"""The cells of a source's rows, as a generator counts them: features by column, and what training would predict."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedveil.core.errors import BadValue
from fedveil.core.values import Indices, Vector
from fedveil.data.records import Records
from fedveil.data.row_rule import Labels
from fedveil.stages.prepare.columns import Columns, Outline
from fedveil.stages.prepare.loading import Unprepared
from fedveil.stages.synthesise.cells import Cells, NumberCells, WordCells


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Table:
    """``columns``: the features by name; ``targets``: as training reads them; ``target``: the name of their column.

    Without a target every column is a feature.
    """

    outline: Outline
    columns: Columns
    targets: Vector
    labels: Labels
    target: str | None

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
    if found.source is None or (found.target is None and not found.source.unlabelled):
        raise BadValue("data.target must name a column for a generator.")
    return Table(
        outline=found.outline,
        columns=columns,
        targets=records.targets if rows is None else records.targets[rows],
        labels=Labels.of(found.source, found.target),
        target=found.target,
    )
