"""Read separated text with pyarrow, some rows at a time; a wrong cell is reported by line and column.

Cells may stand in double quotes, which may hold delimiters, line breaks and doubled quotes; blanks around a cell and
blank lines are skipped. A column is read as numbers as long as its cells are numbers, and from the first text on as
texts.
"""

import csv as text_csv
import ctypes
import io
import json
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Final, final

from fedveil.core.errors import BadValue, require
from fedveil.core.limits import LINE, check_columns
from fedveil.data.cells import MISSING, usual_writing
from fedveil.data.opening import arrow, bytes_of, compute, csv, native
from fedveil.data.spec import Source
from fedveil.data.table import Batch, Opened
from fedveil.data.typed import typed

DELIMITERS: Final = (";", "\t", "|")  # that are looked for where a comma separates nothing
_BLOCK: Final = 2**22
_COLUMN: Final = re.compile(r"In CSV column #(\d+)")
_RAGGED: Final = re.compile(r"Expected (\d+) columns, got (\d+)")
_PATIENCE: Final = 4  # columns that turn out to hold texts, until all others are read as texts too
_QUOTE: Final = re.compile(r'\s+"(.*)"\s*', re.DOTALL)


class _HoldsTexts(Exception):
    """A column that was read as numbers holds a text."""


@final
@dataclass(frozen=True, slots=True)
class _File:
    """A file and how it is read. ``names``: as its first line has them, blanks included."""

    path: Path
    delimiter: str
    header: bool
    missing: tuple[str, ...]
    decimal: str
    thousands: str | None
    block: int  # bytes read at a time
    blank: int = 0  # lines before the first that is not blank
    names: tuple[str, ...] = ()
    kinds: tuple[bool, ...] = ()  # whether the first rows hold numbers, by column

    @property
    def marks(self) -> list[str]:
        """What stands for a missing number, the usual marks that the study does not take away."""
        known = [mark for mark in MISSING if mark == "" or mark in self.missing]
        return [*known, *(f" {mark}" for mark in known)]

    @contextmanager
    def reader(self, types: dict[str, Any] | None, names: Sequence[str] = ()) -> Iterator[Any]:
        """Open the file; without ``types`` they are those of the first rows."""
        options = {"column_types": types, "include_columns": list(names)} if types is not None else {}
        with native(self.path) as stream:
            opened = csv.open_csv(
                stream,
                # One thread, which costs less work than two, and none that could outlive us.
                read_options=csv.ReadOptions(
                    use_threads=False,
                    block_size=self.block,
                    skip_rows=self.blank,
                    autogenerate_column_names=not self.header,
                ),
                parse_options=_parsing(self.delimiter),
                convert_options=csv.ConvertOptions(
                    null_values=self.marks,
                    strings_can_be_null=False,
                    true_values=[],
                    false_values=[],
                    decimal_point=self.decimal,
                    **options,
                ),
            )
            with opened:
                yield opened


def open_csv(source: Source, path: Path) -> Opened:
    """Open one file after a look at its first lines."""
    file = _looked_at(
        _File(
            path=path,
            delimiter=delimiter_of(source, path),
            header=source.reading.header,
            missing=source.reading.missing,
            decimal=source.reading.decimal,
            thousands=source.reading.thousands,
            block=_BLOCK,
        )
    )
    own = tuple(name.strip() for name in file.names)
    check_columns(path.name, len(own))
    if len(own) == 1 and source.reading.delimiter is None:
        first = own[0] if source.reading.header else _first_cell(file)
        other = next((sign for sign in DELIMITERS if sign in first), None)
        hint = f"Its columns seem to be separated by {other!r}: state data.delimiter = {json.dumps(other)}."
        require(other is None, path.name, f"have its columns separated by {file.delimiter!r}", first, hint)
    if source.reading.header:
        stray = next((name for name in own if "\0" in name), None)
        hint = "Take the NUL characters out, or save the file as UTF-8."
        require(stray is None, path.name, "have names without the character of code 0", stray, hint)
        twice = next((name for name in own if own.count(name) > 1), None) if len(set(own)) < len(own) else None
        require(twice is None, f"The columns of {path.name}", "have different names", twice)
        names, held = own, None
    else:
        held = tuple(str(place) for place in range(len(own)))
        if source.reading.names:
            count = len(source.reading.names)
            require(count == len(own), "data.names", f"name all {len(own)} columns of {path.name}", count)
        names = source.reading.names or held
    return Opened(
        file=path.name,
        names=names,
        batches=partial(_batches, file, names),
        line="line",
        locate=lambda row: _line(file, row),
        declared=False,
        held=held,
    )


