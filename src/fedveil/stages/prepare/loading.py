"""From what a study states to columns that are not prepared yet: read, typed, held out and split, with no rule applied.

Splits and held-out rows are drawn exactly as for stated rules (fedveil.data.load): there every record's only feature is
the number of its row, by which its cells are found again.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedveil.core.errors import require
from fedveil.core.tables import filled, table
from fedveil.core.values import Indices
from fedveil.data.cells import Texts, canonical
from fedveil.data.column import OWN, ZERO, Column
from fedveil.data.expiry import expiry_of
from fedveil.data.fingerprint import RawRows
from fedveil.data.lazy_rows import LazyRows, kept
from fedveil.data.load import (
    Generators,
    HeldRows,
    Loaded,
    Prepared,
    cells_of,
    client_of,
    load,
    target_notes,
    targets_of,
)
from fedveil.data.missing import Mask, settle_labels, without_client
from fedveil.data.persons import persons_of
from fedveil.data.records import DataShape, Records
from fedveil.data.row_rule import READING, Labels, RowRule
from fedveil.data.sources import read
from fedveil.data.spec import MISSING, OTHER, RULES, Fill, HeldOut, Source, Split
from fedveil.data.table import Table
from fedveil.data.tables import known_keys, sequence, stated
from fedveil.stages.prepare.columns import MISSING_WORD, Columns, Outline
from fedveil.stages.prepare.learned import LearnedRule, Number
from fedveil.stages.prepare.request import PrepareRequest
from fedveil.stages.prepare.types import looks_textual, numbers_in, refuse_lone_words, refuse_other_writing, words_in

# What a study states about reading its data that is no rule for columns: labels, marks of gaps, fills.
#
# It travels from sites to the aggregator of a deployment, so that the released model can say how new records are read.


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """``files``: how files are read, as the study states it; ``fill`` and ``default_fill``: as in a study."""

    labels: Labels
    missing: tuple[str, ...] = MISSING
    files: Mapping[str, Any] = field(default_factory=dict)
    fill: Mapping[str, Fill] = field(default_factory=dict)
    default_fill: Fill = "refuse"

    @classmethod
    def of(cls, source: Source, target: str | None) -> "Reading":
        """Of a source as it was completed when it was read; ``target``: the column that is predicted."""
        return cls(
            labels=Labels.of(source, target),
            missing=source.reading.missing,
            files={key: value for key, value in stated(source.reading).items() if key in READING},
            fill=dict(source.features.fill),
            default_fill=source.features.default_fill,
        )

    def stated_fill(self, name: str) -> Fill | None:
        """The fill that the study states for a column; None where it states none."""
        given = self.fill.get(name, self.default_fill)
        return None if given == "refuse" and name not in self.fill else given

    def table(self) -> dict[str, Any]:
        """Plain values that :meth:`read` takes."""
        own = {"missing": list(self.missing), "files": dict(self.files), "fill": dict(self.fill)}
        return {"labels": stated(self.labels), **own, "default_fill": self.default_fill}

    @classmethod
    def read(cls, given: Any) -> "Reading":
        """Return the value that a table describes."""
        values = dict(known_keys(given, ["labels", "missing", "files", "fill", "default_fill"], "The reading"))
        values["labels"] = filled(Labels, table(values.get("labels"), "labels"), "labels")
        values["missing"] = tuple(sequence("The marks of a missing value", values.get("missing", MISSING)))
        return cls(**values)


# What was learned, as the preparation that travels with a model: the same rows, to rounding, from raw columns.


def preparation_of(learned: LearnedRule, reading: Reading) -> RowRule:
    """The learned rule column by column, with the place of each feature in a row."""
    outline = learned.outline
    columns = [(_curve if one.knots else _number)(one, learned.factor, reading) for one in learned.numbers]
    places, start = [], 0
    for one in learned.numbers:
        last = start + outline.block(one.name)
        places += [*range(start, start + len(one.knots) + 1), *([last - 1] if one.knots else [])]
        start = last
    for name in outline.stated_texts:
        words = outline.categories[name]
        fill = reading.stated_fill(name)
        columns.append(
            Column(
                name=name,
                categories=words,
                weight=learned.factor,
                fill=ZERO if fill is None else fill,
                unknown=OTHER if OTHER in words else "refuse",
            )
        )
        places += range(start, start + len(words))
        start += len(words)
    for index, name in enumerate(outline.open_texts):
        own = [(place, one) for place, one in enumerate(learned.categories) if one.column == name]
        columns.append(_released_texts(learned, name, [(one.word, one.share) for _, one in own], index, reading))
        places += [*(start + place for place, _ in own), start + outline.slots + index]
    return RowRule(
        columns=tuple(columns),
        labels=reading.labels,
        bound=outline.bound,
        intercept=outline.intercept,
        missing=reading.missing,
        reading=reading.files,
        slots=tuple(places),
        width=outline.unprojected,
        components=learned.components,
        stretch=learned.stretch,
    )


def _number(one: Number, factor: float, reading: Reading) -> Column:
    """Cut, bent, centred and divided; a missing number is the mean, unless the study states a fill."""
    plain = Column(name=one.name, range=(one.range.low, one.range.high), unit=one.range.unit)
    low, high = plain.bent(np.array([one.range.low, one.range.high])).tolist()
    middle, half = low / 2 + high / 2, high / 2 - low / 2
    centre = middle + one.mean * half
    mean = centre if one.range.unit == 0 else one.range.unit * math.sinh(centre)
    fill = reading.stated_fill(one.name)
    return Column(
        name=one.name,
        range=plain.range,
        unit=plain.unit,
        centre=centre,
        scale=half * one.spread / factor,
        fill=mean if fill is None else fill,
    )


def _curve(one: Number, factor: float, reading: Reading) -> Column:
    """A line, hats, and an indicator for a missing number, unless the study states a fill."""
    fill = reading.stated_fill(one.name)
    ends = one.range.low, one.range.high
    knots = np.clip(one.range.numbers(np.array(one.knots)), *ends)  # rounding may lead past an end
    return Column(
        name=one.name,
        range=ends,
        unit=one.range.unit,
        knots=tuple(knots.tolist()),
        line=(one.mean, one.spread),
        weight=factor,
        fill=OWN if fill is None else fill,
        shares=one.shares,
    )


def _released_texts(
    learned: LearnedRule, name: str, own: list[tuple[str, float]], index: int, reading: Reading
) -> Column:
    """Learned categories, each less its share, and last one for all others."""
    words, shares = [word for word, _ in own], (*(share for _, share in own), learned.others[index])
    given = reading.stated_fill(name)
    missing = MISSING_WORD if MISSING_WORD in words else OTHER
    fitting = given in RULES or (given is not None and canonical(given) in words)
    return Column(
        name=name,
        categories=(*words, OTHER),
        offsets=shares if learned.outline.knots is None else (),
        weight=learned.factor,
        fill=given if fitting and given is not None else (missing if given is None else OTHER),
        unknown=OTHER,
        shares=() if learned.outline.knots is None else shares,
    )


_MOST_ROWS = 2.0**53  # a bound on row numbers


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Unprepared:
    """Records to train on and those held out, by the numbers of their rows (from 1; 0 for a blank one), and cells."""

    train: Records
    test: Records | None
    test_public: bool
    dropped_rows: int
    outline: Outline
    columns: Columns
    test_columns: Columns
    raw: RawRows | None = None
    apart: HeldRows | None = None
    source: Source | None = None  # as it was completed when it was read
    target: str | None = None
    notes: tuple[str, ...] = ()  # for the data holder alone
    rows: Indices = field(default_factory=lambda: np.zeros(0, dtype=np.int64))  # of the source, as in Loaded
    expires: Indices = field(default_factory=lambda: np.zeros(0, dtype=np.int64))  # likewise

    def shape(self, outline: Outline) -> DataShape:
        """The public quantities of the rows that an outline will make."""
        return replace(self.train.shape, features=outline.width, bound=outline.total)

    def fingerprint(self, key: bytes) -> str:
        """Of all rows of the source, as they were read."""
        return self.cells_fingerprint(key) if self.raw is None else self.raw.fingerprint(key)

    def cells_fingerprint(self, key: bytes) -> str:
        """Of the records to train on, with their owners and their cells."""
        return self.train.fingerprint(key) + self.columns.fingerprint(key)

    def held_fingerprint(self, key: bytes) -> str:
        """Of the records held out, likewise; empty where there are none."""
        return "" if self.test is None else self.test.fingerprint(key) + self.test_columns.fingerprint(key)

    @property
    def training_columns(self) -> Columns:
        """The cells of the records to train on, in their order; of a blank one, those of any row."""
        return self.columns.rows(np.maximum(_rows(self.train), 0))

    @property
    def held_columns(self) -> Columns | None:
        """The cells of the records held out, likewise; None where there are none."""
        return None if self.test is None else self.test_columns.rows(np.maximum(_rows(self.test), 0))

    @property
    def present(self) -> Indices:
        """Which of the records to train on are not blank."""
        return np.flatnonzero(~self.train.blank).astype(np.int64)

    def without(self, gone: Indices) -> "Unprepared":
        """Return the same with some records to train on blank, as in :meth:`fedveil.data.records.Records.without`."""
        return replace(self, train=self.train.without(gone))

    def loaded(self, learned: LearnedRule) -> Loaded:
        """The records that the learned rule makes."""
        return Loaded(
            train=_records(self.train, self.columns, learned),
            test=self.tested(learned),
            test_public=self.test_public,
            dropped_rows=self.dropped_rows,
            feature_names=learned.feature_names,
            raw=self.raw,
            apart=self.apart,
            preparation=self.rule(learned),
            rows=self.rows,
            expires=self.expires,
        )

    def tested(self, learned: LearnedRule) -> Records | None:
        """The records held out, if there are any, with the rows that the learned rule makes."""
        return None if self.test is None else _records(self.test, self.test_columns, learned)

    def rule(self, learned: LearnedRule) -> RowRule | None:
        """The learned rule as it travels with the model."""
        return None if self.reading is None else preparation_of(learned, self.reading)

    @property
    def reading(self) -> Reading | None:
        """How the data are read, where there is a source."""
        return None if self.source is None else Reading.of(self.source, self.target)


def open_columns(
    source: Source,
    split: Split,
    held_out: HeldOut | None,
    request: PrepareRequest,
    *,
    base: Path,
    generator: Generators,
    whole_clients: bool = False,
    from_cells: bool = True,
) -> Unprepared:
    """Everything that the data part of a study states, with cells in place of rows.

    ``from_cells``: whether types that nobody stated are read off the cells; otherwise such columns hold numbers, and a
    word in one is refused.
    """
    result: list[tuple[Columns, Outline]] = []
    asked: list[tuple[Source, str | None]] = []
    unstated: set[str] = set()
    persons: list[Texts | None] = []

    def read_rows(source: Source, split: Split, base: Path) -> Prepared:
        first = result[0][1] if result else None
        whole, source = read(source, base, request.texts)
        asked.append((source, whole.choice.target))
        if first is None:
            stated = _stated_texts(whole, source, request)
            unstated.update(_unstated_texts(whole, source, request, stated) if from_cells else ())
            textual = stated | unstated
        else:
            textual = set(first.texts)
        prepared, columns, outline = _read(whole, source, split, base, request, textual)
        result.append((columns, outline))
        persons.append(prepared.person)
        return prepared

    loaded = load(
        source, split, held_out, base=base, generator=generator, whole_clients=whole_clients, read_rows=read_rows
    )
    rows = _rows(loaded.train)
    there = rows >= 0
    units = loaded.train.owner if whole_clients else rows if persons[0] is None else persons[0].codes[rows]
    what = "client" if whole_clients else "record" if persons[0] is None else "person"
    refuse_lone_words(result[0][0], unstated, rows[there], units[there], what)
    return Unprepared(
        train=loaded.train,
        test=loaded.test,
        test_public=loaded.test_public,
        dropped_rows=loaded.dropped_rows,
        outline=result[0][1],
        columns=result[0][0],
        test_columns=result[-1][0],
        raw=loaded.raw,
        apart=loaded.apart,
        source=asked[0][0],
        target=asked[0][1],
        notes=loaded.notes,
        rows=loaded.rows,
        expires=loaded.expires,
    )


def _read(
    whole: Table, source: Source, split: Split, base: Path, request: PrepareRequest, textual: set[str]
) -> tuple[Prepared, Columns, Outline]:
    client = client_of(whole, source, split, base)
    dropped = np.zeros(len(whole), dtype=np.bool_)
    columns, outline = _columns(whole, source, request, textual, dropped)
    settle_labels(whole, source, dropped)
    person = persons_of(whole, source, client, dropped)
    expires, left_out = expiry_of(whole, source, dropped)
    name = " and ".join(whole.names[:3])
    require(not dropped.all(), name, "have at least one row without a missing value", "all rows dropped")
    targets, classes = targets_of(whole, source, dropped)
    numbers = np.where(dropped, 0.0, np.arange(1.0, len(whole) + 1)).reshape(-1, 1)
    nobody = without_client(whole, source) if split.kind == "column" else np.zeros_like(dropped)
    prepared = Prepared(
        features=numbers,
        targets=targets,
        client=client,
        owned=~nobody,
        person=person,
        expires=expires,
        classes=classes,
        bound=_MOST_ROWS,
        dropped_rows=int(dropped.sum()),
        feature_names=(*outline.numbers, *outline.texts),
        raw=whole.raw,
        cells=cells_of(dict(zip(outline.numbers, columns.numbers.T, strict=True)), _texts(columns), targets, dropped),
        notes=(*target_notes(whole, source, dropped), *left_out),
    )
    return prepared, columns, outline


def _stated_texts(table: Table, source: Source, request: PrepareRequest) -> set[str]:
    """The columns that the study says hold texts: by name, by their categories, or by a word that fills their gaps."""
    features = set(table.choice.features)
    for key in ("numbers", "texts"):
        # a draft states the type of a column that then becomes the event of a survival study
        stray = sorted(set(getattr(request, key)) - features - {source.labelling.event})
        require(not stray, f"prepare.{key}", "name features of the data", stray)
    clash = sorted(set(request.numbers) & set(source.features.categories))
    require(not clash, "prepare.numbers", "name no column of data.categories", clash)
    filled = {name for name, value in source.features.fill.items() if isinstance(value, str) and value not in RULES}
    return ({*request.texts, *source.features.categories} | (filled - set(request.numbers))) & features


def _unstated_texts(table: Table, source: Source, request: PrepareRequest, stated: set[str]) -> set[str]:
    """The columns that nobody stated the type of, and whose cells are texts."""
    missing = frozenset(source.reading.missing)
    unknown = [name for name in table.choice.texts if name not in stated and name not in request.numbers]
    written = {name: table.texts(name) for name in unknown if not table.is_numbers(name)}
    textual = {name for name, texts in written.items() if looks_textual(texts, missing)}
    for name in sorted(textual):
        refuse_other_writing(written[name], missing, name)
    return textual


def _columns(
    table: Table, source: Source, request: PrepareRequest, textual: set[str], dropped: Mask
) -> tuple[Columns, Outline]:
    names = [name for name in table.choice.features if name not in textual]
    numbers, texts = np.empty((len(names), len(table))), {}
    for place, name in enumerate(names):
        numbers[place] = numbers_in(table, source, name, dropped)
    for name in table.choice.features:
        if name in textual:
            texts[name] = words_in(table, source, name, dropped)
    scale = {name: source.features.scale.get(name, source.features.default_scale) for name in names}
    outline = Outline(
        numbers=tuple(names),
        texts=tuple(texts),
        scale={name: span for name, span in scale.items() if span is not None},
        categories={name: words for name, words in source.features.categories.items() if name in texts},
        bend={name: unit for name, unit in source.features.bend.items() if name in names},
        slots=request.categories * sum(name not in source.features.categories for name in texts),
        bound=source.feature_bound,
        intercept=source.intercept,
        components=request.components,
        whiten=request.whiten,
        order=table.choice.names,
        whole=table.choice.whole,
    )
    return Columns(numbers=numbers.T, texts=texts), outline


def _texts(columns: Columns) -> dict[str, Texts]:
    return {name: Texts(words.spelt, words.codes) for name, words in columns.texts.items()}


def _rows(records: Records) -> Indices:
    """The numbers of the rows, from 0; -1 for a blank record."""
    return np.asarray(records.features[:, 0], dtype=np.int64) - 1


def _records(records: Records, columns: Columns, learned: LearnedRule) -> Records:
    outline = learned.outline

    def identity(key: bytes) -> bytes:
        return f"{columns.fingerprint(key)} {learned.text()}".encode()

    rows = LazyRows(learned.maker(columns), identity, _rows(records), outline.width, outline.total)
    return replace(records, features=kept(rows), bound=outline.total)
