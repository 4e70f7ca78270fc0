"""What a preparation has learned, and the rule from cells to rows that follows from it: part of the released model."""

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from fedveil.core.checks import require
from fedveil.core.errors import BadValue
from fedveil.core.strict_json import read_object
from fedveil.core.values import Indices, Matrix, Vector
from fedveil.data.column import LINE
from fedveil.data.rows import cut_rows, slack
from fedveil.data.spec import OTHER
from fedveil.stages.prepare.categories import Category
from fedveil.stages.prepare.columns import Columns, Outline
from fedveil.stages.prepare.ranges import Range
from fedveil.stages.sums import FILE

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
        outline, found = self.outline, {}
        start = sum(outline.block(name) for name in outline.numbers)
        for name in outline.stated_texts:
            own = {word: start + index for index, word in enumerate(outline.categories[name])}
            found[name] = np.array([own.get(word, -1) for word in columns.texts[name].spelt], dtype=np.int64)
            start += len(own)
        for index, name in enumerate(outline.open_texts):
            own = {one.word: start + place for place, one in enumerate(self.categories) if one.column == name}
            other = start + outline.slots + index
            found[name] = np.array([own.get(word, other) for word in columns.texts[name].spelt], dtype=np.int64)
        return found

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
        found = np.zeros((chosen.size, self._width))
        flat, first = found.reshape(-1), np.arange(chosen.size)[:, None] * self._width
        if self._numbers:
            self._put_numbers(flat, first, chosen)
        for name, places in self._words.items():
            where = places[self._columns.texts[name].codes[chosen]]
            known = np.flatnonzero(where >= 0)
            flat[first[known, 0] + where[known]] = self._factor
        if self._intercept:
            found[:, -1] = self._intercept
        return found

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
    found = asdict(outline)
    for name in ("order", "whole"):  # of the source, and no part of the rule
        del found[name]
    return found


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
