"""What a preparation has learned, and the rule from cells to rows that follows from it: part of the released model."""

import json
import math
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from fedveil.core.checks import require
from fedveil.core.errors import BadValue
from fedveil.core.strict_json import read_object
from fedveil.core.values import Matrix, Vector
from fedveil.data.column import hat_block
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
        outline = self.outline
        rows = np.zeros((len(columns), outline.width))
        inner, step = outline.unprojected, max(1, _AT_ONCE // outline.width)
        for first in range(0, len(columns), step):
            some = slice(first, first + step)
            self._fill(rows[some, :inner], columns.rows(np.arange(len(columns))[some]))
        if outline.intercept:
            rows[:, -1] = outline.intercept
        return rows

    def unprojected(self, columns: Columns) -> Matrix:
        """Bounded rows of all features, without the intercept."""
        rows = np.zeros((len(columns), self.outline.unprojected))
        self._fill(rows, columns)
        return rows

    def _fill(self, rows: Matrix, columns: Columns) -> None:
        """Put the features of these records into rows of zeros."""
        outline, start = self.outline, 0
        for place, one in enumerate(self.numbers):
            scaled = one.range.scaled(columns.numbers[:, place])
            if one.knots:
                last = start + outline.block(one.name) - 1
                found = hat_block(scaled, np.array(one.knots), one.mean, one.spread)
                rows[:, start : start + len(one.knots) + 1], rows[:, last] = found[:, :-1], found[:, -1]
            else:
                rows[:, start] = np.where(np.isnan(scaled), 0.0, (scaled - one.mean) / one.spread)
            start += outline.block(one.name)
        for name in outline.stated_texts:
            start = self._stated(rows, columns, name, start)
        for name, share in zip(outline.open_texts, self.others, strict=True):
            self._learned(rows, columns, name, share, start)
        rows *= self.factor
        if outline.knots is None:  # the rows of an additive model are within the bound by construction
            cut_rows(rows, outline.bound, outline.intercept)

    def _stated(self, rows: Matrix, columns: Columns, name: str, start: int) -> int:
        """One column of 0 or 1 for each stated category; a word that is not among them was refused before."""
        words, allowed = columns.texts[name], self.outline.categories[name]
        place = {word: start + index for index, word in enumerate(allowed)}
        where = np.array([place.get(word, -1) for word in words.spelt], dtype=np.int64)[words.codes]
        known = where >= 0
        rows[np.flatnonzero(known), where[known]] = 1.0
        return start + len(allowed)

    def _learned(self, rows: Matrix, columns: Columns, name: str, share: float, start: int) -> None:
        """One column for each learned category and one for the others, each less its share of the records."""
        own = {one.word: start + index for index, one in enumerate(self.categories) if one.column == name}
        other = start + self.outline.slots + self.outline.open_texts.index(name)
        if self.outline.knots is None:
            for index, one in enumerate(self.categories):
                if one.column == name:
                    rows[:, start + index] -= one.share
            rows[:, other] -= share
        words = columns.texts[name]
        where = np.array([own.get(word, other) for word in words.spelt], dtype=np.int64)[words.codes]
        rows[np.arange(len(columns)), where] += 1.0

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
