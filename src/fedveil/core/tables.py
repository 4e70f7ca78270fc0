"""Read and write TOML: only known keys are accepted, and equal values are written as equal bytes."""

import difflib
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from fedveil.core.errors import BadValue, require
from fedveil.core.limits import KEYS, NESTED, TABLES

# Texts and comments, which may hold any sign. Quantifiers do not give back what they took: the time is linear.
_ASIDE = re.compile(
    r'"""(?:\\.|[^\\])*?"{3,5}|' + r"'''.*?'{3,5}|" + r'"(?:\\.|[^"\\\n])*+"|' + r"'[^'\n]*+'|\#[^\n]*+", re.DOTALL
)
_DOTTED = re.compile(rf"(?<![\w-])[\w-]++(?:[ \t]*+\.[ \t]*+[\w-]++){{{NESTED},}}")
_BRACKETS = re.compile(r"[\[\]{}]")


def read_tables(text: str, what: str) -> dict[str, Any]:
    """Return the tables of a TOML text; ``what`` names the file in an error message."""
    require(isinstance(text, str), what, "be given as text", type(text).__name__)
    require(len(text) <= TABLES, what, f"have at most {TABLES} characters", len(text))
    _check_shape(text, what)
    try:
        return tomllib.loads(text)
    except ValueError as error:  # not TOML, or a number with thousands of digits
        raise BadValue(f"{what} must be TOML: {error}.") from error
    except RecursionError as error:
        raise BadValue(f"{what} must be TOML of modest depth: its brackets are nested too deep.") from error


def _check_shape(text: str, what: str) -> None:
    """Refuse keys of too many parts, too many keys, or brackets too deep, before the text is parsed.

    The parser keeps every beginning of a dotted key: 100 kB of ``a.a.a`` take gigabytes there.
    """
    bare = _ASIDE.sub("k", text)  # a text may be a part of a key; a comment is nothing
    hint = "Write nested tables, as [data.held_out]."
    require(_DOTTED.search(bare) is None, what, f"have keys of at most {NESTED} parts", "a longer one", hint)
    keys = bare.count("=") + bare.count("\n[") + bare.startswith("[")
    require(keys <= KEYS, what, f"have at most {KEYS} keys", keys)
    depth = deepest = 0
    for mark in _BRACKETS.findall(bare):
        depth += 1 if mark in "[{" else -1
        deepest = max(deepest, depth)
    require(deepest <= NESTED, what, f"be TOML of modest depth, at most {NESTED} brackets", deepest)


def table(value: Any, name: str) -> Mapping[str, Any]:
    """Return the value; refuse anything but a table."""
    require(isinstance(value, dict), name, "be a table", value)
    return value  # type: ignore[no-any-return]


def known(given: Mapping[str, Any], keys: Sequence[str], where: str) -> None:
    """Refuse a key that is not known, so that a misspelt key is not silently ignored."""
    for key in given:
        if key not in keys:  # only then: what lies near takes longer to find than all the rest of a plan to read
            near = difflib.get_close_matches(key, keys, n=1, cutoff=0.5)
            hint = f"Did you mean {near[0]}?" if near else f"Known: {', '.join(keys)}."
            require(False, f"Key {key!r}", f"be known to {where}", key, hint)


def filled(kind: Any, given: Mapping[str, Any], name: str) -> Any:
    """Return a dataclass with its fields filled from a table; lists become tuples."""
    known(given, [f.name for f in fields(kind)], f"[{name}]")
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in given.items()}
    try:
        return kind(**values)
    except TypeError as error:  # a required key is missing
        missing = str(error).split(": ")[-1]
        raise BadValue(f"[{name}] must be complete: missing {missing}.") from error


def first_difference(one: str, other: str) -> tuple[str, Any, Any] | None:
    """Return the first key at which two TOML texts differ, with both values; None if they say the same.

    >>> first_difference("[privacy]\\nepsilon = 1.0\\ndelta = 0.1", "[privacy]\\nepsilon = 2.0\\ndelta = 0.2")
    ('privacy.epsilon', 1.0, 2.0)
    """
    before, after = _flat(read_tables(one, "The text")), _flat(read_tables(other, "The text"))
    for key in (*before, *after):
        if before.get(key) != after.get(key):
            return key, before.get(key), after.get(key)
    return None


def _flat(tables: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Return the values of nested tables by their dotted keys."""
    result: dict[str, Any] = {}
    for key, value in tables.items():
        result |= _flat(value, f"{above}{key}.") if isinstance(value, dict) else {above + key: value}
    return result


# tomlkit, which edits studies in the studio, takes 80 times as long for a plan (5 ms, and plans are hashed again and
# again), and its time grows with the square of a list: two minutes for 40,000 numbers that take 0.04 s here.
def write_tables(tables: Mapping[str, Mapping[str, Any]]) -> str:
    """Return TOML text of tables, which may hold tables; values that are None are left out.

    >>> print(write_tables({"run": {"rounds": 3, "steps": (0.5, 0.25), "name": "x", "radius": None}}), end="")
    [run]
    rounds = 3
    steps = [0.5, 0.25]
    name = "x"
    """
    blocks = []
    for name, values in tables.items():
        own = {key: value for key, value in values.items() if value is not None}
        inner = {f"{name}.{key}": value for key, value in own.items() if isinstance(value, Mapping)}
        lines = [f"{key} = {write_value(value)}" for key, value in own.items() if not isinstance(value, Mapping)]
        blocks += ["\n".join([f"[{name}]", *lines]) + "\n", *([write_tables(inner)] if inner else [])]
    return "\n".join(blocks)


def write_value(value: Any) -> str:
    """Return a value as TOML states it, on one line."""
    match value:
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            return repr(value)  # the shortest text that reads back to the same float
        case str():
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case tuple() | list():
            return "[" + ", ".join(write_value(item) for item in value) + "]"
        case _:
            raise TypeError(f"a {type(value).__name__} cannot be written as TOML")
