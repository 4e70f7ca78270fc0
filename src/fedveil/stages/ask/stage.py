"""The stage that answers questions: one noisy sum for all of them, and one more for each Newton step of a regression.

Ranges that nobody stated are learned first, from noisy counts of magnitudes. All sums are one Gaussian mechanism; or,
where one holder has all records and the questions are few, have Laplace noise, which is then less.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Final, get_args

import numpy as np

from fedveil.core.errors import BadValue, require
from fedveil.core.tables import known
from fedveil.core.values import Vector
from fedveil.data.records import DataShape
from fedveil.privacy.mechanism import sensitivity
from fedveil.privacy.target import Target
from fedveil.privacy.trust import CENTRAL, Trust
from fedveil.stages.ask.blocks import Block, steps_of
from fedveil.stages.ask.counts import Count, Crosstab, Histogram
from fedveil.stages.ask.numbers import Mean, Quantiles, Total
from fedveil.stages.ask.question import SURE, Answer, Expected, Question, Row, State
from fedveil.stages.ask.regression import Correlation, Regression
from fedveil.stages.ask.rows import View
from fedveil.stages.ask.survival import Survival
from fedveil.stages.ask.words import Words
from fedveil.stages.measured.plan import MeasuredPlan, Settings
from fedveil.stages.measured.stage import Sought, sums_for
from fedveil.stages.measuring import Measures
from fedveil.stages.prepare.columns import Outline
from fedveil.stages.prepare.contributions import range_counts
from fedveil.stages.prepare.ranges import BINS, EDGES, covering_range, range_of
from fedveil.stages.sums import STEPS, Measurement, NoisySums, Sums, root_up
from fedveil.stages.synthesise.table import Table
from fedveil.theory.grid import NoiseLaw

FILE: Final = "answers.json"
KINDS: Final[Mapping[str, type[Question]]] = {
    one.kind: one
    for one in (Count, Histogram, Crosstab, Mean, Total, Quantiles, Survival, Correlation, Regression, Words)
}
_MOST: Final = 500  # questions
_MOST_CORRELATED: Final = 12  # columns of numbers whose correlations a profile asks for
_RANGES: Final = 0.15  # of the budget, where ranges are learned
_WIDE: Final = math.log(20) / SURE  # 95% of Laplace noise of scale 1 are within log(20)
# Of two laws with equal 95% intervals, Laplace noise has the smaller mean absolute error: log(20) scales are 3.0 times
# it, and SURE deviations 2.46 times.
_NEARER: Final = math.log(math.log(20) / (SURE * math.sqrt(math.pi / 2)))
_LAW: Final = "noise"  # the setting that states Laplace noise


def read_questions(given: Any) -> tuple[Question, ...]:
    """Return the questions that tables (or values) state; those without a name are called by kind and number."""
    listed = given if isinstance(given, list | tuple) else [given]
    require(len(listed) <= _MOST, "[[question]]", f"be at most {_MOST} tables", len(listed))
    result: list[Question] = []
    for place, one in enumerate(listed):
        result.append(one if isinstance(one, Question) else _read(one, place))
    names = [one.name for one in result]
    twice = sorted({name for name in names if names.count(name) > 1})
    require(not twice, "question.name", "be different for each question", twice)
    return tuple(result)


def _read(given: Any, place: int) -> Question:
    require(isinstance(given, Mapping), f"Question {place + 1}", "be a table", given)
    kind = given.get("kind")
    require(kind in KINDS, f"Question {place + 1}: kind", f"be one of {', '.join(KINDS)}", kind)
    values = {key: value for key, value in given.items() if key != "kind"}
    values.setdefault("name", f"{kind} {place + 1}")
    own = KINDS[kind]
    known(values, [one.name for one in fields(own) if one.name != "law"], f"a question of the kind {kind}")
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
    try:
        return own(**values)
    except TypeError as error:
        missing = str(error).split(": ")[-1]
        raise BadValue(f"{values['name']} must be complete: missing {missing}.") from error


def standard_questions(columns: Outline) -> tuple[Question, ...]:
    """Return the questions of a profile: the box plot and the mean of every number, every listed word, correlations."""
    result: list[Question] = []
    for name in columns.numbers:
        result.append(Quantiles(name=f"{name}: quantiles"[-60:], column=name))
        result.append(Mean(name=f"{name}: mean"[-60:], column=name))
        result.append(Count(name=f"{name}: missing"[-60:], where=(f"`{name}` is missing",)))
    for name in columns.texts:
        kind = Histogram if name in columns.categories else Words
        result.append(kind(name=f"{name}: words"[-60:], column=name))
    if 2 <= len(columns.numbers) <= _MOST_CORRELATED:
        result.append(Correlation(name="correlations", columns=columns.numbers))
    require(result, "The data", "have a column to ask about", 0)
    return tuple(result)


@dataclass(frozen=True, slots=True)
class Part:
    """The place of one question in a sum: where its numbers are, and how many grid steps one unit has there."""

    question: Question
    first: int
    size: int
    scale: int

    def of(self, sums: Vector) -> Vector:
        """Return its noisy numbers, in units."""
        return np.asarray(sums[self.first : self.first + self.size] * (STEPS / self.scale))

    def noise(self, planned: Measurement) -> float:
        """Return the deviation of each of them: of normal noise whose 95% intervals hold for that of the plan."""
        wide = _WIDE if planned.law == "laplace" else 1.0
        return planned.noise * planned.bound * STEPS / self.scale * wide


@dataclass(frozen=True, slots=True)
class Layout:
    """Where everything stands, from public values alone. ``open``: the columns whose ranges are learned."""

    questions: tuple[Question, ...]
    columns: Outline
    clients: int
    law: NoiseLaw = "gaussian"

    @property
    def open(self) -> tuple[str, ...]:
        """Columns of numbers that a question scales and nobody stated a range of."""
        asked = {name for one in self.questions for name in one.scaled if name not in one.range}
        return tuple(name for name in self.columns.numbers if name in asked and name not in self.columns.scale)

    def shares(self, turn: int) -> dict[str, float]:
        """Return what share of the budget each question has in a turn (0: the sum that all have)."""
        wanted = {one.name: one.weight * one.counts_as for one in self.questions}
        if self.law == "laplace":  # shares of the sum of magnitudes: four times the weight halves an error, too
            wanted = {one.name: math.sqrt(one.weight) for one in self.questions}
        total, result = math.fsum(wanted.values()), {}
        for one in self.questions:
            if turn <= one.turns:
                result[one.name] = wanted[one.name] / total * one.shares[turn]
        return result

    def parts(self, turn: int) -> list[Part]:
        """Return the parts of a sum, in order."""
        shares, result, first = self.shares(turn), [], 0
        total = math.fsum(shares.values()) * (1 + 1e-12)
        for one in self.questions:
            if one.name not in shares:
                continue
            if turn == 0:
                each = one.size(self.columns)
                size = each * one.groups(self.columns, self.clients)
            else:
                size = each = one.step_size
            result.append(Part(one, first, size, steps_of(shares[one.name] / total, each, self.law)))
            first += size
        return result

    @property
    def turns(self) -> int:
        """Sums, that of ranges left out."""
        return 1 + max(one.turns for one in self.questions)

    def sought(self) -> list[Sought]:
        """Return the sums that are asked for."""
        rest = 1.0 - (_RANGES if self.open else 0.0)
        result = []
        if self.open:
            many = len(self.open)
            bound = root_up(many) if self.law == "gaussian" else float(many)
            result.append(self._sought("magnitudes", BINS * many, bound, _RANGES))
        for turn in range(self.turns):
            parts, weight = self.parts(turn), rest * math.fsum(self.shares(turn).values())
            size = parts[-1].first + parts[-1].size
            result.append(self._sought(_name(turn), size, 1.0, weight))
        return result

    def _sought(self, name: str, size: int, bound: float, weight: float) -> Sought:
        return Sought(name=name, size=size, bound=bound, weight=weight, counts=self.law == "gaussian", law=self.law)

    def expected(self, sums: NoisySums, units: int, scale: float = 1.0) -> list[tuple[Question, Expected]]:
        """Return what each answer will be like; ``scale``: times the noise of these sums."""
        result = []
        for part in self.parts(0):
            own = part.noise(sums[_name(0)]) * scale
            own *= math.sqrt(part.question.shares[0])  # as if it had all of its budget at once
            groups = part.question.groups(self.columns, self.clients)
            result.append((part.question, part.question.expected(own, self.columns, units / groups)))
        return result


def _name(turn: int) -> str:
    return "questions" if turn == 0 else f"step {turn}"


def layout_of(settings: Settings, columns: Outline, clients: int) -> Layout:
    """Return the layout of the settings' questions; refuse those that do not fit the columns."""
    known(settings, ["questions", _LAW], "the settings of ask")
    law = settings.get(_LAW, "gaussian")
    require(law in get_args(NoiseLaw), _LAW, "be gaussian or laplace", law)
    stated = read_questions(settings.get("questions", []))
    questions = tuple(replace(one.completed(columns), law=law) for one in stated or standard_questions(columns))
    for one in questions:
        require(law == "gaussian" or one.laplace, one.name, "have Gaussian noise", law)
        one.check(columns)
    return Layout(questions, columns, clients, law)


