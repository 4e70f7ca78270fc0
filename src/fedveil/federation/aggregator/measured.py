"""Carry out a stage of noisy sums at sites: the aggregator computes the result from the sums, without a record.

The program is that of a run in one process (fedveil.engine.measured), over columns without a row.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

from fedveil.core.errors import BadValue, require
from fedveil.core.limits import ENVELOPE
from fedveil.core.values import Vector
from fedveil.engine.files import write_atomically
from fedveil.engine.job import Release
from fedveil.engine.measured import (
    Program,
    check_secret,
    generator_program,
    own_program,
    planned_generator,
    planned_measured,
    released_by,
)
from fedveil.federation.aggregator.across import Across, Questions
from fedveil.federation.aggregator.consortium import Described
from fedveil.federation.aggregator.conversation import Conversation
from fedveil.federation.aggregator.federate import together
from fedveil.federation.aggregator.job import Agreed, conduct
from fedveil.federation.agreements import carried_by_sites
from fedveil.planning.study import Study
from fedveil.stages.measured.plan import MeasuredPlan, Settings
from fedveil.stages.measured.stage import accept, stage_named
from fedveil.stages.measuring import Asked
from fedveil.stages.protocol import Consortium
from fedveil.stages.synthesise.asking import Question, check_same, empty_table, question_after
from fedveil.stages.synthesise.generator import FILE, Generator
from fedveil.stages.synthesise.request import GeneratorRequest
from fedveil.stages.synthesise.table import Table
from fedveil.wire.content import Content


def check_sizes(plan: MeasuredPlan) -> None:
    """Refuse sums that sites cannot add up together."""
    hint = "Add a [trust] table to the study: every site adds its own share of the noise."
    require(carried_by_sites(plan), "The study", "say whom the sites trust", None, hint)
    largest = max(one.size for one in plan.sums.measurements)
    # Behind masks and encrypted, a site sends the numbers of each of its clients; an encrypted one has up to 65 bytes.
    each = {"trusted": 1, "secure-aggregation": plan.trust.hand, "homomorphic": 8 * plan.trust.hand}[plan.trust.server]
    most = ENVELOPE // 16
    rule = f"have at most {most} numbers across sites, of all clients of a site together where it is hidden"
    hint = "Leave columns out (data.ignore), take a smaller generator.coarse, or fewer clients at a site."
    require(largest * each <= most, "A sum", rule, largest * each, hint)


def columns_at_sites(described: Described, *, counted: bool = True, clients: int = 1) -> Table:
    """Return the columns of the sites without a row; refuse sites with rows already.

    ``counted``: every column is, so there must be a target, and all words must be listed.
    """
    outline, reading = described.outline, described.reading
    if outline is None:
        raise BadValue(
            "The sites must leave the rule for their rows open, since cells are counted: leave data.feature_bound out "
            "of their data files."
        )
    if reading is None or (counted and reading.labels.name is None):
        raise BadValue("data.target must name a column at the sites.")
    hint = "State data.categories at every site: words that nobody knows beforehand cannot be added up in parts."
    listed = not (counted and outline.open_texts)
    require(listed, "The sites", "state the categories of their columns", outline.open_texts, hint)
    return empty_table(outline, reading.labels, reading.labels.name, clients)


def agreed_sums(
    plan: MeasuredPlan,
    program: Program,
    members: Consortium,
    questions: Questions | None = None,
    *,
    times: int = 1,
) -> Agreed:
    """Return a plan of noisy sums, whose program every site's sums go into; a site learns its clients' numbers.

    ``questions`` and ``times``: as of ``Across.measures``.
    """
    check_sizes(plan)

    def stages(across: Across) -> Release:
        return released_by(plan, program, across.measures(plan.stage, members.sizes, questions, times=times))

    rows = {site: {"numbers": one.clients} for site, one in members.members.items()}
    return Agreed(plan=plan, rows=rows, stages=stages)


def _of_sites(plan: MeasuredPlan, members: Consortium) -> MeasuredPlan:
    """Return the plan with what the sites say about their own records."""
    return replace(plan, places=plan.places or members.places, blank_rows=plan.blank_rows or members.blank_rows)


@final
@dataclass(slots=True, kw_only=True)
class MeasuredJob:
    """Implements Job: a stage that one start of an aggregator carries out with its sites."""

    study: Study
    stage: str
    settings: Settings
    talk: Conversation
    what: str = "result"
    also_told: tuple[str, ...] = ()

    def conduct(self) -> bytes:
        """Measure, and return what is released."""
        conduct(self, self.talk)
        return (self.talk.folder / stage_named(self.stage).file).read_bytes()

    def agree(self, members: Consortium, described: Described) -> Agreed:
        """Return the plan of the stage."""
        rows = columns_at_sites(described, counted=False, clients=members.shape.clients)
        study, shape = together(self.study, members), members.shape
        plan = _of_sites(planned_measured(study, self.stage, self.settings, rows.all_columns, shape), members)
        accept(plan, rows.all_columns)
        # A contribution may have any sign, so exchanging a unit moves a sum by up to twice its bound.
        return agreed_sums(plan, own_program(plan, rows), members, times=2)


def planned_at_sites(
    study: Study, request: GeneratorRequest, members: Consortium, described: Described
) -> tuple[MeasuredPlan, Table]:
    """Return the plan of a generator of what the sites hold, and their columns without a row."""
    table = columns_at_sites(described)
    plan = planned_generator(together(study, members), request, table, members.shape)
    check_sizes(plan)
    return _of_sites(plan, members), table


@final
@dataclass(slots=True, kw_only=True)
class Generation:
    """Implements Job: a generator that one start of an aggregator makes with its sites."""

    study: Study
    request: GeneratorRequest
    talk: Conversation
    what: str = "generator"
    also_told: tuple[str, ...] = ()

    def conduct(self) -> Generator:
        """Make the generator and return it; what may be published is on the disk when this returns."""
        check_secret(self.study)
        conduct(self, self.talk)
        return Generator.read((self.talk.folder / FILE).read_bytes())

    def agree(self, members: Consortium, described: Described) -> Agreed:
        """Return the plan of the generator."""
        plan, table = planned_at_sites(self.study, self.request, members, described)
        kept = KeptQuestions(plan, self.request, table, self.talk.folder / "private" / "questions")
        return agreed_sums(plan, generator_program(plan, self.request, table), members, kept.question)


@dataclass(frozen=True, slots=True, eq=False)
class KeptQuestions:
    """The questions of a generator, on the disk before they leave.

    A choice of tables that was asked for must not change, whichever machine works it out again.
    """

    plan: MeasuredPlan
    request: GeneratorRequest
    table: Table
    log: Path

    def question(self, place: int, asked: Asked, sums: list[Vector]) -> Content:
        """Return the question for a measurement: that which was asked before, which must be the same."""
        kept = self._kept()
        if place < len(kept):
            check_same(Question.read(kept[place]), asked)
            return Content(blocks={"question": kept[place]})
        before = [Question.read(text) for text in kept]
        text = question_after(self.plan, self.request, self.table, sums, before, asked).text()
        blocks = {str(number): one for number, one in enumerate([*kept, text])}
        write_atomically(self.log, Content(blocks=blocks).write())
        return Content(blocks={"question": text})

    def _kept(self) -> list[bytes]:
        blocks: Mapping[str, bytes] = Content.read(self.log.read_bytes()).blocks if self.log.exists() else {}
        return [blocks[str(number)] for number in range(len(blocks))]
