"""The content of a file before any rule: numbers (NaN if missing), texts, a target, and the place of each row."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedveil.checks import require
from fedveil.data.fingerprint import RawRows, rows_of, rows_together
from fedveil.data.spec import Source
from fedveil.data.tables import nearest
from fedveil.limits import check_cells

Array = NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Which columns of a file are features, which of them are numbers, and which are target and client."""

    features: tuple[str, ...]
    numbers: tuple[str, ...]
    target: str | None
    target_is_text: bool
    client: str | None
    names: tuple[str, ...] = field(default=(), compare=False)  # all columns of the file, in its order
    whole: tuple[str, ...] = field(default=(), compare=False)  # those that the file's own schema declares integers

    @property
    def texts(self) -> tuple[str, ...]:
        """The features that are categories."""
        numeric = set(self.numbers)
        return tuple(name for name in self.features if name not in numeric)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Table:
    """Rows of one or more files. ``numbers`` has a column for each numeric feature; NaN is a missing number."""

    choice: Choice
    numbers: Array
    texts: Mapping[str, Array]
    target: Array
    client: Array | None
    files: tuple[str, ...]
    file_of: NDArray[np.int32]
    lines: NDArray[np.int64]
    line: str = "row"  # what a line number counts: "line" of a text file, "row" of an array
    raw: RawRows | None = None  # everything that the source holds, including what a study leaves out

    def __post_init__(self) -> None:
        require(len(self) >= 1, " and ".join(self.files[:3]), "hold at least one row", "none")
        for given in (self.target, self.client, self.file_of, *self.texts.values()):
            right = given is None or given.shape == (len(self),)
            require(right, self.files[0], f"have {len(self)} values in every column", given is not None and given.shape)

    def __len__(self) -> int:
        return int(self.lines.size)

    def place(self, row: int) -> str:
        """Return the place of a row, for messages."""
        return f"{self.files[self.file_of[row]]}, {self.line} {self.lines[row]}"

    def rows(self, kept: NDArray[np.bool_]) -> "Table":
        """Return only some of the rows."""
        return replace(
            self,
            numbers=self.numbers[kept],
            texts={name: column[kept] for name, column in self.texts.items()},
            target=self.target[kept],
            client=None if self.client is None else self.client[kept],
            file_of=self.file_of[kept],
            lines=self.lines[kept],
        )


def choose(source: Source, names: tuple[str, ...], file: str, *, own_target: bool = False) -> Choice:
    """Sort a file's columns by their role; every name that the study states must exist.

    ``own_target``: the format keeps the labels apart from the columns.
    """
    twice = next((name for name in names if names.count(name) > 1), None) if len(set(names)) < len(names) else None
    require(twice is None, f"The columns of {file}", "have different names", twice)
    hint = "Leave nothing out: state data.classes or data.target_scale."
    fits = not (own_target and source.unlabelled)
    require(fits, "[data]", f"say what the labels are that {file} keeps apart", "nothing", hint)
    target = _target(source, names, file, own_target or source.unlabelled)
    _present(source, names, file)
    client = source.client_column
    apart = {name for name in (target, client) if name is not None}
    require(target is None or target != client, "data.client_column", "differ from data.target", client)
    taken = sorted(apart & set(source.columns))
    require(not taken, "data.columns", "name neither the target nor the client column", taken)
    left_out = apart | set(source.ignore)
    features = source.columns or tuple(name for name in names if name not in left_out)
    require(features, f"The columns of {file}", "leave at least one feature", names[:10])
    for name in apart & set(source.fill):
        rule = 'be "refuse" or "drop-row", since nobody may invent it'
        require(source.fill[name] in ("refuse", "drop-row"), f"data.fill.{name}", rule, source.fill[name])
    unused = sorted(set(source.scale) | set(source.categories) | (set(source.fill) - apart))
    stray = next((name for name in unused if name not in set(features)), None)
    hint = "It has a scale, a fill or categories, but is the target, the client column or ignored."
    require(stray is None, "[data]", "give rules for features only", stray, hint)
    # Where types are left open, all cells are taken as they are written but those that must be numbers.
    texts = set(source.categories) if source.learned == "nothing" else set(features) - _surely_numbers(source)
    numbers = tuple(name for name in features if name not in texts)
    is_text = source.classes is not None
    return Choice(features=features, numbers=numbers, target=target, target_is_text=is_text, client=client, names=names)


