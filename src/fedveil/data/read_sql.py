"""Read rows where they live: in PostgreSQL, in a file of SQLite, or in folders of Parquet files through DuckDB.

The libraries are the extra ``fedveil[sql]``. Connections only read, by how they are opened and not by what the query
says; a query sees the database that the study names, and no other file. A password is never part of a message.
"""

import importlib
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

from fedveil.core.errors import BadValue, NotAvailable, require
from fedveil.core.limits import check_cells, check_columns
from fedveil.data.address import DUCKDB, HIDDEN, driven, file_of
from fedveil.data.cells import canonical
from fedveil.data.opening import arrow, dataset, memory_limit
from fedveil.data.read_parquet import check_texts, parquet_file
from fedveil.data.spec import Source
from fedveil.data.table import Batch, Opened, frame_of
from fedveil.data.typed import Column, is_nested, stacked, typed

_ROWS: Final = 4096  # rows fetched at a time
_LONGEST: Final = 2**18  # bytes of a row of SQLite
_STEP, _STEPS = 10**6, 10**5  # steps of SQLite's machine between two looks at how many there were, and how many looks
_MINUTES: Final = 60  # that PostgreSQL may take for one answer
_FILES: Final = ("load_extension", "readfile", "writefile", "edit", "fts3_tokenizer")
_CLOSED: Final = {  # of DuckDB: what it could reach beyond the rows that it is given
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    "python_enable_replacements": "false",
    "temp_directory": "",
    "memory_limit": "3GB",
}
_ALL: Final = "SELECT * FROM data"  # of a folder of Parquet files, which is called data
Fetch = Callable[[], Sequence[Column] | None]


def open_sql(source: Source, base: Path) -> Opened:
    """Return all rows of the query."""
    parts: dict[str, list[Column]] = {}
    count = 0
    for batch in sql_batches(source, base):
        count += len(next(iter(batch.values())))
        check_cells(source.source, count, len(batch))
        for name, column in batch.items():
            parts.setdefault(name, []).append(column)
    require(count > 0, "data.query", "give at least one row", "none")
    return frame_of({name: stacked(parts.pop(name)) for name in list(parts)}, source.source)


def sql_batches(source: Source, base: Path) -> Iterator[Batch]:
    """Yield the typed columns of some rows of a query at a time."""
    if file_of(source.source) is None:
        opened = _postgres(source)
    else:
        opened = (_duckdb if source.source.startswith(DUCKDB) else _sqlite)(source, base)
    with _told(source), opened as (names, fetch):
        check_columns(source.source, len(names))
        twice = next((name for name in names if names.count(name) > 1), None)
        require(twice is None, "The columns of data.query", "have different names", twice)
        while (columns := _fetched(fetch)) is not None:
            yield {name: typed(column, name, source.source) for name, column in zip(names, columns, strict=True)}


def _fetched(fetch: Fetch) -> Sequence[Column] | None:
    with memory_limit():
        return fetch()


def _columns(rows: list[tuple[Any, ...]]) -> Sequence[Column] | None:
    """Return the columns of some rows as a driver has them: numbers where all values are, else texts."""
    return [_column(values) for values in zip(*rows, strict=True)] if rows else None


def _column(values: Sequence[Any]) -> Column:
    if all(value is None or isinstance(value, int | float | Decimal) for value in values):
        whole = all(value is None or (isinstance(value, int) and abs(value) < 2**63) for value in values)
        number = int if whole else float
        return arrow.array([None if value is None else number(value) for value in values])
    try:
        result = arrow.array(values)
    except (arrow.ArrowException, OverflowError):  # values of several kinds, or of one that Arrow does not know
        result = None
    if result is None or is_nested(result.type):
        return arrow.array([_text(value) for value in values], type=arrow.string())
    return result


@contextmanager
def _postgres(source: Source) -> Iterator[Any]:
    query = one_select(source)
    library = _library("sqlalchemy")
    address = library.make_url(driven(source.source))
    if source.secret is not None:
        address = address.set(password=source.secret)
    session = f"-c default_transaction_read_only=on -c statement_timeout={_MINUTES * 60_000}"
    engine = library.create_engine(address, hide_parameters=True, connect_args={"options": session})
    options = {"postgresql_readonly": True, "isolation_level": "REPEATABLE READ"}
    try:
        opened = engine.connect().execution_options(stream_results=True, max_row_buffer=_ROWS, **options)
        with opened as connection:
            with memory_limit():
                result = connection.execute(library.text(query))
            with closing(result):
                yield tuple(map(str, result.keys())), lambda: _columns([tuple(row) for row in result.fetchmany(_ROWS)])
    finally:
        engine.dispose()


