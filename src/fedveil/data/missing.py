"""Missing values and labels: how a table says them, and what becomes of them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedveil.core.errors import require
from fedveil.core.values import Matrix, Vector
from fedveil.data.cells import Texts, canonical, number_marks
from fedveil.data.spec import OTHER, Fill, Source, Span
from fedveil.data.table import LABEL, Table

# Labels: declared classes, a threshold, or a number in a declared range; never learned from the data.

Classes = tuple[str, ...] | int


def unlisted(target: Texts, classes: Classes) -> NDArray[np.bool_]:
    """Return which rows have a label that is not among the classes."""
    allowed = {str(k) for k in range(classes)} if isinstance(classes, int) else set(classes)
    return target.where(lambda word: canonical(word) not in allowed)


def class_indices(target: Texts, classes: Classes, name: str, place: Callable[[int], str]) -> Vector:
    """Return the index of each row's class; refuse an undeclared label, with its place."""
    allowed = tuple(str(k) for k in range(classes)) if isinstance(classes, int) else classes
    index = {word: number for number, word in enumerate(allowed)}
    codes = np.array([index.get(canonical(word), -1) for word in target.words], dtype=np.float64)[target.codes]
    unknown = np.flatnonzero(codes < 0)
    if unknown.size:
        row = int(unknown[0])
        shown = ", ".join(allowed[:12]) + (", ..." if len(allowed) > 12 else "")
        got = canonical(target.words[int(target.codes[row])])
        hint = 'Declare every label, or leave out such records: data.unlisted = "drop-row".'
        require(False, f"{place(row)}, {name}", f"be one of data.classes: {shown}", got, hint)
    return np.asarray(codes)


def above(target: Vector, threshold: float) -> Vector:
    """Return class 1 if the target is above the threshold, otherwise class 0."""
    return (target > threshold).astype(np.float64)


def scaled(target: Vector, span: Span) -> Vector:
    """Return a number to predict, cut to its public range and mapped to [-1, 1]."""
    low, high = span
    with np.errstate(over="ignore"):
        moved = (np.asarray(target, dtype=np.float64) - (low / 2 + high / 2)) / (high / 2 - low / 2)
    return np.asarray(np.clip(moved, -1.0, 1.0))  # last, because the division may round to slightly above 1


Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Filled:
    """The features of all rows without missing values; a row that is dropped holds anything.

    ``numbers``: a column for each numeric feature; ``texts``: the categories, in their one spelling.
    """

    numbers: Matrix
    texts: Mapping[str, Texts]
    dropped: Mask


def settle_missing(table: Table, source: Source) -> Filled:
    """Fill in what is missing, and say which rows are dropped."""
    dropped = np.zeros(len(table), dtype=np.bool_)
    numbers = np.empty((len(table.choice.numbers), len(table)))
    for place, name in enumerate(table.choice.numbers):
        numbers[place] = _settle_numbers(table, source, name, dropped)
    texts = {name: _settle_text(table, source, name, dropped) for name in table.choice.texts}
    settle_labels(table, source, dropped)
    count, name = int(dropped.sum()), " and ".join(table.names[:3])
    require(count < len(table), name, "have at least one row without a missing value", f"{count} rows, all dropped")
    return Filled(numbers=numbers.T, texts=texts, dropped=dropped)


def without_client(table: Table, source: Source) -> Mask:
    """Return which rows name no client; this depends only on the client column, which is public."""
    if table.choice.client is None:
        return np.zeros(len(table), dtype=np.bool_)
    return table.texts(table.choice.client).among({"", *source.reading.missing})


def numbers_with_gaps(table: Table, source: Source, name: str | None) -> Vector:
    """Return a column of numbers (without a name: the target), NaN where one is missing."""
    result = table.numbers(name, source.reading.missing)
    marks = number_marks(source.reading.missing)
    return np.where(np.isin(result, marks), np.nan, result) if marks else result


def _settle_numbers(table: Table, source: Source, name: str, dropped: Mask) -> Vector:
    result = numbers_with_gaps(table, source, name)
    gone = np.isnan(result)
    if not gone.any():
        return result
    value = rule_for(table, source.features.fill.get(name, source.features.default_fill), gone, name, dropped)
    return np.where(gone, 0.0 if value is None else float(value), result)


def _settle_text(table: Table, source: Source, column: str, dropped: Mask) -> Texts:
    """Return categories in canonical spelling; a declared category is never missing, even if it is written "?"."""
    allowed = source.features.categories[column]
    marks = {canonical(word) for word in source.reading.missing} | {"nan", ""}
    spelt = table.texts(column).respelt(canonical)
    gone = spelt.where(lambda word: word in marks and word not in allowed)
    stand_in = ""
    if gone.any():
        given = source.features.fill.get(column, source.features.default_fill)
        fitting = given in ("refuse", "drop-row") or canonical(given) in allowed
        value = rule_for(table, given if fitting else "refuse", gone, column, dropped)
        stand_in = allowed[0] if value is None else canonical(value)

    def settled(word: str) -> str:
        if word in allowed:
            return word
        return stand_in if word in marks else OTHER if OTHER in allowed else word

    return spelt.respelt(settled)


def settle_labels(table: Table, source: Source, dropped: Mask) -> None:
    """A missing target or client is never invented: the row is refused or dropped."""
    choice = table.choice
    for column, name in ((None, choice.target or LABEL), (choice.client, choice.client)):
        if name is None or (column is None and not table.predicted):
            continue
        declared = source.labelling.classes if column is None and isinstance(source.labelling.classes, tuple) else ()
        if column is None and not choice.target_is_text:
            gone = np.isnan(numbers_with_gaps(table, source, None))
        else:
            marks = {"", *map(canonical, source.reading.missing)}.difference(declared)
            gone = table.texts(column).respelt(canonical).among(marks)
        given = source.features.fill.get(name, source.features.default_fill)
        if gone.any():
            rule_for(table, given if given == "drop-row" else "refuse", gone, name, dropped)
    if source.labelling.unlisted == "drop-row" and source.labelling.classes is not None:
        dropped |= unlisted(table.texts(None), source.labelling.classes)


def rule_for(table: Table, given: Fill, gone: Mask, column: str, dropped: Mask) -> Fill | None:
    """The value to put in; None when the rows are dropped."""
    if given == "refuse":
        first = int(np.flatnonzero(gone)[0])
        hint = f'State data.fill.{column} (a value or "drop-row") or data.default_fill.'
        require(False, f"{table.place(first)}, column {column!r}", "not be missing", "a missing value", hint)
    if given == "drop-row":
        dropped |= gone
        return None
    return given