def _surely_numbers(source: Source) -> set[str]:
    """Columns that a stated range or fill value declares to be numbers."""
    filled = {name for name, value in source.fill.items() if not isinstance(value, str)}
    return (set(source.scale) | filled) - set(source.categories)


def _target(source: Source, names: tuple[str, ...], file: str, own_target: bool) -> str | None:
    given = source.target
    if own_target:
        require(given is None, "data.target", f"be left out: {file} keeps its labels apart", given)
        return None
    require(given is not None, "data.target", f"name the column of {file} to predict", given)
    if isinstance(given, int):
        require(not source.header, "data.target", "be a column's name when the file has a header", given)
        count = len(names)
        require(-count <= given < count, "data.target", f"be less than the number of columns, {count}", given)
        return names[given]
    hint = nearest(str(given), names)
    require(given in names, "data.target", f"be a column of {file}", given, hint)
    return given


def _present(source: Source, names: tuple[str, ...], file: str) -> None:
    known = set(names)
    stated = {"columns": source.columns, "ignore": source.ignore, "categories": tuple(source.categories)}
    stated |= {"scale": tuple(source.scale), "fill": tuple(source.fill), "bend": tuple(source.bend)}
    if source.client_column is not None:
        stated["client_column"] = (source.client_column,)
    for key, columns in stated.items():
        for column in columns:
            hint = nearest(column, known) if column not in known else ""
            require(column in known, f"data.{key}", f"name columns of {file}", column, hint)


def whole_file(file: str, rows: int, line: str = "row", first: int = 1) -> dict[str, Any]:
    """Return the places of all rows of one file, in order."""
    lines = np.arange(first, first + rows, dtype=np.int64)
    return {"files": (file,), "file_of": np.zeros(rows, dtype=np.int32), "lines": lines, "line": line}


def from_block(
    source: Source,
    file: str,
    block: Array,
    target: Array,
    names: tuple[str, ...],
    line: str,
    *,
    used: int | None = None,
) -> Table:
    """Return a table from an array of numbers with separate labels; ``used``: number of columns in the file itself."""
    choice = choose(source, names, file, own_target=True)
    require(block.shape[0] == target.shape[0], file, f"have as many labels as rows, {len(block)}", len(target))
    place = {name: index for index, name in enumerate(names)}
    numbers = block if choice.numbers == names else block[:, [place[name] for name in choice.numbers]]
    texts = {name: block[:, place[name]].copy() for name in choice.texts}
    client = None if choice.client is None else block[:, place[choice.client]].copy()
    where = whole_file(file, len(block), line)
    # a column is named by its number or its own name
    held = dict(zip(names[:used], block.T, strict=False)) | {"label": target}
    raw = rows_of(held)
    return Table(choice=choice, numbers=numbers, texts=texts, target=target, client=client, raw=raw, **where)


def joined(tables: list[Table]) -> Table:
    """Return several files as one table; they must have the same columns."""
    first = tables[0]
    check_cells(first.files[0], sum(len(table) for table in tables), len(first.choice.numbers))
    for other in tables[1:]:
        same = other.choice == first.choice
        names = f"{other.files[0]} and {first.files[0]}"
        require(same, names, "have the same columns in the same order", other.choice.features[:20])
    raw = [table.raw for table in tables if table.raw is not None]
    shift = np.concatenate([np.full(len(table), index, dtype=np.int32) for index, table in enumerate(tables)])
    return replace(
        first,
        numbers=np.concatenate([table.numbers for table in tables]),
        texts={name: np.concatenate([table.texts[name] for table in tables]) for name in first.texts},
        target=np.concatenate([table.target for table in tables]),
        client=None if first.client is None else np.concatenate([_client(table) for table in tables]),
        files=tuple(table.files[0] for table in tables),
        file_of=shift,
        lines=np.concatenate([table.lines for table in tables]),
        raw=rows_together(raw) if len(raw) == len(tables) else None,
    )


def _client(table: Table) -> Array:
    require(table.client is not None, table.files[0], "have the client column", None)
    return np.asarray(table.client)
