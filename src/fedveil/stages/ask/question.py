"""A question: what it is about, for whom, how much it matters, and how its sum becomes an answer.

Each kind is a frozen value (counts.py, numbers.py, survival.py, regression.py) that is checked against the columns
before anything is charged. What it publishes is computed from its noisy sums alone.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Final

import numpy as np
from scipy.stats import norm

from fedveil.core.errors import require
from fedveil.core.values import Indices, Matrix, Vector, number
from fedveil.stages.ask.blocks import Block
from fedveil.stages.ask.rows import Cells, Condition, View, check_column, increasing, listed_values
from fedveil.stages.prepare.columns import Outline
from fedveil.theory.grid import NoiseLaw

Row = dict[str, Any]
LEVEL: Final = 0.95
SURE: Final = float(norm.ppf(0.5 + LEVEL / 2))  # deviations that hold 95% of a normal distribution
_MOST_NUMBERS: Final = 100_000  # of one question
ONE_NUMBER: Final = 1.3  # what a question for a single number counts as, where Gaussian noise is shared
SITE: Final = "site"  # the column of an answer that says whose it is


@dataclass(frozen=True, slots=True)
class Expected:
    """What an answer will be like: the half-width of its interval, in ``unit``, if all records are asked about.

    ``of``: the size of what is measured, in the same unit; an answer with a half-width above it is all noise.
    """

    what: str
    half_width: float
    of: float
    unit: str = "records"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What is published: tables by name (the first has none), and sentences that a reader must know."""

    tables: Mapping[str, Sequence[Row]]
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """What a question with several sums has learned so far: a list of numbers, and a matrix."""

    numbers: Vector
    matrix: Matrix


