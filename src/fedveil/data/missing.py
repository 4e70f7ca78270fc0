"""Handle missing values by the study's rule: refuse, drop the row, or fill in a stated value."""

import re

import numpy as np
from numpy.typing import NDArray

from fedveil.checks import require
from fedveil.data.cells import canonical
from fedveil.data.labels import unlisted
from fedveil.data.spec import OTHER, Fill, Source
from fedveil.data.table import Array, Table

NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?(e[+-]?[0-9]+)?")  # numbers as canonical() spells them
Mask = NDArray[np.bool_]


def settle_missing(table: Table, source: Source) -> tuple[Table, Mask]:
    """Return the rows without missing values, and which of the given rows were dropped."""
    dropped = np.zeros(len(table), dtype=np.bool_)
    numbers = _settle_numbers(table, source, dropped)
    texts = {name: _settle_text(table, source, name, dropped) for name in table.choice.texts}
    settle_labels(table, source, dropped)
    count = int(dropped.sum())
    name = " and ".join(table.files[:3])
    require(count < len(table), name, "have at least one row without a missing value", f"{count} rows, all dropped")
    filled = Table(
        choice=table.choice,
        numbers=numbers,
        texts=texts,
        target=table.target,
        client=table.client,
        files=table.files,
        file_of=table.file_of,
        lines=table.lines,
        line=table.line,
    )
    return (filled.rows(~dropped) if count else filled), dropped


def without_client(table: Table, source: Source) -> Mask:
    """Return which rows name no client; this depends only on the client column, which is public."""
    if table.client is None:
        return np.zeros(len(table), dtype=np.bool_)
    return _absent(table.client, source, ())


def _settle_numbers(table: Table, source: Source, dropped: Mask) -> Array:
    """Fill in numbers or mark their rows as dropped; infinities are refused."""
    numbers, marks = table.numbers, number_marks(source)
    if numbers.dtype.kind in "biu" and not marks:
        return numbers
    strange = ~np.isfinite(numbers)
    if marks:
        strange |= np.isin(numbers, marks)
    if not strange.any():
        return numbers
    numbers = numbers.astype(np.float64)
    for index in np.flatnonzero(strange.any(axis=0)):
        column = table.choice.numbers[index]
        refuse_infinite(table, numbers[:, index], column)
        gone = strange[:, index]
        value = rule_for(table, source.fill.get(column, source.default_fill), gone, column, dropped)
        numbers[gone, index] = 0.0 if value is None else value
    return numbers


def number_marks(source: Source) -> list[float]:
    """Numbers that stand for a missing value, such as -9: then -9.0 does too, in a file or an array."""
    words = (canonical(word) for word in source.missing)
    return [float(word) for word in words if NUMBER.fullmatch(word)]


def _settle_text(table: Table, source: Source, column: str, dropped: Mask) -> Array:
    """Return categories in canonical spelling; a declared category is never missing, even if it is written "?"."""
    words, inverse = np.unique(table.texts[column], return_inverse=True)
    allowed = source.categories[column]
    spelt = [canonical(word) for word in words]
    marks = {canonical(word) for word in source.missing} | {"nan"}
    absent = [word not in allowed and word in marks for word in spelt]
    gone = np.array(absent, dtype=np.bool_)[inverse]
    if OTHER in allowed:
        spelt = [word if word in allowed or away else OTHER for word, away in zip(spelt, absent, strict=True)]
    width = max(len(word) for word in (*spelt, *allowed)) or 1
    found = np.array(spelt, dtype=f"U{width}")[inverse]
    if gone.any():
        given = source.fill.get(column, source.default_fill)
        fitting = given in ("refuse", "drop-row") or canonical(given) in allowed
        value = rule_for(table, given if fitting else "refuse", gone, column, dropped)
        found[gone] = allowed[0] if value is None else canonical(value)
    return found


def settle_labels(table: Table, source: Source, dropped: Mask) -> None:
    """A missing target or client is never invented: the row is refused or dropped."""
    for values, name in ((table.target, table.choice.target or "label"), (table.client, table.choice.client)):
        if values is None or name is None:
            continue
        if values.dtype.kind == "f":
            refuse_infinite(table, values, name)
        declared = source.classes if values is table.target and isinstance(source.classes, tuple) else ()
        gone = _absent(values, source, declared)
        given = source.fill.get(name, source.default_fill)
        if gone.any():
            rule_for(table, given if given == "drop-row" else "refuse", gone, name, dropped)
    if source.unlisted == "drop-row" and source.classes is not None:
        dropped |= unlisted(table.target, source.classes)


def _absent(values: Array, source: Source, declared: tuple[str, ...]) -> Mask:
    """Return where a label is missing; a declared label never is."""
    if values.dtype.kind == "U":
        return np.isin(values, [word for word in source.missing if word not in declared])
    return np.isnan(values) if values.dtype.kind == "f" else np.zeros(values.size, dtype=np.bool_)


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


def refuse_infinite(table: Table, values: Array, column: str) -> None:
    """Refuse the first infinite number by its place."""
    infinite = np.flatnonzero(np.isinf(values))
    if infinite.size:
        row = int(infinite[0])
        require(False, f"{table.place(row)}, column {column!r}", "be finite", float(values[row]))
