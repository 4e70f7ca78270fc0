"""Cells of a column whose type nobody stated: numbers or texts, decided for the whole column at once.

The plan is published, so no single unit (record, or client where clients are protected) may change a type. A column of
numbers holds no word at all, and a column of texts holds words of at least two units; anything between is refused. So
two data sets that differ in one unit have the same types, or one of them is refused before anything is charged. A
column that the study names under prepare.numbers or prepare.texts is not looked at.
"""

import json
from collections.abc import Collection

import numpy as np

from fedveil.core.errors import require
from fedveil.core.values import Indices, Vector
from fedveil.data.cells import Texts, canonical, is_number, writing_of, written_otherwise
from fedveil.data.features import refuse_undeclared
from fedveil.data.missing import Mask, numbers_with_gaps, rule_for
from fedveil.data.spec import OTHER, RULES, Source
from fedveil.data.table import Table
from fedveil.stages.prepare.columns import MISSING_WORD, Columns, Words


def looks_textual(cells: Texts, missing: Collection[str]) -> bool:
    """Whether more of the cells that are there are no numbers than are; a column without any counts as numbers."""
    counts = np.bincount(cells.codes, minlength=len(cells.words))
    gone = {"", *missing}
    signs = [0 if word in gone else -1 if is_number(word) else 1 for word in cells.words]
    return int(np.dot(counts, np.array(signs, dtype=np.int64))) > 0


def refuse_lone_words(columns: Columns, unstated: Collection[str], rows: Indices, units: Indices, what: str) -> None:
    """Refuse columns of texts whose type was read off their cells, unless at least two units hold words in each.

    ``rows``: the rows that train; ``units``: the unit that each of them belongs to, a ``what``.
    """
    lone = []
    for name in sorted(unstated):
        words = columns.texts[name]
        wordy = np.array([word != MISSING_WORD and not is_number(word) for word in words.spelt], dtype=np.bool_)
        held = units[wordy[words.codes[rows]]]
        if not (held[1:] != held[:1]).any():
            lone.append(name)
    rule = f"hold words of at least two {what}s that train, or have their type stated"
    listed = json.dumps(lone, ensure_ascii=False)
    hint = f"One {what} alone must not change the plan: state prepare.texts = {listed}, or prepare.numbers."
    require(not lone, "Columns of texts", rule, lone, hint)


def refuse_other_writing(cells: Texts, missing: Collection[str], name: str) -> None:
    """Refuse a column that is taken for texts only because its numbers are written with other signs."""
    words = sorted(word for word in cells.words if word and word not in missing)
    if writing_of(words) is not None:
        told = next(word for word in words if not is_number(word))
        hint = f"{written_otherwise(told)} If it is no number, name the column under prepare.texts."
        require(False, f"The column {name!r}", "hold numbers as they are usually written, or texts", told, hint)


def numbers_in(table: Table, source: Source, name: str | None, dropped: Mask) -> Vector:
    """A column as numbers, NaN where one is missing and no fill is stated; text in a row is refused by its place.

    Without a name it is the target.
    """
    result = numbers_with_gaps(table, source, name)
    gone = np.isnan(result)
    value = _stated(table, source, name or str(table.choice.target), gone, dropped)
    return result if value is None or isinstance(value, str) else np.where(gone, value, result)


def words_in(table: Table, source: Source, name: str | None, dropped: Mask) -> Words:
    """A column as words in their one spelling; a missing one is the empty word unless a fill is stated."""
    called = name or str(table.choice.target)
    allowed = source.features.categories.get(called, ())
    marks = {canonical(word) for word in source.reading.missing} | {"nan", MISSING_WORD}

    def spelt(word: str) -> str:
        result = canonical(word)
        if result in marks and result not in allowed:
            return MISSING_WORD
        return OTHER if OTHER in allowed and result not in allowed else result

    texts = table.texts(name).respelt(spelt)
    gone = texts.among({MISSING_WORD})
    value = _stated(table, source, called, gone, dropped)
    if value is not None and value not in RULES:
        texts = texts.respelt(lambda word: canonical(value) if word == MISSING_WORD else word)
    order = sorted(range(len(texts.words)), key=texts.words.__getitem__)
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    result = Words(spelt=tuple(texts.words[code] for code in order), codes=place[texts.codes])
    if allowed:
        unknown = texts.where(lambda word: word not in allowed and word != MISSING_WORD)
        refuse_undeclared(table, called, allowed, unknown, texts)
    return result


def _stated(table: Table, source: Source, name: str, gone: Mask, dropped: Mask) -> float | str | None:
    """The fill that the study states for this column, dropped rows noted; None where it states none."""
    given = source.features.fill.get(name, source.features.default_fill)
    if not gone.any() or (given == "refuse" and name not in source.features.fill):
        return None
    return rule_for(table, given, gone, name, dropped)
