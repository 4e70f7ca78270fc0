"""Addresses of databases: which ones are known, which database each means, and passwords, which nobody gets to see."""

import re
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

from fedveil.core.errors import require

HIDDEN: Final = "***"
DUCKDB: Final = "duckdb:"  # a Parquet file, or a folder of them, read through DuckDB
SQLITE: Final = "sqlite:///"  # and then a path, to the last character: nothing in it is a parameter or an escape
_DIALECTS: Final = ("postgresql", "sqlite")
_DRIVERS: Final = {"postgresql": "postgresql+psycopg"}
_HERE: Final = "localhost"
_LOOPS: Final = ("", "localhost", "127.0.0.1", "::1")
_PORT: Final = 5432
_USER: Final = re.compile(r"^(?P<head>[a-z]+(?:\+[a-z0-9]+)?://[^/@:]*)(?::(?P<secret>.*))?@(?P<rest>[^@]*)$")


def is_database(source: str) -> bool:
    """Return whether a source is the address of a database, and not a path."""
    return source.startswith(DUCKDB) or "://" in source


def file_of(source: str) -> str | None:
    """Return the path of a database that is a file or a folder, exactly as its address has it; None for others.

    >>> file_of("sqlite:///visits%41#2?.db"), file_of("duckdb:lake"), file_of("postgresql://db/clinic")
    ('visits%41#2?.db', 'lake', None)
    """
    mark = next((mark for mark in (DUCKDB, SQLITE) if source.startswith(mark)), None)
    return None if mark is None else source.removeprefix(mark)


def without_secret(source: str) -> tuple[str, str | None]:
    """Return an address with its password hidden, and the password; None if it has none.

    >>> without_secret("postgresql://ann:s3cret@db.example/clinic")
    ('postgresql://ann:***@db.example/clinic', 's3cret')
    """
    if not is_database(source) or file_of(source) is not None:
        return source, None
    kind = source.partition("://")[0].partition("+")[0]
    known = ", ".join(f"{name}://..." for name in _DIALECTS)
    require(kind in _DIALECTS, "data.source", f"be a path or one of {known}, duckdb:FOLDER", f"{kind}://...")
    hint = "For example sqlite:///visits.db, with a path that starts from the study's folder."
    require(kind != "sqlite", "data.source", "name a file of SQLite after three slashes", source, hint)
    given = [key for key, _ in parse_qsl(source.partition("?")[2], keep_blank_values=True)]
    hint = "They could undo that the connection only reads."
    require("options" not in given, "data.source", "set no options of the server", "options", hint)
    stray = [key for key in given if "password" in key.lower()]
    hint = "State it before the @, or better in PGPASSWORD or ~/.pgpass."
    require(not stray, "data.source", "have no password among its parameters", stray, hint)
    result = _USER.match(source)
    if result is None or result["secret"] in (None, "", HIDDEN):
        return source, None
    return f"{result['head']}:{HIDDEN}@{result['rest']}", unquote(result["secret"])


def bare(source: str) -> str:
    """Return an address without any password, hidden or not, as a study may state it."""
    return without_secret(source)[0].replace(f":{HIDDEN}@", "@")


def driven(source: str) -> str:
    """Return the same with the driver that this library uses."""
    kind, mark, rest = bare(source).partition("://")
    return f"{_DRIVERS.get(kind, kind)}{mark}{rest}"


def sqlite_file(source: str) -> str | None:
    """Return the path of an SQLite database, as its address states it; None for another source.

    >>> sqlite_file("sqlite:///ward/clinic.db"), sqlite_file("sqlite:////srv/clinic.db"), sqlite_file("visits.csv")
    ('ward/clinic.db', '/srv/clinic.db', None)
    """
    kind, mark, rest = source.partition("://")
    if not mark or kind.partition("+")[0] != "sqlite":
        return None
    return rest.partition("?")[0].removeprefix("/")


def server_of(source: str) -> str:
    """Return the database that an address of a server means: kind, host, port and name, whoever asks and however.

    >>> server_of("postgresql://ann@DB.example/clinic?sslmode=require")
    'postgresql db.example 5432 clinic'
    """
    result = urlsplit(bare(source))
    more = dict(parse_qsl(result.query))  # the driver takes these first
    host = more.get("host", result.hostname or "")
    host = _HERE if host.startswith("/") or host in _LOOPS else host.lower().rstrip(".")
    port = more.get("port", result.port or _PORT)
    user = more.get("user", unquote(result.username or ""))
    name = more.get("dbname", unquote(result.path.removeprefix("/")) or user)
    return f"{result.scheme.partition('+')[0]} {_HERE if host in _LOOPS else host} {port} {name}"
