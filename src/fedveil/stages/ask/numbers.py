"""Questions about a column of numbers: its mean, its total, its quantiles. Numbers are cut to a public range."""

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

import numpy as np
from scipy.optimize import isotonic_regression

from fedveil.core.errors import require
from fedveil.core.values import Indices, Matrix, Vector
from fedveil.stages.ask.blocks import Block, Centred, Coded, Valued, prefix_root, product_size, products
from fedveil.stages.ask.question import ONE_NUMBER, SURE, Answer, Expected, Question, Row, both_intervals
from fedveil.stages.ask.rows import Span, View
from fedveil.stages.prepare.columns import Outline

_MADE_UP: Final = 200  # draws of noise from which the deviation of a smoothed curve is measured
_CENTRE: Final = np.array([0.5, 0.0, 0.5])  # of what records add to a mean with Laplace noise
_BOX: Final = (0.05, 0.25, 0.5, 0.75, 0.95)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mean(Question):
    """The mean and the spread of a column.

    A record with the scaled number z adds the products of (1, z) with itself, halved: a count, z and its square. With
    Laplace noise it adds (1/2, z, z**2 / 2), which is at most 1 from (1/2, 0, 1/2) as a sum of magnitudes, as nothing
    is. Either way the noise of the sum of z is the same as if it alone had been measured.
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

    @property
    def counts_as(self) -> float:
        """More than one, as of :class:`Count`."""
        return ONE_NUMBER

    def block(self, view: View) -> Block:
        """Return what rows add."""
        numbers = view.scaled(self.column)
        group = np.where(np.isnan(numbers), -1, self.group_of(view))

        def vectors(rows: Indices) -> Matrix:
            z = numbers[rows]
            if self.law == "laplace":
                return np.column_stack([np.full(z.size, 0.5), z, z**2 / 2]) / (1 if self.lone else 2)
            return products(np.column_stack([np.ones(z.size), z]) / math.sqrt(2))

        columns = view.table.all_columns
        result = Valued(group, self.groups(columns, view.clients), self.size(columns), vectors)
        return Centred(result, _CENTRE) if self._centred else result

    @property
    def _centred(self) -> bool:
        return self.law == "laplace" and self.lone

    @property
    def _units(self) -> tuple[float, float]:
        """What a unit of the noisy numbers stands for: records (and squares), and the sum of scaled numbers."""
        if self.law == "gaussian":
            return 2.0, math.sqrt(2)
        return (2.0, 1.0) if self.lone else (4.0, 2.0)

    def answer(self, sums: Vector, noise: float, view: View, units: int) -> Answer:
        """Return the answer from the noisy numbers."""
        span, (record, value) = view.ranges[self.column], self._units
        sums = sums + units * _CENTRE if self._centred else sums
        rows = [
            one.labels | self._row(one.sums * (record, value, record), noise, span, units)
            for one in self.grouping(sums, view.table.all_columns, view.clients)
        ]
        note = f"Numbers of {self.column} were cut to the range {span[0]:g} to {span[1]:g}."
        return Answer(tables={"": rows}, notes=[note])

    def _row(self, sums: Vector, noise: float, span: Span, units: int) -> Row:
        count, total, squares = sums.tolist()
        middle, half = (span[0] + span[1]) / 2, (span[1] - span[0]) / 2
        many = max(self._having(count, noise, units), 1.0)
        mean = min(max(total / many, -1.0), 1.0)
        variance = min(max(squares / many - mean**2, 0.0), 1.0)
        result: Row = {"estimate": middle + half * mean}
        for ends, sampling in (("low", "high"), 0.0), (("population_low", "population_high"), many * variance):
            record, value = (noise * unit for unit in self._units)
            low, high = ratio_interval(total, count, value**2 + sampling, record**2)
            result |= dict(zip(ends, (middle + half * low, middle + half * high), strict=True))
        result["estimate"] = min(max(result["estimate"], result["low"]), result["high"])
        return result | {"spread": half * math.sqrt(variance), "records": min(max(count, 0.0), float(units))}

    def _having(self, count: float, noise: float, units: int) -> float:
        """How many records have a number: all of them (which is public), if the noisy count is as near as that.

        A column without missing values so has no error of the count in its mean, wherever in its range that lies.
        """
        if self.lone and not self.where and count > units - SURE * noise * self._units[0]:
            return float(units)
        return min(max(count, 0.0), float(units))

    def expected(self, noise: float, columns: Outline, units: float) -> Expected:
        """Return the half-width that is expected."""
        low, high = self.range.get(self.column, columns.scale.get(self.column, (math.nan, math.nan)))
        share = SURE * self._units[1] * noise / units
        if math.isnan(low):
            return Expected("the mean", 50 * share, 50.0, "% of the range, which is learned")
        return Expected("the mean", share * (high - low) / 2, (high - low) / 2, self.column)


@dataclass(frozen=True, slots=True, kw_only=True)
class Total(Mean):
    """The sum of a column over the records that match; a missing value counts as nothing."""

    kind: ClassVar[str] = "total"

    def _row(self, sums: Vector, noise: float, span: Span, units: int) -> Row:
        count, total, _ = sums.tolist()
        middle, half = (span[0] + span[1]) / 2, (span[1] - span[0]) / 2
        record, value = self._units
        deviation = noise * math.hypot(record * middle, value * half)
        ends = sorted((min(span[0], 0.0) * units, max(span[1], 0.0) * units))
        result = both_intervals(middle * count + half * total, deviation, 0.0, *ends)
        whole = middle * self._having(count, noise, units) + half * total
        estimate = min(max(whole, result["low"]), result["high"])
        return {"estimate": estimate, "low": result["low"], "high": result["high"]}

    def expected(self, noise: float, columns: Outline, units: float) -> Expected:
        """Return the half-width that is expected."""
        low, high = self.range.get(self.column, columns.scale.get(self.column, (-1.0, 1.0)))
        record, value = self._units
        deviation = math.hypot(record * (low + high) / 2, value * (high - low) / 2)
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
    """The numbers below which given shares of the records lie; ``cells_in_range``: of the grid on the range.

    With Laplace noise cells are counted by themselves, and those without a number as well, so that all add up to the
    public number of records.
    """

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
        return self.cells_in_range + (1 if self.law == "laplace" else 0)

    def suited(self, noise: float, units: int) -> "Quantiles":
        """Return the question with as many cells as Laplace noise lets see, which adds up over cells.

        In ranks the noise at the median is about ``noise`` times the root of half the cells; a cell is a quarter.
        """
        cells = min(int((math.sqrt(2) * units / noise / 4) ** (2 / 3)), self.cells_in_range)
        return replace(self, cells_in_range=max(cells, 16))

    def block(self, view: View) -> Block:
        """Return what rows add."""
        columns, cells = view.table.all_columns, self.cells_in_range
        numbers, group = view.scaled(self.column), self.group_of(view)
        group = np.where(np.isnan(numbers), -1, group)
        place = np.minimum((np.nan_to_num(numbers) + 1) / 2 * cells, cells - 1).astype(np.int64)
        if self.law == "laplace":
            beside = cells if self.lone else -1  # where there are groups, nobody's cell belongs to none of them
            codes = np.where(group < 0, beside, np.maximum(group, 0) * (cells + 1) + place)
            return Coded(codes, (cells + 1) * self.groups(columns, view.clients))
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
        adding = self._adding
        edges = np.linspace(*span, self.cells_in_range + 1)
        spread = np.vstack([np.zeros(sums.size), adding]) * noise
        below = np.concatenate([[0.0], adding @ sums])  # how many records lie below each edge
        if self.law == "laplace" and self.lone:
            below += np.arange(below.size) / sums.size * units
        weights = _weights(spread)
        rising = _rising(below, weights, units)
        total = max(float(rising[-1]), 1.0)
        # Smoothing takes away some of the noise: how much is left is measured on made-up noise about the smooth curve.
        made_up = spread @ np.random.default_rng(0).standard_normal((sums.size, _MADE_UP))
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

    @property
    def _adding(self) -> Matrix:
        """What turns noisy numbers into the number of records below each edge; of a lone group, beside a public line.

        With a public total of all cells, least squares takes from each cell an equal part of what exceeds it.
        """
        cells = self.cells_in_range
        if self.law == "gaussian":
            root, norm = prefix_root(cells)
            return norm * root
        below = np.tri(cells, cells + 1)
        return below - np.arange(1, cells + 1)[:, None] / (cells + 1) if self.lone else below

    def expected(self, noise: float, columns: Outline, units: float) -> Expected:
        """Return the half-width that is expected."""
        adding = self._adding
        middle = adding[self.cells_in_range // 2] - 0.5 * adding[-1]
        share = SURE * noise * float(np.linalg.norm(middle)) / units
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
