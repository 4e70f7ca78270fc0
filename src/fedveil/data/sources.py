"""Read a source, whole or some rows at a time; the format follows from the suffix, a folder holds one file a client."""

from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fedveil.core.errors import BadValue, require
from fedveil.core.values import Vector
from fedveil.data.cells import Place, Texts, canonical, check_texts
from fedveil.data.fingerprint import Cells
from fedveil.data.frames import columns_of_frame
from fedveil.data.missing import numbers_with_gaps
from fedveil.data.opening import failing_clearly
from fedveil.data.read_csv import open_csv
from fedveil.data.read_formats import open_idx, open_libsvm, open_npz, open_shipped
from fedveil.data.read_parquet import open_feather, open_parquet
from fedveil.data.read_sql import open_sql, sql_batches
from fedveil.data.spec import Source
from fedveil.data.table import Batch, Opened, Table, frame_of, table_of
from fedveil.data.typed import cells_of, coded

# Persons who were watched for a time: from a column of times and one of events to the labels of survival models.
#
# The intervals are public. A person is labelled by the last interval it was seen in: "3" for the event in the third,
# "2+" for last seen without one after the end of the second, "0+" if it was not even seen to the end of the first. The
# last kind says nothing, and is left out like a label that nobody declared.

Mask = NDArray[np.bool_]
_EVENT: Final = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


def read_watched(source: Source, read: Callable[[Source], tuple[Table, Source]]) -> tuple[Table, Source]:
    """Read a source with a column of events; the table's target is then the label of each person, or a missing one.

    ``read`` reads a source whose target is a number, and which has the column of events among its features.
    """
    event = str(source.labelling.event)
    hint = "It says whether the event was seen, and nothing may be predicted from it."
    used = (*source.features.ignore, *source.features.columns)
    require(event not in used, "data.event", "name no feature", event, hint)
    apart = event not in (source.labelling.target, source.client_column, source.expires_column)
    require(apart, "data.event", "differ from data.target, data.client_column and data.expires_column", event)
    inner = source.with_keys(
        event=None,
        intervals=(),
        classes=None,
        unlisted="refuse",
        target_scale=(0.0, 1.0),  # a number; its range is not used
        categories={**source.features.categories, event: ("0", "1")},
        columns=(*source.features.columns, event) if source.features.columns else (),
        fill={name: value for name, value in source.features.fill.items() if name != event},
    )
    table, _ = read(inner)
    kept = tuple(name for name in table.choice.features if name != event)
    require(kept, "The columns of the data", "leave at least one feature", table.choice.features)
    choice = replace(table.choice, features=kept, target_is_text=True)
    return replace(table, choice=choice, target=coded(_labels(table, table.texts(event), source))), source


def _labels(table: Table, events: Texts, source: Source) -> Texts:
    """The label of each person; the empty one where time or event is missing."""
    times = numbers_with_gaps(table, source, None)
    gone = np.isnan(times) | events.among({"", *source.reading.missing})
    wrong = np.flatnonzero(~gone & ~((times >= 0) & np.isfinite(times)))
    if wrong.size:
        row = int(wrong[0])
        name = f"{table.place(row)}, column {source.labelling.target!r}"
        require(False, name, "be a time: finite and not negative", float(times[row]))
    happened = events.where(lambda word: _EVENT.get(canonical(word).lower(), False))
    strange = np.flatnonzero(~gone & events.where(lambda word: canonical(word).lower() not in _EVENT))
    if strange.size:
        row = int(strange[0])
        rule = "say whether the event was seen: 1 or 0, true or false, yes or no"
        got = events.words[int(events.codes[row])]
        require(False, f"{table.place(row)}, column {source.labelling.event!r}", rule, got)
    result = labelled(np.where(gone, 0.0, times), happened, source.labelling.intervals)
    return Texts(["", *result.words], np.where(gone, 0, 1 + result.codes))


def labelled(times: Vector, happened: Mask, ends: Sequence[float]) -> Texts:
    """Return the labels of persons seen for ``times``, for intervals that end at ``ends``.

    >>> found = labelled(np.array([0.5, 1.5, 9.0, 0.2]), np.array([True, False, False, False]), [1.0, 2.0, 3.0])
    >>> [found.words[code] for code in found.codes]
    ['1', '1+', '3+', '0+']
    """
    edges = np.asarray(ends, dtype=np.float64)
    before = np.searchsorted(edges, times, side="left")  # intervals that ended before
    inside = happened & (before < edges.size)
    seen = np.searchsorted(edges, times, side="right")  # intervals that were seen whole
    words = [*(f"{k}+" for k in range(edges.size + 1)), *(f"{k + 1}" for k in range(edges.size))]
    return Texts(words, np.where(inside, edges.size + 1 + before, seen))


ROWS: Final = 8192  # records at a time, where a model is in use
SUFFIXES = {
    ".csv": "csv",
    ".tsv": "csv",
    ".data": "csv",
    ".txt": "csv",
    ".parquet": "parquet",
    ".feather": "feather",
    ".arrow": "feather",
    ".npz": "npz",
    ".libsvm": "libsvm",
    ".svm": "libsvm",
    ".idx": "idx",
}