@contextmanager
def _sqlite(source: Source, base: Path) -> Iterator[Any]:
    """A connection that reads one file and nothing else: no other file, no pragma, no extension."""
    query, path = one_select(source), base / str(file_of(source.source))
    require(path.is_file(), "data.source", "name a database that exists", str(path))
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)  # as_uri escapes the path
    try:
        connection.execute("PRAGMA query_only = ON")
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST)
        connection.set_authorizer(_reading)
        left = [_STEPS]

        def tired() -> bool:
            left[0] -= 1
            return left[0] < 0

        connection.set_progress_handler(tired, _STEP)
        with closing(connection.execute(query)) as result:
            require(result.description is not None, "data.query", "be one SELECT", query[:60])
            names = tuple(str(column[0]) for column in result.description)
            yield names, lambda: _columns(result.fetchmany(_ROWS))
    finally:
        connection.close()


def _reading(action: int, first: str | None, second: str | None, *_: str | None) -> int:
    """Allow what reads the tables of the file that is open, and deny everything else."""
    harmless = action in (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_RECURSIVE)
    plain = action == sqlite3.SQLITE_FUNCTION and str(second).lower() not in _FILES
    return sqlite3.SQLITE_OK if harmless or plain else sqlite3.SQLITE_DENY


@contextmanager
def _duckdb(source: Source, base: Path) -> Iterator[Any]:
    """Files are opened here, by pyarrow; the database sees their rows and no file, network or extension."""
    library = _library("duckdb")
    query = _ALL if source.reading.query is None else one_select(source)
    said = [statement.type for statement in library.extract_statements(query)]
    require(said == [library.StatementType.SELECT], "data.query", "be one SELECT", query[:60])
    path = base / str(file_of(source.source))
    require(path.exists(), "data.source", "name a Parquet file or a folder of them", str(path))
    rows = _parquet_rows(path, source.source)
    connection = library.connect(":memory:", config=_CLOSED)
    try:
        connection.register("data", rows)
        connection.execute("SET lock_configuration = true")
        with memory_limit():
            result = connection.execute(query)
        names = tuple(str(column[0]) for column in result.description)
        yield names, lambda: _columns(result.fetchmany(_ROWS))
    finally:
        connection.close()


def _parquet_rows(path: Path, name: str) -> Any:
    """Return the files of a folder, and of folders below it, as one table of Arrow that is read where it is needed.

    Folders that are named ``year=2024`` give a column. Every file is within the limits, and none lies elsewhere.
    """
    base = path if path.is_dir() else path.parent
    hint = "Folders below it are looked into."
    files = sorted(one for one in path.rglob("*.parquet") if one.is_file()) if path.is_dir() else [path]
    require(files, "data.source", "hold Parquet files", str(path), hint)
    inside = base.resolve()
    out = next((one.name for one in files if not one.resolve().is_relative_to(inside)), None) if path.is_dir() else None
    require(out is None, "data.source", "hold no link that leads out of its folder", out)
    schemas: list[list[tuple[str, Any]]] = []
    texts: tuple[str, ...] = ()
    count = 0
    for one in files:
        with parquet_file(one) as opened:
            check_texts(opened, one.name)
            count += opened.rows
            check_cells(name, count, len(opened.names))
            texts, schema = opened.texts, opened.file.schema_arrow
            schemas.append([(column, schema.field(column).type) for column in opened.names])
        same = schemas[0] == schemas[-1]
        require(same, one.name, f"have the columns of {files[0].name}, of the same types", "others")
    form = dataset.ParquetFileFormat(read_options=dataset.ParquetReadOptions(dictionary_columns=texts))
    by_folder = {"partitioning": "hive", "partition_base_dir": str(base)}
    result = dataset.dataset([str(one) for one in files], format=form, **by_folder)
    kept = {column for column, _ in schemas[0]}
    whole = set(schema.names)
    flat = [field for field in result.schema if field.name in kept or field.name not in whole]
    return result.replace_schema(arrow.schema(flat))


def one_select(source: Source) -> str:
    """Return the query of a source, which must be one statement that reads."""
    hint = 'For example query = "SELECT age, ward, ill FROM visits ORDER BY id".'
    require(source.reading.query is not None, "data.query", "be given with a database", None, hint)
    query = str(source.reading.query).strip().rstrip(";")
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


def _text(value: Any) -> str | None:
    """Return a cell of a column of texts; a number is spelt as a label is, whichever rows are fetched with it."""
    if value is None:
        return None
    return canonical(value) if isinstance(value, int | float | Decimal) else str(value)
