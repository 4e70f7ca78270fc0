"""Questions that count: how many, a histogram, a crosstab. A record is in one cell, so it adds a vector of norm 1."""

import math
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np
from scipy.optimize import nnls

from fedveil.core.errors import require
from fedveil.core.values import Matrix, Vector
from fedveil.stages.ask.blocks import Block, Centred, Coded
from fedveil.stages.ask.question import ONE_NUMBER, SURE, Answer, Expected, Question, Row, interval
from fedveil.stages.ask.rows import View
from fedveil.stages.prepare.columns import Outline

_FEW: Final = 1e-3  # deviation, relative to the noise, with which a public total counts
_MOST_CELLS: Final = 400  # of a crosstab whose margins are measured beside its cells
_PARTS: Final = (0.5, 0.25, 0.25)  # of a record's squared norm: its cell, its row, its column


def consistent(design: Matrix, sums: Vector, noise: Vector, total: int | None) -> tuple[Vector, Matrix]:
    """Return the counts that fit noisy sums of them best, by least squares, and their covariance.

    ``total``: of all counts, where it is public.
    """
    weighted, aim = _weighted(design, sums, noise, total)
    covariance = np.asarray(np.linalg.inv(weighted.T @ weighted), dtype=np.float64)
    return np.asarray(covariance @ weighted.T @ aim), covariance


def _weighted(design: Matrix, sums: Vector, noise: Vector, total: int | None) -> tuple[Matrix, Vector]:
    if total is not None:
        design = np.vstack([design, np.ones(design.shape[1])])
        sums, noise = np.append(sums, total), np.append(noise, _FEW * noise.min())
    return design / noise[:, None], sums / noise


