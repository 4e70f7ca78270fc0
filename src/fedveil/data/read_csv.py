"""Read comma-separated text, with or without a header; a wrong cell is reported by line and column."""

import csv
import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import IO

import numpy as np

from fedveil.checks import require
from fedveil.data.cells import numbers_of, texts_of, usual_writing
from fedveil.data.fingerprint import digested, rows_read
from fedveil.data.opening import lines_of, text_of
from fedveil.data.spec import Source
from fedveil.data.table import Array, Choice, Table, choose
from fedveil.errors import BadValue
from fedveil.limits import COLUMNS, check_cells, check_columns

CHUNK = 2_000_000  # cells converted to arrays at a time, because Python texts are large
MOST_ROWS = 20_000  # largest number of rows in a chunk
Row = tuple[int, list[str]]
DELIMITERS = (";", "\t", "|")  # that are looked for where a comma separates nothing


def read_csv(source: Source, path: Path) -> Table:
    """Return the rows of one file."""
    with text_of(path) as text:
        names, ahead, rows = csv_rows(source, path, text)
        choice = choose(source, names, path.name)
        size, count = max(1, min(MOST_ROWS, CHUNK // len(names))), 0
        parts = [_chunk(source, path.name, names, choice, ahead + list(islice(rows, size)))]
        while chunk := list(islice(rows, size)):
            count += size  # rows before this chunk
            check_cells(path.name, count + len(chunk), len(names))
            parts.append(_chunk(source, path.name, names, choice, chunk))
    where, numbers, texts, target, client, raw = (list(part) for part in zip(*parts, strict=True))
    return Table(
        choice=choice,
        numbers=np.concatenate(numbers),
        texts={name: np.concatenate([part[name] for part in texts]) for name in choice.texts},
        target=np.concatenate(target),
        client=None if choice.client is None else np.concatenate(client),
        files=(path.name,),
        file_of=np.zeros(sum(len(part) for part in where), dtype=np.int32),
        lines=np.concatenate(where),
        line="line",
        raw=rows_read(raw),
    )


def delimiter_of(source: Source, path: Path) -> str:
    """Return the delimiter that the study states, or the usual one for the suffix."""
    return source.delimiter or ("\t" if path.name.removesuffix(".gz").endswith(".tsv") else ",")


def csv_rows(source: Source, path: Path, text: IO[str]) -> tuple[tuple[str, ...], list[Row], Iterator[Row]]:
    """The columns' names; the first row, if it had to be read to learn them; and all rows after."""
    delimiter = delimiter_of(source, path)
    lines = _narrow(text, delimiter, path.name)
    rows = _rows(csv.reader(lines, delimiter=delimiter, skipinitialspace=True, strict=True), path.name)
    first = next(rows, None)
    require(first is not None, path.name, "hold at least one row", "an empty file")
    names, ahead = _names(source, first or (0, []), path.name)
    if len(names) == 1 and source.delimiter is None:
        other = next((sign for sign in DELIMITERS if sign in (first or (0, [""]))[1][0]), None)
        hint = f"Its columns seem to be separated by {other!r}: state data.delimiter = {json.dumps(other)}."
        require(other is None, path.name, f"have its columns separated by {delimiter!r}", names[0], hint)
    return names, ahead, rows


def _narrow(text: IO[str], delimiter: str, file: str) -> Iterator[str]:
    """Yield lines; refuse one with more columns than a file may have, or with the character of code 0.

    Arrays of texts lose that character at the end of a text, so two texts would become one.
    """
    for number, line in enumerate(lines_of(text, file), start=1):
        if line.count(delimiter) >= COLUMNS:
            check_columns(file, 1 + line.count(delimiter))
        hint = "Take the NUL characters out, or save the file as UTF-8."
        require("\0" not in line, f"{file}, line {number},", "hold no character of code 0", "one", hint)
        yield line


def _rows(reader: Iterator[list[str]], file: str) -> Iterator[Row]:
    """Yield lines with their numbers, without blank lines."""
    line = 0
    try:
        for cells in reader:
            line = int(getattr(reader, "line_num", line + 1))
            if cells and (len(cells) > 1 or cells[0].strip()):
                yield line, [cell.strip() for cell in cells]
    except csv.Error as error:
        raise BadValue(f"{file}, line {line + 1}, must be comma-separated text: {error}.") from error


def _names(source: Source, first: Row, file: str) -> tuple[tuple[str, ...], list[Row]]:
    """Return the names of the columns, and the first row if it is not a header."""
    if source.header:
        return tuple(first[1]), []
    count = len(first[1])
    if source.names:
        require(len(source.names) == count, "data.names", f"name all {count} columns of {file}", len(source.names))
    return source.names or tuple(str(index) for index in range(count)), [first]


def _chunk(
    source: Source, file: str, names: tuple[str, ...], choice: Choice, rows: list[Row]
) -> tuple[Array, Array, dict[str, Array], Array, Array, bytes]:
    for line, cells in rows:
        right = len(cells) == len(names)
        require(right, f"{file}, line {line},", f"have {len(names)} cells", len(cells), "Is data.delimiter right?")
    lines = np.array([line for line, _ in rows], dtype=np.int64)
    columns = dict(zip(names, zip(*(cells for _, cells in rows), strict=True), strict=True)) if rows else {}
    # without a header the names come from the study
    held = columns if source.header else dict(enumerate(columns.values()))
    raw = digested({str(name): cells for name, cells in held.items()}) if rows else b""  # as the file has them
    columns = {name: tuple(usual_writing(cells, source.decimal, source.thousands)) for name, cells in columns.items()}
    missing = frozenset(source.missing)

    def number(name: str) -> Array:
        return numbers_of(columns.get(name, ()), missing, name, lambda row: f"{file}, line {lines[row]}")

    def text(name: str) -> Array:
        return texts_of(columns.get(name, ()), name, file)

    numbers = np.empty((len(rows), len(choice.numbers)))
    for index, name in enumerate(choice.numbers):
        numbers[:, index] = number(name)
    label = choice.target
    target = np.zeros(len(rows))  # where nothing is predicted
    if label is not None:
        target = text(label) if choice.target_is_text else number(label)
    client = text(choice.client) if choice.client is not None else lines
    return lines, numbers, {name: text(name) for name in choice.texts}, target, client, raw
