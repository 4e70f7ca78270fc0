"""Cells of a column whose type nobody stated: numbers or texts, decided for the whole column at once.

The plan is published, so no single unit (record, or client where clients are protected) may change a type. A column of
numbers holds no word at all, and a column of texts holds words of at least two units; anything between is refused. So
two data sets that differ in one unit have the same types, or one of them is refused before anything is charged. A
column that the study names under prepare.numbers or prepare.texts is not looked at.
"""

import json
import math
from collections.abc import Collection

import numpy as np

from fedveil.checks import require
from fedveil.data.cells import canonical, numbers_of, writing_of, written_otherwise
from fedveil.data.features import refuse_undeclared
from fedveil.data.missing import Mask, number_marks, refuse_infinite, rule_for
from fedveil.data.spec import OTHER, Source
from fedveil.data.spec_rules import RULES
from fedveil.data.table import Array, Table
from fedveil.prepare.columns import MISSING_WORD, Columns, Words
from fedveil.values import Indices, Vector


def looks_textual(cells: Array, missing: Collection[str]) -> bool:
    """Whether more of the cells that are there are no numbers than are; a column without any counts as numbers."""
    if cells.dtype.kind in "biuf":
        return False
    words, counts = np.unique(cells, return_counts=True)
    balance = 0
    for word, count in zip(words.tolist(), counts.tolist(), strict=True):
        text = str(word).strip()
        if text not in missing:
            balance += -count if _is_number(text) else count
    return balance > 0


def refuse_lone_words(columns: Columns, unstated: Collection[str], rows: Indices, units: Indices, what: str) -> None:
    """Refuse columns of texts whose type was read off their cells, unless at least two units hold words in each.

    ``rows``: the rows that train; ``units``: the unit that each of them belongs to, a ``what``.
    """
    lone = []
    for name in sorted(unstated):
        words = columns.texts[name]
        wordy = np.array([word != MISSING_WORD and not _is_number(word) for word in words.spelt], dtype=np.bool_)
        if np.unique(units[wordy[words.codes[rows]]]).size < 2:
            lone.append(name)
    rule = f"hold words of at least two {what}s that train, or have their type stated"
    listed = json.dumps(lone, ensure_ascii=False)
    hint = f"One {what} alone must not change the plan: state prepare.texts = {listed}, or prepare.numbers."
    require(not lone, "Columns of texts", rule, lone, hint)


def refuse_other_writing(cells: Array, missing: Collection[str], name: str) -> None:
    """Refuse a column that is taken for texts only because its numbers are written with other signs."""
    words = [word for word in (str(cell).strip() for cell in np.unique(cells).tolist()) if word not in missing]
    if writing_of(words) is not None:
        told = next(word for word in words if not _is_number(word))
        hint = f"{written_otherwise(told)} If it is no number, name the column under prepare.texts."
        require(False, f"The column {name!r}", "hold numbers as they are usually written, or texts", told, hint)


def numbers_in(table: Table, cells: Array, source: Source, name: str, dropped: Mask) -> Vector:
    """A column as numbers, NaN where one is missing and no fill is stated; text in a row is refused by its place."""
    if cells.dtype.kind in "biuf":
        found = cells.astype(np.float64)
    else:
        texts = [str(cell).strip() for cell in cells.tolist()]
        found = numbers_of(texts, frozenset(source.missing), name, table.place)
    refuse_infinite(table, found, name)
    marks = number_marks(source)
    if marks:
        found[np.isin(found, marks)] = np.nan
    gone = np.isnan(found)
    value = _stated(table, source, name, gone, dropped)
    if gone.any() and value is not None and not isinstance(value, str):
        found[gone] = value
    return found


def words_in(table: Table, cells: Array, source: Source, name: str, dropped: Mask) -> Words:
    """A column as words in their one spelling; a missing one is the empty word unless a fill is stated."""
    written, codes = np.unique(cells, return_inverse=True)
    allowed = source.categories.get(name, ())
    marks = {canonical(word) for word in source.missing} | {"nan", MISSING_WORD}
    spelt = [canonical(word) for word in written.tolist()]
    spelt = [MISSING_WORD if word in marks and word not in allowed else word for word in spelt]
    if OTHER in allowed:
        spelt = [word if word in allowed or word == MISSING_WORD else OTHER for word in spelt]
    gone = np.array([word == MISSING_WORD for word in spelt], dtype=np.bool_)[codes.reshape(-1)]
    value = _stated(table, source, name, gone, dropped)
    if value is not None and value not in RULES:
        spelt = [canonical(value) if word == MISSING_WORD else word for word in spelt]
    listed = tuple(sorted(set(spelt)))
    place = {word: index for index, word in enumerate(listed)}
    found = Words(spelt=listed, codes=np.array([place[word] for word in spelt], dtype=np.int64)[codes.reshape(-1)])
    if allowed:
        stray = np.array([word not in allowed and word != MISSING_WORD for word in listed], dtype=np.bool_)
        refuse_undeclared(table, name, allowed, stray[found.codes])
    return found


def _stated(table: Table, source: Source, name: str, gone: Mask, dropped: Mask) -> float | str | None:
    """The fill that the study states for this column, dropped rows noted; None where it states none."""
    given = source.fill.get(name, source.default_fill)
    if not gone.any() or (given == "refuse" and name not in source.fill):
        return None
    return rule_for(table, given, gone, name, dropped)


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text)) and "_" not in text
    except ValueError:
        return False
