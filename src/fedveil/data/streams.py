"""Records for a model, some at a time: the sources that a study can train on, with or without what is to be predicted.

A model that is in use must read more than fits in memory, so no format but libsvm and NPZ is read whole.
"""

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Final

from fedveil.checks import require
from fedveil.data.arrow_csv import NotPlain, arrow_chunks
from fedveil.data.cells import usual_writing
from fedveil.data.column import Cells, Place
from fedveil.data.opening import bytes_of, damage_told, failing_clearly, text_of
from fedveil.data.read_csv import Row, csv_rows
from fedveil.data.read_idx import idx_array
from fedveil.data.read_libsvm import read_libsvm
from fedveil.data.read_npz import npz_columns
from fedveil.data.read_parquet import arrow_array, open_parquet, pyarrow
from fedveil.data.read_sklearn import read_shipped
from fedveil.data.read_sql import columns_of, sql_rows
from fedveil.data.sources import files_of, format_of
from fedveil.data.spec import Source
from fedveil.limits import check_columns

ROWS: Final = 8192  # records at a time


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """Some records as named columns, and where each stands; columns that nobody asked for may be left out.

    ``names``: all columns that there are, also those.
    """

    cells: Mapping[str, Cells]
    place: Place
    names: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(next(iter(self.cells.values()))) if self.cells else 0


def chunks(source: Source, base: Path, wanted: Mapping[str, bool]) -> Generator[Chunk]:
    """Return the records of a source. ``wanted``: the columns to read, and whether each holds numbers."""
    if source.shipped is not None:
        table, _ = read_shipped(source, source.shipped)
        yield from _sliced(dict(zip(table.choice.numbers, table.numbers.T, strict=True)), source.source, "row")
        return
    if source.database:
        yield from _query(source, base)
        return
    path = base / source.source
    with failing_clearly(source.source):
        for file in files_of(source, path) if path.is_dir() else [path]:
            yield from _file(source, file, wanted)


def _query(source: Source, base: Path) -> Iterator[Chunk]:
    done = 0
    for names, rows in sql_rows(source, base):
        yield Chunk(columns_of(names, rows, source.source), numbered(source.source, "row", done), names)
        done += len(rows)


def _file(source: Source, path: Path, wanted: Mapping[str, bool]) -> Iterator[Chunk]:
    match format_of(source, path):
        case "csv":
            return _csv(source, path, wanted)
        case "parquet":
            return _parquet(path, wanted)
        case "npz":
            return _sliced(npz_columns(path), path.name, "row")
        case "idx":
            images = idx_array(path)
            flat = images.reshape(images.shape[0], -1)
            return _sliced({str(index): flat[:, index] for index in range(flat.shape[1])}, path.name, "record")
        case _:
            table = read_libsvm(source, path)
            return _sliced(dict(zip(table.choice.numbers, table.numbers.T, strict=True)), path.name, "record")


def _sliced(columns: Mapping[str, Cells], file: str, line: str) -> Iterator[Chunk]:
    """Columns that are in memory, part by part."""
    lengths = {len(values) for values in columns.values()}
    require(len(lengths) == 1, f"The columns of {file}", "have the same length", sorted(lengths)[:5])
    count = next(iter(lengths))
    for start in range(0, count, ROWS):
        part = {name: values[start : start + ROWS] for name, values in columns.items()}
        yield Chunk(part, numbered(file, line, start), tuple(columns))


def numbered(file: str, line: str, start: int) -> Place:
    """Where a record stands that has so many before its chunk."""
    return lambda row: f"{file}, {line} {start + row + 1}"


def _parquet(path: Path, wanted: Mapping[str, bool]) -> Iterator[Chunk]:
    (arrow, _), start = pyarrow(), 0
    with bytes_of(path) as stream, damage_told(path.name, "a Parquet file"):
        opened = open_parquet(stream, path)
        here = [name for name in opened.names if name in wanted]
        for batch in opened.file.iter_batches(batch_size=ROWS, columns=here):
            table = arrow.Table.from_batches([batch])
            cells = {name: arrow_array(arrow, table.column(name), name, path.name, opened.size) for name in here}
            yield Chunk(cells, numbered(path.name, "row", start), opened.names)
            start += table.num_rows


def _csv(source: Source, path: Path, wanted: Mapping[str, bool]) -> Iterator[Chunk]:
    """By pyarrow where it is installed and the file is plain; from the first record on that is not, cell by cell."""
    done = 0
    with text_of(path) as text:
        names, ahead, rows = csv_rows(source, path, text)
        check_columns(path.name, len(names))
        twice = next((name for name in names if names.count(name) > 1), None) if len(set(names)) < len(names) else None
        require(twice is None, f"The columns of {path.name}", "have different names", twice)
        try:
            with closing(arrow_chunks(source, path, names, wanted, ROWS)) as parts:
                for cells in parts:
                    chunk = Chunk(cells, numbered(path.name, "record", done), names)
                    yield chunk
                    done += len(chunk)
            return
        except NotPlain:
            pass
        left = islice(chain(ahead, rows), done, None)
        here = [(index, name) for index, name in enumerate(names) if name in wanted]
        while part := list(islice(left, ROWS)):
            read = _cells(part, here, len(names), path.name)
            spelt = {name: usual_writing(column, source.decimal, source.thousands) for name, column in read.items()}
            yield Chunk(spelt, _lines(path.name, part), names)


def _cells(part: list[Row], here: list[tuple[int, str]], width: int, file: str) -> dict[str, list[str]]:
    for line, cells in part:
        right = len(cells) == width
        require(right, f"{file}, line {line},", f"have {width} cells", len(cells), "Is the delimiter right?")
    return {name: [cells[index] for _, cells in part] for index, name in here}


def _lines(file: str, part: list[Row]) -> Callable[[int], str]:
    return lambda row: f"{file}, line {part[row][0]}"
