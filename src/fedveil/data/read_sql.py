"""Read rows where they live: PostgreSQL and SQLite through SQLAlchemy, folders of Parquet files through DuckDB.

The libraries are the extra ``fedveil[sql]``. Connections only read, and a password is never part of a message.
"""

import importlib
import math
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import numpy as np

from fedveil.checks import require
from fedveil.data.address import DUCKDB, HIDDEN, driven
from fedveil.data.cells import texts_of
from fedveil.data.read_columns import from_columns
from fedveil.data.spec import Source
from fedveil.data.table import Array, Table
from fedveil.errors import BadValue, NotAvailable
from fedveil.limits import check_cells, check_columns

_ROWS: Final = 8192  # rows fetched at a time
_ALL: Final = "SELECT * FROM data"  # of a folder of Parquet files, which is called data
Rows = list[tuple[Any, ...]]


def read_sql(source: Source, base: Path) -> Table:
    """Return all rows of the query."""
    names: tuple[str, ...] = ()
    parts: list[Rows] = []
    count = 0
    for found, rows in sql_rows(source, base):
        names, count = found, count + len(rows)
        check_cells(source.source, count, len(names))
        parts.append(rows)
    require(count > 0, "data.query", "give at least one row", "none")
    whole = [row for part in parts for row in part]
    return from_columns(source, source.source, columns_of(names, whole, source.source))


def columns_of(names: Sequence[str], rows: Rows, source: str) -> dict[str, Array]:
    """Return the columns of some rows: numbers where all values are, else texts; nothing is a missing value."""
    return {name: _column([row[place] for row in rows], name, source) for place, name in enumerate(names)}


def sql_rows(source: Source, base: Path) -> Iterator[tuple[tuple[str, ...], Rows]]:
    """Return the rows of a query some at a time, each time with the names of their columns."""
    opened = _duckdb(source, base) if source.source.startswith(DUCKDB) else _alchemy(source, base)
    with _told(source), opened as (names, fetch):
        check_columns(source.source, len(names))
        twice = next((name for name in names if names.count(name) > 1), None)
        require(twice is None, "The columns of data.query", "have different names", twice)
        while rows := fetch():
            yield names, rows


@contextmanager
def _alchemy(source: Source, base: Path) -> Iterator[Any]:
    query = _query(source)
    library = _library("sqlalchemy")
    address = library.make_url(driven(source.source))
    if source.secret is not None:
        address = address.set(password=source.secret)
    options: dict[str, Any] = {}
    if address.get_backend_name() == "sqlite":
        path = base / str(address.database or "")
        require(bool(address.database) and path.is_file(), "data.source", "name a database that exists", str(path))
        address = library.make_url(f"sqlite:///file:{path}").update_query_dict({"mode": "ro", "uri": "true"})
    else:
        options = {"postgresql_readonly": True, "isolation_level": "REPEATABLE READ"}
    engine = library.create_engine(address, hide_parameters=True)
    try:
        opened = engine.connect().execution_options(stream_results=True, max_row_buffer=_ROWS, **options)
        with opened as connection, closing(connection.execute(library.text(query))) as result:
            names = tuple(map(str, result.keys()))
            yield names, lambda: [tuple(row) for row in result.fetchmany(_ROWS)]
    finally:
        engine.dispose()


@contextmanager
def _duckdb(source: Source, base: Path) -> Iterator[Any]:
    path = base / source.source.removeprefix(DUCKDB)
    require(path.exists(), "data.source", "name a Parquet file or a folder of them", str(path))
    pattern = str(path / "**" / "*.parquet") if path.is_dir() else str(path)
    hint = "Folders below it are looked into."
    require(not path.is_dir() or any(path.rglob("*.parquet")), "data.source", "hold Parquet files", str(path), hint)
    connection = _library("duckdb").connect(":memory:")
    try:
        rows = connection.read_parquet(pattern, hive_partitioning=True)
        rows.create_view("data")
        result = connection.execute(_ALL if source.query is None else _query(source))
        names = tuple(str(column[0]) for column in result.description)
        yield names, lambda: result.fetchmany(_ROWS)
    finally:
        connection.close()


def _query(source: Source) -> str:
    hint = 'For example query = "SELECT age, ward, ill FROM visits ORDER BY id".'
    require(source.query is not None, "data.query", "be given with a database", None, hint)
    query = str(source.query).strip().rstrip(";")
    only = query.lower().startswith(("select", "with", "table ", "values")) and ";" not in query
    require(only, "data.query", "be one SELECT", query[:60])
    return query


@contextmanager
def _told(source: Source) -> Iterator[None]:
    """Turn any error of a database into one sentence that does not show its password."""
    try:
        yield
    except (BadValue, NotAvailable, GeneratorExit):
        raise
    except Exception as error:  # drivers raise almost anything here
        inner = getattr(error, "orig", None) or error
        first = (str(inner).strip().splitlines() or [type(inner).__name__])[0].rstrip(".")
        if source.secret:
            first = first.replace(source.secret, HIDDEN)
        raise BadValue(f"{source.source} must answer data.query, and it does not: {first}.") from None


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise NotAvailable("Databases need SQLAlchemy, psycopg and DuckDB: install the extra fedveil[sql].") from error


def _column(values: list[Any], name: str, source: str) -> Array:
    numeric = all(value is None or isinstance(value, bool | int | float | Decimal) for value in values)
    if numeric:
        return np.array([math.nan if value is None else float(value) for value in values], dtype=np.float64)
    return texts_of(["" if value is None else str(value) for value in values], name, source)
