"""The columns of unknown data: how the file is written, and whether each holds numbers, texts or dates.

A column is empty, or holds numbers, dates or texts: it is the first of these that no cell rules out. What is ruled out
by the cells of one unit alone (a record, or a client where clients are protected) is *unsettled*: a draft asks about
it, and a profile, whose plan is published, refuses it. So data that differ in one unit have the same columns, or one of
them is refused: what two units rule out, at least one of them still rules out after a change of the other.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from fedveil.core.errors import require
from fedveil.data.cells import MISSING, WRITINGS, is_written, writing_of
from fedveil.data.column import as_texts
from fedveil.data.fingerprint import Cells
from fedveil.data.opening import failing_clearly, text_of
from fedveil.data.read_csv import DELIMITERS
from fedveil.data.sources import files_of, format_of, open_source
from fedveil.data.spec import Source
from fedveil.data.table import Opened
from fedveil.data.tables import nearest
from fedveil.data.typed import cells_of, stacked

# What a column's name, or the form of a cell, tells about it: identifiers and dates.

DATE: Final = re.compile(
    r"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}([T ]\d{1,2}:\d{2}.*)?|\d{1,2}[-/.]\d{1,2}[-/.](\d{4}|\d{2})([T ]\d{1,2}:\d{2}.*)?"
)
_NOUNS: Final = frozenset(
    re.findall(
        r"\w+",
        "account admission animal applicant batch bill booking card case child claim client contact contract customer "
        "device doctor document donor employee encounter episode event family file hospital household insurance "
        "invoice item job license loan medical member message movie object order parent participant passport patient "
        "payment person phone physician player policy post product provider record report request respondent row "
        "sample school serial session shop site staff student study subject tax team ticket token transaction trip "
        "user vendor visit",
    )
)
# Words that make a name an identifier where they end it (patient_id, PatientID, order-key), and those that do so after
# a noun alone: case no is one, but smoker_no is a category.
_LAST: Final = frozenset(re.findall(r"\w+", "id ids uuid uuids guid guids key keys pk oid uid pid mrn ssn nr nummer"))
_AFTER_NOUNS: Final = frozenset({"no", "num", "number"})
# Whole names. Without a border before "id", no rule tells patientid from thyroid.
_WHOLE: Final = frozenset({"index", "rowid", "no", "nhs", "iban", "imei", "isbn", "passport", "barcode", "email"})
_JOINED: Final = frozenset(f"{noun}{end}" for noun in _NOUNS for end in ("id", "ids", "nr", "no", "number"))
_BORDER: Final = re.compile(r"[^A-Za-z0-9]+|(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|(?<=[A-Za-z])(?=[0-9])")
_UNNAMED: Final = re.compile(r"(?i)unnamed: ?\d+|")


def is_identifier(name: str) -> bool:
    """Return whether a column is named like one that tells records or people apart.

    >>> all(map(is_identifier, ("patient_id", "PatientID", "mrn", "case no", "userid", "Unnamed: 0")))
    True
    >>> any(map(is_identifier, ("thyroid", "covid", "steroid", "Medicaid", "paid", "PAID", "valid")))
    False
    """
    if _UNNAMED.fullmatch(name.strip()):
        return True
    words = [word.lower() for word in _BORDER.split(name) if word]
    while len(words) > 1 and words[-1].isdigit():  # patient_id_2
        words.pop()
    if not words:
        return False
    last, before = words[-1], words[-2:-1]
    counted = last in _AFTER_NOUNS and before and before[0] in _NOUNS
    return bool(last in _LAST or last in _JOINED or counted or (not before and last in _WHOLE))


Kind = Literal["numbers", "texts", "dates", "empty"]
DATES: Final = "holds dates"
_USUAL: Final = ("target", "label", "class", "outcome", "y", "response", "diagnosis")
_TABLES: Final = ("csv", "parquet", "feather")


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """The columns in order with their kinds, how the file is read (keys of [data]), and how many rows it has.

    ``mixed``: columns of texts most of whose cells are numbers or dates, so that nobody knows what is meant.
    ``unsettled``: columns whose kind one unit alone decides. ``layout``: what the first line alone says about the file,
    each with the option that states it. ``repeated``: columns named like identifiers with values that occur in several
    rows; for the data holder alone, since it is told from values.
    """

    kinds: Mapping[str, Kind]
    reading: Mapping[str, Any]
    records: int
    mixed: tuple[str, ...] = ()
    unsettled: tuple[str, ...] = ()
    layout: Mapping[str, str] = field(default_factory=dict)
    repeated: tuple[str, ...] = ()

    @property
    def identifiers(self) -> tuple[str, ...]:
        """Columns that are named like identifiers."""
        return tuple(name for name in self.kinds if is_identifier(name))

    @property
    def unused(self) -> dict[str, str]:
        """Columns that are left out of a draft, each with the reason."""
        result = {}
        for name, kind in self.kinds.items():
            if is_identifier(name):
                result[name] = "is named like an identifier"
            elif kind == "dates":
                result[name] = DATES
            elif kind == "empty":
                result[name] = "is empty"
        return result

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


def columns_of(
    data: str,
    base: Path,
    given: Mapping[str, Any],
    *,
    stated: Mapping[str, Kind] | None = None,
    client: str | None = None,
) -> Columns:
    """Return the columns of a file, of a folder of files, or of a table. ``given``: what is stated about reading it.

    ``stated``: the kinds of columns that need not be told from their cells. ``client``: the column that names the
    clients, where these are protected.
    """
    reading, stated = dict(given), {} if stated is None else stated
    source = _source(data, reading)
    require(source.shipped is None, "DATA", "be a file, a folder or a table", data, "A study can name it as it is.")
    form, layout = ("sql", {}) if source.database else _described(source, base / data, reading)
    opened = open_source(_source(data, reading), base)
    names, cells = _cells(opened)
    owner = None if client is None or client not in cells else as_texts(cells[client]).codes
    held = {name: _Held.of(cells[name], owner, opened[0].declared) for name in names}
    open_signs = form == "csv" and "decimal" not in reading and "thousands" not in reading
    told = {name: _told(held[name], open_signs) for name in names if name not in stated}
    reading |= _writing(told)
    signs = (reading.get("decimal", "."), reading.get("thousands"))
    kinds = {name: stated[name] if name in stated else told[name].kind(signs) for name in names}
    mixed = tuple(name for name in told if held[name].mixed(kinds[name], signs))
    return Columns(
        kinds=kinds,
        reading=reading,
        records=len(cells[names[0]]),
        mixed=mixed,
        unsettled=tuple(name for name in told if not told[name].settled and name not in mixed),
        layout=layout,
        repeated=tuple(name for name in names if is_identifier(name) and _repeats(cells[name])),
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Held:
    """The different words of a column that mark no missing value, how often each occurs, and the units that hold it.

    No words for a column that is stored as numbers, whose type is no matter of its cells, and one that stands for all
    where the cells of a text file are all numbers. ``owner``: of each row, None where records are the units.
    """

    words: list[str]
    counts: list[int]
    numeric: bool
    codes: Any
    owner: Any

    @classmethod
    def of(cls, cells: Cells, owner: Any, declared: bool) -> "_Held":
        if isinstance(cells, np.ndarray):
            if declared:
                return cls([], [], True, None, None)
            gone = np.isnan(cells)
            count = int((~gone).sum())
            return cls(["0"] if count else [], [count] if count else [], False, np.where(gone, -1, 0), owner)
        counts = np.bincount(cells.codes, minlength=len(cells.words)).tolist()
        there = [place for place, word in enumerate(cells.words) if word not in MISSING]
        renumbered = np.full(len(cells.words), -1, dtype=np.int64)
        renumbered[there] = np.arange(len(there))
        words = [cells.words[place] for place in there]
        return cls(words, [counts[place] for place in there], False, renumbered[cells.codes], owner)

    def against(self, reads: Callable[[str], bool]) -> int:
        """How many units hold a word that this reading cannot read; 2 stands for two or more."""
        result, strange = 0, []
        for place, (word, count) in enumerate(zip(self.words, self.counts, strict=True)):
            if not reads(word):
                result += count
                strange.append(place)
                if result >= 2 and self.owner is None:
                    return 2
        if self.owner is None or not strange:
            return min(result, 2)
        return min(int(np.unique(self.owner[np.isin(self.codes, strange)]).size), 2)

    def mixed(self, kind: Kind, signs: tuple[str, str | None]) -> bool:
        """Whether these are texts though most cells are numbers or dates."""
        if self.numeric or kind != "texts":
            return False
        pairs = list(zip(self.words, self.counts, strict=True))
        numbers = sum(count for word, count in pairs if is_written(word, WRITINGS[0]) or is_written(word, signs))
        dates = sum(count for word, count in pairs if DATE.fullmatch(word))
        return max(2 * numbers, 2 * dates - 1) >= sum(self.counts)


@dataclass(frozen=True, slots=True)
class _Told:
    """What the cells of a column say: the first kind that none rules out, and the signs with which all are numbers."""

    first: Kind
    signs: tuple[tuple[str, str | None], ...] = ()
    settled: bool = True

    def kind(self, signs: tuple[str, str | None]) -> Kind:
        """The kind of the column where the numbers of the file are written with these signs."""
        return "numbers" if signs in self.signs else self.first


def _told(held: _Held, open_signs: bool) -> _Told:
    """Rule out what cells rule out, in order; what one unit alone rules out leaves the column unsettled."""
    if held.numeric:
        return _Told("numbers")
    cells = held.against(lambda word: False)
    if cells == 0:
        return _Told("empty")
    strange = held.against(lambda word: is_written(word, WRITINGS[0]))
    if strange == 0:
        return _Told("numbers", settled=cells == 2)
    others = {signs: held.against(partial(is_written, signs=signs)) for signs in (WRITINGS[1:] if open_signs else ())}
    undated = held.against(lambda word: DATE.fullmatch(word) is not None)
    settled = 1 not in (cells, strange, undated, *others.values())
    possible = tuple(signs for signs, units in others.items() if units == 0)
    return _Told("texts" if undated else "dates", possible, settled)


def _described(source: Source, path: Path, stated: dict[str, Any]) -> tuple[str, dict[str, str]]:
    """The format of a file or folder; what its first line shows is added to what is stated.

    A first line that names the columns is public. What is told from one that is a record is returned too, each with the
    option that states it.
    """
    layout: dict[str, str] = {}
    with failing_clearly(source.source):
        first = files_of(source, path)[0] if path.is_dir() else path
        form = format_of(source, first)
        hint = "For images, arrays and libsvm files write the study by hand: docs/study-file.md."
        require(form in _TABLES, "DATA", f"be a table: {', '.join(_TABLES)}", form, hint)
        if form == "csv":
            found = {key: value for key, value in _layout(first).items() if key not in stated}
            stated |= found
            if stated.get("header") is False:
                options = {"header": "--no-header", "delimiter": f"--delimiter {found.get('delimiter')!r}"}
                layout = {f"data.{key}": options[key] for key in found}
    return form, layout


def _source(data: str, reading: Mapping[str, Any]) -> Source:
    return Source.of(source=data, feature_bound=1.0, classes=2, learned="all", **reading)


def _cells(opened: Sequence[Opened]) -> tuple[tuple[str, ...], dict[str, Cells]]:
    """The columns of all files, and their cells: numbers where all are, else texts as they are written."""
    names = opened[0].names
    require(len(names) >= 2, "The data", "have at least two columns, one of them to predict", list(names))
    parts: dict[str, list[Any]] = {name: [] for name in names}
    for one in opened:
        files = f"{one.file} and {opened[0].file}"
        require(one.names == names, files, "have the same columns in the same order", one.names[:20])
        for batch in one.batches(names, ()):
            for name, column in batch.items():
                parts[name].append(column)
        require(parts[names[0]], one.file, "hold at least one row", "none")
    return names, {name: cells_of(stacked(parts.pop(name))) for name in names}


def _repeats(cells: Cells) -> bool:
    """Whether a value occurs in several rows."""
    there = cells[~np.isnan(cells)] if isinstance(cells, np.ndarray) else cells.codes[~cells.among(MISSING)]
    return bool(np.unique(there).size < there.size)


def _layout(path: Path) -> dict[str, Any]:
    """The delimiter, if it is not the usual one, and whether the first line names the columns."""
    result: dict[str, Any] = {}
    with text_of(path) as text:
        first = text.readline()
    usual = "\t" if path.name.removesuffix(".gz").endswith(".tsv") else ","
    delimiter = usual if usual in first else next((sign for sign in DELIMITERS if sign in first), usual)
    if delimiter != usual:
        result["delimiter"] = delimiter
    cells = [cell.strip().strip('"') for cell in first.strip().split(delimiter)]
    if cells and all(cell in MISSING or writing_of([cell]) is not None for cell in cells):
        result["header"] = False
    return result


def _writing(told: Mapping[str, _Told]) -> dict[str, str]:
    """The signs of numbers, where columns are no numbers only because they are written with others."""
    strange = [set(one.signs) for one in told.values() if one.signs]
    signs = next((signs for signs in WRITINGS if strange and all(signs in one for one in strange)), None)
    if signs is None:
        return {}
    decimal, thousands = signs
    return ({} if decimal == "." else {"decimal": decimal}) | ({} if thousands is None else {"thousands": thousands})