@dataclass(frozen=True, slots=True)
class Group:
    """One group of an answer, as the columns of a table say it, and its share of the noisy numbers."""

    labels: Row
    sums: Vector


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What all kinds have. ``weight``: its part of the budget, relative to the others: four times halves its error.

    ``by``: a column whose groups are answered each; ``per_site``: likewise for every site. ``edges``, ``values``,
    ``range``: public cells or ranges of columns, by column (or alone, for the one that the question is about).
    """

    kind: ClassVar[str] = ""
    grouped: ClassVar[bool] = True  # whether by and per_site make sense
    laplace: ClassVar[bool] = True  # whether its contributions have a form for Laplace noise

    name: str
    where: tuple[str, ...] = ()
    by: str | None = None
    per_site: bool = False
    weight: float = 1.0
    edges: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    values: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    range: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    law: NoiseLaw = "gaussian"  # of the noise, which the stage decides for all questions: no key of a file

    def __post_init__(self) -> None:
        named = isinstance(self.name, str) and self.name.isprintable() and 1 <= len(self.name) <= 60
        require(named, "question.name", "be one line of at most 60 printable characters", self.name)
        where: Any = self.where
        where = (where,) if isinstance(where, str) else where
        require(isinstance(where, list | tuple), f"{self.name}: where", "be a list of conditions", where)
        object.__setattr__(self, "where", tuple(Condition.read(one).text() for one in where))
        object.__setattr__(self, "weight", number(f"{self.name}: weight", self.weight))
        require(1e-3 <= self.weight <= 1e3, f"{self.name}: weight", "lie in [0.001, 1000]", self.weight)
        require(isinstance(self.per_site, bool), f"{self.name}: per_site", "be true or false", self.per_site)
        hint = "Ask one question for each group (where)."
        require(self.grouped or self.lone, f"{self.name}: by", f"be left out of a {self.kind}", self.by, hint)
        rules: dict[str, Callable[[str, Any], Any]] = {
            "edges": lambda what, given: increasing(what, given, 1),
            "values": listed_values,
            "range": _span,
        }
        for key, rule in rules.items():
            given = getattr(self, key)
            if not isinstance(given, Mapping):
                own = self.about[0] if self.about else self.by
                require(own is not None, f"{self.name}: {key}", "belong to a column", given)
                given = {own: given}
            read = {str(column): rule(f"{self.name}: {key} of {column}", one) for column, one in given.items()}
            object.__setattr__(self, key, read)

    @property
    def about(self) -> tuple[str, ...]:
        """The columns that are measured, the main one first."""
        return ()

    @property
    def scaled(self) -> tuple[str, ...]:
        """The columns of numbers that must have a range."""
        return ()

    def completed(self, columns: Outline) -> "Question":
        """Return the question with what the data state for it."""
        return self

    def check(self, columns: Outline) -> None:
        """Refuse what does not fit the columns."""
        for one in self.where:
            Condition.read(one).check(columns)
        used = [*self.about, *([] if self.by is None else [self.by])]
        for name in used:
            check_column(name, columns, f"{self.name}: column")
        for key in ("edges", "values", "range"):
            for column in getattr(self, key):
                require(column in used, f"{self.name}: {key}", f"be of {', '.join(used) or 'a column'}", column)
        for column in self.edges:
            check_column(column, columns, f"{self.name}: edges", "numbers")
        for column in self.scaled:
            check_column(column, columns, f"{self.name}: column", "numbers")
        for column, values in self.values.items():
            if column in columns.numbers:
                wrong = [one for one in values if not _is_number(one)]
                require(not wrong, f"{self.name}: values of {column}", "be numbers", wrong)
        if self.by is not None:
            self.cells(self.by, columns)
        size = self.size(columns) * self.groups(columns, 1)
        require(size <= _MOST_NUMBERS, self.name, f"need at most {_MOST_NUMBERS:,} numbers", size, "Take fewer cells.")

    def cells(self, column: str, columns: Outline, cells: int | None = None) -> Cells:
        """Return the cells of a column: listed values, categories, between edges, or ``cells`` parts of a range."""
        if column in self.values:
            return Cells(column, values=self.values[column])
        if column in columns.categories:
            return Cells(column, values=tuple(one for one in columns.categories[column] if one))
        if column in self.edges:
            return Cells(column, edges=self.edges[column])
        span = self.range.get(column, columns.scale.get(column))
        if span is not None and cells is not None:
            return Cells(column, edges=tuple(np.linspace(*span, cells + 1).tolist()))
        way = "edges or values" if column in columns.numbers else "values (or data.categories)"
        require(False, f"{self.name}: {column}", f"have cells that are public: state its {way}", None)
        raise AssertionError

    @property
    def lone(self) -> bool:
        """Whether there is one group alone, about whose public centre contributions may be taken."""
        return self.by is None and not self.per_site

    def groups(self, columns: Outline, clients: int) -> int:
        """Return how many groups there are."""
        result = clients if self.per_site else 1
        return (
            result if self.by is None else result * (len(self.cells(self.by, columns).labels) - self._unnamed(columns))
        )

    def _unnamed(self, columns: Outline) -> int:
        """Cells of the grouping column that make no group: other values and missing ones."""
        assert self.by is not None  # noqa: S101  only asked then
        return 2 if self.cells(self.by, columns).values else 1

    def group_of(self, view: View) -> Indices:
        """Return the group of each row; -1 where the row is not asked about."""
        group = np.zeros(len(view), dtype=np.int64)
        columns = view.table.all_columns
        if self.per_site:
            group = np.array(view.table.owner, dtype=np.int64)
        asked = np.ones(len(view), dtype=np.bool_)
        if self.by is not None:
            cells = self.cells(self.by, columns)
            named = len(cells.labels) - self._unnamed(columns)
            own = cells.codes(view)
            asked = own < named
            group = group * named + own
        for one in self.where:
            asked &= Condition.read(one).holds(view)
        return np.where(asked, group, -1)

    def grouping(self, sums: Vector, columns: Outline, clients: int) -> list[Group]:
        """Return the noisy numbers of each group."""
        named = [""] if self.by is None else list(self.cells(self.by, columns).labels[: -self._unnamed(columns)])
        parts = np.split(sums, self.groups(columns, clients))
        result = []
        for place, part in enumerate(parts):
            labels: Row = {SITE: place // len(named) + 1} if self.per_site else {}
            result.append(Group(labels | ({} if self.by is None else {self.by: named[place % len(named)]}), part))
        return result

    # What a kind has of its own

    def size(self, columns: Outline) -> int:
        """Return how many numbers a record may add to, in one group."""
        raise NotImplementedError

    def block(self, view: View) -> Block:
        """Return what rows add to the first sum."""
        raise NotImplementedError

    @property
    def shares(self) -> tuple[float, ...]:
        """What share of its budget its first sum has, and each further one, if it asks for more."""
        return (1.0,)

    @property
    def turns(self) -> int:
        """How many sums it asks for after the first."""
        return len(self.shares) - 1

    @property
    def step_size(self) -> int:
        """How many numbers each further sum has."""
        raise NotImplementedError

    def start(self, sums: Vector, noise: float, view: View) -> State:
        """Return what the first of several sums says."""
        raise NotImplementedError

    def step_block(self, view: View, state: State) -> Block:
        """Return what rows add to a further sum."""
        raise NotImplementedError

    def advance(self, state: State, sums: Vector, noise: float, view: View) -> State:
        """Return what is known after a further sum that is not the last."""
        raise NotImplementedError

    def final(self, state: State, sums: Vector, noise: float, view: View, units: int) -> Answer:
        """Return what is published after the last of several sums."""
        raise NotImplementedError

    def suited(self, noise: float, units: int) -> "Question":
        """Return the question in the form that suits Laplace noise of about this scale on so many records."""
        return self

    @property
    def counts_as(self) -> float:
        """How many questions it counts as, where the budget is shared."""
        return 1.0

    def answer(self, sums: Vector, noise: float, view: View, units: int) -> Answer:
        """Return what is published; ``noise``: the deviation of each noisy number. No row of ``view`` decides it."""
        raise NotImplementedError

    def expected(self, noise: float, columns: Outline, units: float) -> Expected:
        """Return the half-width that is expected before anything is measured."""
        raise NotImplementedError

    def stated(self) -> Row:
        """Return the question as it was stated, without what was left out."""
        return {"kind": self.kind} | {
            one.name: _plain(getattr(self, one.name))
            for one in fields(self)
            if one.name == "name" or (one.name != "law" and getattr(self, one.name) not in (one.default, {}, ()))
        }


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: list(one) for key, one in value.items()}
    return list(value) if isinstance(value, tuple) else value


def _span(what: str, given: Any) -> tuple[float, float]:
    low, high = (*increasing(what, given, 2), math.nan)[:2]
    require(len(given) == 2, what, "be a low and a high number", given)
    return low, high


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def propagated(function: Callable[[Vector], Vector], at: Vector, deviations: Vector) -> tuple[Vector, Matrix]:
    """Return a smooth function of noisy numbers, and the covariance that their noise gives it to first order."""
    value = np.asarray(function(at), dtype=np.float64)
    change = np.empty((value.size, at.size))
    for place, deviation in enumerate(deviations):
        moved = at.copy()
        step = 1e-3 * deviation
        moved[place] += step
        above = function(moved)
        moved[place] -= 2 * step
        change[:, place] = (above - function(moved)) / (2e-3)
    return value, np.asarray(change @ change.T)


def interval(estimate: float, deviation: float, low: float = -math.inf, high: float = math.inf) -> Row:
    """Return a 95% interval, cut to what is possible; an estimate beyond it is moved to its end."""
    ends = [min(max(estimate + sign * SURE * deviation, low), high) for sign in (-1, 1)]
    return {"estimate": min(max(estimate, ends[0]), ends[1]), "low": ends[0], "high": ends[1]}


def both_intervals(
    estimate: float, noise: float, sampling: float, low: float = -math.inf, high: float = math.inf
) -> Row:
    """Return the interval of the noise (about these records), and of noise and sampling (about who they stand for)."""
    result = interval(estimate, noise, low, high)
    whole = interval(estimate, math.hypot(noise, sampling), low, high)
    return result | {"population_low": whole["low"], "population_high": whole["high"]}
