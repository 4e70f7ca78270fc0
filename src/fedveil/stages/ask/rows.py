"""What questions see of a table: conditions on rows, cells of a column, groups, and numbers on a public range.

Everything here is decided by public values (the question and the columns), so a row that is excluded, or that has no
value, adds zeros like any other: how many there are is itself private.
"""

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedveil.core.errors import require
from fedveil.core.values import Indices, Vector
from fedveil.data.cells import canonical, is_number
from fedveil.data.tables import nearest
from fedveil.stages.prepare.columns import MISSING_WORD, Outline
from fedveil.stages.synthesise.table import Table

Mask = NDArray[np.bool_]
Span = tuple[float, float]
OTHER: Final = "other"
MISSING: Final = "missing"
_SIGN = r"(?P<sign>>=|<=|==|!=|=|<|>|\s(?:not\s+in|in)\b|\sis\s+(?:not\s+)?missing\s*$)"
_CONDITION: Final = re.compile(
    rf"""\s*(?:(?P<quote>["'`])(?P<quoted>.+?)(?P=quote)|(?P<bare>.+?))\s*{_SIGN}(?P<rest>.*)"""
)
_ORDER: Final = {">=": np.greater_equal, "<=": np.less_equal, ">": np.greater, "<": np.less}


@dataclass(frozen=True, slots=True)
class Condition:
    """A comparison of one column with public values: ``==``, ``!=``, ``<``, ``in``, ``is missing`` and their like."""

    column: str
    sign: str
    values: tuple[str, ...] = ()

    @classmethod
    def read(cls, text: object) -> "Condition":
        """Return the condition that a text states.

        >>> Condition.read("age >= 60").values, Condition.read("'days in bed' is missing").column
        (('60',), 'days in bed')
        >>> Condition.read("sex in [F, M]")
        Condition(column='sex', sign='in', values=('F', 'M'))
        """
        rule = "compare a column with a value, as 'age >= 60', 'sex in [F, M]' or 'weight is missing'"
        read = _CONDITION.fullmatch(text) if isinstance(text, str) else None
        require(read is not None, "where", rule, text)
        assert read is not None  # noqa: S101  it was required
        sign = re.sub(r"\s+", " ", read["sign"].strip()).replace("==", "=").replace("=", "==", 1)
        sign = {">==": ">=", "<==": "<=", "!==": "!="}.get(sign, sign)
        rest = read["rest"].strip()
        if sign.endswith("in"):
            rest = rest.removeprefix("[").removesuffix("]").removeprefix("(").removesuffix(")")
            values = tuple(_unquoted(one) for one in rest.split(","))
        else:
            values = () if sign.endswith("missing") else (_unquoted(rest),)
        require(all(values), "where", rule, text)
        return cls(read["quoted"] or read["bare"], sign, values)

    def check(self, columns: Outline) -> None:
        """Refuse a condition that does not fit the type of its column."""
        check_column(self.column, columns, "where")
        if self.column in columns.numbers:
            for value in self.values:
                require(is_number(value), f"where: {self.column}", "be compared with a number", value)
        else:
            rule = "be compared by ==, != or in, since it holds texts"
            require(self.sign not in _ORDER, f"where: {self.column}", rule, self.sign)

    def holds(self, view: "View") -> Mask:
        """Return which rows fulfil it; a missing value fulfils no comparison."""
        gone = view.missing(self.column)
        if self.sign.endswith("missing"):
            return ~gone if "not" in self.sign else gone
        if self.sign in _ORDER:
            with np.errstate(invalid="ignore"):
                return np.asarray(_ORDER[self.sign](view.numbers(self.column), float(self.values[0])))
        listed = view.codes_among(self.column, self.values) >= 0
        return ~listed & ~gone if self.sign in ("!=", "not in") else listed

    def text(self) -> str:
        """Return the condition as people write it; a column whose name reads otherwise stands in quotes."""
        rest = f"{self.sign} {', '.join(self.values)}".strip()
        bare = _CONDITION.fullmatch(f"{self.column} {rest}")
        alone = bare is not None and bare["bare"] == self.column and bare["sign"].strip() == self.sign
        return f"{self.column} {rest}" if alone else f"`{self.column}` {rest}"


def _unquoted(text: str) -> str:
    text = text.strip()
    return text[1:-1] if len(text) >= 2 and text[0] == text[-1] and text[0] in "'\"" else text


