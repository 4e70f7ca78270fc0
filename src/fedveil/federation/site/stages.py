"""What a site answers in each stage of a plan: the contributions of its own clients, with their shares of the noise.

A question brings what the stage's state is: noisy sums so far, a model, the tables to count. The site works out by
itself, from the plan that it has agreed to, what is measured and how much a record may add to it: whatever it is asked,
what it answers costs what was charged; and a turn is answered once, for one question.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final, final

import numpy as np

from fedveil.core.errors import FedveilError
from fedveil.core.values import Vector
from fedveil.data.records import Records
from fedveil.engine.evaluator import evaluator_of
from fedveil.engine.files import write_atomically
from fedveil.federation.agreements import Carried, Span, span_of, spans
from fedveil.federation.site.checks import outline_at, table_at
from fedveil.federation.site.data import SiteData
from fedveil.noise.entropy import Entropy
from fedveil.planning.plan import Plan
from fedveil.stages.adding import Noising, noised
from fedveil.stages.measured.plan import GENERATOR, MeasuredPlan
from fedveil.stages.measured.stage import stage_named
from fedveil.stages.measuring import Asked, Contributing, Known, Measures, after, noising_of
from fedveil.stages.prepare.contributions import range_counts
from fedveil.stages.prepare.learn import learn
from fedveil.stages.prepare.learned import LearnedRule
from fedveil.stages.prepare.notes import notes_for_holder
from fedveil.stages.prepare.ranges import BINS
from fedveil.stages.protocol import Answering, needed_row
from fedveil.stages.stage import Stage
from fedveil.stages.sums import STEPS, Measurement, Sums, root_up
from fedveil.stages.synthesise.asking import Question
from fedveil.stages.synthesise.table import NumberCells, Table, TableCounts, WordCells
from fedveil.stages.train.acting import acts_of
from fedveil.stages.train.base import Training
from fedveil.stages.train.rounds import packed, unpacked
from fedveil.sums.seam import Whole
from fedveil.wire.content import Content
from fedveil.wire.envelope import Refused

SUMS: Final = "preparation.sums"  # in the private folder during the run: what all sums of the preparation were
MEMORY: Final = "memory"  # in the private folder during the run: what clients keep between the rounds of training
_LARGEST = 2.0**63 / STEPS  # no sum of 64-bit grid steps is larger
_BROKEN = (FedveilError, ValueError, ArithmeticError, LookupError, TypeError)  # what a wrong question may lead to


@final
@dataclass(eq=False)
class SiteStages:
    """The work of all stages of one run at one site; ``private``: a folder for what must survive a restart."""

    plan: Carried
    data: SiteData
    proposal: Content
    entropy: Entropy
    private: Path
    _training: "tuple[Answering, Noising] | None" = field(default=None, init=False)
    _ready: int | None = field(default=None, init=False)  # the turn before which the clients' memories stand
    _counted: Records | None = field(default=None, init=False)

    def parts(self, turn: int, asked: Content) -> dict[int, Whole]:
        """Return what the clients send in a turn, by their numbers in the study, with the noise included.

        The same turn and the same question give the same answer, also after a restart.
        """
        span = span_of(self.plan, turn)
        local = turn - span.first
        if span.stage.sums:
            result = self._contributing(span, span.stage, local, asked).parts(local, asked)
            clients = self.plan.data.clients
            noising = noising_of(span.stage.sums.measurements, self.plan.trust, clients, self.entropy)
        else:
            answering, noising = self._trained()
            question = hashlib.sha256(asked.write()).hexdigest()
            self._recall(answering, local, question)
            before = answering.memory
            result = answering.parts(local, asked)
            if result:  # a turn without an answer must not replace the remembered one
                self._remember(local, question, before, answering.memory)
        return noised(result, noising, local, self.entropy)

    @property
    def numbers(self) -> tuple[int, ...]:
        """The numbers of the site's clients in the whole study."""
        return tuple(self.proposal.rows["numbers"].tolist())

    def _contributing(self, span: Span, stage: Stage, turn: int, asked: Content) -> Contributing:
        """Return what the site's rows contribute to a measurement."""
        one, records = stage.sums.measurements[turn], self.data.records
        if stage.name == GENERATOR:
            contributions = self._counts(one, asked)
        elif isinstance(self.plan, MeasuredPlan):
            contributions = self._next(self._measuring(self.plan), sums_in(stage, asked, turn), one)
        else:
            program: Callable[[Measures], Any] = self._learning
            if stage.name == "evaluation":
                model = needed_row(asked, "model", self.plan.dimension)
                records = self._counted = self._counted or self._evaluated(self.plan)
                program = self._counting(self.plan, records, model)
            contributions = self._next(program, sums_in(stage, asked, turn), one)
        present = np.flatnonzero(~records.blank).astype(np.int64)
        return Contributing(self.plan.target, records.owner, self.numbers, present, contributions)

    def _next(self, program: Callable[[Measures], Any], sums: list[Vector], one: Measurement) -> Sums:
        """Return what rows contribute to the measurement that comes after these sums, which must be this one."""
        present = np.arange(len(self.data.records), dtype=np.int64)
        try:
            result = after(program, Known(sums, present))
        except (FedveilError, ValueError, ArithmeticError) as error:
            raise Refused("wrong-sums") from error
        if not isinstance(result, Asked) or result.planned != one:
            raise Refused("no-such-round")
        return result.contributions

    # The preparation

    @property
    def prepared(self) -> bool:
        """Whether the rule for rows is learned in this run."""
        return bool(self.plan.preparation) and self.data.cells is not None

    def _learning(self, by: Measures) -> LearnedRule:
        plan, cells, records = self.plan, self.data.cells, self.data.records
        if not isinstance(plan, Plan) or cells is None:
            raise Refused("unknown-kind")
        outline = outline_at(plan, self.data, self.proposal)
        if outline is None:
            raise Refused("unknown-kind")
        return learn(plan.preparation, outline, cells.columns, records.targets, records.classes, plan.units, by)

    def keep_learned(self, asked: Content) -> list[str] | None:
        """Keep the sums of the whole preparation; return notes for the operator, None if they were told before.

        A second rule for the same run is refused: with the noise of a round known to be the same, rows of another rule
        would be another question.
        """
        if not self.prepared:
            raise Refused("unknown-kind")
        span = spans(self.plan)[0]
        sums = sums_in(span.stage, asked, span.stage.turns)
        result = self._known_rule(sums)
        body, path = Content(rows={"sums": np.concatenate(sums)}).write(), self.private / SUMS
        if path.exists():
            if path.read_bytes() != body:
                raise Refused("other-preparation")
            return None
        write_atomically(path, body)
        records = self.data.records
        present = np.flatnonzero(~records.blank)
        assert self.data.cells is not None  # noqa: S101  it was prepared
        columns = self.data.cells.columns.rows(present)
        return notes_for_holder(columns, records.targets[present], records, result)

    def _known_rule(self, sums: list[Vector]) -> LearnedRule:
        try:
            result = after(self._learning, Known(sums, np.arange(len(self.data.records), dtype=np.int64)))
        except (FedveilError, ValueError, ArithmeticError) as error:
            raise Refused("wrong-sums") from error
        if isinstance(result, Asked):
            raise Refused("malformed")
        return result

    @cached_property
    def learned(self) -> LearnedRule | None:
        """What this run learned of the columns, None where nothing is; refused before it is known."""
        if not self.prepared:
            return None
        path, span = self.private / SUMS, spans(self.plan)[0]
        if not path.exists():
            raise Refused("not-prepared")
        return self._known_rule(sums_in(span.stage, Content.read(path.read_bytes()), span.stage.turns))

    @property
    def records(self) -> Records:
        """The records that train, with the rows that were learned."""
        return self.data.records if self.learned is None else self.data.prepared(self.learned)

    # Training

    def _trained(self) -> "tuple[Answering, Noising]":
        if self._training is None:
            stage = next(span.stage for span in spans(self.plan) if isinstance(span.stage, Training))
            acts = acts_of(stage.method.kind)
            if acts.answering is None or acts.noising is None:
                raise Refused("unknown-method")
            answering = acts.answering(stage, self.records, self.proposal, self.entropy)
            self._training = answering, acts.noising(stage, self.entropy)
        return self._training

    def _recall(self, answering: Answering, turn: int, question: str) -> None:
        """Let the clients stand where they were before this turn, so that a repeated one starts from the same state.

        A turn may be repeated as it was asked: with other clients, what they keep would tell of another past.
        """
        if not answering.memory or turn == self._ready:
            return
        path = self.private / MEMORY
        if not path.exists():
            return
        kept = Content.read(path.read_bytes())
        # the earlier state is gone, and with the same noise any other answer would reveal something
        if turn < kept.values["window"]:
            raise Refused("stale-round")
        if turn == kept.values["window"] and question != kept.values["asked"]:
            raise Refused("changed-round")
        row = kept.rows["before" if kept.values["window"] == turn else "after"]
        answering.recall(turn, tuple(unpacked(row.astype(np.float64))))

    def _remember(self, turn: int, question: str, before: tuple[Vector, ...], now: tuple[Vector, ...]) -> None:
        if not now:
            return
        rows = {"before": np.concatenate(packed(*before)), "after": np.concatenate(packed(*now))}
        write_atomically(self.private / MEMORY, Content(values={"window": turn, "asked": question}, rows=rows).write())
        self._ready = turn + 1

    # The evaluation

    def _evaluated(self, plan: Plan) -> Records:
        return self.data.counted(self.learned, held=not plan.evaluation.trains)

    def _counting(self, plan: Plan, records: Records, model: Vector) -> Callable[[Measures], Any]:
        return lambda by: evaluator_of(plan, model).counted(records, by, None)

    # Any other stage of noisy sums

    def _measuring(self, plan: MeasuredPlan) -> Callable[[Measures], Any]:
        own = np.array(self.numbers, dtype=np.int64)[self.data.records.owner]
        rows = replace(table_at(self.data, counted=False), owner=own, clients=plan.data.clients)
        code = stage_named(plan.stage)
        return lambda by: code.result(plan.stated, plan.sums, rows, plan.units, by)

    # Tables of a generator

    def _counts(self, one: Measurement, asked: Content) -> Sums:
        """Return what each record adds to the tables that a question names, of norm at most that of the plan."""
        try:
            question, table = Question.read(asked.blocks.get("question", b"")), table_at(self.data)
            if one.name == "ranges":
                places = [k for k, name in enumerate(table.outline.numbers) if name not in table.outline.scale]
                right = question.name == one.name and len(places) >= 1 and one.bound >= root_up(len(places))
                if not right or BINS * len(places) > one.size:
                    raise Refused("wrong-question")
                return range_counts(table.columns, places)
            question.check(one)
            _check_columns(question, table)
            return TableCounts(table.codes(question.cells), question.counted)
        except _BROKEN as error:
            raise Refused("wrong-question") from error


def sums_in(stage: Any, asked: Content, turns: int) -> list[Vector]:
    """Return the noisy sums of a stage's first turns in a question; refuse anything but finite rows of their sizes."""
    row = asked.rows.get("sums")
    sizes = [stage.size(turn) for turn in range(turns)]
    right = row is not None and row.dtype == np.float64 and row.shape == (sum(sizes),)
    if row is None or not right or not bool(np.all(np.abs(row) <= _LARGEST)):
        raise Refused("wrong-sums")
    return np.split(row.astype(np.float64), np.cumsum(sizes)[:-1]) if sizes else []


def _check_columns(question: Question, table: Table) -> None:
    """Refuse cells of columns that the site does not have, or has as something else; the target is the last."""
    numbers, texts = set(table.outline.numbers), set(table.outline.texts)
    *features, last = question.cells
    known = all(one.name in (numbers if isinstance(one, NumberCells) else texts) for one in features)
    once = len({one.name for one in question.cells}) == len(question.cells)
    same = isinstance(last, NumberCells) or (isinstance(last, WordCells) and last.words == table.labels.classes)
    alike = isinstance(last, NumberCells) == (table.labels.span is not None)
    if not (known and once and same and alike and last.name == table.target):
        raise Refused("wrong-question")
