"""Addresses of databases: which ones are known, and passwords that are taken out of them before anybody sees them."""

import re
from typing import Final
from urllib.parse import parse_qsl, unquote

from fedveil.checks import require

HIDDEN: Final = "***"
DUCKDB: Final = "duckdb:"  # a Parquet file, or a folder of them, read through DuckDB
_DIALECTS: Final = ("postgresql", "sqlite")
_DRIVERS: Final = {"postgresql": "postgresql+psycopg"}
_USER: Final = re.compile(r"^(?P<head>[a-z]+(?:\+[a-z0-9]+)?://[^/@:]*)(?::(?P<secret>.*))?@(?P<rest>[^@]*)$")


def is_database(source: str) -> bool:
    """Return whether a source is the address of a database, and not a path."""
    return source.startswith(DUCKDB) or "://" in source


def without_secret(source: str) -> tuple[str, str | None]:
    """Return an address with its password hidden, and the password; None if it has none.

    >>> without_secret("postgresql://ann:s3cret@db.example/clinic")
    ('postgresql://ann:***@db.example/clinic', 's3cret')
    """
    if not is_database(source) or source.startswith(DUCKDB):
        return source, None
    kind = source.partition("://")[0].partition("+")[0]
    known = ", ".join(f"{name}://..." for name in _DIALECTS)
    require(kind in _DIALECTS, "data.source", f"be a path or one of {known}, duckdb:FOLDER", f"{kind}://...")
    stray = [key for key, _ in parse_qsl(source.partition("?")[2]) if "password" in key.lower()]
    hint = "State it before the @, or better in PGPASSWORD or ~/.pgpass."
    require(not stray, "data.source", "have no password among its parameters", stray, hint)
    found = _USER.match(source)
    if found is None or found["secret"] in (None, "", HIDDEN):
        return source, None
    return f"{found['head']}:{HIDDEN}@{found['rest']}", unquote(found["secret"])


def bare(source: str) -> str:
    """Return an address without any password, hidden or not, as a study may state it."""
    return without_secret(source)[0].replace(f":{HIDDEN}@", "@")


def driven(source: str) -> str:
    """Return the same with the driver that this library uses."""
    kind, mark, rest = bare(source).partition("://")
    return f"{_DRIVERS.get(kind, kind)}{mark}{rest}"
