"""What a preparation has learned, and the rule from cells to rows that follows from it: part of the released model."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
import scipy

from fedveil.core.errors import BadValue, require
from fedveil.core.strict_json import read_object
from fedveil.core.values import Indices, Matrix, Vector
from fedveil.data.column import LINE
from fedveil.data.rows import cut_rows, slack
from fedveil.data.spec import OTHER
from fedveil.models.spec import ModelPlan
from fedveil.stages.prepare.columns import Columns, Outline
from fedveil.stages.prepare.ranges import Range
from fedveil.stages.sums import FILE, STEPS

# Spreads from noisy counts: how far numbers lie from their mean, on a grid of halvings.
#
# Counts tell a spread of any size to a part of itself. A mean of squares would tell it to a part of the whole range,
# and so miss columns that vary little beside their offset, such as years.

LEVELS: Final = 14  # distances from 2 down to 2**-12, and below
_SURE: Final = 3.0  # deviations of the noise that a level must have to count
_SHARE: Final = 0.01
_INSIDE: Final = math.sqrt(0.5)  # of the upper end of a level: what stands for the distances in it
_REACH: Final = 8.0  # spreads on either side of the mean, beyond which numbers are cut
_USUAL: Final = 0.35


def levels_of(centred: Matrix) -> Indices:
    """Return the level of each number's distance from 0, at most 2; ``LEVELS`` where one is missing.

    >>> levels_of(np.array([[2.0, 1.0, 0.6, 0.001, 0.0, np.nan]])).tolist()
    [[0, 0, 1, 10, 13, 14]]
    """
    gone = np.isnan(centred)
    size = np.abs(np.where(gone, 0.0, centred))
    exponent = np.frexp(np.maximum(size, 2.0**-LEVELS))[1].astype(np.int64)  # size lies in [2**(e-1), 2**e)
    return np.where(gone, LEVELS, np.clip(1 - exponent, 0, LEVELS - 1)).astype(np.int64)


def spread_of(counts: Vector, records: float, deviation: float) -> float:
    """Return the root mean square distance, of those levels that stand out of the noise.

    ``records``: how many were counted; ``deviation``: of the noise on each count.
    """
    sure = np.where(counts > max(_SURE * deviation, _SHARE * records), counts, 0.0)
    if not sure.any():
        return _USUAL
    ends = 2.0 ** (1.0 - np.arange(LEVELS))
    return float(math.sqrt(np.sum(sure * (_INSIDE * ends) ** 2) / np.sum(sure)))


def narrowed(given: Range, mean: float, spread: float) -> tuple[Range, float, float]:
    """Return a range that ends some spreads beside the mean, with mean and spread on its scale.

    The same range where it does not reach much farther than that.
    """
    low, high = max(mean - _REACH * spread, -1.0), min(mean + _REACH * spread, 1.0)
    if not high - low < 1.0:
        return given, mean, spread
    ends = given.numbers(np.array([low, high]))
    if not ends[0] < ends[1]:
        return given, mean, spread
    middle, half = (low + high) / 2, (high - low) / 2
    result = Range(float(ends[0]), float(ends[1]), given.unit)
    return result, min(max((mean - middle) / half, -1.0), 1.0), spread / half


# Where the curves of an additive model may turn: knots from noisy counts, and how many there are to be.
#
# A column is counted on equal cells of its range. Its knots are the quantiles of half the noisy distribution and half
# the uniform one over the range: quantiles alone leave a thin tail without a knot, and equal distances leave the bulk
# with few. Page: docs/preparation.md.

CELLS: Final = 64
_UNIFORM: Final = 0.5  # of the distribution whose quantiles are the knots
_EMPTY: Final = 0.002  # of the records: what may lie in all cells that are left out at one end
_DOUBT: Final = 2.0  # deviations of the noise that are added to what was counted there
_SPREADS: Final = 2.0  # on either side of the mean, over which a line rises
_DIGITS: Final = 5  # of a share in a histogram: noise leaves no more


def shares_of(counts: Vector) -> Vector:
    """Return the share of each cell: noisy counts without what is below zero; equal shares where nothing is left."""
    kept = np.clip(counts, 0.0, None)
    total = float(kept.sum())
    return np.round(kept / total, _DIGITS) if total > 0 else np.full(counts.size, 1 / counts.size)


def trimmed(own: Range, counts: Vector, deviation: float) -> tuple[Range, Vector]:
    """Return the range without those cells at its ends that surely hold hardly a record, and counts of its own cells.

    Ranges end at powers of two, and knots where no record is are a waste. Where noise leaves a doubt, a cell is kept.
    """
    most = _EMPTY * max(float(counts.sum()), 0.0)
    doubt = _DOUBT * deviation * np.sqrt(np.arange(1, counts.size + 1))
    first = int(np.count_nonzero(np.logical_and.accumulate(np.cumsum(counts) + doubt < most)))
    last = counts.size - int(np.count_nonzero(np.logical_and.accumulate(np.cumsum(counts[::-1]) + doubt < most)))
    edges = np.linspace(-1.0, 1.0, counts.size + 1)
    low, high = own.numbers(edges[[first, last]]).tolist() if first < last else (own.low, own.high)
    if not own.low <= low < high <= own.high:
        return own, counts
    below = np.concatenate([[0.0], np.cumsum(counts[first:last])])
    finer = np.interp(np.linspace(0, last - first, counts.size + 1), np.arange(last - first + 1), below)
    return Range(low, high, own.unit), np.diff(finer)


def line_of(counts: Vector, deviation: float) -> tuple[float, float]:
    """Return where a column's line rises: its middle, and half its width, on the scale from -1 to 1.

    It rises over two spreads on either side of the mean. What the noise does not show of the spread makes it wider.
    """
    places = (np.arange(counts.size) + 0.5) * 2 / counts.size - 1
    total = max(float(counts.sum()), 1.0)
    mean = min(max(float(counts @ places) / total, -1.0), 1.0)
    squares = (places - mean) ** 2
    seen = max(float(counts @ squares), deviation * math.sqrt(float(squares @ squares))) / total
    half = _SPREADS * math.sqrt(max(seen, (2 / counts.size) ** 2))
    return mean, min(half, 1.0 + abs(mean))


def knots_of(shares: Vector, cells: int) -> tuple[float, ...]:
    """Return up to ``cells + 1`` knots on the scale from -1 to 1, both ends among them, and a cell apart.

    >>> knots_of(np.full(CELLS, 1 / CELLS), 4)
    (-1.0, -0.5, 0.0, 0.5, 1.0)
    """
    mixed = (1 - _UNIFORM) * shares / shares.sum() + _UNIFORM / shares.size
    below = np.concatenate([[0.0], np.cumsum(mixed)])
    ends = np.linspace(-1.0, 1.0, shares.size + 1)
    wanted = np.interp(np.linspace(0.0, 1.0, cells + 1)[1:-1], below / below[-1], ends)
    width, kept = 2 / shares.size, [-1.0]
    for knot in wanted.tolist():
        if knot >= kept[-1] + width * (1 - 1e-9) and knot <= 1.0 - width * (1 - 1e-9):
            kept.append(knot)
    return (*kept, 1.0)


# Category lists by thresholded noisy counts: what is frequent gets a place of its own, what is rare joins the others.
#
# Nobody knows the words beforehand, so noise is added to the counts of those that occur, and only counts above a
# threshold are shown. Two neighbouring data sets then show the same words unless a word that a single unit made up gets
# past the threshold; the chance of that is the measurement's ``slip``. Proof: docs/theory/preparation.md.


@dataclass(frozen=True, slots=True)
class Category:
    """A word of a column and its share of the records, as measured."""

    column: str
    word: str
    share: float


def codes_of(columns: Columns, names: Sequence[str], present: Indices) -> tuple[Indices, list[tuple[str, str]]]:
    """Return every record's words as numbers, a column each, and the (column, word) that each number stands for.

    Only words of the records that are ``present`` get a number: a word that none of them holds must not be counted,
    even with zero, since noise could then show it. Other records get the number 0, and are not to be counted.
    """
    result: list[Indices] = []
    listed: list[tuple[str, str]] = []
    for name in names:
        words = columns.texts[name]
        occurring, own = np.unique(words.codes[present], return_inverse=True)
        codes = np.zeros(len(columns), dtype=np.int64)
        codes[present] = own.reshape(-1) + len(listed)
        result.append(codes)
        listed += [(name, words.spelt[code]) for code in occurring.tolist()]
    return np.column_stack(result), listed


def threshold_of(deviation: float, slip: float, columns: int, words: int, counted: int = 1) -> tuple[float, float]:
    """Return a safe threshold on counts, and a bound on the chance that a word of one unit passes it.

    ``deviation``: of the noise on a count; ``slip``: the chance that is aimed at. One unit can make up ``words`` words
    in each column, each counted with ``counted`` at most. The noise is rounded by less than one grid step.
    """
    tries = columns * words
    away = -float(scipy.special.ndtri(slip / tries))
    chance = tries * float(np.exp(scipy.special.log_ndtr(-away))) * (1 + 1e-9)
    return (counted + away * deviation) * (1 + 1e-12) + 1 / STEPS, chance


def frequent(
    counts: Vector, listed: Sequence[tuple[str, str]], threshold: float, records: int, most: int
) -> list[Category]:
    """Return at most so many categories whose noisy counts are above the threshold, the most frequent first."""
    shown = [int(place) for place in np.flatnonzero(counts > threshold)]
    shown.sort(key=lambda place: (-counts[place], listed[place]))
    return [Category(*listed[place], min(1.0, float(counts[place]) / records)) for place in shown[:most]]


FORMAT = 1
_AT_ONCE = 2**17  # numbers of rows that are made at a time, so that they stay in the processor's cache


@dataclass(frozen=True, slots=True)
class Number:
    """How a column of numbers becomes a feature: cut to its range, scaled to [-1, 1], centred, divided by the spread.

    A missing number becomes the mean, which is zero after centring. Of an additive model it becomes a block of
    features: a line that rises over ``spread`` on either side of ``mean``, and hats at ``knots``. ``knots`` and
    ``shares`` (of the records, in equal cells of the range, as measured; empty where they were not) are on the scale
    from -1 to 1.
    """

    name: str
    range: Range
    mean: float = 0.0
    spread: float = 1.0
    knots: tuple[float, ...] = ()
    shares: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        require(-1 <= self.mean <= 1, "Number.mean", "lie in [-1, 1]", self.mean)
        require(0 < self.spread < math.inf, "Number.spread", "be positive and finite", self.spread)
        for key in ("knots", "shares"):
            object.__setattr__(self, key, tuple(getattr(self, key)))
        rising = all(-1 <= a < b <= 1 for a, b in pairwise(self.knots))
        require(rising, "Number.knots", "rise within [-1, 1]", self.knots)


@dataclass(frozen=True, slots=True)
class LearnedRule:
    """The rule from cells to rows. ``outline``: what was public; ``categories``: those learned, most frequent first.

    ``others``: the share of records whose word has no place, for each column of texts with learned categories.
    ``factor``: all features but the intercept are multiplied by it before rows are cut to the bound. ``classes``: the
    share of each class, if that was measured. ``components``: the principal components onto which rows are projected,
    each a direction of length one among the features; what comes out is multiplied by ``stretch`` and cut again.
    """

    outline: Outline
    numbers: tuple[Number, ...]
    categories: tuple[Category, ...]
    others: tuple[float, ...]
    factor: float
    classes: tuple[float, ...] = ()
    components: tuple[tuple[float, ...], ...] = ()
    stretch: float = 1.0

    def __post_init__(self) -> None:
        require(0 < self.factor < math.inf, "LearnedRule.factor", "be positive and finite", self.factor)
        same = tuple(one.name for one in self.numbers) == self.outline.numbers
        require(same, "LearnedRule.numbers", "be the outline's columns of numbers", len(self.numbers))
        curved = all(bool(one.knots) == (self.outline.knots is not None) for one in self.numbers)
        curved = curved and all(len(one.knots) <= self.outline.hats(one.name) for one in self.numbers)
        require(curved, "LearnedRule.numbers", "have as many knots as the outline has places", self.outline.knots)
        fits = len(self.categories) <= self.outline.slots and len(self.others) == len(self.outline.open_texts)
        require(fits, "LearnedRule.categories", "fit into the outline's slots", len(self.categories))

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of a row's entries, in order."""
        names = self._own_names()
        if self.components:
            names = [f"component {place + 1}" for place in range(len(self.components))]
        return tuple([*names, "intercept"] if self.outline.intercept else names)

    def _own_names(self) -> list[str]:
        names = [feature for one in self.numbers for feature in self._block_names(one)]
        names += [f"{text}={word}" for text in self.outline.stated_texts for word in self.outline.categories[text]]
        if self.outline.open_texts:
            names += [f"{one.column}={one.word}" for one in self.categories]
            names += [f"(unused {place + 1})" for place in range(self.outline.slots - len(self.categories))]
            names += [f"{text}={OTHER}" for text in self.outline.open_texts]
        return names

    def _block_names(self, one: Number) -> list[str]:
        if self.outline.knots is None:
            return [one.name]
        free = self.outline.hats(one.name) - len(one.knots)
        hats = [f"{one.name}@{knot:.6g}" for knot in one.range.numbers(np.array(one.knots)).tolist()]
        return [one.name, *hats, *(f"(unused {one.name} {k + 1})" for k in range(free)), f"{one.name}=(missing)"]

    def rows(self, columns: Columns) -> Matrix:
        """Bounded rows, each from its own record alone."""
        outline = self.outline
        if outline.knots is not None:
            return self._curved_rows(columns)
        part = self.unprojected(columns)
        if self.components:
            # Row by row: a product of matrices may round a row differently beside other rows.
            part = np.einsum("ij,kj->ik", part, np.array(self.components)) * self.stretch
            cut_rows(part, outline.bound, outline.intercept)
        rows = np.zeros((len(columns), part.shape[1] + (1 if outline.intercept else 0)))
        rows[:, : part.shape[1]] = part
        if outline.intercept:
            rows[:, -1] = outline.intercept
        return rows

    def _curved_rows(self, columns: Columns) -> Matrix:
        """Rows of an additive model, some at a time in the place where they stay: they are many, and mostly zeros."""
        make = self.maker(columns)
        rows, step = np.empty((len(columns), self.outline.width)), max(1, _AT_ONCE // self.outline.width)
        for first in range(0, len(columns), step):
            rows[first : first + step] = make(np.arange(first, min(first + step, len(columns))))
        return rows

    def maker(self, columns: Columns) -> Callable[[Indices], Matrix]:
        """Return what makes the rows of some of these records."""
        if self.outline.knots is None:
            return lambda chosen: self.rows(columns.rows(chosen))
        return _Curves(self, columns).rows

    def unprojected(self, columns: Columns) -> Matrix:
        """Bounded rows of all features, without the intercept."""
        rows = np.zeros((len(columns), self.outline.unprojected))
        self._fill(rows, columns)
        return rows

    def _fill(self, rows: Matrix, columns: Columns) -> None:
        """Put the features of a linear model into rows of zeros."""
        outline = self.outline
        for place, one in enumerate(self.numbers):
            scaled = one.range.scaled(columns.numbers[:, place])
            rows[:, place] = np.where(np.isnan(scaled), 0.0, (scaled - one.mean) / one.spread)
        # Each column of a learned category is less its share of the records, and so is that of all others.
        start = outline.unprojected - outline.slots - len(outline.open_texts)
        if outline.open_texts:
            rows[:, start : start + len(self.categories)] -= [one.share for one in self.categories]
            rows[:, start + outline.slots :] -= self.others
        for name, places in self.word_places(columns).items():
            where = places[columns.texts[name].codes]
            known = np.flatnonzero(where >= 0)
            rows[known, where[known]] += 1.0
        rows *= self.factor
        cut_rows(rows, outline.bound, outline.intercept)

    def word_places(self, columns: Columns) -> dict[str, Indices]:
        """Return the place in a row of each word of these columns; -1 for none of the stated ones."""
        outline, result = self.outline, {}
        start = sum(outline.block(name) for name in outline.numbers)
        for name in outline.stated_texts:
            own = {word: start + index for index, word in enumerate(outline.categories[name])}
            result[name] = np.array([own.get(word, -1) for word in columns.texts[name].spelt], dtype=np.int64)
            start += len(own)
        for index, name in enumerate(outline.open_texts):
            own = {one.word: start + place for place, one in enumerate(self.categories) if one.column == name}
            other = start + outline.slots + index
            result[name] = np.array([own.get(word, other) for word in columns.texts[name].spelt], dtype=np.int64)
        return result

    def text(self) -> str:
        """The learned preparation as JSON; reading it gives an equal value."""
        values = {**asdict(self), "outline": outline_table(self.outline)}
        return json.dumps({"format": FORMAT, **values}, indent=1, allow_nan=False) + "\n"

    @classmethod
    def read(cls, text: str | bytes) -> "LearnedRule":
        """From the JSON that :meth:`text` writes."""
        given = read_object(text, FILE)
        form = given.pop("format", None)
        require(form == FORMAT, f"{FILE}: format", f"be {FORMAT}", form, "It was written by another version.")
        try:
            return cls(
                outline=read_outline(given["outline"]),
                numbers=tuple(Number(**{**row, "range": Range(**row["range"])}) for row in given["numbers"]),
                categories=tuple(Category(**row) for row in given["categories"]),
                others=tuple(given["others"]),
                factor=given["factor"],
                classes=tuple(given["classes"]),
                components=tuple(tuple(row) for row in given["components"]),
                stretch=given["stretch"],
            )
        except (KeyError, TypeError) as error:
            raise BadValue(f"{FILE} must be as a run wrote it: {error}.") from error


class _Curves:
    """Makes the rows of an additive model for all columns at once: two hats a number are all that is not zero.

    The bits are those of :func:`fedveil.data.column.hat_block` times the factor.
    """

    def __init__(self, rule: LearnedRule, columns: Columns) -> None:
        outline, self._columns = rule.outline, columns
        self._width, self._intercept, self._factor = outline.width, outline.intercept, rule.factor
        self._numbers, self._words = rule.numbers, rule.word_places(columns)
        blocks = [outline.block(one.name) for one in rule.numbers]
        self._starts = np.cumsum([0, *blocks])[:-1].astype(np.int64)
        self._gaps = self._starts + np.array(blocks, dtype=np.int64) - 1
        counts = [len(one.knots) for one in rule.numbers]
        most = max(counts, default=1)
        self._pairs = np.array(counts) > 1  # with one knot there is no second hat
        self._knots = np.array([[*one.knots, *[np.inf] * (most - len(one.knots))] for one in rule.numbers])
        self._last = np.maximum(np.array(counts, dtype=np.int64) - 2, 0)
        self._middle = np.array([one.mean for one in rule.numbers])
        self._half = np.array([one.spread for one in rule.numbers])

    def rows(self, chosen: Indices) -> Matrix:
        """Return the rows of these records."""
        result = np.zeros((chosen.size, self._width))
        flat, first = result.reshape(-1), np.arange(chosen.size)[:, None] * self._width
        if self._numbers:
            self._put_numbers(flat, first, chosen)
        for name, places in self._words.items():
            where = places[self._columns.texts[name].codes[chosen]]
            known = np.flatnonzero(where >= 0)
            flat[first[known, 0] + where[known]] = self._factor
        if self._intercept:
            result[:, -1] = self._intercept
        return result

    def _put_numbers(self, flat: Vector, first: Indices, chosen: Indices) -> None:
        numbers = self._columns.numbers
        scaled = np.column_stack([one.range.scaled(numbers[chosen, at]) for at, one in enumerate(self._numbers)])
        gone = np.isnan(scaled)
        values = np.where(gone, 0.0, scaled) if gone.any() else scaled
        left = np.zeros(values.shape, dtype=np.int64)
        for place in range(1, self._knots.shape[1]):
            left += values >= self._knots[:, place]
        np.minimum(left, self._last, out=left)
        at = np.arange(len(self._numbers))
        low = self._knots[at, left]
        with np.errstate(invalid="ignore"):
            width = np.where(self._pairs, self._knots[at, np.minimum(left + 1, self._knots.shape[1] - 1)] - low, np.inf)
        share = np.clip((values - low) / width, 0.0, 1.0)
        line = math.sqrt(LINE) * np.clip((values - self._middle) / self._half, -1.0, 1.0) * self._factor
        height, there = math.sqrt(1 - LINE), ~gone
        places = first + self._starts
        hats = places + 1 + left
        second = hats + self._pairs  # where there is none, the first is put over it
        flat[second[there]] = (height * share * self._factor)[there]
        flat[hats[there]] = (height * (1 - share) * self._factor)[there]
        flat[places[there]] = line[there]
        flat[(first + self._gaps)[gone]] = self._factor


def outline_table(outline: Outline) -> dict[str, Any]:
    """Return plain values that :func:`read_outline` takes."""
    result = asdict(outline)
    for name in ("order", "whole"):  # of the source, and no part of the rule
        del result[name]
    return result


def described_outline(outline: Outline) -> dict[str, Any]:
    """Return the same with the order of the columns and their schema, which a generator keeps."""
    return {**outline_table(outline), "order": list(outline.order), "whole": list(outline.whole)}


def read_outline(given: Any) -> Outline:
    """Return the outline that a table describes, as ``asdict`` wrote it."""
    values = dict(given)
    for key in ("numbers", "texts", *({"order", "whole"} & set(values))):
        values[key] = tuple(values[key])
    values["scale"] = {name: tuple(span) for name, span in values["scale"].items()}
    for key in ("categories", "knots_at"):
        values[key] = {name: tuple(listed) for name, listed in values[key].items()}
    return Outline(**values)


def usual_factor(outline: Outline, shares: Vector) -> float:
    """Multiplies rows so that a typical one is as long as the bound: one from each number, less from categories.

    Of an additive model every column has a block of length at most one, so all rows are just within the bound.
    ``shares``: of the learned categories and the others; a column of 0 and 1 of share p has variance p (1 - p).
    """
    if outline.knots is not None:
        room = 4 * slack(outline.unprojected, outline.bound, outline.intercept)
        return outline.bound * (1 - room) / math.sqrt(max(len(outline.numbers) + len(outline.texts), 1))
    typical = len(outline.numbers) + len(outline.stated_texts) + float(np.sum(shares * (1 - shares)))
    return outline.bound / math.sqrt(max(typical, 0.1))


# Curves that may only rise, or only fall: a released model made so by post-processing, which is free of charge.


def made_monotone(model: ModelPlan, learned: LearnedRule, parameters: Vector) -> Vector:
    """Return the parameters nearest to these whose curves rise or fall as the model states.

    The line of such a column is laid into its hats: then the curve is straight between its knots on the scale of its
    range, and monotone if its values at the knots are.
    """
    if not (model.additive and model.curves.monotone):
        return parameters
    result, start, ways = parameters.copy(), 0, dict(model.curves.monotone)
    for one in learned.numbers:
        if one.name in ways:
            knots = np.array(one.knots)
            hats = slice(start + 1, start + 1 + knots.size)
            height = math.sqrt(1 - LINE)
            line = math.sqrt(LINE) * result[start] * np.clip((knots - one.mean) / one.spread, -1.0, 1.0)
            rising = ways[one.name] == "increasing"
            curve = scipy.optimize.isotonic_regression(line + height * result[hats], increasing=rising).x
            result[start], result[hats] = 0.0, curve / height
        start += learned.outline.block(one.name)
    return result
