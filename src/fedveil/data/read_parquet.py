"""Read Parquet and Feather files, some rows at a time.

A few bytes can stand for gigabytes: a run of one value, or a dictionary of one long text. So the counts of a Parquet
footer are checked first, and texts stay dictionaries; a Feather file states no such counts, and its batches are read
under a limit of memory. Columns of lists and structures are not read at all: nothing bounds them.
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from fedveil.core.errors import require
from fedveil.core.limits import check_cells, check_columns, check_unpacked
from fedveil.data.opening import arrow, bytes_of, compute, damage_told, ipc, memory_limit, native, parquet
from fedveil.data.table import Batch, Opened
from fedveil.data.typed import is_nested, typed

_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8, "BYTE_ARRAY": 4}
_BATCH = 2**16  # rows at a time
_FEW = 8192  # likewise, where only dictionaries are looked at
_LONGEST = 2**16  # bytes of a text that a query may see


@final
@dataclass(frozen=True, slots=True, eq=False)
class Parquet:
    """An open file whose counts are within the limits; ``names``: its flat columns, ``texts``: those read as texts."""

    file: Any
    size: int
    names: tuple[str, ...]
    texts: tuple[str, ...]
    rows: int


@contextmanager
def parquet_file(path: Path) -> Iterator[Parquet]:
    """Open a file after a look at its footer; refuse one that would unpack to too much."""
    opened = bytes_of(path) if path.suffix == ".gz" else native(path)
    with opened as stream, damage_told(path.name, "a Parquet file"):
        footer = parquet.ParquetFile(stream, pre_buffer=False).metadata
        check_columns(path.name, footer.num_columns)
        groups = [footer.row_group(index) for index in range(footer.num_row_groups)]
        rows = sum(int(group.num_rows) for group in groups)
        schema = [footer.schema.column(index) for index in range(footer.num_columns)]
        flat = [one for one in schema if one.max_repetition_level == 0 and one.path == one.name]
        widths = [
            one.length if one.physical_type == "FIXED_LEN_BYTE_ARRAY" else _WIDTHS[one.physical_type] for one in flat
        ]
        stated = sum(int(group.total_byte_size) for group in groups)
        size = path.stat().st_size
        check_cells(path.name, rows, 1)
        check_unpacked(path.name, size, max(rows * sum(widths), stated))
        texts = [one.name for one in flat if one.physical_type == "BYTE_ARRAY" and one.logical_type.type != "DECIMAL"]
        file = parquet.ParquetFile(stream, pre_buffer=False, read_dictionary=texts)
        yield Parquet(file, size, tuple(one.name for one in flat), tuple(texts), rows)


def open_parquet(path: Path) -> Opened:
    """Open one file; nulls are missing values."""
    with parquet_file(path) as found:
        names, rows, size = found.names, found.rows, found.size
        # of the schema: whether the cells read happen to be whole numbers would tell of single records
        whole = tuple(str(one.name) for one in found.file.schema_arrow if arrow.types.is_integer(one.type))

    def batches(wanted: Sequence[str], _: Collection[str]) -> Iterator[Batch]:
        check_cells(path.name, rows, len(wanted))
        check_unpacked(path.name, size, 8 * rows * len(wanted))
        with parquet_file(path) as found:
            for batch in found.file.iter_batches(batch_size=_BATCH, columns=list(wanted), use_threads=False):
                yield {name: typed(batch.column(name), name, path.name) for name in wanted}

    return Opened(file=path.name, names=names, batches=batches, whole=whole)


@contextmanager
def _feather_file(path: Path) -> Iterator[Any]:
    opened = bytes_of(path) if path.suffix == ".gz" else native(path)
    with opened as stream, damage_told(path.name, "a Feather file (Arrow IPC)"), ipc.open_file(stream) as reader:
        yield reader


def open_feather(path: Path) -> Opened:
    """Open one file of Feather, which is Arrow's own format; nulls are missing values."""
    with _feather_file(path) as reader:
        schema = reader.schema
    check_columns(path.name, len(schema.names))
    names = tuple(str(one.name) for one in schema if not is_nested(one.type))
    whole = tuple(str(one.name) for one in schema if arrow.types.is_integer(one.type))

    def batches(wanted: Sequence[str], _: Collection[str]) -> Iterator[Batch]:
        rows, total, size = 0, 0, path.stat().st_size
        with _feather_file(path) as reader:
            for place in range(reader.num_record_batches):
                with memory_limit():
                    batch = reader.get_batch(place)
                rows, total = rows + batch.num_rows, total + batch.nbytes
                check_cells(path.name, rows, len(wanted))
                check_unpacked(path.name, size, total)
                yield {name: typed(batch.column(name), name, path.name) for name in wanted}

    return Opened(file=path.name, names=names, batches=batches, whole=whole)


def check_texts(opened: Parquet, file: str) -> None:
    """Refuse a text that is longer than any that a query may see; only dictionaries are read, and no row is made."""
    for batch in opened.file.iter_batches(batch_size=_FEW, columns=list(opened.texts)) if opened.texts else ():
        for name in opened.texts:
            longest = int(compute.max(compute.binary_length(batch.column(name).dictionary)).as_py() or 0)
            hint = "Write the file without this column."
            rule = f"hold texts of at most {_LONGEST} bytes"
            require(longest <= _LONGEST, f"The column {name!r} of {file}", rule, longest, hint)
