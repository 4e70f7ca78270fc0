"""A drafted study: its text, and the questions that only its owner can answer, all at once."""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from fedveil.core.tables import write_value
from fedveil.stages.prepare.request import BOUND

_BARE = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True)
class Question:
    """What the draft leaves open: the key of the study, the question in words, and the option that answers it."""

    key: str
    question: str
    option: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """All that a drafted study says. ``remarks``: sentences for its head; ``unused``: columns left out, and why.

    Of ``classes`` and ``span`` one says what is predicted; neither while that is open. ``numbers`` and ``texts``: the
    types of the features, which the study states, so that no cell decides them when it runs. ``identifiers``: columns
    that are left out for their names alone. ``mixed``, ``unsettled`` and ``layout``: what the cells leave open
    (:class:`fedveil.jobs.draft.columns.Columns`).
    """

    name: str
    source: str
    target: str | int
    records: int
    epsilon: float = 1.0
    delta: float | None = None
    reading: Mapping[str, Any] = field(default_factory=dict)
    unused: Mapping[str, str] = field(default_factory=dict)
    classes: tuple[str, ...] = ()
    span: tuple[float, float] | None = None
    client_column: str | None = None
    unit: str = "record"
    neighbours: str = "replace-one"
    scale: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    bend: Mapping[str, float] = field(default_factory=dict)
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    fill: Mapping[str, str] = field(default_factory=dict)
    drops_unlisted: bool = False
    remarks: tuple[str, ...] = ()
    guessed: bool = False
    mixed: tuple[str, ...] = ()
    unsettled: tuple[str, ...] = ()
    layout: Mapping[str, str] = field(default_factory=dict)
    identifiers: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    ledger: str | None = None

    @property
    def questions(self) -> tuple[Question, ...]:
        """Everything that is open."""
        found = []
        if self.guessed:
            found.append(Question("data.target", f"Is {self.target!r} the column to predict?", "--target COLUMN"))
        if not self.classes and self.span is None:
            asked = f"Which values can {self.target!r} have?"
            found.append(Question("data.classes", asked, "--classes A,B,... or, for a number, --range LOW,HIGH"))
        if not self.features:
            asked = "No column is left to predict from. Which of those that are left out can be used?"
            found.append(Question("data.columns", asked, "--keep COLUMN, --texts COLUMN, or a larger --epsilon"))
        if self.identifiers:
            named = ", ".join(map(repr, self.identifiers))
            asked = f"Are these identifiers, which are left out: {named}?"
            found.append(Question("data.ignore", asked, "--ignore COLUMN for each, or --keep COLUMN"))
        return (*found, *self.doubts)

    @property
    def doubts(self) -> tuple[Question, ...]:
        """What one record could change in how the data are read, and columns that hold numbers and texts."""
        found = []
        for key, option in self.layout.items():
            asked = "This was told from the first line, which seems to be a record. Is it so?"
            found.append(Question(key, asked, option))
        for name in self.mixed:
            asked = f"{name!r} holds numbers or dates, and texts that mark no missing value. Leave it out?"
            found.append(Question(f"column {name!r}", asked, f"--ignore {name}, --texts {name}, or clean it"))
        for name in self.unsettled:
            unit = self.unit
            asked = f"The cells of one {unit} alone decide what {name!r} holds. Numbers or texts?"
            found.append(Question(f"column {name!r}", asked, f"--numbers {name}, --texts {name} or --ignore {name}"))
        return tuple(found)

    @property
    def questions_left(self) -> tuple[str, ...]:
        """In words, what keeps the study from running as it is; nothing if it does."""
        return () if self.complete else tuple(f"{one.key}: {one.question} ({one.option})" for one in self.questions)

    @property
    def complete(self) -> bool:
        """Whether the study runs as it is; a guessed target can be right."""
        return (bool(self.classes) or self.span is not None) and bool(self.features) and not self.doubts

    @property
    def features(self) -> tuple[str, ...]:
        """The columns to predict from."""
        return tuple(name for name in (*self.numbers, *self.texts) if name not in self.unused)

    @property
    def learns(self) -> bool:
        """Whether something is left to learn: a column of numbers, or one of texts without categories."""
        return any(name in self.numbers or name not in self.categories for name in self.features)

    def text(self) -> str:
        """The study file."""
        return "\n".join([*self._head(), *self._data(), *self._rest()]) + "\n"

    def _head(self) -> Iterator[str]:
        for remark in self.remarks:
            yield f"# {remark}"
        for one in self.questions:
            yield f"# OPEN {one.key}: {one.question} ({one.option})"
        yield from ("", "[study]", f"name = {write_value(self.name)}", "")

    def _data(self) -> Iterator[str]:
        yield "[data]"
        yield f"source = {write_value(self.source)}"
        yield from (f"{key} = {write_value(value)}" for key, value in self.reading.items())
        yield f"target = {write_value(self.target)}"
        if self.classes:
            yield f"classes = {write_value(self.classes)}"
        elif self.span is not None:
            yield f"target_scale = {write_value(list(self.span))}"
        if self.drops_unlisted:
            yield 'unlisted = "drop-row"              # a record with a rarer label takes no part'
        if self.client_column is not None:
            yield f"client_column = {write_value(self.client_column)}"
        if self.features and not self.learns:
            yield f"feature_bound = {write_value(BOUND)}                # everything is stated, so nothing is learned"
        if self.unused:
            yield f"ignore = {write_value(list(self.unused))}"
            for name, why in self.unused.items():
                yield f"# left out: {write_value(name)} {why}{self.way_back(name)}"
        for key in ("scale", "bend", "categories", "fill"):
            yield from _rows(f"data.{key}", getattr(self, key))
        yield from ("", "# [data.held_out]                  # to measure the model: records that are not public are")
        yield "# fraction = 0.2                   # counted with noise, within the same epsilon"

    def _rest(self) -> Iterator[str]:
        if self.client_column is not None:
            yield from ("", "[clients]", 'kind = "column"')
        kind = "huber" if self.span is not None else ("softmax" if len(self.classes) > 2 else "logistic")
        yield from ("", "[model]", f'kind = "{kind}"')
        delta = usual_delta(self.records) if self.delta is None else self.delta
        yield from ("", "[privacy]", f"epsilon = {write_value(self.epsilon)}", f"delta = {write_value(delta)}")
        if self.unit != "record":
            yield f'unit = "{self.unit}"'
        if self.neighbours != "replace-one":
            yield f'neighbours = "{self.neighbours}"'
        if self.ledger is not None:
            yield from ("", "[books]", f"ledger = {write_value(self.ledger)}")
        if self.features and not self.learns:
            return
        yield from (
            "",
            "[prepare]",
            'kind = "auto"                      # what is not stated above is learned with noise',
        )
        for key in ("numbers", "texts"):
            if names := [name for name in getattr(self, key) if name not in self.unused]:
                yield f"{key} = {write_value(names)}"

    def way_back(self, name: str) -> str:
        """How a column that is left out for its name alone is used after all."""
        return f" (--keep {name} uses it)" if name in self.identifiers else ""


def usual_delta(records: int) -> float:
    """The largest power of ten that is below one over the number of records, and at most 1e-4.

    >>> usual_delta(20_000), usual_delta(50)
    (1e-05, 0.0001)
    """
    return float(f"1e-{max(4, math.floor(math.log10(max(records, 1))) + 1)}")


def _rows(name: str, values: Mapping[str, Any]) -> Iterator[str]:
    if values:
        yield from ("", f"[{name}]")
        for column, value in values.items():
            key = column if _BARE.fullmatch(column) else write_value(column)
            yield f"{key} = {write_value(list(value) if isinstance(value, tuple) else value)}"