def check_column(name: object, columns: Outline, what: str, kind: str = "") -> None:
    """Refuse a name that is no column, or a column of the other ``kind`` (numbers or texts)."""
    names = [*columns.numbers, *columns.texts]
    hint = nearest(str(name), names) if isinstance(name, str) else ""
    require(name in names, what, "name a column of the data", name, hint)
    if kind:
        fits = name in (columns.numbers if kind == "numbers" else columns.texts)
        require(fits, what, f"name a column of {kind}", name, f"Known: {', '.join(getattr(columns, kind)[:10])}.")


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """The rows of a table, which may be none, and the ranges of columns of numbers: stated, or learned before."""

    table: Table
    ranges: Mapping[str, Span] = field(default_factory=dict)
    clients: int = 1

    def __len__(self) -> int:
        return len(self.table.columns)

    def numbers(self, name: str) -> Vector:
        """Return a column of numbers, NaN where one is missing."""
        table = self.table
        if name == table.target:
            return table.labels.own_unit(table.targets)
        return np.asarray(table.columns.numbers[:, table.outline.numbers.index(name)])

    def words(self, name: str) -> tuple[Sequence[str], Indices]:
        """Return the different words of a column of texts, and the place of each row's among them."""
        if name == self.table.target:
            return self.table.labels.classes, np.nan_to_num(self.table.targets).astype(np.int64)
        words = self.table.columns.texts[name]
        return words.spelt, words.codes

    def is_text(self, name: str) -> bool:
        """Return whether a column holds texts."""
        return name in self.table.all_columns.texts

    def missing(self, name: str) -> Mask:
        """Return which rows have no value."""
        if not self.is_text(name):
            return np.isnan(self.numbers(name))
        spelt, codes = self.words(name)
        return np.asarray(np.array([word == MISSING_WORD for word in spelt], dtype=np.bool_)[codes])

    def codes_among(self, name: str, values: Sequence[str]) -> Indices:
        """Return the place of each row's value among these, -1 for any other."""
        if self.is_text(name):
            spelt, codes = self.words(name)
            place = {canonical(word): k for k, word in enumerate(values)}
            known = np.array([-1 if word == MISSING_WORD else place.get(canonical(word), -1) for word in spelt])
            return np.asarray(known.astype(np.int64)[codes]) if len(spelt) else np.zeros(0, dtype=np.int64)
        numbers = self.numbers(name)
        listed = np.array([float(value) for value in values])
        order = np.argsort(listed)
        at = np.clip(np.searchsorted(listed[order], numbers), 0, len(values) - 1)
        return np.where(listed[order][at] == numbers, order[at], -1).astype(np.int64)

    def scaled(self, name: str) -> Vector:
        """Return numbers on the scale from -1 to 1 of their range, cut there; NaN where one is missing."""
        low, high = self.ranges[name]
        return np.asarray(np.clip((self.numbers(name) - low) / (high - low) * 2 - 1, -1.0, 1.0))


@dataclass(frozen=True, slots=True)
class Cells:
    """The cells of a column: listed values and one for all others, or intervals; and last one for missing values.

    ``edges``: of the intervals; below the first and from the last on are cells of their own.
    """

    column: str
    values: tuple[str, ...] = ()
    edges: tuple[float, ...] = ()

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the cells, in order."""
        if self.values:
            return (*self.values, OTHER, MISSING)
        edges = [f"{edge:.6g}" for edge in self.edges]
        inner = [f"{low} to {high}" for low, high in itertools.pairwise(edges)]
        return (f"below {edges[0]}", *inner, f"{edges[-1]} and above", MISSING)

    def codes(self, view: View) -> Indices:
        """Return the cell of each row."""
        last = len(self.labels) - 1
        if self.values:
            result = view.codes_among(self.column, self.values)
            result = np.where(result < 0, last - 1, result)
        else:
            result = np.searchsorted(self.edges, view.numbers(self.column), side="right")
        return np.where(view.missing(self.column), last, result).astype(np.int64)


def increasing(name: str, given: object, least: int) -> tuple[float, ...]:
    """Return finite numbers that increase."""
    rule = f"be at least {least} finite numbers that increase"
    fits = isinstance(given, list | tuple) and all(isinstance(one, int | float) for one in given)
    numbers = tuple(float(one) for one in given) if fits else ()  # type: ignore[attr-defined]
    rising = all(low < high for low, high in itertools.pairwise(numbers))
    require(fits and len(numbers) >= least and rising and all(map(math.isfinite, numbers)), name, rule, given)
    return numbers


def listed_values(name: str, given: Any) -> tuple[str, ...]:
    """Return listed values of a column in their one spelling."""
    listed = isinstance(given, list | tuple)
    fits = listed and 1 <= len(given) <= 1000
    require(fits, name, "list between 1 and 1000 values", f"{len(given):,} values" if listed else given)
    words = tuple(canonical(one) for one in given)
    require(len(set(words)) == len(words) and all(words), name, "list each value once", words[:10])
    return words
