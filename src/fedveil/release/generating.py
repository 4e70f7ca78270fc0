"""Rows drawn from a released torch generator, in the columns and units of the records that it was trained on.

No record is looked at, so they cost nothing. What the module draws are rows as it was trained on: here the preparation
is undone, column by column.
"""

import csv
import io
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedveil.core.errors import BadValue, require
from fedveil.core.importing import Allowed, allowed_now
from fedveil.core.strict_json import read_object
from fedveil.core.values import Indices, Matrix, number, whole
from fedveil.data.column import Column
from fedveil.data.row_rule import RowRule
from fedveil.models.loss import NetworkLoss
from fedveil.release.bundle import Bundle
from fedveil.release.model import ReleasedModel

FILE: Final = "generator.json"
KIND: Final = "torch"
LABEL: Final = "label"  # the name of the classes, where the data have none for them
BLOCK: Final = 2**13  # rows that are drawn and held at a time
Columns = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """How rows are drawn, by public numbers alone: ``generator.json`` beside the bundle of a torch generator.

    ``shares``: of the classes. ``image``: the height and width of rows that are pictures, or nothing. ``whole``: the
    columns in which only whole numbers occur. ``records``: how many the generator was trained on.
    """

    records: int
    shares: tuple[float, ...]
    image: tuple[int, ...] = ()
    whole: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "records", whole("generator.records", self.records))
        shares = tuple(number("generator.shares", share) for share in self.shares)
        right = len(shares) >= 2 and all(share >= 0 for share in shares) and abs(sum(shares) - 1) <= 1e-6
        require(right, "generator.shares", "be shares of the classes that add up to 1", shares)
        object.__setattr__(self, "shares", shares)
        object.__setattr__(self, "image", tuple(whole("generator.image", side) for side in self.image))
        object.__setattr__(self, "whole", tuple(self.whole))

    def text(self) -> str:
        """Return the file."""
        given = {"records": self.records, "shares": self.shares, "image": self.image, "whole": self.whole}
        return json.dumps({"format": 1, "kind": KIND, **given}, allow_nan=False, ensure_ascii=False) + "\n"

    @classmethod
    def read(cls, text: str | bytes) -> "Drawing":
        """Return what :meth:`text` wrote."""
        given: dict[str, Any] = read_object(text, FILE)
        known = (given.pop("format", None), given.pop("kind", None))
        require(known == (1, KIND), FILE, "be of a torch generator of this version", known)
        try:
            values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in given.items()}
            return cls(**values)
        except TypeError as error:
            raise BadValue(f"{FILE} must be as a generator wrote it: {error}.") from error