def settings_of(questions: Sequence[Question]) -> dict[str, Any]:
    """Return the settings that state these questions."""
    return {"questions": [one.stated() for one in questions]}


class Ask:
    """Implements Measured: answers questions."""

    file: ClassVar[str] = FILE

    def settle(self, settings: Settings, columns: Outline, shape: DataShape, target: Target, trust: Trust) -> Settings:
        """Return the settings with Laplace noise, where that can be had and makes errors smaller on the whole."""
        normal = layout_of(settings, columns, shape.clients)
        if not settings.get("questions"):  # of the standard questions, those that are not all noise
            sums = sums_for(normal.sought(), shape, target, trust)
            worth = [one for one, seen in normal.expected(sums, shape.records) if seen.half_width < seen.of]
            require(worth, "The budget", "suffice for one of the standard questions", target.epsilon, "Raise epsilon.")
            settings = {**settings, **settings_of(worth)}
            normal = layout_of(settings, columns, shape.clients)
        alone = shape.clients == 1 and trust == CENTRAL and all(one.laplace for one in normal.questions)
        if not alone or _LAW in settings:
            return settings
        scale = sensitivity(target.neighbours) * len(normal.questions) / target.epsilon
        suited = settings_of([one.suited(scale, shape.records) for one in normal.questions])
        other = {**suited, _LAW: "laplace"}
        laws = [
            one.expected(sums_for(one.sought(), shape, target, trust), shape.records)
            for one in (normal, layout_of(other, columns, shape.clients))
        ]
        gains = [math.log(have.half_width / got.half_width) for (_, have), (_, got) in zip(*laws, strict=True)]
        return other if math.fsum(gains) + len(gains) * _NEARER > 0 else settings

    def sought(self, settings: Settings, columns: Outline, shape: DataShape) -> Sequence[Sought]:
        """Return the sums of all questions."""
        return layout_of(settings, columns, shape.clients).sought()

    def accept(self, plan: MeasuredPlan, columns: Outline) -> None:
        """Refuse a question whose answer would be all noise, and rows that are left out of the public number of all."""
        way = 'A missing value is a cell of its own; leave records out by where = ["... is not missing"].'
        require(not plan.blank_rows, "data.fill", "not be drop-row for questions", "drop-row", way)
        layout = layout_of(plan.stated, columns, plan.data.clients)
        for question, one in layout.expected(plan.sums, plan.units):
            if one.half_width < one.of:
                continue
            width = "no interval would hold" if math.isinf(one.half_width) else f"±{one.half_width:.3g} {one.unit}"
            hint = "Raise epsilon or its weight, ask for fewer groups or columns, or leave questions out."
            require(False, question.name, f"not be all noise: {one.what} within {one.of:.3g}", width.strip(), hint)

    def result(self, settings: Settings, sums: NoisySums, rows: Table, units: int, by: Measures) -> bytes:
        """Return the answers as JSON."""
        columns = rows.all_columns
        layout = layout_of(settings, columns, rows.clients)
        known_ranges = _ranges(layout, sums, rows, units, by)
        view = View(rows, {name: (one["low"], one["high"]) for name, one in known_ranges.items()}, rows.clients)
        answers = _answered(layout, sums, view, units, by)
        listed = [_published(one, answers[one.name]) for one in layout.questions]
        found = {"records": units, "level": 0.95, "ranges": known_ranges, "answers": listed}
        text = json.dumps(found, indent=1, allow_nan=False)
        return (text + "\n").encode()


