"""Change one value in the text of a study file, and leave every other letter, comments included, as it is."""

from typing import Any

import tomlkit

from fedveil.core.errors import BadValue, require
from fedveil.core.tables import read_tables

Value = str | int | float | bool | None


def with_value(text: str, table: str, key: str, value: Value) -> str:
    """Return the text with ``key`` of ``table`` set to ``value``; None removes the key.

    >>> print(with_value('[privacy]\\nepsilon = 1.0  # strict\\n', "privacy", "epsilon", 0.5), end="")
    [privacy]
    epsilon = 0.5  # strict
    """
    wanted = tables_in(text)
    inside = wanted.setdefault(table, {})
    require(isinstance(inside, dict), table, "be a table", inside)
    document = tomlkit.parse(text)
    if value is None:
        if key not in inside:
            return text
        del inside[key]
        del document[table][key]
    else:
        inside[key] = value
        if table not in document:
            document[table] = tomlkit.table()
        document[table][key] = value
    return _checked(tomlkit.dumps(document), wanted, f"{table}.{key}")


def without_table(text: str, table: str) -> str:
    """Return the text without a table and what is in it."""
    wanted = tables_in(text)
    if wanted.pop(table, None) is None:
        return text
    document = tomlkit.parse(text)
    del document[table]
    return _checked(tomlkit.dumps(document).rstrip("\n") + "\n", wanted, f"[{table}]")


def tables_in(text: str) -> dict[str, Any]:
    """Return the tables of a study's text."""
    return read_tables(text, "The study file")


def _checked(changed: str, wanted: dict[str, Any], what: str) -> str:
    """Return the changed text if it reads as the same study with that one change, by the reader that will read it."""
    if tables_in(changed) != wanted:
        raise BadValue(f"{what} is written in a way that only a person can change: edit the study itself.")
    return changed