@dataclass(frozen=True, slots=True, eq=False)
class DeepGenerator:
    """A released generator with how its rows are drawn; ``allowed``: the code that may be run for it."""

    bundle: Bundle
    drawing: Drawing
    allowed: Allowed = field(default_factory=allowed_now)

    @property
    def name(self) -> str:
        """The name of its study."""
        return self.bundle.plan.name

    @property
    def preparation(self) -> RowRule:
        """How its records became rows."""
        rule = self.bundle.preparation
        if rule is None:
            raise BadValue("The generator must state how its records became rows, and its bundle does not.")
        return rule

    @property
    def header(self) -> tuple[str, ...]:
        """The columns of its rows: those of the records, and the class."""
        return (*self.preparation.names, self.preparation.labels.name or LABEL)

    def sampler(self) -> Callable[[Indices, int], Matrix]:
        """Return what draws a row for each of the given classes, from a seed."""
        model = ReleasedModel(self.bundle, self.allowed)
        loss, width = model.loss, self.bundle.plan.data.features
        if not (isinstance(loss, NetworkLoss) and loss.predicts == "row"):
            raise BadValue(f"The model must be a generator, got {loss.kind!r}.")
        with self.allowed.granted():
            return loss.sampler(model.parameters_now(width), width)

    def prepared_rows(self, rows: int, random: np.random.Generator) -> Iterator[tuple[Matrix, Indices]]:
        """Yield rows as the module was trained on, with their classes, a block at a time, in random order."""
        draw = self.sampler()
        kinds = _places(self.drawing.shares, rows, random)
        for first in range(0, rows, BLOCK):
            mine = kinds[first : first + BLOCK]
            yield draw(mine, int(random.integers(2**63))), mine

    def columns(self, rows: Matrix, kinds: Indices, random: np.random.Generator) -> Columns:
        """Return prepared rows in the columns and units of the records."""
        prepared, columns, start = self.preparation, dict[str, NDArray[Any]](), 0
        for column in prepared.columns:
            own = rows[:, list(prepared.places[start : start + column.width])]
            columns[column.name] = _undone(column, own, column.name in self.drawing.whole, random)
            start += column.width
        labels = prepared.labels
        columns[self.header[-1]] = kinds if labels.numbered else np.array(labels.classes)[kinds]
        return columns

    def csv_parts(self, rows: int, random: np.random.Generator) -> Iterator[bytes]:
        """Yield so many rows as CSV, with a header, a block at a time."""
        yield _lines([self.header])
        for block, kinds in self.prepared_rows(rows, random):
            columns = self.columns(block, kinds, random)
            texts = [_texts(values) for values in columns.values()]
            yield _lines(list(zip(*texts, strict=True)))


def check_invertible(preparation: RowRule | None) -> RowRule:
    """Return the preparation; refuse one from whose rows the columns cannot be had back."""
    if preparation is None:
        raise BadValue("[data] must name a source for a generator.")
    invertible = not preparation.components and preparation.feature_map is None
    require(invertible, "data.feature_map", "be left out of a generator's study", preparation.feature_map)
    require(preparation.intercept == 0, "data.intercept", "be 0 for a generator", preparation.intercept)
    open_ = [column.name for column in preparation.columns if not column.categories and column.range is None]
    hint = "State data.scale for it, or data.default_scale for all columns: a generator draws numbers from a range."
    require(not open_, "data.scale", "state the range of every column of numbers", open_[:5], hint)
    return preparation


def _places(shares: tuple[float, ...], rows: int, random: np.random.Generator) -> Indices:
    """Return classes in random order, each as often as its share says."""
    expected = np.array(shares) * rows
    counts = np.floor(expected).astype(np.int64)
    rest = expected - counts
    left = rows - int(counts.sum())
    if left > 0:
        counts[np.argsort(-rest, kind="stable")[:left]] += 1
    places = np.repeat(np.arange(len(shares)), counts)[:rows]
    random.shuffle(places)
    return np.asarray(places, dtype=np.int64)


def _undone(column: Column, rows: Matrix, whole_numbers: bool, random: np.random.Generator) -> NDArray[Any]:
    """Return the values of a column; a category is drawn by its entries, which are 1 where it is certain."""
    if column.categories:
        chances = np.clip(rows / column.weight + (np.array(column.offsets) if column.offsets else 0.0), 1e-9, None)
        edges = np.cumsum(chances / chances.sum(axis=1, keepdims=True), axis=1)
        drawn = (random.random(len(rows))[:, None] > edges[:, :-1]).sum(axis=1)
        return np.asarray(np.array(column.categories)[drawn])
    centre, scale, low, high = column.affine
    values: NDArray[Any] = np.clip(rows[:, 0], low, high) * scale + centre
    if column.unit > 0:
        values = np.sinh(values) * column.unit
    return np.asarray(np.rint(values), dtype=np.int64) if whole_numbers else values


def _texts(values: NDArray[Any]) -> list[str]:
    if values.dtype.kind == "f":
        return [f"{value:.6g}" for value in values.tolist()]
    return [str(value) for value in values.tolist()]


def _lines(rows: list[tuple[str, ...]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()
