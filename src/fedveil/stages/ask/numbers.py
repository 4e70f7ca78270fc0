"""Questions about a column of numbers: its mean, its total, its quantiles. Numbers are cut to a public range."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
from scipy.optimize import isotonic_regression

from fedveil.core.errors import require
from fedveil.core.values import Indices, Matrix, Vector
from fedveil.stages.ask.blocks import Block, Coded, Valued, prefix_root, product_size, products
from fedveil.stages.ask.question import SURE, Answer, Expected, Question, Row, both_intervals
from fedveil.stages.ask.rows import Span, View
from fedveil.stages.prepare.columns import Outline

_MADE_UP: Final = 200  # draws of noise from which the deviation of a smoothed curve is measured
_BOX: Final = (0.05, 0.25, 0.5, 0.75, 0.95)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mean(Question):
    """The mean and the spread of a column.

    A record with the scaled number z adds the products of (1, z) with itself, halved: a count, z and its square. The
    noise of the sum of z is then the same as if it alone had been measured.
    """

    kind: ClassVar[str] = "mean"
    column: str

    @property
    def about(self) -> tuple[str, ...]:
        """The columns that it names."""
        return (self.column,)

    @property
    def scaled(self) -> tuple[str, ...]:
        """The columns that need a range."""
        return self.about

    def size(self, columns: Outline) -> int:
        """Return how many numbers a group has."""
        return product_size(2)

    def block(self, view: View) -> Block:
        """Return what rows add."""
        numbers = view.scaled(self.column)
        group = np.where(np.isnan(numbers), -1, self.group_of(view))

        def vectors(rows: Indices) -> Matrix:
            return products(np.column_stack([np.ones(len(rows)), numbers[rows]]) / math.sqrt(2))

        return Valued(
            group, self.groups(view.table.all_columns, view.clients), self.size(view.table.all_columns), vectors
        )

    def answer(self, sums: Vector, noise: float, view: View, units: int) -> Answer:
        """Return the answer from the noisy numbers."""
        span = view.ranges[self.column]
        rows = [
            one.labels | self._row(2 * one.sums[0], math.sqrt(2) * one.sums[1], 2 * one.sums[2], noise, span, units)
            for one in self.grouping(sums, view.table.all_columns, view.clients)
        ]
        note = f"Numbers of {self.column} were cut to the range {span[0]:g} to {span[1]:g}."
        return Answer(tables={"": rows}, notes=[note])

    def _row(self, count: float, total: float, squares: float, noise: float, span: Span, units: int) -> Row:
        middle, half = (span[0] + span[1]) / 2, (span[1] - span[0]) / 2
        many = min(max(count, 1.0), float(units))
        mean = min(max(total / many, -1.0), 1.0)
        variance = min(max(squares / many - mean**2, 0.0), 1.0)
        found: Row = {"estimate": middle + half * mean}
        for ends, sampling in (("low", "high"), 0.0), (("population_low", "population_high"), many * variance):
            low, high = ratio_interval(total, count, 2 * noise**2 + sampling, 4 * noise**2)
            found |= dict(zip(ends, (middle + half * low, middle + half * high), strict=True))
        found["estimate"] = min(max(found["estimate"], found["low"]), found["high"])
        return found | {"spread": half * math.sqrt(variance), "records": min(max(count, 0.0), float(units))}

    def expected(self, noise: float, columns: Outline, units: float) -> Expected:
        """Return the half-width that is expected."""
        low, high = self.range.get(self.column, columns.scale.get(self.column, (math.nan, math.nan)))
        share = SURE * math.sqrt(2) * noise / units
        if math.isnan(low):
            return Expected("the mean", 50 * share, 50.0, "% of the range, which is learned")
        return Expected("the mean", share * (high - low) / 2, (high - low) / 2, self.column)


@dataclass(frozen=True, slots=True, kw_only=True)
class Total(Mean):
    """The sum of a column over the records that match; a missing value counts as nothing."""

    kind: ClassVar[str] = "total"

    def _row(self, count: float, total: float, squares: float, noise: float, span: Span, units: int) -> Row:
        middle, half = (span[0] + span[1]) / 2, (span[1] - span[0]) / 2
        deviation = noise * math.hypot(2 * middle, math.sqrt(2) * half)
        ends = sorted((min(span[0], 0.0) * units, max(span[1], 0.0) * units))
        found = both_intervals(middle * count + half * total, deviation, 0.0, *ends)
        return {key: found[key] for key in ("estimate", "low", "high")}

    def expected(self, noise: float, columns: Outline, units: float) -> Expected:
        """Return the half-width that is expected."""
        low, high = self.range.get(self.column, columns.scale.get(self.column, (-1.0, 1.0)))
        deviation = math.hypot(low + high, (high - low) / math.sqrt(2))
        return Expected("the total", SURE * noise * deviation, units * max(abs(low), abs(high)), self.column)


def ratio_interval(above: float, below: float, above_variance: float, below_variance: float) -> Span:
    """Return the numbers r in [-1, 1] for which above - r * below is within its 95% noise (Fieller's interval).

    It is right also where the noise of the denominator is large; if that may be zero, all of [-1, 1] may remain.
    """
    square = below**2 - SURE**2 * below_variance
    if square <= 0 or below <= 0:
        return -1.0, 1.0
    root = SURE * math.sqrt(max(above_variance * square + above**2 * below_variance, 0.0))
    low, high = (above * below - root) / square, (above * below + root) / square
    return min(max(low, -1.0), 1.0), min(max(high, -1.0), 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantiles(Question):
    """The numbers below which given shares of the records lie; ``cells``: of the grid on the range."""

    kind: ClassVar[str] = "quantiles"
    column: str
    at: tuple[float, ...] = _BOX
    cells_in_range: int = 256

    def __post_init__(self) -> None:
        at: Any = self.at
        at = (at,) if isinstance(at, float) else at
        fits = isinstance(at, list | tuple) and 1 <= len(at) <= 99
        fits = fits and all(isinstance(one, float) and 0 < one < 1 for one in at)
        require(fits, f"{self.name}: at", "list shares strictly between 0 and 1", at)
        object.__setattr__(self, "at", tuple(sorted(set(at))))
        cells = self.cells_in_range
        fits = type(cells) is int and 16 <= cells <= 2048
        require(fits, f"{self.name}: cells_in_range", "be a whole number from 16 to 2048", cells)
        super(Quantiles, self).__post_init__()

    @property
    def about(self) -> tuple[str, ...]:
        """The columns that it names."""
        return (self.column,)

    @property
    def scaled(self) -> tuple[str, ...]:
        """The columns that need a range."""
        return self.about

    def size(self, columns: Outline) -> int:
        """Return how many numbers a group has."""
        return self.cells_in_range

    def block(self, view: View) -> Block:
        """Return what rows add."""
        columns, cells = view.table.all_columns, self.cells_in_range
        numbers, group = view.scaled(self.column), self.group_of(view)
        group = np.where(np.isnan(numbers), -1, group)
        place = np.minimum((np.nan_to_num(numbers) + 1) / 2 * cells, cells - 1).astype(np.int64)
        root, norm = prefix_root(cells)
        return Coded(
            np.where(group < 0, -1, group * cells + place), cells * self.groups(columns, view.clients), root / norm
        )

    def answer(self, sums: Vector, noise: float, view: View, units: int) -> Answer:
        """Return the answer from the noisy numbers."""
        span = view.ranges[self.column]
        rows: list[Row] = []
        for one in self.grouping(sums, view.table.all_columns, view.clients):
            rows += [one.labels | row for row in self._quantiles(one.sums, noise, span, units)]
        note = f"Numbers of {self.column} were cut to the range {span[0]:g} to {span[1]:g}."
        return Answer(tables={"": rows}, notes=[note])

    def _quantiles(self, sums: Vector, noise: float, span: Span, units: int) -> list[Row]:
        root, norm = prefix_root(self.cells_in_range)
        edges = np.linspace(*span, self.cells_in_range + 1)
        spread = np.vstack([np.zeros(self.cells_in_range), norm * root]) * noise
        below = np.concatenate([[0.0], norm * root @ sums])  # how many records lie below each edge
        weights = _weights(spread)
        rising = _rising(below, weights, units)
        total = max(float(rising[-1]), 1.0)
        # Smoothing takes away some of the noise: how much is left is measured on made-up noise about the smooth curve.
        made_up = spread @ np.random.default_rng(0).standard_normal((self.cells_in_range, _MADE_UP))
        left = np.array([_rising(rising + one, weights, units) for one in made_up.T]) - rising
        rows, lowest = [], span[0]
        for share in self.at:
            deviation = (left - share * left[:, -1:]).std(axis=0)
            gap = rising - share * rising[-1]
            estimate = max(_crossing(edges, gap), lowest)
            found: Row = {"quantile": share, "estimate": estimate}
            sampling = total * share * (1 - share)
            for ends, variance in (("low", "high"), 0.0), (("population_low", "population_high"), sampling):
                reach = SURE * np.sqrt(deviation**2 + variance)
                low, high = _crossing(edges, gap + reach), edges[0] + edges[-1] - _crossing(edges, (reach - gap)[::-1])
                found |= dict(zip(ends, (min(low, estimate), max(high, estimate)), strict=True))
            lowest = estimate
            rows.append(found)
        return rows

    def expected(self, noise: float, columns: Outline, units: float) -> Expected:
        """Return the half-width that is expected."""
        root, norm = prefix_root(self.cells_in_range)
        middle = root[self.cells_in_range // 2] - 0.5 * root[-1]
        share = SURE * noise * norm * float(np.linalg.norm(middle)) / units
        return Expected("the median, in ranks", 100 * share, 50.0, "% of the records")


def _rising(below: Vector, weights: Vector, units: int) -> Vector:
    """Return the nearest counts that never fall and lie between 0 and the number of records."""
    return np.clip(np.asarray(isotonic_regression(below, weights=weights).x), 0.0, float(units))


def _weights(spread: Matrix) -> Vector:
    variance = np.square(spread).sum(axis=1)
    return np.asarray(1 / np.maximum(variance, variance[1:].min() * 1e-6))


def _crossing(edges: Vector, heights: Vector) -> float:
    """Return where a line through these points first reaches zero from below; the last edge if it does not."""
    above = np.flatnonzero(heights >= 0)
    if not above.size:
        return float(edges[-1])
    place = int(above[0])
    if place == 0:
        return float(edges[0])
    before, after = heights[place - 1], heights[place]
    return float(edges[place - 1] + (edges[place] - edges[place - 1]) * (-before / (after - before)))
