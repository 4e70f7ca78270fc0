"""The choices of the design page: what each of them means, what may be chosen, and where the study file says it."""

from functools import cache
from typing import Any, Final

from fedveil.core.errors import require
from fedveil.studio.edit import Value, tables_in, with_value, without_table

UNITS: Final = (("record", "one record"), ("client", "one client, with all its records"))
NEIGHBOURS: Final = (
    ("replace-one", "replaced by another (replace-one)"),
    ("zero-out", "left out (zero-out)"),
)
OBSERVERS: Final = (
    ("final-model", "who sees the final model"),
    ("curious-client", "a curious client"),
    ("every-model", "who sees every model"),
    ("server-with-secure-aggregation", "a server that sees sums"),
    ("server", "a server that sees every update"),
)
TRUSTS: Final = (
    ("central", "one trusted party adds the noise"),
    ("trusted", "clients add noise; the server sees each update"),
    ("secure-aggregation", "clients add noise; the server sees masked sums"),
    ("homomorphic", "clients add noise; the server adds encrypted updates"),
)
MEANINGS: Final = {
    "unit": "Whose traces are to be lost: of one row of the data, or of everything that one data holder has.",
    "neighbours": "The two cases that nobody may tell apart: this unit, or another in its place; or none at all. "
    "Left out is the usual reading of federated learning, replaced the stricter one.",
    "adversary": "Whom the target is promised against. The five observers below are all worked out in any case.",
    "epsilon": "How much one unit may change what is seen: chances change by a factor of at most e to this power. "
    "Below 1 is strong, above 10 next to nothing.",
    "delta": "How likely the promise may fail altogether. Keep it well below one over the number of records.",
    "algorithm": "How the model is trained.",
    "trust": "Who draws the noise, and what the server gets to see.",
}
_KEYS: Final[dict[str, tuple[str, str, Any]]] = {
    "unit": ("privacy", "unit", "record"),
    "neighbours": ("privacy", "neighbours", "replace-one"),
    "adversary": ("privacy", "adversary", "final-model"),
    "epsilon": ("privacy", "epsilon", None),
    "delta": ("privacy", "delta", None),
    "algorithm": ("algorithm", "kind", None),  # what a study means that names none is in the list of algorithms
    "trust": ("trust", "server", "trusted"),
}


@cache
def algorithms() -> tuple[tuple[str, str], ...]:
    """Return the algorithms, with what they are called; the first use loads them, which takes half a second."""
    from fedveil.stages.train.registry import KINDS, title_of

    return (*((kind, title_of(kind)) for kind in KINDS), ("auto", "whichever is expected to do best"))


def _place(name: str) -> tuple[str, str, Any]:
    """Return the table and the key of a choice, and what a study means that does not state it."""
    from fedveil.stages.train.registry import DEFAULT

    table, key, default = _KEYS[name]
    return table, key, DEFAULT if name == "algorithm" else default


def chosen(text: str) -> dict[str, Any]:
    """Return what a study's text chooses, with what a study means that says nothing about it."""
    tables = tables_in(text)
    choices: dict[str, Any] = {}
    for name in _KEYS:
        table, key, default = _place(name)
        inside = tables.get(table, {})
        value = inside.get(key, default) if isinstance(inside, dict) else default
        choices[name] = value if isinstance(value, str | int | float) and not isinstance(value, bool) else default
    if "trust" not in tables:
        choices["trust"] = "central"
    return choices


def with_choice(text: str, name: object, value: Value) -> str:
    """Return the study's text with one choice made."""
    require(name in _KEYS, "The choice", f"be one of {', '.join(_KEYS)}", str(name)[:40])
    table, key, default = _place(str(name))
    if name == "trust":
        return without_table(text, "trust") if value == "central" else with_value(text, table, key, value)
    if name in ("epsilon", "delta"):
        require(isinstance(value, int | float), f"{table}.{key}", "be a number", str(value)[:40])
        return with_value(text, table, key, float(value or 0))
    same = value == default and key not in tables_in(text).get(table, {})
    return text if same else with_value(text, table, key, value)