@dataclass(frozen=True, slots=True, kw_only=True)
class Count(Question):
    """How many records match.

    Without groups a record adds plus or minus one half, since the number of all records is public: with Gaussian noise
    a match and another record are then the root of 2 apart where the unit is the root of 1/2, and with Laplace noise
    2 apart where the unit is one half. So the noise is less by that factor than if each added one or nothing.
    """

    kind: ClassVar[str] = "count"

    def size(self, columns: Outline) -> int:
        """Return how many numbers a group has."""
        return 1

    @property
    def counts_as(self) -> float:
        """More than one: an error of a single number is not spread over cells."""
        return ONE_NUMBER

    def block(self, view: View) -> Block:
        """Return what rows add."""
        unit = 1 / self._record
        cells = Coded(self.group_of(view), self.groups(view.table.all_columns, view.clients), np.array([[unit]]))
        return Centred(cells, np.array([unit / 2])) if self.lone else cells

    @property
    def _record(self) -> float:
        """How many records a unit of the sum stands for."""
        return 1.0 if not self.lone else 0.5 if self.law == "laplace" else math.sqrt(0.5)

    def answer(self, sums: Vector, noise: float, view: View, units: int) -> Answer:
        """Return the answer from the noisy numbers."""
        sums, noise = sums * self._record + (units / 2 if self.lone else 0.0), noise * self._record
        groups = self.grouping(sums, view.table.all_columns, view.clients)
        return Answer(tables={"": [one.labels | interval(one.sums[0], noise, 0, units) for one in groups]})

    def expected(self, noise: float, columns: Outline, units: float) -> Expected:
        """Return the half-width that is expected."""
        return Expected("the count", SURE * noise * self._record, units)


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram(Question):
    """How many records are in each cell of a column; ``bins``: of its range, where no edges or values are stated."""

    kind: ClassVar[str] = "histogram"
    column: str
    bins: int = 10

    def __post_init__(self) -> None:
        super(Histogram, self).__post_init__()
        fits = type(self.bins) is int and 1 <= self.bins <= 1000
        require(fits, f"{self.name}: bins", "be a whole number from 1 to 1000", self.bins)

    @property
    def about(self) -> tuple[str, ...]:
        """The columns that it names."""
        return (self.column,)

    def size(self, columns: Outline) -> int:
        """Return how many numbers a group has."""
        return len(self.cells(self.column, columns, self.bins).labels)

    def block(self, view: View) -> Block:
        """Return what rows add."""
        columns, group = view.table.all_columns, self.group_of(view)
        cells = self.cells(self.column, columns, self.bins)
        count = len(cells.labels)
        codes = np.where(group < 0, -1, group * count + cells.codes(view))
        return Coded(codes, count * self.groups(columns, view.clients))

    def answer(self, sums: Vector, noise: float, view: View, units: int) -> Answer:
        """Return the answer from the noisy numbers."""
        columns = view.table.all_columns
        labels = self.cells(self.column, columns, self.bins).labels
        # All records are in some cell, unless a condition or a group leaves some out: then their number is private.
        total = None if self.where or self.by or self.per_site else units
        rows: list[Row] = []
        for one in self.grouping(sums, columns, view.clients):
            fit, covariance = consistent(np.eye(len(labels)), one.sums, np.full(len(labels), noise), total)
            deviations = np.sqrt(np.diag(covariance))
            fit_to = nonnegative(fit, total)
            for label, estimate, raw, deviation in zip(labels, fit_to, fit, deviations, strict=True):
                rows.append(one.labels | {self.column: label} | _moved(raw, estimate, deviation, units))
        return Answer(tables={"": rows})

    def expected(self, noise: float, columns: Outline, units: float) -> Expected:
        """Return the half-width that is expected."""
        return Expected("each cell", SURE * noise, units / 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Crosstab(Question):
    """How many records are in each cell of two columns, with margins that add up."""

    kind: ClassVar[str] = "crosstab"
    grouped: ClassVar[bool] = False
    columns: tuple[str, str]
    bins: int = 10

    def __post_init__(self) -> None:
        pair = isinstance(self.columns, list | tuple) and len(set(self.columns)) == len(self.columns) == 2
        require(pair, f"{self.name}: columns", "name two different columns", self.columns)
        object.__setattr__(self, "columns", tuple(self.columns))
        super(Crosstab, self).__post_init__()

    @property
    def about(self) -> tuple[str, ...]:
        """The columns that it names."""
        return self.columns

    def _shape(self, columns: Outline) -> tuple[int, int]:
        first, second = (len(self.cells(name, columns, self.bins).labels) for name in self.columns)
        return first, second

    def _design(self, columns: Outline) -> Matrix | None:
        """Which cells each number adds up, with its weight; None for cells alone, where there are many.

        With Laplace noise margins beside the cells would cost more than they bring.
        """
        high, wide = self._shape(columns)
        if high * wide > _MOST_CELLS or self.law == "laplace":
            return None
        rows, across = np.kron(np.eye(high), np.ones(wide)), np.kron(np.ones(high), np.eye(wide))
        parts = (np.eye(high * wide), rows, across)
        return np.vstack([math.sqrt(part) * one for part, one in zip(_PARTS, parts, strict=True)])

    def size(self, columns: Outline) -> int:
        """Return how many numbers a group has."""
        design, (high, wide) = self._design(columns), self._shape(columns)
        return high * wide if design is None else len(design)

    def block(self, view: View) -> Block:
        """Return what rows add."""
        columns = view.table.all_columns
        first, second = (self.cells(name, columns, self.bins) for name in self.columns)
        codes = first.codes(view) * len(second.labels) + second.codes(view)
        codes = np.where(self.group_of(view) < 0, -1, codes)
        return Coded(codes, len(first.labels) * len(second.labels), self._design(columns))

    def answer(self, sums: Vector, noise: float, view: View, units: int) -> Answer:
        """Return the answer from the noisy numbers."""
        columns = view.table.all_columns
        first, second = (self.cells(name, columns, self.bins).labels for name in self.columns)
        design = self._design(columns)
        total = None if self.where else units
        fit, covariance, counts = sums, None, nonnegative(sums, total)
        if design is not None:
            deviations = np.full(sums.size, noise)
            fit, covariance = consistent(design, sums, deviations, total)
            counts = nnls(*_weighted(design, sums, deviations, total))[0]
        table = counts.reshape(len(first), len(second))
        raw = fit.reshape(table.shape)
        rows: list[Row] = []
        for above, left in np.ndindex(len(first) + 1, len(second) + 1):
            chosen = np.zeros(table.shape)
            chosen[above if above < len(first) else slice(None), left if left < len(second) else slice(None)] = 1
            pick = chosen.ravel()
            deviation = noise * math.sqrt(pick.sum())
            if covariance is not None:
                deviation = math.sqrt(max(float(pick @ covariance @ pick), 0.0))
            names = dict(zip(self.columns, ((*first, "all")[above], (*second, "all")[left]), strict=True))
            estimate = float((table * chosen).sum())
            rows.append(names | _moved(float((raw * chosen).sum()), estimate, deviation, units))
        return Answer(tables={"": rows})

    def expected(self, noise: float, columns: Outline, units: float) -> Expected:
        """Return the half-width that is expected."""
        return Expected("each cell", SURE * noise * math.sqrt(2), units / 2)


def nonnegative(counts: Vector, total: float | None) -> Vector:
    """Return the nearest counts that are not negative and have the same total, by least squares."""
    aim = max(float(counts.sum()) if total is None else float(total), 0.0)
    order = np.sort(counts)[::-1]
    excess = (np.cumsum(order) - aim) / np.arange(1, counts.size + 1)
    kept = int(np.flatnonzero(order > excess)[-1]) if (order > excess).any() else 0
    return np.asarray(np.maximum(counts - excess[kept], 0.0))


def _moved(raw: float, estimate: float, deviation: float, units: int) -> Row:
    """The interval about what was measured, with the consistent number as the estimate; it is widened to hold it."""
    found = interval(raw, deviation, 0, units)
    low, high = min(found["low"], estimate), max(found["high"], estimate)
    return {"estimate": estimate, "low": low, "high": high}
