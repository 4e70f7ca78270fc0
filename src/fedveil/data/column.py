"""One column of the data and how its cells become numbers: what a released model must know to read new records."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedveil.core.errors import require
from fedveil.core.values import Indices, Matrix, Vector
from fedveil.data.cells import Texts, canonical, number_marks, numbers_of
from fedveil.data.spec import RULES, Fill, Span
from fedveil.data.tables import label, nearest, number, sequence, span

Array = NDArray[Any]
Cells = Array | Sequence[str] | Texts  # one column as it was read: numbers, or texts
Mask = NDArray[np.bool_]
Place = Callable[[int], str]  # where a row stands, for messages
ZERO = "zero"  # none of the categories
OWN = "own"  # a missing number of an additive model has a feature of its own
LINE = 0.5  # of the squared length of a column's block: the straight line; its hats have the rest
_NONE = -3  # the code of a missing value that is to be none of them


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of numbers, or of categories where ``categories`` lists them.

    A number is cut to ``range``, then ``centre`` is subtracted and the rest divided by ``scale``. Without these two the
    range is mapped to [-1, 1]; without a range a number stays as it is. With a ``unit`` above 0, x stands for
    arcsinh(x / unit) in all of this but the range: nearly a logarithm where x is large.

    With ``knots`` (in the column's own unit, rising) a number becomes a block of features: a line u from -1 to 1, which
    rises where ``line`` says (its middle and half its width, on the scale of the range), a *hat* for each knot (1
    there, falling to 0 at the knots beside it, so that two neighbouring hats add up to 1 between their knots), and last
    an indicator of a missing number. Multiplied by the roots of ``LINE`` and of 1 - ``LINE``, and by ``weight``, the
    block has a norm of at most ``weight``, whatever the number is.

    A category is 1 where it is the record's and 0 elsewhere; then its entry of ``offsets`` is subtracted (none: 0) and
    the rest multiplied by ``weight``. ``unknown`` says what a value counts as that is not among the categories:
    "refuse", "zero" (none of them), or one of them.

    ``fill`` is what a missing value counts as, in the column's own unit, or "refuse" or "drop-row"; a missing category
    may be "zero", and a missing number with knots "own", its own indicator. ``shares``: of the records in each word,
    or in equal cells of the range, as measured with noise; they are for pictures, and no part of the rule.
    """

    name: str
    categories: tuple[str, ...] = ()
    range: Span | None = None
    centre: float | None = None
    scale: float | None = None
    unit: float = 0.0
    offsets: tuple[float, ...] = ()
    weight: float = 1.0
    fill: Fill = "refuse"
    unknown: str = "refuse"
    knots: tuple[float, ...] = ()
    shares: tuple[float, ...] = ()
    line: tuple[float, float] = (0.0, 1.0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", label("The name of a column", self.name))
        name = f"The column {self.name!r}"
        words = sequence(f"{name}: categories", self.categories)
        listed = all(isinstance(word, str) and canonical(word) == word for word in words)
        require(listed and len(set(words)) == len(words), f"{name}: categories", "be different texts", words)
        object.__setattr__(self, "categories", words)
        if self.range is not None:
            object.__setattr__(self, "range", span(f"{name}: range", self.range))
        for key in ("centre", "scale"):
            if getattr(self, key) is not None:
                object.__setattr__(self, key, number(f"{name}: {key}", getattr(self, key)))
        require(self.scale is None or self.scale > 0, f"{name}: scale", "be positive", self.scale)
        for key in ("unit", "weight"):
            object.__setattr__(self, key, number(f"{name}: {key}", getattr(self, key)))
        require(self.unit >= 0 and self.weight > 0, f"{name}: unit and weight", "not be negative", self.unit)
        moved = (self.range, self.centre, self.scale, self.unit) != (None, None, None, 0.0)
        require(not (words and moved), name, "have either categories or a range", words)
        given = tuple(number(f"{name}: offsets", one) for one in sequence(f"{name}: offsets", self.offsets))
        object.__setattr__(self, "offsets", given)
        right = len(given) in (0, len(words)) and (bool(words or self.knots) or self.weight == 1.0)
        require(right, f"{name}: offsets and weight", "be those of its categories", len(given))
        shares = tuple(number(f"{name}: shares", one) for one in sequence(f"{name}: shares", self.shares))
        object.__setattr__(self, "shares", shares)
        _check_knots(self, name)
        _check_fill(self, name)

    @property
    def width(self) -> int:
        """How many features the column becomes."""
        return len(self.categories) or (len(self.knots) + 2 if self.knots else 1)

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the features that the column becomes."""
        if self.knots:
            hats = (f"{self.name}@{knot:.17g}" for knot in self.knots)
            return (self.name, *hats, f"{self.name}=(missing)")
        return tuple(f"{self.name}={word}" for word in self.categories) or (self.name,)

    @property
    def filled(self) -> bool:
        """Whether a missing value has a value to stand for it."""
        return self.fill not in RULES

    @property
    def affine(self) -> tuple[float, float, float, float]:
        """Subtract the first, divide by the second, then cut to what lies between the third and the fourth.

        All of it on the bent scale, where there is a ``unit``.
        """
        low, high = (-math.inf, math.inf) if self.range is None else tuple(self.bent(np.array(self.range)).tolist())
        middle, half = (0.0, 1.0) if self.range is None else (low / 2 + high / 2, high / 2 - low / 2)
        if self.centre is None and self.scale is None:
            return (middle, half, -1.0, 1.0) if self.range is not None else (0.0, 1.0, -math.inf, math.inf)
        centre = middle if self.centre is None else self.centre
        scale = half if self.scale is None else self.scale
        return centre, scale, (low - centre) / scale, (high - centre) / scale

    def bent(self, values: Vector) -> Vector:
        """Numbers on the scale that they are measured on."""
        return values if self.unit == 0 else np.asarray(np.arcsinh(np.clip(values / self.unit, -1e300, 1e300)))

    @property
    def places(self) -> Vector:
        """The knots on the scale of the range, from -1 to 1."""
        centre, scale, _, _ = self.affine
        return np.asarray((self.bent(np.array(self.knots)) - centre) / scale)

    def block(self, scaled: Vector) -> Matrix:
        """The features of numbers on the scale from -1 to 1, NaN where one is missing; only with knots."""
        return hat_block(scaled, self.places, *self.line) * self.weight

    def hot(self, codes: Indices) -> Matrix:
        """The features of each row's category; -1 is none of them."""
        rows = np.zeros((codes.size, self.width))
        listed = np.flatnonzero(codes >= 0)
        rows[listed, codes[listed]] = 1.0
        if self.offsets:
            rows -= self.offsets
        return rows if self.weight == 1.0 else rows * self.weight

    def numbers(self, cells: Cells, missing: Sequence[str], place: Place, dropped: Mask) -> Vector:
        """Return the feature of each row.

        Rows whose missing value has no stand-in are noted in ``dropped`` or refused.
        """
        values = _numeric(cells, missing, self.name, place)
        marks = number_marks(tuple(missing))
        with np.errstate(over="ignore", invalid="ignore"):
            suspect = not np.isfinite(values.sum())  # one pass, and nearly always enough
        if suspect or marks:
            gone = ~np.isfinite(values)
            if gone.any():
                self._refuse_infinite(values, place)
            gone |= np.isin(values, marks)
            if gone.any():
                values = values.copy()
                fill = self._stand_in(gone, place, dropped)
                values[gone] = np.nan if fill == OWN else 0.0 if fill is None else float(fill)
        centre, scale, low, high = self.affine
        with np.errstate(over="ignore"):  # far outside a narrow range: cut in the next lines
            moved = (self.bent(values) - centre) / scale
        np.maximum(moved, low, out=moved)
        np.minimum(moved, high, out=moved)
        return np.asarray(moved)

    def codes(self, cells: Cells, missing: Sequence[str], place: Place, dropped: Mask) -> Indices:
        """Return the place of each row's category, -1 for none of them; refused where that is the rule."""
        texts = as_texts(cells)
        spelt = [canonical(word) for word in texts.words]
        index = {word: position for position, word in enumerate(self.categories)}
        marks = {canonical(word) for word in missing} | {"nan", ""}
        kinds = np.array([index.get(word, -2 if word in marks else -1) for word in spelt], dtype=np.int64)
        codes = np.asarray(kinds[texts.codes])
        gone = codes == -2
        if gone.any():
            fill = self._stand_in(gone, place, dropped)
            codes[gone] = 0 if fill is None else index.get(canonical(fill), _NONE)
        strange = codes == -1
        if strange.any() and self.unknown == "refuse":
            row = int(np.flatnonzero(strange)[0])
            got = spelt[int(texts.codes[row])]
            rule = f"be one of the model's categories: {', '.join(self.categories[:12])}"
            rule += ", ..." if len(self.categories) > 12 else ""
            hint = nearest(got, self.categories) if len(self.categories) > 12 else ""
            require(False, f"{place(row)}, column {self.name!r}", rule, got, hint)
        if self.unknown in index:
            codes[strange] = index[self.unknown]
        return np.asarray(np.maximum(codes, -1))

    def absent(self, rows: int) -> Cells | None:
        """What the column holds where the data have no such column; None where nothing may stand for it."""
        if not self.filled:
            return None
        if self.categories:
            return np.full(rows, "nan")
        return np.full(rows, np.nan)

    def _stand_in(self, gone: Mask, place: Place, dropped: Mask) -> Fill | None:
        if self.fill == "refuse":
            row = int(np.flatnonzero(gone)[0])
            hint = "The study that trained the model states no value for it (data.fill)."
            require(False, f"{place(row)}, column {self.name!r}", "not be missing", "a missing value", hint)
        if self.fill == "drop-row":
            dropped |= gone
            return None
        return self.fill

    def _refuse_infinite(self, values: Vector, place: Place) -> None:
        infinite = np.flatnonzero(np.isinf(values))
        if infinite.size:
            row = int(infinite[0])
            require(False, f"{place(row)}, column {self.name!r}", "be finite", float(values[row]))


def hat_block(scaled: Vector, places: Vector, centre: float = 0.0, half: float = 1.0) -> Matrix:
    """Return the line, the hats at these places and the indicator of a gap, as rows of norm at most 1."""
    result = np.zeros((scaled.size, places.size + 2))
    there = ~np.isnan(scaled)
    rows, values = np.flatnonzero(there), scaled[there]
    result[rows, 0] = math.sqrt(LINE) * np.clip((values - centre) / half, -1.0, 1.0)
    result[~there, -1] = 1.0
    left, share = hats_of(values, places)
    height = math.sqrt(1 - LINE)
    result[rows, 1 + left] = height * (1 - share)
    if places.size > 1:
        result[rows, 2 + left] = height * share
    return result


def hats_of(values: Vector, places: Vector) -> tuple[Indices, Vector]:
    """Return the knot to the left of each value, and how far the value has come to the next, from 0 to 1.

    >>> [one.tolist() for one in hats_of(np.array([-1.0, 0.5, 1.0]), np.array([-1.0, 0.0, 1.0]))]
    [[0, 1, 1], [0.0, 0.5, 1.0]]
    """
    if places.size == 1:
        return np.zeros(values.size, dtype=np.int64), np.zeros(values.size)
    left = np.clip(np.searchsorted(places, values, side="right") - 1, 0, places.size - 2)
    share = (values - places[left]) / np.diff(places)[left]
    return left, np.clip(share, 0.0, 1.0)


def as_texts(cells: Cells) -> Texts:
    """Return a column as texts: truth values as 0 and 1, and whatever else is no number as text."""
    if isinstance(cells, Texts):
        return cells
    found = np.asarray(cells)
    if found.dtype.kind == "O":
        return Texts.of("nan" if cell is None else cell for cell in cells)
    words, codes = np.unique(found.astype(np.int8) if found.dtype.kind == "b" else found, return_inverse=True)
    return Texts([str(word) for word in words], codes.reshape(-1))


def _numeric(cells: Cells, missing: Sequence[str], name: str, place: Place) -> Vector:
    if isinstance(cells, np.ndarray) and cells.dtype.kind in "biuf":
        return cells.astype(np.float64, copy=False)
    texts = cells if isinstance(cells, Texts) else Texts.of("" if cell is None else cell for cell in cells)
    return numbers_of(texts, frozenset(missing) | {"nan"}, name, place)


def _check_knots(column: Column, name: str) -> None:
    knots = tuple(number(f"{name}: knots", one) for one in sequence(f"{name}: knots", column.knots))
    object.__setattr__(column, "knots", knots)
    line = tuple(number(f"{name}: line", one) for one in sequence(f"{name}: line", column.line))
    object.__setattr__(column, "line", line)
    require(len(line) == 2 and line[1] > 0, f"{name}: line", "be a middle and half a width above 0", line)
    if not knots:
        return
    plain = not column.categories and column.centre is None and column.scale is None
    require(plain and column.range is not None, f"{name}: knots", "go with a range, and nothing else", column.range)
    low, high = column.range or (0.0, 0.0)
    inside = all(low <= knot <= high for knot in knots)
    require(inside, f"{name}: knots", f"lie in its range, [{low:g}, {high:g}]", knots)
    rising = bool(np.all(np.diff(column.places) > 0))
    require(rising, f"{name}: knots", "rise, also on the scale of the range", knots)


def _check_fill(column: Column, name: str) -> None:
    fill = column.fill
    if fill == OWN and column.knots:
        return
    if not isinstance(fill, str):
        fill = number(f"{name}: fill", fill)
        object.__setattr__(column, "fill", fill)
    if column.categories:
        known = fill in (*RULES, ZERO) or canonical(fill) in column.categories
        require(known, f"{name}: fill", 'be one of its categories, "zero", "refuse" or "drop-row"', fill)
    else:
        require(fill in RULES or isinstance(fill, float), f"{name}: fill", 'be a number, "refuse" or "drop-row"', fill)
    counted = column.unknown in ("refuse", ZERO, *column.categories)
    require(counted, f"{name}: unknown", 'be "refuse", "zero" or one of its categories', column.unknown)