def delimiter_of(source: Source, path: Path) -> str:
    """Return the delimiter that the study states, or the usual one for the suffix."""
    return source.reading.delimiter or ("\t" if path.name.removesuffix(".gz").endswith(".tsv") else ",")


def _looked_at(file: _File) -> _File:
    """Return the same with the columns of the first rows; the block grows until a row fits into it."""
    file = replace(file, blank=_blank_lines(file.path, file.delimiter))
    _check_bytes(file)
    while True:
        try:
            with _told(file), file.reader(None) as opened:
                kinds = [arrow.types.is_null(one.type) or _is_number(one.type) for one in opened.schema]
                return replace(file, names=tuple(opened.schema.names), kinds=tuple(kinds))
        except _TooLong:
            rule = f"have lines of fewer than {LINE} characters"
            require(file.block < LINE, file.path.name, rule, "more")
            file = replace(file, block=LINE)


def _batches(file: _File, names: Sequence[str], wanted: Sequence[str], texts: Collection[str]) -> Iterator[Batch]:
    """Yield typed columns of some rows; a column of numbers becomes one of texts from the rows on that hold a text."""
    place = {name: index for index, name in enumerate(names)}
    written, done, tries = {place[name] for name in texts}, 0, 0
    while True:
        try:
            for batch in _read(file, [place[name] for name in wanted], written, done):
                yield {name: batch[place[name]] for name in wanted}
                done += len(batch[place[wanted[0]]])
            return
        except _HoldsTexts as error:
            tries += 1
            written |= {error.args[0]} if tries < _PATIENCE else set(range(len(names)))
        except _TooLong:
            require(file.block < LINE, file.path.name, f"have lines of fewer than {LINE} characters", "more")
            file = replace(file, block=LINE)


class _TooLong(Exception):
    """A row is longer than a block."""


def _read(file: _File, wanted: Sequence[int], written: Collection[int], done: int) -> Iterator[dict[int, Any]]:
    """Yield the columns of these numbers, without the rows that are done."""
    text = arrow.dictionary(arrow.int32(), arrow.string())
    numeric = {place for place in wanted if place not in written and file.kinds[place] and file.thousands is None}
    types = {file.names[place]: arrow.float64() if place in numeric else text for place in wanted}
    nan_is_text = not {"nan", "NaN"} & set(file.missing)
    respell = partial(_respelt, file)
    with _told(file), file.reader(types, [file.names[place] for place in wanted]) as opened:
        for batch in opened:
            if done >= batch.num_rows:
                done -= batch.num_rows
                continue
            part, done = batch.slice(done), 0
            result = {}
            for place, column in zip(wanted, part.columns, strict=True):
                if place in numeric and nan_is_text and compute.any(compute.is_nan(column)).as_py():
                    raise _HoldsTexts(place)
                result[place] = typed(column, file.names[place], file.path.name, respell)
            yield result


def _respelt(file: _File, words: list[str]) -> list[str]:
    """Return texts without blanks and, where blanks come first, without quotes; numbers as they are usually written."""
    spelt = []
    for word in words:
        text = word.strip()
        if text[:1] == '"' and (found := _QUOTE.fullmatch(word)):
            text = found[1].replace('""', '"').strip()
        spelt.append(text)
    if file.decimal == "." and file.thousands is None:
        return spelt
    return [usual_writing(text, file.decimal, file.thousands) for text in spelt]


@cache
def _parsing(delimiter: str) -> Any:
    """Return how rows are parsed; it is kept for ever.

    Arrow reads ahead in a thread that may outlive a reader that failed. Were it the last to hold our function, it
    would need Python to let go of it, and abort the process if Python is just ending. So one reference more is counted
    than there are: Python does not free the options even when it takes its modules apart.
    """
    options = csv.ParseOptions(delimiter=delimiter, newlines_in_values=True, invalid_row_handler=_skip_blank)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(options))
    return options


