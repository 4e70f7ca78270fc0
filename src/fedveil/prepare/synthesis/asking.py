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

from fedveil.checks import require
from fedveil.data.row_rule import Labels
from fedveil.errors import BadValue
from fedveil.prepare.columns import Columns, Outline, Words
from fedveil.prepare.replay import Asked, NextError
from fedveil.prepare.synthesis.cells import Cells, cells_from
from fedveil.prepare.synthesis.counts import Counted, TableCounts, check_norm
from fedveil.prepare.synthesis.generator import Generator
from fedveil.prepare.synthesis.junction import Clique
from fedveil.prepare.synthesis.learn import cells_in, learned_generator
from fedveil.prepare.synthesis.plan import SynthesisPlan
from fedveil.prepare.synthesis.request import GeneratorRequest
from fedveil.prepare.synthesis.table import Table
from fedveil.stages.sums import Measurement
from fedveil.stages.units import Sums
from fedveil.strict_json import read_object
from fedveil.values import Indices, Vector, number

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


def empty_table(outline: Outline, labels: Labels, target: str | None) -> Table:
    """Return columns like these without a row: what whoever adds up knows of them."""
    none = Words(spelt=(), codes=np.zeros(0, dtype=np.int64))
    columns = Columns(numbers=np.zeros((0, len(outline.numbers))), texts=dict.fromkeys(outline.texts, none))
    return Table(outline=outline, columns=columns, targets=np.zeros(0), labels=labels, target=target)


@dataclass(slots=True)
class _Known:
    """Gives the sums that are known, in order, and stops at the first that is not.

    ``asked``: the questions to which they are the answers. Whoever computes them anew must find the same.
    """

    sums: Sequence[Vector]
    asked: Sequence[Question]
    present: Indices
    place: int = 0

    def noisy_sum(self, planned: Measurement, contributions: Sums, size: int) -> Vector:
        if self.place >= len(self.sums):
            raise NextError(Asked(planned, contributions))
        asked, tables = self.asked[self.place], getattr(contributions, "tables", ())
        same = asked.name == planned.name and asked.tables == _stated(tables)
        same = same and all(np.array_equal(one, asked.groups[c]) for t in tables for c, one in _grouped(t))
        hint = "Go on where the run began, or begin another one."
        require(same, "The choice of tables", "be the one that was asked for", "another one on this machine", hint)
        self.place += 1
        return self.sums[self.place - 1][:size]  # a plan has room for more numbers than are counted


def _stated(tables: Sequence[Counted]) -> tuple[tuple[Clique, float], ...]:
    return tuple((one.columns, float(one.weight)) for one in tables)


def _grouped(one: Counted) -> Iterator[tuple[int, Indices]]:
    return zip(one.columns, one.groups, strict=True)


def after(
    plan: SynthesisPlan,
    request: GeneratorRequest,
    table: Table,
    sums: Sequence[Vector],
    asked: Sequence[Question],
) -> Question | Generator:
    """Return what is asked for after these noisy sums, or the generator if nothing is.

    ``table``: the columns without a row. ``asked``: the questions of which these are the answers; refused unless this
    computation asks the same, since counts of other tables would be read as something else.
    """
    nobody = np.zeros(0, dtype=np.int64)
    try:
        known = _Known(sums, asked, nobody)
        return learned_generator(plan.name, plan.preparation, request, table, plan.units, known)
    except NextError as found:
        next_one = found.asked
    if not isinstance(next_one.contributions, TableCounts):
        return Question(name=next_one.planned.name)
    cells = cells_in(plan.preparation, request, table, plan.units, _Known(sums, asked, nobody))
    tables = next_one.contributions.tables
    groups: list[Indices] = [np.zeros(one.size, dtype=np.int64) for one in cells]
    for one in tables:
        for column, own in _grouped(one):
            groups[column] = own
    return Question(name=next_one.planned.name, cells=cells, groups=tuple(groups), tables=_stated(tables))
