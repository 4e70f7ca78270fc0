"""Read a TOML table into a value: unknown keys are refused by name, and each entry must have the right type."""

import difflib
import math
from collections.abc import Collection, Mapping
from dataclasses import MISSING, fields
from typing import Any

from fedveil.core.errors import require


def nearest(word: str, known: Collection[str]) -> str:
    """Return a hint for an unknown word: the nearest known one, or all if they are few.

    >>> nearest("targte", ["target", "source"])
    'Did you mean target?'
    """
    near = difflib.get_close_matches(word, list(known)[:5000], n=1, cutoff=0.6)
    if near:
        return f"Did you mean {near[0]}?"
    few = sorted(known)[:40]
    return f"Known: {', '.join(few)}{', ...' if len(known) > len(few) else ''}."


def known_keys(table: Any, known: Collection[str], where: str) -> dict[str, Any]:
    """Return the table; refuse anything but a table, and unknown keys."""
    require(isinstance(table, Mapping), where, "be a table", table)
    for key in table:
        require(key in known, f"{where}: the key {key!r}", "be a known one", key, nearest(str(key), known))
    return dict(table)


def field_names(kind: Any) -> list[str]:
    """Return the names of a dataclass's fields, which are the keys of its table."""
    return [item.name for item in fields(kind)]


def stated(value: Any) -> dict[str, Any]:
    """Return the entries of a dataclass that differ from their defaults, in TOML's own types."""
    table: dict[str, Any] = {}
    for item in fields(value):
        default = item.default if item.default_factory is MISSING else item.default_factory()
        given = getattr(value, item.name)
        if given != default or type(given) is not type(default):
            table[item.name] = plain(given)
    return table


def plain(value: Any) -> Any:
    """Return the value in TOML's own types: lists for tuples."""
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    return {key: plain(item) for key, item in value.items()} if isinstance(value, Mapping) else value


def number(name: str, value: Any) -> float:
    """Return a finite float; True and "1" are refused."""
    real = isinstance(value, int | float) and not isinstance(value, bool)
    require(real, name, "be a number", value)
    require(-1e300 < value < 1e300, name, "be a finite number", value if isinstance(value, float) else "more")
    return float(value)


def whole(name: str, value: Any, least: int) -> int:
    """Return a whole number of at least ``least``."""
    require(isinstance(value, int) and not isinstance(value, bool), name, "be a whole number", value)
    require(least <= value < 2**63, name, f"be at least {least} and fit in 64 bits", value)
    return int(value)


def text(name: str, value: Any) -> str:
    """Return a text; refuse an empty one."""
    require(isinstance(value, str) and value, name, "be a text that is not empty", value)
    return str(value)


def label(name: str, value: Any) -> str:
    """Return a column's name: a text, or a number for a column without a name."""
    right = isinstance(value, str | int) and not isinstance(value, bool)
    require(right, name, "be a column's name, or its number when there is no header", value)
    return str(value)


def sequence(name: str, value: Any) -> tuple[Any, ...]:
    """Return a tuple from a list."""
    require(isinstance(value, list | tuple), name, "be a list", value)
    return tuple(value)


def span(name: str, value: Any) -> tuple[float, float]:
    """Return a range (low, high) with low < high."""
    pair = sequence(name, value)
    require(len(pair) == 2, name, "be a range [low, high]", value)
    low, high = number(name, pair[0]), number(name, pair[1])
    require(low < high, name, "be a range [low, high] with low < high", value)
    require(0 < high / 2 - low / 2 < math.inf, name, "be a range of usable width", value)
    return low, high


def by_column(name: str, value: Any) -> dict[str, Any]:
    """Return a mapping from columns to values."""
    require(isinstance(value, Mapping), name, "be a table from columns to values", value)
    return {label(name, key): item for key, item in value.items()}
