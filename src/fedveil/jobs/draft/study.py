"""A drafted study: its text, and the questions that only its owner can answer, all at once."""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fedveil.core.tables import write_value
from fedveil.data.spec import OTHER, Features
from fedveil.jobs.draft.columns import DATES
from fedveil.stages.prepare.request import BOUND
from fedveil.stages.profile.profile import Profile

_BARE = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True)
class Question:
    """What the draft leaves open: the key of the study, the question in words, and the option that answers it."""

    key: str
    question: str
    option: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftPrivacy:
    """The promise that the study asks for; without a ``delta``, the usual one for so many records."""

    epsilon: float = 1.0
    delta: float | None = None
    unit: str = "record"
    neighbours: str = "replace-one"


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftTarget:
    """What is predicted: a column, and its ``classes`` or its ``span``; neither while that is open.

    ``guessed``: from its name or place. ``drops_unlisted``: a record with a rarer label takes no part.
    """

    column: str | int
    classes: tuple[str, ...] = ()
    span: tuple[float, float] | None = None
    guessed: bool = False
    drops_unlisted: bool = False

    @property
    def declared(self) -> bool:
        """Whether the values of the column are stated."""
        return bool(self.classes) or self.span is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftColumns:
    """The features by type, which the study states, so that no cell decides them when it runs.

    ``unused``: columns left out, and why; ``identifiers``: those left out for their names alone. ``mixed``,
    ``unsettled`` and ``layout``: what the cells leave open (:class:`fedveil.jobs.draft.columns.Columns`).
    """

    numbers: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    unused: Mapping[str, str] = field(default_factory=dict)
    identifiers: tuple[str, ...] = ()
    mixed: tuple[str, ...] = ()
    unsettled: tuple[str, ...] = ()
    layout: Mapping[str, str] = field(default_factory=dict)

    @property
    def features(self) -> tuple[str, ...]:
        """The columns to predict from."""
        return tuple(name for name in (*self.numbers, *self.texts) if name not in self.unused)

    def way_back(self, name: str) -> str:
        """How a column that is left out for its name alone is used after all."""
        if name in self.identifiers:
            return f" (--keep {name} uses it)"
        if self.unused.get(name) == DATES:
            return " (to use them, add a column of numbers, such as days since a fixed day)"
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """All that a drafted study says. ``remarks``: sentences for its head; ``rules``: how columns become numbers."""

    name: str
    source: str
    target: DraftTarget
    records: int
    privacy: DraftPrivacy = DraftPrivacy()
    reading: Mapping[str, Any] = field(default_factory=dict)
    columns: DraftColumns = field(default_factory=DraftColumns)
    rules: Features = field(default_factory=Features)
    client_column: str | None = None
    person: tuple[str, int] | None = None
    expires_column: str | None = None
    remarks: tuple[str, ...] = ()
    ledger: str | None = None

    @property
    def questions(self) -> tuple[Question, ...]:
        """Everything that is open."""
        questions = []
        if self.target.guessed:
            questions.append(
                Question("data.target", f"Is {self.target.column!r} the column to predict?", "--target COLUMN")
            )
        if not self.target.declared:
            question = f"Which values can {self.target.column!r} have?"
            questions.append(Question("data.classes", question, "--classes A,B,... or, for a number, --range LOW,HIGH"))
        if not self.columns.features:
            question = "No column is left to predict from. Which of those that are left out can be used?"
            questions.append(Question("data.columns", question, "--keep COLUMN, --texts COLUMN, or a larger --epsilon"))
        if self.columns.identifiers:
            named = ", ".join(map(repr, self.columns.identifiers))
            question = f"Are these identifiers, which are left out: {named}?"
            questions.append(Question("data.ignore", question, "--ignore COLUMN for each, or --keep COLUMN"))
        return (*questions, *self.doubts)

    @property
    def doubts(self) -> tuple[Question, ...]:
        """What one record could change in how the data are read, and columns that hold numbers and texts."""
        doubts = []
        for key, option in self.columns.layout.items():
            question = "The first line seems to be a record, and only it says so. Is this right?"
            doubts.append(Question(key, question, option))
        for name in self.columns.mixed:
            question = f"{name!r} holds numbers or dates, and texts that mark no missing value. Leave it out?"
            doubts.append(Question(f"column {name!r}", question, f"--ignore {name}, --texts {name}, or clean it"))
        for name in self.columns.unsettled:
            unit = self.privacy.unit
            question = f"The cells of one {unit} alone decide what {name!r} holds. Numbers or texts?"
            doubts.append(
                Question(f"column {name!r}", question, f"--numbers {name}, --texts {name} or --ignore {name}")
            )
        return tuple(doubts)

    @property
    def questions_left(self) -> tuple[str, ...]:
        """In words, what keeps the study from running as it is; nothing if it does."""
        return () if self.complete else tuple(f"{one.key}: {one.question} ({one.option})" for one in self.questions)

    @property
    def complete(self) -> bool:
        """Whether the study runs as it is; a guessed target can be right."""
        return self.target.declared and bool(self.columns.features) and not self.doubts

    @property
    def learns(self) -> bool:
        """Whether something is left to learn: a column of numbers, or one of texts without categories."""
        return any(name in self.columns.numbers or name not in self.rules.categories for name in self.columns.features)

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
        yield f"target = {write_value(self.target.column)}"
        if self.target.classes:
            yield f"classes = {write_value(self.target.classes)}"
        elif self.target.span is not None:
            yield f"target_scale = {write_value(list(self.target.span))}"
        if self.target.drops_unlisted:
            yield 'unlisted = "drop-row"              # a record with a rarer label takes no part'
        if self.client_column is not None:
            yield f"client_column = {write_value(self.client_column)}"
        if self.person is not None:
            yield f"person_column = {write_value(self.person[0])}"
            yield f"largest_person = {self.person[1]:<18} # further rows of a person take no part"
        if self.expires_column is not None:
            yield f"expires_column = {write_value(self.expires_column)}"
        if self.columns.features and not self.learns:
            yield f"feature_bound = {write_value(BOUND)}                # everything is stated, so nothing is learned"
        if self.columns.unused:
            yield f"ignore = {write_value(list(self.columns.unused))}"
            for name, why in self.columns.unused.items():
                yield f"# left out: {write_value(name)} {why}{self.columns.way_back(name)}"
        for key in ("scale", "bend", "categories", "fill"):
            yield from _rows(f"data.{key}", getattr(self.rules, key))
        yield from ("", "[data.held_out]                    # to measure the model: these records do not train, and")
        yield "fraction = 0.2                     # are counted with noise, each at the same epsilon"

    def _rest(self) -> Iterator[str]:
        if self.client_column is not None:
            yield from ("", "[clients]", 'kind = "column"')
        kind = "huber" if self.target.span is not None else ("softmax" if len(self.target.classes) > 2 else "logistic")
        yield from ("", "[model]", f'kind = "{kind}"')
        delta = usual_delta(self.records) if self.privacy.delta is None else self.privacy.delta
        yield from ("", "[privacy]", f"epsilon = {write_value(self.privacy.epsilon)}", f"delta = {write_value(delta)}")
        if self.privacy.unit != "record":
            yield f'unit = "{self.privacy.unit}"'
        if self.privacy.neighbours != "replace-one":
            yield f'neighbours = "{self.privacy.neighbours}"'
        if self.ledger is not None:
            yield from ("", "[books]", f"ledger = {write_value(self.ledger)}")
        if self.columns.features and not self.learns:
            return
        yield from (
            "",
            "[prepare]",
            'kind = "auto"                      # what is not stated above is learned with noise',
        )
        for key in ("numbers", "texts"):
            if names := [name for name in getattr(self.columns, key) if name not in self.columns.unused]:
                yield f"{key} = {write_value(names)}"


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


