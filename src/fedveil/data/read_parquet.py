"""Read Parquet files with pyarrow (the extra ``fedveil[parquet]``); unused columns are hashed but not kept."""

import importlib
from pathlib import Path
from typing import Any

import numpy as np

from fedveil.checks import require
from fedveil.data.cells import texts_of
from fedveil.data.column import Cells
from fedveil.data.fingerprint import digested, rows_read
from fedveil.data.opening import bytes_of, damage_told
from fedveil.data.read_columns import from_columns
from fedveil.data.spec import Source
from fedveil.data.table import Array, Table, choose
from fedveil.errors import BadValue
from fedveil.limits import check_cells, check_columns, check_unpacked


def read_parquet(source: Source, path: Path) -> Table:
    """Return the rows of one file; nulls are missing values."""
    arrow, parquet = pyarrow()
    with bytes_of(path) as stream, damage_told(path.name, "a Parquet file"):
        file = parquet.ParquetFile(stream)
        check_columns(path.name, file.metadata.num_columns)
        names = tuple(str(name) for name in file.schema_arrow.names)
        choice = choose(source, names, path.name)
        wanted = [name for name in names if name in {*choice.features, choice.target, choice.client}]
        rows = file.metadata.num_rows
        check_cells(path.name, rows, len(wanted))
        check_unpacked(path.name, path.stat().st_size, max(8 * rows * len(wanted), _stated_bytes(file.metadata)))
        table = file.read(columns=wanted)
        columns = {name: arrow_array(arrow, table.column(name), name, path.name) for name in wanted}
        raw = None if len(wanted) == len(names) else rows_read([_hashed(arrow, part) for part in file.iter_batches()])
    unread = np.zeros(table.num_rows, dtype=np.int8)  # for columns that the study ignores
    return from_columns(source, path.name, {name: columns.get(name, unread) for name in names}, raw)


def _hashed(arrow: Any, batch: Any) -> bytes:
    """Return digests of some rows with all their columns; values that are neither number nor text count as written."""
    table = arrow.Table.from_batches([batch])
    held: dict[str, Cells] = {}
    for name in table.schema.names:
        column = table.column(name)
        try:
            held[str(name)] = arrow_array(arrow, column, str(name), "")
        except ValueError:
            held[str(name)] = ["" if value is None else str(value) for value in column.to_pylist()]
    return digested(held)


def _stated_bytes(metadata: Any) -> int:
    """Return the unpacked size of all columns, as stated in the footer."""
    return sum(int(metadata.row_group(index).total_byte_size) for index in range(metadata.num_row_groups))


def pyarrow() -> tuple[Any, Any]:
    """Return the library and its reader of Parquet files."""
    try:
        return importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise BadValue("Parquet files need pyarrow: install the extra fedveil[parquet].") from error


def arrow_array(arrow: Any, column: Any, name: str, file: str) -> Array:
    """One column as numbers (NaN for null) or texts (empty for null)."""
    kinds = arrow.types
    if kinds.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    kind = column.type
    if kinds.is_string(kind) or kinds.is_large_string(kind):
        return texts_of(["" if value is None else value for value in column.to_pylist()], name, file)
    numeric = kinds.is_boolean(kind) or kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_decimal(kind)
    require(numeric, f"The column {name!r} of {file}", "hold numbers or texts", str(kind))
    if kinds.is_floating(kind) or (kinds.is_integer(kind) and column.null_count == 0):
        return np.asarray(column.to_numpy())
    return np.array([np.nan if value is None else float(value) for value in column.to_pylist()])