def _ranges(layout: Layout, sums: NoisySums, rows: Table, units: int, by: Measures) -> dict[str, dict[str, float]]:
    """Return the range of every scaled column, stated by the data or learned, and the scale that would suit a model.

    ``bend``: of a learned range, as in a profile; ``share``: of the records that lie in it, as far as noise lets see.
    """
    columns = layout.columns
    result: dict[str, dict[str, float]] = {
        name: {"low": float(low), "high": float(high), "bend": columns.bend.get(name, 0.0), "share": 1.0}
        for name, (low, high) in columns.scale.items()
    }
    if layout.open:
        planned = sums["magnitudes"]
        places = [rows.outline.numbers.index(name) for name in layout.open]
        counts = by.noisy_sum(planned, range_counts(rows.columns, places), planned.size)
        for name, own in zip(layout.open, np.split(counts, len(places)), strict=True):
            deviation = planned.noise * planned.bound
            low, high = covering_range(own, units, deviation).ends
            bend = range_of(own, units, deviation).unit
            first, last = np.searchsorted(EDGES, [low, high])
            share = float(np.clip(own[first:last].sum() / units, 0.0, 1.0))
            result[name] = {"low": low, "high": high, "bend": bend, "share": round(share, 4)}
    return result


def _answered(layout: Layout, sums: NoisySums, view: View, units: int, by: Measures) -> dict[str, Answer]:
    answers: dict[str, Answer] = {}
    states: dict[str, State] = {}
    for turn in range(layout.turns):
        planned, parts = sums[_name(turn)], layout.parts(turn)
        blocks: list[Block] = []
        for part in parts:
            one = part.question
            seen = _with_ranges(view, one)
            if turn == 0:
                blocks.append(one.block(seen))
            else:
                blocks.append(one.step_block(seen, states[one.name]))
        noisy = by.noisy_sum(planned, _adding(parts, blocks), planned.size)
        for part in parts:
            one, own, noise, seen = (
                part.question,
                part.of(noisy),
                part.noise(planned),
                _with_ranges(view, part.question),
            )
            if not one.turns:
                answers[one.name] = one.answer(own, noise, seen, units)
            elif turn == 0:
                states[one.name] = one.start(own, noise, seen)
            elif turn < one.turns:
                states[one.name] = one.advance(states[one.name], own, noise, seen)
            else:
                answers[one.name] = one.final(states[one.name], own, noise, seen, units)
    return answers


def _with_ranges(view: View, question: Question) -> View:
    return View(view.table, {**view.ranges, **question.range}, view.clients)


def _adding(parts: Sequence[Part], blocks: Sequence[Block]) -> Sums:
    def add_up(rows: Any) -> Any:
        return np.concatenate([block.total(rows, part.scale) for part, block in zip(parts, blocks, strict=True)])

    return add_up


def _published(question: Question, answer: Answer) -> Row:
    tables = {name: [_rounded(row) for row in rows] for name, rows in answer.tables.items()}
    return {"question": question.stated(), "tables": tables, "notes": list(answer.notes)}


def _rounded(row: Row) -> Row:
    """Numbers to ten digits: machines differ beyond them."""
    return {key: float(f"{value:.10g}") if isinstance(value, float) else value for key, value in row.items()}
