"""Read Parquet files with pyarrow (the extra ``fedveil[parquet]``); unused columns are hashed but not kept.

A few bytes of Parquet can stand for gigabytes: a run of one value, or a dictionary of one long text. So the footer's
counts are checked first, and texts are read as dictionaries, whose longest text is known before rows are made of them.
Columns of lists and structures are not read at all: nothing in the footer bounds them.
"""

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, final

import numpy as np

from fedveil.checks import require
from fedveil.data.cells import refuse_nul
from fedveil.data.fingerprint import digested, rows_read
from fedveil.data.opening import bytes_of, damage_told
from fedveil.data.read_columns import from_columns
from fedveil.data.spec import Source
from fedveil.data.table import Array, Table, choose
from fedveil.errors import BadValue
from fedveil.limits import TEXT, check_cells, check_columns, check_unpacked

_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8, "BYTE_ARRAY": 4}
_BATCH = 8192  # rows at a time
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


def open_parquet(stream: IO[bytes], path: Path) -> Parquet:
    """Open a file after a look at its footer; refuse one that would unpack to too much."""
    _, parquet = pyarrow()
    footer = parquet.ParquetFile(stream, pre_buffer=False).metadata
    check_columns(path.name, footer.num_columns)
    groups = [footer.row_group(index) for index in range(footer.num_row_groups)]
    rows = sum(int(group.num_rows) for group in groups)
    schema = [footer.schema.column(index) for index in range(footer.num_columns)]
    flat = [one for one in schema if one.max_repetition_level == 0 and one.path == one.name]
    widths = [one.length if one.physical_type == "FIXED_LEN_BYTE_ARRAY" else _WIDTHS[one.physical_type] for one in flat]
    stated = sum(int(group.total_byte_size) for group in groups)
    size = path.stat().st_size
    check_cells(path.name, rows, 1)
    check_unpacked(path.name, size, max(rows * sum(widths), stated))
    texts = [one.name for one in flat if one.physical_type == "BYTE_ARRAY" and one.logical_type.type != "DECIMAL"]
    file = parquet.ParquetFile(stream, pre_buffer=False, read_dictionary=texts)
    return Parquet(file, size, tuple(one.name for one in flat), tuple(texts), rows)


def read_parquet(source: Source, path: Path) -> Table:
    """Return the rows of one file; nulls are missing values."""
    arrow, _ = pyarrow()
    with bytes_of(path) as stream, damage_told(path.name, "a Parquet file"):
        opened = open_parquet(stream, path)
        names = opened.names
        choice = choose(source, names, path.name)
        # of the schema: whether the cells read happen to be whole numbers would tell of single records
        whole = tuple(str(field.name) for field in opened.file.schema_arrow if arrow.types.is_integer(field.type))
        wanted = [name for name in names if name in {*choice.features, choice.target, choice.client}]
        check_cells(path.name, opened.rows, len(wanted))
        check_unpacked(path.name, opened.size, 8 * opened.rows * len(wanted))
        table = opened.file.read(columns=wanted)
        columns = {name: arrow_array(arrow, table.column(name), name, path.name, opened.size) for name in wanted}
        raw = None
        if len(wanted) < len(names):
            parts = opened.file.iter_batches(batch_size=_BATCH, columns=list(names))
            raw = rows_read([_hashed(arrow, part) for part in parts])
    unread = np.zeros(table.num_rows, dtype=np.int8)  # for columns that the study ignores
    return from_columns(source, path.name, {name: columns.get(name, unread) for name in names}, raw, whole)


def _hashed(arrow: Any, batch: Any) -> bytes:
    """Return digests of some rows with all their columns; values that are neither number nor text count as written."""
    table = arrow.Table.from_batches([batch])
    return digested({str(name): _written(arrow, table.column(name), str(name)) for name in table.schema.names})


def _written(arrow: Any, column: Any, name: str) -> Array | Sequence[str]:
    """Return a column as a fingerprint takes it; a long text is one object, however often it stands there."""
    if arrow.types.is_dictionary(column.type):
        chunk = column.combine_chunks()
        chunk = chunk.chunk(0) if isinstance(chunk, arrow.ChunkedArray) else chunk
        words = [*("" if word is None else str(word) for word in chunk.dictionary.to_pylist()), ""]
        return [words[-1 if place is None else place] for place in chunk.indices.to_pylist()]
    try:
        return arrow_array(arrow, column, name, "", 0)
    except ValueError:
        return ["" if value is None else str(value) for value in column.to_pylist()]


def pyarrow() -> tuple[Any, Any]:
    """Return the library and its reader of Parquet files."""
    try:
        return importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise BadValue("Parquet files need pyarrow: install the extra fedveil[parquet].") from error


def pyarrow_dataset() -> Any:
    """Return the reader of several files as one table."""
    pyarrow()
    return importlib.import_module("pyarrow.dataset")


def check_texts(opened: Parquet, file: str) -> None:
    """Refuse a text that is longer than any that a query may see; only dictionaries are read, and no row is made."""
    for batch in opened.file.iter_batches(batch_size=_BATCH, columns=list(opened.texts)) if opened.texts else ():
        for name in opened.texts:
            longest = _longest(batch.column(name).dictionary)
            hint = "Write the file without this column."
            rule = f"hold texts of at most {_LONGEST} bytes"
            require(longest <= _LONGEST, f"The column {name!r} of {file}", rule, longest, hint)


def _longest(words: Any) -> int:
    compute = importlib.import_module("pyarrow.compute")
    return int(compute.max(compute.binary_length(words)).as_py() or 0)


def arrow_array(arrow: Any, column: Any, name: str, file: str, size: int) -> Array:
    """One column as numbers (NaN for null) or texts (empty for null); ``size``: of the file, in bytes."""
    kinds = arrow.types
    if kinds.is_dictionary(column.type) and _is_text(kinds, column.type.value_type):
        return _texts(arrow, column, name, file, size)
    if kinds.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    kind = column.type
    numeric = kinds.is_boolean(kind) or kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_decimal(kind)
    require(numeric, f"The column {name!r} of {file}", "hold numbers or texts", str(kind))
    if kinds.is_floating(kind) or (kinds.is_integer(kind) and column.null_count == 0):
        return np.asarray(column.to_numpy())
    return np.array([np.nan if value is None else float(value) for value in column.to_pylist()])


def _texts(arrow: Any, column: Any, name: str, file: str, size: int) -> Array:
    """Return a column of texts, after a look at the longest: in the array every text takes as much memory as it."""
    compute = importlib.import_module("pyarrow.compute")
    longest = max((compute.max(compute.utf8_length(part.dictionary)).as_py() or 0 for part in column.chunks), default=0)
    where, hint = f"The column {name!r} of {file}", "Leave a column of long texts out (data.ignore)."
    require(longest <= TEXT, where, f"hold texts of at most {TEXT} characters", longest, hint)
    check_cells(file, len(column), longest)
    check_unpacked(file, size, len(column) * longest)
    found = [np.zeros(0, dtype=np.str_)]
    for part in column.chunks:
        listed = [*(word or "" for word in part.dictionary.to_pylist()), ""]
        refuse_nul(listed, name, file)
        words = np.array(listed, dtype=np.str_)
        places = part.indices.fill_null(len(words) - 1).to_numpy(zero_copy_only=False)
        found.append(words[places])
    return np.concatenate(found)


def _is_text(kinds: Any, kind: Any) -> bool:
    return bool(kinds.is_string(kind) or kinds.is_large_string(kind))
