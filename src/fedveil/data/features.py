"""The fixed, public rule from cells to rows: categories one-hot, public ranges to [-1, 1], the cut, the intercept.

Nothing is learned from the data: no means, no ranges, no vocabulary. So a row depends only on its own record.
"""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from fedveil.core.errors import require
from fedveil.core.values import Indices, Matrix, Vector
from fedveil.data.cells import Texts
from fedveil.data.missing import Filled, Mask
from fedveil.data.rows import cut_rows, map_names, mapped_rows
from fedveil.data.spec import Source
from fedveil.data.table import Table

CHUNK = 2**17  # numbers processed at a time: fits in the cache, and avoids a second copy of everything


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Layout:
    """The position of each feature of a table: numbers have one slot, categories several in a row."""

    names: tuple[str, ...]  # of all slots; the intercept is last
    slots: tuple[int, ...]  # of the numeric columns
    starts: dict[str, int]  # the first slot of each categorical column
    limit: Vector  # 1 for a column with a public range, otherwise infinite
    middle: Vector
    half: Vector
    bent: tuple[tuple[int, float], ...] = ()  # numeric columns measured by arcsinh(x / unit), with their units


def layout_of(table: Table, source: Source) -> Layout:
    """Return the layout that the study states, without looking at any row."""
    names: list[str] = []
    slots: list[int] = []
    starts: dict[str, int] = {}
    for column in table.choice.features:
        if column in source.features.categories:
            starts[column] = len(names)
            names += [f"{column}={word}" for word in source.features.categories[column]]
        else:
            slots.append(len(names))
            names.append(column)
    if source.intercept:
        names.append("intercept")
    spans = [source.features.scale.get(column, source.features.default_scale) for column in table.choice.numbers]
    bent = [
        (place, source.features.bend[name])
        for place, name in enumerate(table.choice.numbers)
        if name in source.features.bend
    ]
    for place, unit in bent:
        low, high = np.arcsinh(np.array(spans[place]) / unit).tolist()
        spans[place] = (low, high)
    limit = np.array([np.inf if span is None else 1.0 for span in spans])
    middle = np.array([0.0 if span is None else span[0] / 2 + span[1] / 2 for span in spans])
    half = np.array([1.0 if span is None else span[1] / 2 - span[0] / 2 for span in spans])
    return Layout(
        names=tuple(names),
        slots=tuple(slots),
        starts=starts,
        limit=limit,
        middle=middle,
        half=half,
        bent=tuple(bent),
    )


def features_of(table: Table, filled: Filled, source: Source) -> tuple[Matrix, tuple[str, ...]]:
    """Return bounded rows and the names of their entries; the row of a record that is dropped is zero."""
    layout = layout_of(table, source)
    codes = {column: _codes(table, filled, source, column) for column in table.choice.texts}
    rows = np.zeros((len(table), len(layout.names)))
    width = len(layout.names) - (1 if source.intercept else 0)
    plain = layout.slots == tuple(range(width))
    where = slice(0, width) if plain else list(layout.slots)
    step = max(1, CHUNK // max(width, 1))
    for start in range(0, len(table), step):
        part = slice(start, min(start + step, len(table)))
        scaled = filled.numbers[part].copy()
        for place, unit in layout.bent:
            scaled[:, place] = np.arcsinh(np.clip(scaled[:, place] / unit, -1e300, 1e300))
        scaled -= layout.middle
        with np.errstate(over="ignore"):  # overflow far outside a narrow range is cut in the next line
            scaled /= layout.half
        np.maximum(scaled, -layout.limit, out=scaled)
        np.minimum(scaled, layout.limit, out=scaled)
        rows[part, where] = scaled
        for column, code in codes.items():
            rows[np.arange(part.start, part.stop), layout.starts[column] + code[part]] = 1.0
        if source.feature_map is None:
            cut_rows(rows[part, :width], source.feature_bound, source.intercept)
    if source.feature_map is not None:
        kept = mapped_rows(source.feature_map, rows[~filled.dropped, :width], source.feature_bound, source.intercept)
        rows = np.zeros((len(table), kept.shape[1]))
        rows[~filled.dropped] = kept
        return rows, (*map_names(rows.shape[1] - (source.intercept > 0)), *(["intercept"] if source.intercept else []))
    if source.intercept:
        rows[:, -1] = source.intercept
    rows[filled.dropped] = 0.0
    return rows, layout.names


def _codes(table: Table, filled: Filled, source: Source, column: str) -> Indices:
    """Return the index of each row's category; refuse an undeclared one, with its place."""
    allowed = {word: index for index, word in enumerate(source.features.categories[column])}
    texts = filled.texts[column]
    index = np.array([allowed.get(word, -1) for word in texts.words], dtype=np.int64)[texts.codes]
    refuse_undeclared(table, column, allowed, (index < 0) & ~filled.dropped, texts)
    return np.asarray(np.maximum(index, 0))


def refuse_undeclared(table: Table, column: str, allowed: Collection[str], unknown: Mask, texts: Texts) -> None:
    """Refuse the first of the rows whose category is not declared, by its place."""
    if unknown.any():
        row = int(np.flatnonzero(unknown)[0])
        rule = f"be one of data.categories.{column}: {', '.join(allowed)}"
        hint = "Declare it there, or under data.missing."
        require(False, f"{table.place(row)}, column {column!r}", rule, texts.words[int(texts.codes[row])], hint)
