"""The cells of a source's rows, and what each record adds to counts of them: features by column, and the target."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from fractions import Fraction
from typing import Any, Final

import numpy as np

from fedveil.core.errors import BadValue, require
from fedveil.core.values import Indices, Matrix, Vector
from fedveil.data.records import Records
from fedveil.data.row_rule import Labels
from fedveil.stages.prepare.columns import Columns, Outline
from fedveil.stages.prepare.loading import Unprepared
from fedveil.stages.prepare.ranges import Range
from fedveil.stages.sums import STEPS, Measurement
from fedveil.stages.synthesise.fit import Clique
from fedveil.sums.seam import Whole

# Fewer cells for a column, decided by its noisy counts alone: what noise would drown is counted together.
#
# Neighbouring cells of a column of numbers are joined until each holds enough; rare words are joined into one cell.
# Rows that are drawn later get a fine cell again, by the noisy counts within the joined one.

CLEAR: Final = 3.0  # deviations of the noise above which a count is taken to be there


def shares_of(counts: Vector, deviation: float, total: float) -> Vector:
    """Return shares that are not negative and sum to 1, near to noisy counts; a cell that cannot be has -inf.

    Counts that stand out of the noise are believed. What they leave of the total is given to the faint ones, none of
    which could be told from noise by itself, and where they leave nothing, these get nothing.
    """
    clear = counts > CLEAR / 2 * deviation
    faint = ~clear & np.isfinite(counts)
    left = total - counts[clear].sum()
    result = np.zeros(counts.size)
    if left > 0 and faint.any():
        result[clear] = counts[clear]
        result[faint] = _nearest(counts[faint], left)
    elif clear.any():
        result[clear] = _nearest(counts[clear], max(total, 1.0))
    else:
        result[:] = 1.0
    return np.asarray(result / result.sum(), dtype=np.float64)


def _nearest(values: Vector, total: float) -> Vector:
    """The nearest numbers that are not negative and have this sum: all are moved by the same amount, and cut at 0."""
    order = np.sort(values)[::-1]
    moved = (np.cumsum(order) - total) / np.arange(1, order.size + 1)
    last = int(np.flatnonzero(order > moved)[-1])
    return np.asarray(np.clip(values - moved[last], 0.0, None), dtype=np.float64)


def merged_numbers(shares: Vector, least: float, most: int) -> Indices:
    """Return the group of each cell in order, at most ``most`` groups, each with a share of at least ``least``.

    Neighbours are joined until each group holds ``least``. While there are too many groups, the two neighbours that
    hold least together are joined.
    """
    groups, held = np.zeros(shares.size, dtype=np.int64), [0.0]
    for cell, share in enumerate(shares.tolist()):
        if held[-1] > 0 and held[-1] >= least:
            held.append(0.0)
        groups[cell] = len(held) - 1
        held[-1] += share
    if len(held) > 1 and held[-1] < least:
        groups[groups == len(held) - 1] = len(held) - 2
        held[-2:] = [held[-2] + held[-1]]
    while len(held) > most:
        first = int(np.argmin(np.add(held[1:], held[:-1])))
        held[first : first + 2] = [held[first] + held[first + 1]]
        groups[groups > first] -= 1
    return groups


def merged_words(shares: Vector, least: float, most: int) -> Indices:
    """Return the group of each cell: frequent ones by themselves, the most frequent first, and all others together.

    Cells of no share at all are counted with the most frequent one, and never drawn.
    """
    order = [int(cell) for cell in np.argsort(-shares, kind="stable") if shares[cell] > 0]
    alone = [cell for cell in order if shares[cell] >= least][: max(most - 1, 1)]
    if len(order) <= len(alone) + 1 and len(order) <= most:  # one that is left over would be a group of its own anyway
        alone = order
    groups = np.zeros(shares.size, dtype=np.int64)
    groups[order] = len(alone)
    groups[alone] = np.arange(len(alone))
    return groups


def added(values: Vector, groups: Indices) -> Vector:
    """Return the sums of values by group."""
    return np.asarray(np.bincount(groups, weights=values, minlength=int(groups.max()) + 1), dtype=np.float64)


def indicator(groups: Indices) -> Matrix:
    """Return the matrix of zeros and ones that adds cells up by group."""
    result = np.zeros((int(groups.max()) + 1, groups.size))
    result[groups, np.arange(groups.size)] = 1.0
    return result


# The cells of a column: every value of a record falls in one of them, whatever it is, and a value can be drawn again.
#
# A column of numbers has cells of equal width on the scale of its range, one for zero itself, and one for a missing
# number. A column of words has a cell for each word, one for all other words where the list was learned, and one for a
# missing word. Dates are the whole numbers of their days. The list of cells follows from what the study states or what
# noisy sums said, so it may be published.

FINE: Final = 64  # cells of a column of numbers, before they are merged
WHOLE: Final = 128  # whole numbers in a range, up to which each has a cell of its own
MOST_WORDS: Final = 10_000
SURE: Final = 4.0  # deviations of the noise that a count of missing values must have to be believed
OTHER_WORD: Final = "other"  # what is drawn for the words that were too rare to be learned
Drawn = list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberCells:
    """Numbers of a range. ``whole``: only whole numbers are drawn. ``complete``: no record lacks one."""

    name: str
    range: Range
    whole: bool = False
    complete: bool = False

    @property
    def _exact(self) -> bool:
        """Whether each whole number of the range has a cell of its own."""
        span = self.range.high - self.range.low
        return self.whole and self.range.unit == 0 and span <= WHOLE - 1

    @property
    def bins(self) -> int:
        """How many cells hold numbers by their size."""
        return math.floor(self.range.high) - math.ceil(self.range.low) + 1 if self._exact else FINE

    @property
    def size(self) -> int:
        """How many cells there are: also zero and a missing number."""
        return self.bins + 2

    def codes(self, numbers: Vector) -> Indices:
        """Return the cell of each number; NaN is a missing one."""
        gone = np.isnan(numbers)
        plain = np.where(gone, self.range.low, numbers)
        if self._exact:
            inside = np.clip(np.rint(plain), math.ceil(self.range.low), math.floor(self.range.high))
            result = (inside - math.ceil(self.range.low)).astype(np.int64)
        else:
            scaled = (self.range.scaled(plain) + 1.0) / 2.0 * self.bins
            result = np.clip(scaled.astype(np.int64), 0, self.bins - 1)
            result = np.where((plain == 0) & (self.range.low <= 0 <= self.range.high), self.bins, result)
        return np.asarray(np.where(gone, self.bins + 1, result), dtype=np.int64)

    def seen(self, counts: Vector, deviation: float) -> Vector:
        """Return noisy counts, and -inf for those that must be noise: of cells that cannot be, or of rare gaps."""
        result = counts.copy()
        if self._exact or not self.range.low <= 0 <= self.range.high:
            result[self.bins] = -np.inf
        if self.complete or result[-1] < SURE * deviation:
            result[-1] = -np.inf
        return result

    def merged(self, shares: Vector, least: float, most: int) -> Indices:
        """Return the group of each cell; zero and a missing number have groups of their own where they are frequent."""
        groups = merged_numbers(shares[: self.bins], least, most)
        beside, last = [], int(groups.max())
        for place, joins in ((self.bins, self._place_of_zero), (self.bins + 1, 0)):
            alone = shares[place] >= least
            last += int(alone)
            beside.append(last if alone else int(groups[joins]))
        return np.concatenate([groups, beside]).astype(np.int64)

    @property
    def _place_of_zero(self) -> int:
        if self._exact or not self.range.low <= 0 <= self.range.high:
            return 0
        return int(np.clip((float(self.range.scaled(np.zeros(1))[0]) + 1) / 2 * self.bins, 0, self.bins - 1))

    def drawn(self, codes: Indices, random: np.random.Generator) -> Drawn:
        """Return a number in each cell, as it is written; an empty text for a missing one."""
        if self._exact:
            numbers = codes.astype(np.float64) + math.ceil(self.range.low)
        else:
            inside = (codes + random.uniform(size=codes.size)) / self.bins * 2.0 - 1.0
            numbers = self.range.numbers(np.clip(inside, -1.0, 1.0))
        numbers = np.where(codes == self.bins, 0.0, np.clip(numbers, self.range.low, self.range.high))
        if self.whole:
            numbers = np.clip(np.rint(numbers), math.ceil(self.range.low), math.floor(self.range.high))
        return [
            "" if code > self.bins else (f"{value:.0f}" if self.whole else f"{value:.6g}")
            for code, value in zip(codes.tolist(), numbers.tolist(), strict=True)
        ]

    def table(self) -> dict[str, Any]:
        """Return plain values from which :func:`cells_from` makes an equal one."""
        one = self.range
        return {
            "name": self.name,
            "low": one.low,
            "high": one.high,
            "unit": one.unit,
            "whole": self.whole,
            "complete": self.complete,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class WordCells:
    """Words. ``open``: the list was learned, and other words have a cell together. ``complete``: none is missing."""

    name: str
    words: tuple[str, ...]
    open: bool = False
    complete: bool = False

    def __post_init__(self) -> None:
        hint = "Leave the column out (data.ignore), or join rare words (data.categories with __other__)."
        name, count = f"The column {self.name!r}", len(self.words)
        require(count <= MOST_WORDS, name, f"have at most {MOST_WORDS} values for a generator", count, hint)

    @property
    def size(self) -> int:
        """How many cells there are: also other words and a missing one."""
        return len(self.words) + 2

    def codes(self, words: tuple[str, ...], rows: Indices) -> Indices:
        """Return the cell of each row; ``words``: the list that ``rows`` counts in, with "" for a missing one."""
        place = {word: cell for cell, word in enumerate(self.words)}
        known = [self.size - 1 if word == "" else place.get(word, self.size - 2) for word in words]
        return np.array(known, dtype=np.int64)[rows] if known else np.zeros(rows.size, dtype=np.int64)

    def seen(self, counts: Vector, deviation: float) -> Vector:
        """Return noisy counts, and -inf for those that must be noise: of cells that cannot be, or of rare gaps."""
        result = counts.copy()
        if not self.open:
            result[-2] = -np.inf
        if self.complete or result[-1] < SURE * deviation:
            result[-1] = -np.inf
        return result

    def merged(self, shares: Vector, least: float, most: int) -> Indices:
        """Return the group of each cell: frequent ones alone, the others together."""
        return merged_words(shares, least, most)

    def drawn(self, codes: Indices, random: np.random.Generator) -> Drawn:
        """Return the word of each cell; an empty text for a missing one."""
        listed = [*self.words, OTHER_WORD, ""]
        return [listed[code] for code in codes.tolist()]

    def table(self) -> dict[str, Any]:
        """Return plain values from which :func:`cells_from` makes an equal one."""
        return {"name": self.name, "words": list(self.words), "open": self.open, "complete": self.complete}


@dataclass(frozen=True, slots=True, kw_only=True)
class DateCells:
    """Dates from ``first`` to ``last``, as the study states them: the whole numbers of their days."""

    name: str
    first: str
    last: str

    def __post_init__(self) -> None:
        ends = [day_of(end) for end in (self.first, self.last)]
        require(all(end == end for end in ends), f"The dates of {self.name!r}", "be written as 2024-12-31", ends)
        require(ends[0] < ends[1], f"The dates of {self.name!r}", "begin before they end", (self.first, self.last))

    @property
    def _days(self) -> NumberCells:
        return NumberCells(name=self.name, range=Range(day_of(self.first), day_of(self.last)), whole=True)

    @property
    def size(self) -> int:
        """How many cells there are."""
        return self._days.size

    def codes(self, words: tuple[str, ...], rows: Indices) -> Indices:
        """Return the cell of each row; ``words``: the list that ``rows`` counts in. No date counts as a missing one."""
        known = self._days.codes(np.array([day_of(word) for word in words], dtype=np.float64))
        return known[rows] if known.size else np.zeros(rows.size, dtype=np.int64)

    def seen(self, counts: Vector, deviation: float) -> Vector:
        """Return noisy counts, and -inf for those that must be noise."""
        return self._days.seen(counts, deviation)

    def merged(self, shares: Vector, least: float, most: int) -> Indices:
        """Return the group of each cell."""
        return self._days.merged(shares, least, most)

    def drawn(self, codes: Indices, random: np.random.Generator) -> Drawn:
        """Return a date in each cell, as 2024-12-31; an empty text for a missing one."""
        days = self._days.drawn(codes, random)
        return [day and date.fromordinal(int(day)).isoformat() for day in days]

    def table(self) -> dict[str, Any]:
        """Return plain values from which :func:`cells_from` makes an equal one."""
        return {"name": self.name, "first": self.first, "last": self.last}


def day_of(word: str) -> float:
    """Return the number of a date's day; NaN for a text that is no date. A time of the day is left out.

    >>> day_of("0001-01-02"), day_of("0001-01-02 13:45"), day_of("2 January")
    (2.0, 2.0, nan)
    """
    try:
        return float(date.fromisoformat(word[:10]).toordinal()) if word[10:11] in ("", " ", "T") else math.nan
    except ValueError:
        return math.nan


Cells = NumberCells | WordCells | DateCells


def cells_from(given: dict[str, Any]) -> Cells:
    """Return the cells that a table describes."""
    if "words" in given:
        return WordCells(**{**given, "words": tuple(given["words"])})
    if "first" in given:
        return DateCells(**given)
    scale = Range(given["low"], given["high"], given["unit"])
    return NumberCells(name=given["name"], range=scale, whole=given["whole"], complete=given["complete"])


@dataclass(frozen=True, slots=True, eq=False)
class Counted:
    """One table: its columns, the cell of each of their codes, how many cells each has, and the weight of a count."""

    columns: Clique
    groups: tuple[Indices, ...]
    weight: float = 1.0

    @property
    def shape(self) -> tuple[int, ...]:
        """How many groups each column has."""
        return tuple(int(own.max()) + 1 for own in self.groups)

    @property
    def size(self) -> int:
        """How many cells the table has."""
        return math.prod(self.shape)

    @property
    def steps(self) -> int:
        """What one record adds, in grid steps: the weight, cut toward zero."""
        return math.floor(self.weight * STEPS)


def check_norm(tables: Sequence[Counted], planned: Measurement) -> None:
    """Refuse tables to which one record would add more than the plan says, in exact numbers of grid steps."""
    squares = sum(one.steps**2 for one in tables)
    most = (Fraction(planned.bound) * STEPS) ** 2
    rule = f"have contributions of norm at most {planned.bound:g}"
    require(squares <= most, f"prepare.{planned.name}", rule, squares)


@dataclass(frozen=True, slots=True, eq=False)
class TableCounts:
    """Each record adds one count to each table; ``codes``: a row a record, a column a column of the data."""

    codes: Indices
    tables: Sequence[Counted]

    def __call__(self, rows: Indices, /) -> Whole:
        """Return the counts of these records in all tables, one after another, in grid steps."""
        own = self.codes[rows]
        result = []
        for one in self.tables:
            place = np.zeros(rows.size, dtype=np.int64)
            for column, groups, size in zip(one.columns, one.groups, one.shape, strict=True):
                place = place * size + groups[own[:, column]]
            result.append(np.bincount(place, minlength=one.size).astype(np.int64) * one.steps)
        return np.concatenate(result)


def table_counts(codes: Indices, tables: Sequence[Counted]) -> TableCounts:
    """Return what records add to these tables; ``codes``: a row a record, a column a column of the data."""
    return TableCounts(codes, tables)


def tables_of(sums: Vector, tables: Sequence[Counted]) -> list[Vector]:
    """Return the counts of each table, in records, from the sums that :class:`TableCounts` adds up."""
    result, start = [], 0
    for one in tables:
        part = sums[start : start + one.size].reshape(one.shape)
        result.append(part / (one.steps / STEPS))
        start += one.size
    return result


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Table:
    """``columns``: the features by name; ``targets``: as training reads them; ``target``: the name of their column.

    Without a target every column is a feature. ``owner``: the number of each row's client among all ``clients``.
    """

    outline: Outline
    columns: Columns
    targets: Vector
    labels: Labels
    target: str | None
    owner: Indices = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    clients: int = 1

    @property
    def all_columns(self) -> Outline:
        """The outline with the target as one more column, unless it is seen in intervals of time."""
        if self.target is None or self.labels.ends:
            return self.outline
        if self.labels.span is not None:
            numbers, scale = (*self.outline.numbers, self.target), {**self.outline.scale, self.target: self.labels.span}
            return replace(self.outline, numbers=numbers, scale=scale)
        categories = {**self.outline.categories, self.target: self.labels.classes}
        return replace(self.outline, texts=(*self.outline.texts, self.target), categories=categories)

    def codes(self, cells: Sequence[Cells]) -> Indices:
        """Return the cell of each row in each of these columns, a target last; of a blank row, any."""
        place = {name: index for index, name in enumerate(self.outline.numbers)}
        result = []
        for one in cells if self.target is None else cells[:-1]:
            if isinstance(one, NumberCells):
                result.append(one.codes(self.columns.numbers[:, place[one.name]]))
            else:
                words = self.columns.texts[one.name]
                result.append(one.codes(words.spelt, words.codes))
        if self.target is None:
            return np.column_stack(result)
        last = cells[-1]
        if isinstance(last, NumberCells):
            result.append(last.codes(self.labels.own_unit(self.targets)))
        elif isinstance(last, WordCells):
            result.append(last.codes(last.words, np.nan_to_num(self.targets).astype(np.int64)))
        else:
            raise TypeError("a target is a class or a number")
        return np.column_stack(result)


def table_of(found: Unprepared) -> Table:
    """Return the cells of the rows to measure."""
    return _table(found, found.training_columns, found.train)


def public_table(found: Unprepared) -> Table | None:
    """Return the cells of the held-out rows, where these are public; None where there are none."""
    if found.test is None or not found.test_public:
        return None
    rows = np.flatnonzero(~found.test.blank).astype(np.int64)
    numbers = np.asarray(found.test.features[rows, 0], dtype=np.int64) - 1  # rows are kept by their numbers, from 1
    return _table(found, found.test_columns.rows(numbers), found.test, rows)


def _table(found: Unprepared, columns: Columns, records: Records, rows: Indices | None = None) -> Table:
    if found.source is None or (found.target is None and not found.source.labelling.unlabelled):
        raise BadValue("data.target must name a column for a generator.")
    return Table(
        outline=found.outline,
        columns=columns,
        targets=records.targets if rows is None else records.targets[rows],
        labels=Labels.of(found.source, found.target),
        target=found.target,
        owner=records.owner if rows is None else records.owner[rows],
        clients=records.clients,
    )
