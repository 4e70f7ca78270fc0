"""The columns of unknown data: how the file is written, and whether each holds numbers, texts or dates.

Only types are looked at, never values: which columns hold what counts as public, like their names.
"""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from fedveil.checks import require
from fedveil.data.cells import WRITINGS, writing_of
from fedveil.data.opening import failing_clearly, text_of
from fedveil.data.read_csv import DELIMITERS
from fedveil.data.sources import files_of, format_of, read
from fedveil.data.spec import MISSING, Source
from fedveil.data.streams import chunks
from fedveil.data.tables import nearest
from fedveil.prepare.types import looks_textual

Kind = Literal["numbers", "texts", "dates", "empty"]
_USUAL: Final = ("target", "label", "class", "outcome", "y", "response", "diagnosis")
_IDENTIFIER: Final = re.compile(r"(?i)(.*[ _.-])?(id|ids|uuid|guid|rowid|key)|[a-z]+(Id|ID)|unnamed: ?\d+|index|")
_DATE: Final = re.compile(
    r"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}([T ]\d{1,2}:\d{2}.*)?|\d{1,2}[-/.]\d{1,2}[-/.](\d{4}|\d{2})([T ]\d{1,2}:\d{2}.*)?"
)
_TABLES: Final = ("csv", "parquet")


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """The columns in order with their kinds, how the file is read (keys of [data]), and how many rows it has.

    ``mixed``: columns of numbers in which some cells are neither numbers nor marks of a missing value.
    """

    kinds: Mapping[str, Kind]
    reading: Mapping[str, Any]
    records: int
    mixed: tuple[str, ...] = ()

    @property
    def unused(self) -> dict[str, str]:
        """Columns that are left out of a draft, each with the reason."""
        found = {}
        for name, kind in self.kinds.items():
            if kind == "dates":
                found[name] = "holds dates"
            elif kind == "empty":
                found[name] = "is empty"
            elif _IDENTIFIER.fullmatch(name):
                found[name] = "is named like an identifier"
        return found

    def target(self, given: str | None, client: str | None) -> tuple[str, bool]:
        """Return the column to predict, and whether it was guessed from its name or place."""
        if given is not None:
            hint = "" if given in self.kinds else nearest(given, list(self.kinds))
            require(given in self.kinds, "--target", "name a column of the data", given, hint)
            return given, False
        left = [name for name in self.kinds if name not in self.unused and name != client]
        require(left, "The data", "have a column to predict", list(self.kinds)[:10])
        named = next((name for word in _USUAL for name in left if name.lower() == word), None)
        return named or left[-1], True


def columns_of(data: str, base: Path, given: Mapping[str, Any]) -> Columns:
    """Return the columns of a file, of a folder of files, or of a table. ``given``: what is stated about reading it."""
    stated = dict(given)
    source = _source(data, stated)
    require(source.shipped is None, "DATA", "be a file, a folder or a table", data, "A study can name it as it is.")
    form = "sql" if source.database else _described(source, base / data, stated)
    source = _source(data, stated)
    with closing(chunks(source, base, {})) as parts:
        part = next(parts, None)
    require(part is not None, source.source, "hold at least one row", "none")
    names = () if part is None else part.names
    cells = _cells(data, stated, base, names)
    marks = frozenset(MISSING)
    if form == "csv" and "decimal" not in stated and "thousands" not in stated:
        stated |= _writing(cells, marks)
        if "decimal" in stated or "thousands" in stated:
            cells = _cells(data, stated, base, names)
    kinds = {name: _kind(cells[name], marks) for name in names}
    mixed = tuple(name for name in names if kinds[name] == "numbers" and not _all_numbers(cells[name], marks))
    return Columns(kinds=kinds, reading=stated, records=len(cells[names[0]]), mixed=mixed)


def _described(source: Source, path: Path, stated: dict[str, Any]) -> str:
    """The format of a file or folder; what its first line shows is added to what is stated."""
    with failing_clearly(source.source):
        first = files_of(source, path)[0] if path.is_dir() else path
        form = format_of(source, first)
        hint = "For images, arrays and libsvm files write the study by hand: docs/study-file.md."
        require(form in _TABLES, "DATA", f"be a table: {', '.join(_TABLES)}", form, hint)
        if form == "csv":
            stated |= {key: value for key, value in _layout(first).items() if key not in stated}
    return form


def _source(data: str, reading: Mapping[str, Any], target: str | int | None = None) -> Source:
    """A source whose cells are all taken as they are written."""
    return Source(source=data, feature_bound=1.0, classes=2, target=target, learned="all", **reading)


def _cells(data: str, reading: Mapping[str, Any], base: Path, names: Sequence[str]) -> dict[str, Any]:
    """All cells as they are written; the last column stands in for the target, whose cells are read like the others."""
    require(len(names) >= 2, "The data", "have at least two columns, one of them to predict", list(names))
    table, _ = read(_source(data, reading, names[-1] if reading.get("header", True) else -1), base)
    place = {name: index for index, name in enumerate(table.choice.numbers)}
    cells = {name: table.numbers[:, place[name]] if name in place else table.texts[name] for name in names[:-1]}
    return {**cells, names[-1]: table.target}


def _layout(path: Path) -> dict[str, Any]:
    """The delimiter, if it is not the usual one, and whether the first line names the columns."""
    found: dict[str, Any] = {}
    with text_of(path) as text:
        first = text.readline()
    usual = "\t" if path.name.removesuffix(".gz").endswith(".tsv") else ","
    delimiter = usual if usual in first else next((sign for sign in DELIMITERS if sign in first), usual)
    if delimiter != usual:
        found["delimiter"] = delimiter
    cells = [cell.strip().strip('"') for cell in first.strip().split(delimiter)]
    if cells and all(cell in MISSING or writing_of([cell]) is not None for cell in cells):
        found["header"] = False
    return found


def _writing(cells: Mapping[str, Any], missing: Collection[str]) -> dict[str, str]:
    """The signs of numbers, where columns are no numbers only because they are written with others."""
    strange: set[str] = set()
    for column in cells.values():
        if column.dtype.kind == "U":
            words = {str(word).strip() for word in np.unique(column).tolist()} - set(missing)
            strange |= words if writing_of(words) not in (None, WRITINGS[0]) else set()
    found = writing_of(strange)
    if found is None:
        return {}
    decimal, thousands = found
    return ({} if decimal == "." else {"decimal": decimal}) | ({} if thousands is None else {"thousands": thousands})


def _kind(cells: Any, missing: Collection[str]) -> Kind:
    if cells.dtype.kind in "biuf":
        return "numbers"
    words, counts = np.unique(cells, return_counts=True)
    there = [(str(word).strip(), int(count)) for word, count in zip(words.tolist(), counts.tolist(), strict=True)]
    there = [(word, count) for word, count in there if word not in missing]
    if not there:
        return "empty"
    if not looks_textual(cells, missing):
        return "numbers"
    dates = sum(count for word, count in there if _DATE.fullmatch(word))
    return "dates" if 2 * dates > sum(count for _, count in there) else "texts"


def _all_numbers(cells: Any, missing: Collection[str]) -> bool:
    if cells.dtype.kind in "biuf":
        return True
    words = {str(word).strip() for word in np.unique(cells).tolist()} - set(missing)
    return all(writing_of([word]) == WRITINGS[0] for word in words)


def quoted(value: Any) -> str:
    """A value in TOML, on one line."""
    match value:
        case bool():
            return "true" if value else "false"
        case float() | int():
            return repr(value)
        case list() | tuple():
            return "[" + ", ".join(quoted(item) for item in value) + "]"
        case _:
            return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
