"""The whole way from a record to a row and back from a score to a label: what a model needs besides its parameters.

It holds what the study states (and what was learned privately, where a study asks for that), and the names of the
columns. Nothing in it is read from single records: classes and categories are declared, never collected.
"""

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, get_args

import numpy as np

from fedveil.core.errors import require
from fedveil.core.tables import filled, table
from fedveil.core.values import Matrix, Vector
from fedveil.data.cells import canonical
from fedveil.data.column import Cells, Column, Mask, Place
from fedveil.data.rows import check_name, cut_rows, map_names, mapped_rows, total_bound
from fedveil.data.spec import MISSING, OTHER, Source, Span
from fedveil.data.table import Choice
from fedveil.data.tables import known_keys, number, sequence, span, stated, whole

Absent = Literal["refuse", "fill"]
# of a Source: how its files are read
READING = ("format", "files", "header", "names", "delimiter", "features", "decimal", "thousands")


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels:
    """What is predicted: one of ``classes``, or a number in the public range ``span``.

    ``numbered``: the classes are 0, 1, ..., and are given as whole numbers. ``above``: class 1 is a target above this.
    ``event`` and ``ends``: the classes are what was seen of a person by the ends of these intervals; ``name`` is then
    the column of times, and ``event`` that of events.
    """

    name: str | None = None
    classes: tuple[str, ...] = ()
    numbered: bool = False
    above: float | None = None
    span: Span | None = None
    event: str | None = None
    ends: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        words = sequence("The classes of a model", self.classes)
        right = all(isinstance(word, str) for word in words) and len(set(words)) == len(words) != 1
        require(right, "The classes of a model", "be at least two different texts, or none", words)
        object.__setattr__(self, "classes", words)
        counted = not self.numbered or words == tuple(str(k) for k in range(len(words)))
        require(counted, "The classes of a model", "be 0, 1, ... where they are numbered", words[:5])
        if self.span is not None:
            object.__setattr__(self, "span", span("The range of a target", self.span))
        if self.above is not None:
            object.__setattr__(self, "above", number("The threshold of a target", self.above))
        ends = tuple(number("The end of an interval", end) for end in sequence("The ends of intervals", self.ends))
        object.__setattr__(self, "ends", ends)
        paired = len(words) == 2 * len(ends) if ends else self.event is None
        require(paired, "The classes of a model", "be two for each interval, with a column of events", words[:6])
        require(bool(words) != (self.span is not None), "A model", "have either classes or a range to predict", words)

    @classmethod
    def of(cls, source: Source, name: str | None) -> "Labels":
        """Return the labels that a study declares."""
        if source.labelling.target_scale is not None:
            return cls(name=name, span=source.labelling.target_scale)
        if source.labelling.label_above is not None:
            return cls(name=name, classes=("0", "1"), numbered=True, above=source.labelling.label_above)
        given = source.labelling.classes if source.labelling.classes is not None else 0
        counted = isinstance(given, int)
        words = tuple(str(k) for k in range(given)) if isinstance(given, int) else given
        return cls(
            name=name, classes=words, numbered=counted, event=source.labelling.event, ends=source.labelling.intervals
        )

    def own_unit(self, scores: Vector) -> Vector:
        """Numbers from [-1, 1] back to the target's own unit; not cut to its range."""
        low, high = self.span or (-1.0, 1.0)
        return np.asarray(low / 2 + high / 2 + (high / 2 - low / 2) * scores)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowRule:
    """The columns of a record in order, what marks a missing value, the cut, the constant column, and the labels.

    ``reading``: how files of such records are read, as the study states it. ``absent``: whether a column that the data
    do not have at all is refused, or counts as missing in every record ("fill"), where there is a value to fill in.
    ``slots``: the place in a row of each feature, columns one after another (none: in that order); ``width``: how many
    entries there are but for the constant one, if some are unused and always 0. ``components``: directions among these
    entries onto which a row is projected after its cut; what comes out is multiplied by ``stretch`` and cut again.
    ``feature_map``: a public function that a row goes through before its cut; ``map_width``: how many numbers it gives.
    """

    columns: tuple[Column, ...]
    labels: Labels
    bound: float
    intercept: float = 1.0
    missing: tuple[str, ...] = MISSING
    reading: Mapping[str, Any] = field(default_factory=dict)
    absent: Absent = "refuse"
    slots: tuple[int, ...] = ()
    width: int | None = None
    components: tuple[tuple[float, ...], ...] = ()
    stretch: float = 1.0
    feature_map: str | None = None
    map_width: int = 0

    def __post_init__(self) -> None:
        require(len(self.columns) >= 1, "A model", "have at least one column", self.columns)
        names = [column.name for column in self.columns]
        require(len(set(names)) == len(names), "The columns of a model", "have different names", names[:10])
        for key in ("bound", "intercept"):
            object.__setattr__(self, key, number(f"The model's {key}", getattr(self, key)))
        require(self.bound > 0 and self.intercept >= 0, "The model's bound", "be positive", self.bound)
        marks = sequence("The marks of a missing value", self.missing)
        require(all(isinstance(m, str) for m in marks), "The marks of a missing value", "be texts", marks)
        object.__setattr__(self, "missing", marks)
        _check_slots(self)
        _check_components(self)
        _check_map(self)
        require(self.absent in get_args(Absent), "absent", 'be "refuse" or "fill"', self.absent)
        object.__setattr__(self, "reading", known_keys(self.reading, READING, "reading"))
        _ = self.source("new.csv")  # refuses a way of reading that no study could state

    @classmethod
    def of(cls, source: Source, choice: Choice, width: int) -> "RowRule":
        """Of a study's source, completed by what is published about it, and the columns that were chosen.

        ``width``: how many entries a row has, with the constant one.
        """
        mapped = source.feature_map is not None
        columns = tuple(_column(source, name) for name in choice.features)
        shown = {key: value for key, value in stated(source.reading).items() if key in READING}
        return cls(
            columns=columns,
            labels=Labels.of(source, choice.target),
            bound=source.feature_bound,
            intercept=source.intercept,
            missing=source.reading.missing,
            reading=shown,
            feature_map=source.feature_map,
            map_width=width - (source.intercept > 0) if mapped else 0,
        )

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that a record must have."""
        return tuple(column.name for column in self.columns)

    @property
    def features(self) -> tuple[str, ...]:
        """The entries of a row."""
        inner = self.entries
        if self.feature_map is not None:
            inner = map_names(self.map_width)
        elif self.components:
            inner = tuple(f"component {place + 1}" for place in range(len(self.components)))
        elif self.slots or self.width is not None:
            placed = dict(zip(self.places, inner, strict=True))
            inner = tuple(placed.get(place, f"(unused {place})") for place in range(self.length))
        return (*inner, "intercept") if self.intercept else inner

    @property
    def entries(self) -> tuple[str, ...]:
        """The features by name, columns one after another."""
        return tuple(name for column in self.columns for name in column.features)

    @property
    def places(self) -> tuple[int, ...]:
        """Where each of them stands in a row."""
        return self.slots or tuple(range(len(self.entries)))

    @property
    def length(self) -> int:
        """The entries of a row but for the constant one, before it is projected."""
        return len(self.entries) if self.width is None else self.width

    @property
    def total_bound(self) -> float:
        """The norm that no row exceeds."""
        return total_bound(self.bound, self.intercept)

    def source(self, name: str) -> Source:
        """New data, to be read as the training data were; what is predicted need not be there."""
        return Source.of(source=name, feature_bound=1.0, label_above=0.0, missing=self.missing, **self.reading)

    def rows(self, cells: Mapping[str, Cells], place: Place, names: tuple[str, ...] = ()) -> tuple[Matrix, Mask]:
        """Return the row of each record, and which records are dropped (their rule is "drop-row").

        Columns that the model does not know are not looked at; ``names``: theirs, for a hint.
        """
        count = len(next(iter(cells.values()))) if cells else 0
        width, places, start = self.length, self.places, 0
        rows, dropped = np.zeros((count, width + (self.intercept > 0))), np.zeros(count, dtype=np.bool_)
        for column in self.columns:
            given = self._cells(column, cells, count, names)
            if column.categories:
                own = list(places[start : start + column.width])
                rows[:, own] = column.hot(column.codes(given, self.missing, place, dropped))
            elif column.knots:
                own = list(places[start : start + column.width])
                rows[:, own] = column.block(column.numbers(given, self.missing, place, dropped))
            else:
                rows[:, places[start]] = column.numbers(given, self.missing, place, dropped)
            start += column.width
        if self.feature_map is not None:
            return self._mapped(self.feature_map, rows[:, :width]), dropped
        cut_rows(rows[:, :width], self.bound, self.intercept)
        if self.components:
            rows = self._projected(rows[:, :width])
        if self.intercept:
            rows[:, -1] = self.intercept
        return rows, dropped

    def _projected(self, rows: Matrix) -> Matrix:
        """Rows along the components, row by row, since a product of matrices may round a row beside others differently.

        The last entry is left for the constant one.
        """
        count = len(self.components)
        result = np.zeros((len(rows), count + (self.intercept > 0)))
        result[:, :count] = np.einsum("ij,kj->ik", rows, np.array(self.components)) * self.stretch
        cut_rows(result[:, :count], self.bound, self.intercept)
        return result

    def _mapped(self, name: str, rows: Matrix) -> Matrix:
        """Rows through the feature map; it must make as many numbers as in training."""
        if not len(rows):
            return np.zeros((0, self.map_width + (self.intercept > 0)))
        result = mapped_rows(name, rows, self.bound, self.intercept)
        width = result.shape[1] - (self.intercept > 0)
        hint = "It is not the map that the model was trained with."
        require(width == self.map_width, "data.feature_map", f"give {self.map_width} numbers", width, hint)
        return result

    def _cells(self, column: Column, cells: Mapping[str, Cells], count: int, names: tuple[str, ...]) -> Cells:
        result = cells.get(column.name)
        if result is not None:
            same = len(result) == count
            require(same, f"The column {column.name!r}", f"have {count} values, as the others", len(result))
            return result
        stand_in = column.absent(count)
        if stand_in is None or self.absent == "refuse":
            others = [name for name in (*cells, *names) if name not in self.names]
            near = difflib.get_close_matches(column.name, others, n=1)
            hint = f"Did you mean {near[0]}?" if near else ""
            if not near and stand_in is not None:
                hint = (
                    'To fill it as a missing cell is filled: --absent fill, or model.lenient(absent="fill") in Python.'
                )
            require(False, "The data", f"have the column {column.name!r}, which the model needs", "none", hint)
        return [] if stand_in is None else stand_in

    def lenient(self, *, absent: Absent = "refuse", unknown: str = "refuse") -> "RowRule":
        """Return the same with other rules for columns that are absent and unknown words (``"zero"``: they count
        as none of the categories).
        """
        columns = self.columns
        if unknown != "refuse":
            strict = [bool(one.categories) and one.unknown == "refuse" for one in columns]
            columns = tuple(replace(one, unknown=unknown) if s else one for one, s in zip(columns, strict, strict=True))
        return replace(self, absent=absent, columns=columns)

    def table(self) -> dict[str, Any]:
        """Plain values that :meth:`read` takes."""
        own = {key: value for key, value in stated(self).items() if key not in ("columns", "labels")}
        return {**own, "columns": [stated(column) for column in self.columns], "labels": stated(self.labels)}

    @classmethod
    def read(cls, given: Any) -> "RowRule":
        """Return the preparation that a table describes."""
        values = dict(known_keys(given, [item.name for item in fields(cls)], "The preparation"))
        columns = sequence("The columns of a model", values.get("columns", ()))
        values["columns"] = tuple(filled(Column, table(one, "a column"), "column") for one in columns)
        values["labels"] = filled(Labels, table(values.get("labels"), "labels"), "labels")
        for key in ("bound", "columns", "labels"):
            require(key in values, f"The preparation: {key}", "be given", None)
        return cls(**values)


def _check_components(preparation: RowRule) -> None:
    rows = [sequence("A component of a model", one) for one in sequence("Components", preparation.components)]
    right = all(len(one) == preparation.length for one in rows)
    right = right and all(isinstance(x, int | float) and math.isfinite(x) for one in rows for x in one)
    require(right, "The components of a model", f"be rows of {preparation.length} finite numbers", len(rows))
    object.__setattr__(preparation, "components", tuple(tuple(float(x) for x in one) for one in rows))
    object.__setattr__(preparation, "stretch", number("The model's stretch", preparation.stretch))
    require(preparation.stretch > 0, "The model's stretch", "be positive", preparation.stretch)


def _check_map(preparation: RowRule) -> None:
    name, width = preparation.feature_map, whole("The numbers of a feature map", preparation.map_width, 0)
    fits = (width >= 1) == (name is not None)
    require(fits, "map_width", "be given with a feature map, and only then", (name, width))
    if name is not None:
        check_name(name)
        plain = not preparation.components and not preparation.slots and preparation.width is None
        require(plain, "A feature map", "go with columns as the study states them", "learned ones")


def _check_slots(preparation: RowRule) -> None:
    width, count = preparation.width, len(preparation.entries)
    slots = sequence("The places of features", preparation.slots)
    object.__setattr__(preparation, "slots", slots)
    most = count if width is None else whole("The number of features", width, count)
    different = len(set(slots)) == len(slots) and len(slots) in (0, count)
    inside = all(isinstance(one, int) and 0 <= one < most for one in slots)
    require(different and inside, "The places of features", f"be {count} different ones below {most}", slots[:10])


def _column(source: Source, name: str) -> Column:
    fill = source.features.fill.get(name, source.features.default_fill)
    if name not in source.features.categories:
        span, unit = source.features.scale.get(name, source.features.default_scale), source.features.bend.get(name, 0.0)
        return Column(name=name, range=span, unit=unit, fill=fill)
    words = source.features.categories[name]
    fitting = fill in ("refuse", "drop-row") or canonical(fill) in words
    unknown = OTHER if OTHER in words else "refuse"
    return Column(name=name, categories=words, fill=canonical(fill) if fitting else "refuse", unknown=unknown)
