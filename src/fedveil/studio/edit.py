"""Change one value in the text of a study file, and leave every other letter, comments included, as it is."""

import json
import re
from typing import Any

from fedveil.errors import BadValue
from fedveil.tables import read_tables

Value = str | int | float | bool | None
_HEADER = re.compile(r"^\s*\[(?P<name>[^\[\]]+)\]\s*(#.*)?$")
_REST = re.compile(r"^(?P<value>\"(?:[^\"\\]|\\.)*\"|'[^']*'|\[[^\[\]#]*\]|[^#\"'\[\n]*?)(?P<rest>\s*(?:#.*)?)$")


def with_value(text: str, table: str, key: str, value: Value) -> str:
    """Return the text with ``key`` of ``table`` set to ``value``; None removes the key.

    The result must read as the same study with that one value changed; where the text is written in a way that makes
    this hard, the edit is refused and nothing is changed.

    >>> print(with_value('[privacy]\\nepsilon = 1.0  # strict\\n', "privacy", "epsilon", 0.5), end="")
    [privacy]
    epsilon = 0.5  # strict
    """
    wanted = _wanted(tables_in(text), table, key, value)
    changed = _edited(text.split("\n"), table, key, value)
    if tables_in(changed) != wanted:
        raise BadValue(f"{table}.{key} is written in a way that only a person can change: edit the study itself.")
    return changed


def without_table(text: str, table: str) -> str:
    """Return the text without a table and what is in it."""
    wanted = {name: content for name, content in tables_in(text).items() if name != table}
    kept, leaving = [], False
    for line in text.split("\n"):
        found = _HEADER.match(line)
        if found:
            leaving = found["name"].strip() == table
        if not leaving:
            kept.append(line)
    changed = "\n".join(kept).rstrip("\n") + "\n"
    if tables_in(changed) != wanted:
        raise BadValue(f"[{table}] is written in a way that only a person can remove: edit the study itself.")
    return changed


def tables_in(text: str) -> dict[str, Any]:
    """Return the tables of a study's text."""
    return read_tables(text, "The study file")


def _wanted(tables: dict[str, Any], table: str, key: str, value: Value) -> dict[str, Any]:
    inside = dict(tables.get(table, {}))
    inside.pop(key, None)
    if value is not None:
        inside[key] = value
    return {**tables, table: inside} if inside or table in tables else tables


def _edited(lines: list[str], table: str, key: str, value: Value) -> str:
    start = next((i for i, line in enumerate(lines) if (m := _HEADER.match(line)) and m["name"].strip() == table), None)
    if start is None:
        if value is None:
            return "\n".join(lines)
        body = "\n".join(lines).rstrip("\n")
        return f"{body}\n\n[{table}]\n{key} = {written(value)}\n".lstrip("\n")
    end = next((i for i in range(start + 1, len(lines)) if _HEADER.match(lines[i])), len(lines))
    for index in range(start + 1, end):
        name, equals, rest = lines[index].partition("=")
        if equals and name.strip() == key:
            if value is None:
                return "\n".join([*lines[:index], *lines[index + 1 :]])
            found = _REST.match(rest.strip())
            tail = found["rest"] if found else ""
            lines[index] = f"{name.rstrip()} = {written(value)}{tail}"
            return "\n".join(lines)
    if value is None:
        return "\n".join(lines)
    return "\n".join([*lines[: start + 1], f"{key} = {written(value)}", *lines[start + 1 :]])


def written(value: Value) -> str:
    """Return a value as a study file states it."""
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case _:
            return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