def _skip_blank(row: Any) -> str:
    """A line of blanks is no row; any other row with too few or too many cells is an error."""
    return "skip" if not row.text.strip() else "error"


@contextmanager
def _told(file: _File) -> Iterator[None]:
    """Turn an error of the reader into one sentence, or say what to try next."""
    name = file.path.name
    try:
        yield
    except UnicodeDecodeError as error:
        raise BadValue(f"{name} must be UTF-8 text: {error.reason} at byte {error.start}.") from error
    except arrow.ArrowInvalid as error:
        said = str(error)
        if "straddling" in said or "Empty CSV file or block" in said:
            raise _TooLong from error
        ragged, column = _RAGGED.search(said), _COLUMN.search(said)
        if ragged is not None:
            line, count = _ragged_line(file, int(ragged[1]))
            hint = "Is data.delimiter right, and is every quote closed?"
            require(False, f"{name}, line {line},", f"have {ragged[1]} cells", count or int(ragged[2]), hint)
        if "UTF8" in said:
            raise BadValue(f"{name} must be UTF-8 text, and it is not. Save it as UTF-8.") from error
        if column is not None:
            raise _HoldsTexts(int(column[1])) from error
        raise BadValue(f"{name} must be separated text: {said.splitlines()[0].rstrip('.')}.") from error


def _is_number(kind: Any) -> bool:
    return bool(arrow.types.is_integer(kind) or arrow.types.is_floating(kind))


def _blank_lines(path: Path, delimiter: str) -> int:
    """Return how many lines of blanks come first; lines without any character are skipped anyway.

    More columns than may be are refused here: looking at their types would take the memory of all of them.
    """
    count = 0
    with bytes_of(path) as stream:
        while line := stream.readline(LINE):
            if line.strip(b"\xef\xbb\xbf \t\r\n"):
                check_columns(path.name, line.count(delimiter.encode()) + 1 if b'"' not in line else 1)
                return count
            count += 1
    require(False, path.name, "hold at least one row", "an empty file")
    return count


def _check_bytes(file: _File) -> None:
    """Refuse the character of code 0, and a quote that is never closed: all that follows would be one cell.

    An odd number of quotes is a sign of the latter.
    """
    count, size = 0, 0
    with bytes_of(file.path) as stream:
        while part := stream.read(_BLOCK):
            if (found := part.find(b"\0")) >= 0:
                stream.seek(0)
                end = size + found
                line = 1 + sum(stream.read(min(_BLOCK, end - at)).count(b"\n") for at in range(0, end, _BLOCK))
                hint = "Take the NUL characters out, or save the file as UTF-8."
                require(False, f"{file.path.name}, line {line},", "hold no character of code 0", "one", hint)
            count, size = count + part.count(b'"'), size + len(part)
    if count % 2:
        line = 0
        try:
            for line, _ in _records(file, strict=True):  # noqa: B007  the last line that could be read
                pass
        except text_csv.Error as error:
            raise BadValue(f"{file.path.name}, line {line + 1} or after, must be separated text: {error}.") from error


def _records(file: _File, *, strict: bool = False) -> Iterator[tuple[int, list[str]]]:
    """Yield the cells of every row but blank ones, with the line that it begins in: slow, and for messages only."""
    before = 0
    with bytes_of(file.path) as stream, io.TextIOWrapper(stream, "utf-8-sig", errors="replace", newline="") as text:
        rows = text_csv.reader(text, delimiter=file.delimiter, strict=strict)
        for cells in rows:
            line, before = before + 1, rows.line_num
            if cells and (len(cells) > 1 or cells[0].strip()):
                yield line, cells


def _line(file: _File, row: int) -> int:
    """Return the line that a row begins in."""
    for place, (line, _) in enumerate(_records(file)):
        if place == row + file.header:
            return line
    return row + 1 + file.header


def _ragged_line(file: _File, width: int) -> tuple[int, int]:
    """Return the line of the first row with another number of cells, and that number."""
    try:
        return next(((line, len(cells)) for line, cells in _records(file) if len(cells) != width), (0, 0))
    except text_csv.Error:
        return 0, 0


def _first_cell(file: _File) -> str:
    return next((cells[0] for _, cells in _records(file)), "")
