"""Make a table from named arrays of numbers or texts."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from fedveil.checks import require
from fedveil.data.cells import numbers_of
from fedveil.data.fingerprint import RawRows, rows_of
from fedveil.data.spec import Source
from fedveil.data.table import Array, Table, choose, whole_file


def from_columns(
    source: Source, file: str, columns: Mapping[str, Array], raw: RawRows | None = None, whole: tuple[str, ...] = ()
) -> Table:
    """Return the features, target and client that the study names.

    ``raw``: the rows with everything the file holds, if ``columns`` leaves some of it out. ``whole``: the columns that
    the file's schema declares integers.
    """
    choice = replace(choose(source, tuple(columns), file), whole=whole)
    lengths = {name: len(values) for name, values in columns.items()}
    same = len(set(lengths.values())) == 1
    require(same, f"The columns of {file}", "have the same length", dict(list(lengths.items())[:10]))
    rows = next(iter(lengths.values()))
    missing = frozenset(source.missing)

    def number(name: str) -> Array:
        return _numbers(columns[name], missing, name, file)

    numbers = _numeric(columns, choice.numbers, rows, number)
    target = choice.target
    labels = np.zeros(rows)  # where nothing is predicted
    if target is not None:
        labels = _plain(columns[target], target, file) if choice.target_is_text else number(target)
    return Table(
        choice=choice,
        numbers=numbers,
        texts={name: _plain(columns[name], name, file) for name in choice.texts},
        target=labels,
        client=None if choice.client is None else _plain(columns[choice.client], choice.client, file),
        raw=rows_of(columns) if raw is None else raw,
        **whole_file(file, rows),
    )


def _numeric(columns: Mapping[str, Array], names: tuple[str, ...], rows: int, number: Any) -> Array:
    numbers = np.empty((rows, len(names)))
    for index, name in enumerate(names):
        numbers[:, index] = number(name)
    return numbers


def _numbers(values: Array, missing: frozenset[str], name: str, file: str) -> Array:
    kind = values.dtype.kind
    if kind in "biuf":
        return values.astype(np.float64)
    texts = [str(value).strip() for value in _plain(values, name, file)]
    return numbers_of(texts, missing, name, lambda row: f"{file}, row {row + 1}")


def _plain(values: Array, name: str, file: str) -> Array:
    kind = values.dtype.kind
    require(kind in "biufU", f"The column {name!r} of {file}", "hold numbers or texts", str(values.dtype))
    return values.astype(np.int8) if kind == "b" else values