def read(source: Source, base: Path, texts: Collection[str] = ()) -> tuple[Table, Source]:
    """Return the rows of a source, and the source completed by published facts where there are any.

    Relative paths start from ``base``. ``texts``: columns whose texts are taken as they are written, even if they look
    like numbers; all that the study states to be labels, categories or clients are.
    """
    if source.labelling.event is not None:
        return read_watched(source, lambda inner: read(inner, base, texts))
    if source.shipped is not None:
        opened, source = open_shipped(source, source.shipped)
        return table_of(source, [opened]), source
    return table_of(source, open_source(source, base), texts), source


def open_source(source: Source, base: Path, *, labelled: bool = True) -> list[Opened]:
    """Return the files of a source in order; ``labelled``: they must come with what is to be predicted."""
    if source.shipped is not None:
        return [open_shipped(source, source.shipped)[0]]
    if source.frame is not None:
        return [frame_of(columns_of_frame(source.frame), source.source)]
    if source.database:
        return [open_sql(source, base)]
    path = base / source.source
    with failing_clearly(source.source):
        if path.is_dir():
            return [_file(source, file, path, labelled) for file in files_of(source, path)]
        require(
            source.reading.format != "folder", "data.source", 'be a folder when data.format is "folder"', source.source
        )
        return [_file(source, path, base, labelled)]


def client_names(table: Table) -> tuple[str, ...]:
    """Return file names as client names, without suffixes unless that would make two names equal."""
    short = tuple(_stem(file) for file in table.names)
    return short if len(set(short)) == len(short) else table.names


def _stem(file: str) -> str:
    plain = file.removesuffix(".gz")
    return plain[: -len(Path(plain).suffix)] if Path(plain).suffix in SUFFIXES else plain


def _file(source: Source, path: Path, base: Path, labelled: bool) -> Opened:
    form = format_of(source, path)
    if form != "idx":
        require(
            source.reading.labels is None,
            "data.labels",
            "go with a file of images (format idx) only",
            source.reading.labels,
        )
    match form:
        case "csv":
            return open_csv(source, path)
        case "parquet":
            return open_parquet(path)
        case "feather":
            return open_feather(path)
        case "npz":
            return open_npz(path)
        case "libsvm":
            return open_libsvm(source, path)
    given = source.reading.labels is not None or not labelled
    require(given, "data.labels", f"name the file with the labels of {path.name}", None)
    return open_idx(path, None if source.reading.labels is None else base / source.reading.labels)


def format_of(source: Source, path: Path) -> str:
    """Return the format that the study states, or the one of the file's suffix."""
    form = source.reading.format
    return _by_suffix(path) if form is None or form == "folder" else form


def _by_suffix(path: Path) -> str:
    name = path.name.removesuffix(".gz")
    if name.endswith("-ubyte"):  # as MNIST's files are called
        return "idx"
    result = SUFFIXES.get(Path(name).suffix)
    if result is None:
        raise BadValue(
            f"data.format must be given for {path.name}, whose name does not tell it: csv, parquet, feather, npz, "
            "libsvm or idx."
        )
    return result


def files_of(source: Source, path: Path) -> list[Path]:
    """Return the files of a folder that a study means, in the order of their names."""
    require(source.reading.format != "idx", "data.source", "be a file when data.format is idx", source.source)
    require(
        "/" not in source.reading.files,
        "data.files",
        "be a pattern of names in the folder, such as *.csv",
        source.reading.files,
    )
    files = sorted(file for file in path.glob(source.reading.files) if file.is_file() and not file.name.startswith("."))
    require(files, f"The folder {source.source}", f"hold files that match data.files, {source.reading.files!r}", "none")
    return files


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """Some records as named columns, and where each stands; columns that nobody asked for are left out.

    ``names``: all columns that there are, also those.
    """

    cells: Mapping[str, Cells]
    place: Place
    names: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(next(iter(self.cells.values()))) if self.cells else 0


def chunks(source: Source, base: Path, wanted: Mapping[str, bool]) -> Generator[Chunk]:
    """Return the records of a source for a model in use, with or without what is to be predicted.

    ``wanted``: the columns to read, and whether each holds numbers. No table but an archive's has to fit in memory.
    """
    if source.database:
        done = 0
        for batch in sql_batches(source, base):
            yield from _parts(batch, done, source.source, "row", tuple(batch))
            done += len(next(iter(batch.values())))
        return
    for one in open_source(source, base, labelled=False):
        here = [name for name in one.names if name in wanted]
        if not here:
            yield Chunk({}, lambda row: f"row {row + 1}", one.names)
            continue
        done = 0
        for batch in one.batches(here, [name for name in here if not wanted[name]]):
            yield from _parts(batch, done, one.file, one.line, one.names, one.locate)
            done += len(next(iter(batch.values())))


def _parts(
    batch: Batch,
    done: int,
    file: str,
    line: str,
    names: tuple[str, ...],
    locate: Callable[[int], int] = lambda row: row + 1,
) -> Iterator[Chunk]:
    """Yield a batch, which comes after so many rows, in chunks."""
    for start in range(0, len(next(iter(batch.values()))), ROWS):
        cells = {name: cells_of(column.slice(start, ROWS)) for name, column in batch.items()}
        for name, column in cells.items():
            if isinstance(column, Texts):
                check_texts(column.words, name, file)
        yield Chunk(cells, partial(_place, file, line, locate, done + start), names)


def _place(file: str, line: str, locate: Callable[[int], int], first: int, row: int) -> str:
    return f"{file}, {line} {locate(first + row)}"
