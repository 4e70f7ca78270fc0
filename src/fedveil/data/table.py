"""A source before any rule: its columns as Arrow has them, typed once, and the place of each row for messages."""

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedveil.core.errors import require
from fedveil.core.limits import check_cells
from fedveil.core.values import Indices, Vector
from fedveil.data.cells import Texts, check_texts, numbers_of, refuse_infinite
from fedveil.data.fingerprint import Part, RawRows, rows_together
from fedveil.data.opening import arrow
from fedveil.data.spec import Source
from fedveil.data.tables import nearest
from fedveil.data.typed import Column, cells_of, column_of, is_numbers, stacked, texts_of, typed, vector_of

Array = NDArray[Any]
Batch = Mapping[str, Column]  # typed columns of some rows
LABEL = "label"  # what is to be predicted, where a format keeps it apart


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Opened:
    """A file, an answer or a frame that can be read again and again, some rows at a time.

    ``batches``: the typed columns of some names; the second names are those of columns whose texts are taken as they
    are written, even if they look like numbers. ``line``: what the number of a row counts, "line" of a text file;
    ``locate``: that number. ``declared``: the source itself says which columns hold numbers, and not their cells;
    ``whole``: those that its schema declares integers. ``label``: what is to be predicted, where the format keeps it
    apart. ``held``: the names of the columns in the source itself, where the study gives them others.
    """

    file: str
    names: tuple[str, ...]
    batches: Callable[[Sequence[str], Collection[str]], Iterator[Batch]]
    line: str = "row"
    locate: Callable[[int], int] = lambda row: row + 1
    declared: bool = True
    whole: tuple[str, ...] = ()
    label: Column | None = None
    held: tuple[str, ...] | None = None

    @property
    def titles(self) -> dict[str, str]:
        """The columns that the source itself holds, each with its name there."""
        return dict(zip(self.names, self.names if self.held is None else self.held, strict=False))

    def rows(self) -> RawRows:
        """Return all rows with all columns, read when they are asked for."""

        def parts() -> Iterator[Part]:
            titles = self.titles
            label = {} if self.label is None else {LABEL: cells_of(self.label)}
            for batch in self.batches(tuple(titles), ()):
                yield {titles[name]: cells_of(column) for name, column in batch.items()} | label

        return RawRows(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Which columns of a file are features, which of them are numbers, and which are target and client."""

    features: tuple[str, ...]
    numbers: tuple[str, ...]
    target: str | None
    target_is_text: bool
    client: str | None
    person: str | None = None
    expires: str | None = None
    names: tuple[str, ...] = field(default=(), compare=False)  # all columns of the file, in its order
    whole: tuple[str, ...] = field(default=(), compare=False)  # those that the file's own schema declares integers

    @property
    def texts(self) -> tuple[str, ...]:
        """The features that are categories."""
        numeric = set(self.numbers)
        return tuple(name for name in self.features if name not in numeric)

    @property
    def read(self) -> tuple[str, ...]:
        """The columns that are read, in the order of the file."""
        named = {*self.features, self.target, self.client, self.person, self.expires}
        return tuple(name for name in self.names if name in named)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Table:
    """Rows of one or more files: a table of Arrow with the columns that the study reads.

    ``target``: what is to be predicted, where it is no column of the table. ``raw``: everything that the source holds,
    including what the study leaves out.
    """

    choice: Choice
    cells: Any  # a pyarrow.Table
    files: tuple[Opened, ...]
    sizes: tuple[int, ...]
    raw: RawRows
    target: Column | None = None

    def __post_init__(self) -> None:
        require(len(self) >= 1, " and ".join(self.names[:3]), "hold at least one row", "none")

    def __len__(self) -> int:
        return sum(self.sizes)

    @property
    def predicted(self) -> bool:
        """Whether there is something to predict; only a generator can do without."""
        return self.target is not None or self.choice.target is not None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the files."""
        return tuple(one.file for one in self.files)

    @property
    def file_of(self) -> Indices:
        """Which file each row is of."""
        return np.repeat(np.arange(len(self.files), dtype=np.int64), self.sizes)

    def place(self, row: int) -> str:
        """Return the place of a row, for messages."""
        ends = list(accumulate(self.sizes))
        index = bisect_right(ends, row)
        opened = self.files[index]
        return f"{opened.file}, {opened.line} {opened.locate(row - (ends[index - 1] if index else 0))}"

    def column(self, name: str | None) -> Column:
        """Return a typed column; without a name the target, wherever it is kept."""
        if name is None and self.target is not None:
            return self.target
        return self.cells.column(self.choice.target if name is None else name)

    def is_numbers(self, name: str | None) -> bool:
        """Return whether a column holds numbers alone."""
        return is_numbers(self.column(name))

    def numbers(self, name: str | None, missing: Collection[str]) -> Vector:
        """Return a column as numbers, NaN where one is missing; a text and an infinity are refused by their place."""
        column, called = self.column(name), name or self.choice.target or LABEL
        numeric = is_numbers(column)
        result = vector_of(column) if numeric else numbers_of(texts_of(column), missing, called, self.place)
        refuse_infinite(result, called, self.place)
        return result

    def texts(self, name: str | None) -> Texts:
        """Return a column as texts, empty where one is missing; numbers are spelt as labels are."""
        result = texts_of(self.column(name))
        check_texts(result.words, name or self.choice.target or LABEL, self.names[0])
        return result


def choose(
    source: Source, names: tuple[str, ...], file: str, *, own_target: bool = False, whole: tuple[str, ...] = ()
) -> Choice:
    """Sort a file's columns by their role; every name that the study states must exist.

    ``own_target``: the format keeps the labels apart from the columns. ``whole``: the columns that the file's schema
    declares integers.
    """
    twice = next((name for name in names if names.count(name) > 1), None) if len(set(names)) < len(names) else None
    require(twice is None, f"The columns of {file}", "have different names", twice)
    hint = "Leave nothing out: state data.classes or data.target_scale."
    fits = not (own_target and source.labelling.unlabelled)
    require(fits, "[data]", f"say what the labels are that {file} keeps apart", "nothing", hint)
    target = _target(source, names, file, own_target or source.labelling.unlabelled)
    _present(source, names, file)
    client, person, expires = source.client_column, source.person_column, source.expires_column
    apart = {name for name in (target, client, person, expires) if name is not None}
    require(target is None or target != client, "data.client_column", "differ from data.target", client)
    hint = 'To protect all rows of a client, set privacy.unit = "client".'
    other = person is None or person not in (target, client)
    require(other, "data.person_column", "differ from data.target and data.client_column", person, hint)
    other = expires is None or expires not in (target, client, person)
    require(other, "data.expires_column", "differ from the columns of target, client and person", expires)
    taken = sorted(apart & set(source.features.columns))
    require(
        not taken, "data.columns", "name neither the target nor the client column, nor that of person or expiry", taken
    )
    left_out = apart | set(source.features.ignore)
    features = source.features.columns or tuple(name for name in names if name not in left_out)
    require(features, f"The columns of {file}", "leave at least one feature", names[:10])
    for name in apart & set(source.features.fill):
        rule = 'be "refuse" or "drop-row", since nobody may invent it'
        require(
            source.features.fill[name] in ("refuse", "drop-row"), f"data.fill.{name}", rule, source.features.fill[name]
        )
    unused = sorted(set(source.features.scale) | set(source.features.categories) | (set(source.features.fill) - apart))
    stray = next((name for name in unused if name not in set(features)), None)
    hint = "It has a scale, a fill or categories, but is the target, the client column or ignored."
    require(stray is None, "[data]", "give rules for features only", stray, hint)
    # Where types are left open, all cells are taken as they are written but those that must be numbers.
    texts = set(source.features.categories) if source.learned == "nothing" else set(features) - _surely_numbers(source)
    numbers = tuple(name for name in features if name not in texts)
    is_text = source.labelling.classes is not None
    return Choice(
        features=features,
        numbers=numbers,
        target=target,
        target_is_text=is_text,
        client=client,
        person=person,
        expires=expires,
        names=names,
        whole=whole,
    )


def _surely_numbers(source: Source) -> set[str]:
    """Columns that a stated range or fill value declares to be numbers."""
    filled = {name for name, value in source.features.fill.items() if not isinstance(value, str)}
    return (set(source.features.scale) | filled) - set(source.features.categories)


def _target(source: Source, names: tuple[str, ...], file: str, own_target: bool) -> str | None:
    given = source.labelling.target
    if own_target:
        require(given is None, "data.target", f"be left out: {file} keeps its labels apart", given)
        return None
    require(given is not None, "data.target", f"name the column of {file} to predict", given)
    if isinstance(given, int):
        require(not source.reading.header, "data.target", "be a column's name when the file has a header", given)
        count = len(names)
        require(-count <= given < count, "data.target", f"be less than the number of columns, {count}", given)
        return names[given]
    hint = nearest(str(given), names)
    require(given in names, "data.target", f"be a column of {file}", given, hint)
    return given


def _present(source: Source, names: tuple[str, ...], file: str) -> None:
    known = set(names)
    stated = {
        "columns": source.features.columns,
        "ignore": source.features.ignore,
        "categories": tuple(source.features.categories),
    }
    stated |= {
        "scale": tuple(source.features.scale),
        "fill": tuple(source.features.fill),
        "bend": tuple(source.features.bend),
    }
    for key in ("client_column", "person_column", "expires_column"):
        if getattr(source, key) is not None:
            stated[key] = (getattr(source, key),)
    for key, columns in stated.items():
        for column in columns:
            hint = nearest(column, known) if column not in known else ""
            require(column in known, f"data.{key}", f"name columns of {file}", column, hint)


def table_of(source: Source, opened: Sequence[Opened], texts: Collection[str] = ()) -> Table:
    """Return what a study reads of these files, which must have the same columns; ``texts``: taken as written."""
    first = opened[0]
    choice = choose(source, first.names, first.file, own_target=first.label is not None, whole=first.whole)
    named = (choice.client, choice.person, choice.expires, *([choice.target] if choice.target_is_text else []))
    written = {*source.features.categories, *texts, *named}
    parts: dict[str, list[Column]] = {name: [] for name in choice.read}
    sizes: list[int] = []
    for one in opened:
        mine = choice if one is first else choose(source, one.names, one.file, own_target=one.label is not None)
        same = mine == choice
        require(same, f"{one.file} and {first.file}", "have the same columns in the same order", mine.features[:20])
        count = 0
        for batch in one.batches(mine.read, [name for name in mine.read if name in written]):
            count += len(next(iter(batch.values())))
            check_cells(one.file, sum(sizes) + count, len(batch))
            for name, column in batch.items():
                parts[name].append(column)
        require(count >= 1, one.file, "hold at least one row", "none")
        sizes.append(count)
    labels = [one.label for one in opened if one.label is not None]
    cells = arrow.table({name: _in_one_piece(stacked(parts.pop(name))) for name in choice.read})
    return Table(
        choice=choice,
        cells=cells,
        files=tuple(opened),
        sizes=tuple(sizes),
        target=stacked(labels) if labels else None,
        raw=_all_rows(opened, cells),
    )


def _in_one_piece(column: Column) -> Column:
    """Return a column that numpy can look at without a copy."""
    result = column.combine_chunks() if isinstance(column, arrow.ChunkedArray) else column
    return result if isinstance(result, arrow.ChunkedArray) else arrow.chunked_array([result])


def _all_rows(opened: Sequence[Opened], cells: Any) -> RawRows:
    """Return all rows of a source: those in memory if they hold every column, and else read again when needed."""
    read = set(cells.column_names)
    if any(set(one.titles) != read or one.label is not None or one.titles != opened[0].titles for one in opened):
        return rows_together([one.rows() for one in opened])
    titles = opened[0].titles
    return RawRows(lambda: ({held: cells_of(cells.column(name)) for name, held in titles.items()},))


def frame_of(columns: Mapping[str, Column], file: str, line: str = "row", **more: Any) -> Opened:
    """Return columns that are in memory as something that can be read; they must have the same length."""
    lengths = {name: len(column) for name, column in columns.items()}
    same = len(set(lengths.values())) <= 1
    require(same, f"The columns of {file}", "have the same length", dict(list(lengths.items())[:10]))

    def batches(names: Sequence[str], _: Collection[str]) -> Iterator[Batch]:
        yield {name: typed(columns[name], name, file) for name in names}

    return Opened(file=file, names=tuple(columns), batches=batches, line=line, **more)


def block_of(
    block: Array, target: Array, names: Sequence[str], file: str, line: str, held: tuple[str, ...] | None = None
) -> Opened:
    """Return an array of numbers with separate labels, copied, since it may change."""
    require(block.shape[0] == target.shape[0], file, f"have as many labels as rows, {len(block)}", len(target))
    columns = {name: column_of(block[:, place].copy()) for place, name in enumerate(names)}
    return frame_of(columns, file, line, label=typed(column_of(target.copy()), LABEL, file), held=held)
