"""A generator across machines: what is counted next, worked out from the noisy sums so far, as a text that travels.

Whoever adds up works out the question without any record, and in the end the generator. A site is told which cells
each column has, how they are grouped and which tables are counted. It checks that one record adds no more to them than
the plan says, and believes nothing else: whatever it is asked, what it answers costs what was charged.
"""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedveil.core.errors import BadValue, require
from fedveil.core.strict_json import read_object
from fedveil.core.values import Indices, Vector, number
from fedveil.data.row_rule import Labels
from fedveil.stages.measured.plan import MeasuredPlan
from fedveil.stages.measuring import Asked, Known
from fedveil.stages.prepare.columns import Columns, Outline, Words
from fedveil.stages.sums import Measurement
from fedveil.stages.synthesise.fit import Clique
from fedveil.stages.synthesise.learn import cells_in
from fedveil.stages.synthesise.request import GeneratorRequest
from fedveil.stages.synthesise.table import Cells, Counted, Table, TableCounts, cells_from, check_norm

_WHAT = "A question of a generator"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Question:
    """The next measurement; of counts, the cells and groups of every column, and each table's columns and weight.

    The ranges of columns are measured alike for every study, so that question names the measurement alone.
    """

    name: str
    cells: tuple[Cells, ...] = ()
    groups: tuple[Indices, ...] = ()
    tables: tuple[tuple[Clique, float], ...] = ()

    @property
    def counted(self) -> list[Counted]:
        """The tables to count."""
        return [Counted(columns, tuple(self.groups[c] for c in columns), weight) for columns, weight in self.tables]

    def text(self) -> bytes:
        """Return the question as JSON; reading it gives an equal one, whose text has the same bytes."""
        values = {
            "name": self.name,
            "cells": [one.table() for one in self.cells],
            "groups": [own.tolist() for own in self.groups],
            "tables": [[list(columns), weight] for columns, weight in self.tables],
        }
        return json.dumps(values, allow_nan=False, sort_keys=True).encode()

    @classmethod
    def read(cls, text: bytes) -> "Question":
        """Return the question that a text holds; refuse anything else than :meth:`text` writes."""
        given: dict[str, Any] = read_object(text, _WHAT)
        try:
            return cls(
                name=str(given["name"]),
                cells=tuple(cells_from(one) for one in given["cells"]),
                groups=tuple(_whole_numbers(own) for own in given["groups"]),
                tables=tuple((tuple(columns), number("weight", weight)) for columns, weight in given["tables"]),
            )
        except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
            raise BadValue(f"{_WHAT} must be as an aggregator wrote it: {error}.") from error

    def check(self, planned: Measurement) -> None:
        """Refuse tables that do not fit their columns, that are too many, or to which a record adds too much."""
        require(self.name == planned.name, _WHAT, f"be about {planned.name}", self.name)
        fits = len(self.groups) == len(self.cells) >= 1
        for own, cells in zip(self.groups, self.cells, strict=False):
            fits = fits and own.shape == (cells.size,) and bool(own.min() >= 0 and own.max() < cells.size)
        require(fits, _WHAT, "group the cells of every column", len(self.groups))
        places = range(len(self.cells))
        known = all(type(place) is int and place in places for columns, _ in self.tables for place in columns)
        once = all(len(set(columns)) == len(columns) >= 1 for columns, _ in self.tables)
        require(known and once and self.tables != (), _WHAT, "name tables of columns that are there", len(self.tables))
        room = all(0 < weight <= planned.bound for _, weight in self.tables)
        require(room, _WHAT, f"give weights above 0 and up to {planned.bound:g}", len(self.tables))
        size = sum(math.prod(one.shape) for one in self.counted)
        require(size <= planned.size, _WHAT, f"count at most {planned.size} cells", size)
        check_norm(self.counted, planned)


def _whole_numbers(given: Any) -> Indices:
    whole = isinstance(given, list) and all(type(value) is int and 0 <= value < 2**31 for value in given)
    require(whole and given != [], "groups", "be lists of whole numbers", str(given)[:40])
    return np.array(given, dtype=np.int64)


def empty_table(outline: Outline, labels: Labels, target: str | None, clients: int = 1) -> Table:
    """Return columns like these without a row: what whoever adds up knows of them."""
    none = Words(spelt=(), codes=np.zeros(0, dtype=np.int64))
    columns = Columns(numbers=np.zeros((0, len(outline.numbers))), texts=dict.fromkeys(outline.texts, none))
    return Table(outline=outline, columns=columns, targets=np.zeros(0), labels=labels, target=target, clients=clients)


def check_same(asked: Question, next_one: Asked) -> None:
    """Refuse a computation that asks for something else than was asked: counts of other tables mean something else."""
    tables = getattr(next_one.contributions, "tables", ())
    same = asked.name == next_one.planned.name and asked.tables == _stated(tables)
    same = same and all(np.array_equal(one, asked.groups[c]) for t in tables for c, one in _grouped(t))
    hint = "Go on where the run began, or begin another one."
    require(same, "The choice of tables", "be the one that was asked for", "another one on this machine", hint)


def _stated(tables: Sequence[Counted]) -> tuple[tuple[Clique, float], ...]:
    return tuple((one.columns, float(one.weight)) for one in tables)


def _grouped(one: Counted) -> Iterator[tuple[int, Indices]]:
    return zip(one.columns, one.groups, strict=True)


def question_after(
    plan: MeasuredPlan,
    request: GeneratorRequest,
    table: Table,
    sums: Sequence[Vector],
    before: Sequence[Question],
    next_one: Asked,
) -> Question:
    """Return the question for the next measurement, after these noisy sums, which answered the questions ``before``.

    ``table``: the columns without a row.
    """
    if not isinstance(next_one.contributions, TableCounts):
        return Question(name=next_one.planned.name)
    nobody = np.zeros(0, dtype=np.int64)
    known = Known(sums, nobody, lambda place, asked: check_same(before[place], asked))
    cells = cells_in(plan.sums, request, table, plan.units, known)
    tables = next_one.contributions.tables
    groups: list[Indices] = [np.zeros(one.size, dtype=np.int64) for one in cells]
    for one in tables:
        for column, own in _grouped(one):
            groups[column] = own
    return Question(name=next_one.planned.name, cells=cells, groups=tuple(groups), tables=_stated(tables))
