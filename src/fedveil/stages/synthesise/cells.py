"""The cells of a column: every value of a record falls in one of them, whatever it is, and a value can be drawn again.

A column of numbers has cells of equal width on the scale of its range, one for zero itself, and one for a missing
number. A column of words has a cell for each word, one for all other words where the list was learned, and one for a
missing word. Dates are the whole numbers of their days. The list of cells follows from what the study states or what
noisy sums said, so it may be published.
"""

import math
from dataclasses import dataclass
from datetime import date
from typing import Any, Final

import numpy as np

from fedveil.core.errors import require
from fedveil.core.values import Indices, Vector
from fedveil.stages.prepare.ranges import Range
from fedveil.stages.synthesise.merging import merged_numbers, merged_words

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
            found = (inside - math.ceil(self.range.low)).astype(np.int64)
        else:
            scaled = (self.range.scaled(plain) + 1.0) / 2.0 * self.bins
            found = np.clip(scaled.astype(np.int64), 0, self.bins - 1)
            found = np.where((plain == 0) & (self.range.low <= 0 <= self.range.high), self.bins, found)
        return np.asarray(np.where(gone, self.bins + 1, found), dtype=np.int64)

    def seen(self, counts: Vector, deviation: float) -> Vector:
        """Return noisy counts, and -inf for those that must be noise: of cells that cannot be, or of rare gaps."""
        found = counts.copy()
        if self._exact or not self.range.low <= 0 <= self.range.high:
            found[self.bins] = -np.inf
        if self.complete or found[-1] < SURE * deviation:
            found[-1] = -np.inf
        return found

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
        found = counts.copy()
        if not self.open:
            found[-2] = -np.inf
        if self.complete or found[-1] < SURE * deviation:
            found[-1] = -np.inf
        return found

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