# A study that states what a profile has learned, so that a run of it need not learn it again.

MISSING_WORD = "(missing)"  # the category of an empty cell, where many are
_COVERED = 0.8  # of the targets, that a drafted range must be seen to hold
_RARE = "has no word that is frequent enough to be shown"


def with_profile(draft: Draft, profile: Profile) -> Draft:
    """Return the draft with ranges, categories and labels as they were profile."""
    target = str(profile.target)
    numbers = [one for one in profile.numbers if one.name != target]
    texts = [one for one in profile.texts if one.name != target]
    shown = [one for one in texts if one.words]
    fill = {one.name: MISSING_WORD for one in shown if one.missing > 0}
    categories = {}
    for one in shown:
        words = tuple(word for word, _ in one.words if word not in (OTHER, MISSING_WORD))
        categories[one.name] = (*words, *([MISSING_WORD] if one.name in fill else []), OTHER)
    classes, span = _labels(profile, target)
    known = draft.target
    return replace(
        draft,
        target=replace(
            known,
            classes=known.classes or classes,
            span=known.span if known.declared else span,
            drops_unlisted=bool(classes) and not known.classes,
        ),
        rules=Features(
            scale={one.name: (one.low, one.high) for one in numbers},
            bend={one.name: one.bend for one in numbers if one.bend > 0},
            categories=categories,
            fill={**fill, **draft.rules.fill},
        ),
        columns=replace(
            draft.columns, unused={**draft.columns.unused, **{one.name: _RARE for one in texts if not one.words}}
        ),
    )


def _labels(profile: Profile, target: str) -> tuple[tuple[str, ...], tuple[float, float] | None]:
    """The classes of the target in the order of their names, or the range of a number to predict."""
    listed, number = profile.classes, profile.number(target)
    if listed is not None:
        words = [word for word, _ in listed.words]
        return tuple(sorted(words, key=_order)), None
    if number is None or number.share < _COVERED * (1 - number.missing):
        return (), None  # noise hides where the targets lie, and a range that cuts them would be learned wrongly
    return (), (number.low, number.high)


def _order(word: str) -> tuple[int, float, str]:
    try:
        return 0, float(word), word
    except ValueError:
        return 1, 0.0, word
