"""Make a generator of records that are at sites: the order is that of every job, and a crash loses no charge.

The aggregator never sees a record: it fits the generator to the noisy sums.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import final

from fedveil.core.checks import require
from fedveil.core.errors import BadValue
from fedveil.core.limits import ENVELOPE
from fedveil.core.values import Vector
from fedveil.engine.files import write_atomically
from fedveil.engine.job import Release
from fedveil.engine.synthesising import check_secret, planned_for
from fedveil.federation.aggregator.across import Across
from fedveil.federation.aggregator.conversation import Conversation
from fedveil.federation.aggregator.described import Described
from fedveil.federation.aggregator.federate import together
from fedveil.federation.aggregator.job import Agreed, conduct
from fedveil.federation.agreements.terms import carried_by_sites
from fedveil.planning.study import Study
from fedveil.stages.measured.plan import MeasuredPlan
from fedveil.stages.measuring import Asked
from fedveil.stages.protocol import Consortium
from fedveil.stages.synthesise.asking import Question, check_same, empty_table, question_after
from fedveil.stages.synthesise.generator import FILE, Generator
from fedveil.stages.synthesise.learn import learned_generator
from fedveil.stages.synthesise.plan import SynthesisPlan
from fedveil.stages.synthesise.request import GeneratorRequest
from fedveil.stages.synthesise.table import Table
from fedveil.wire.content import Content


def check_sizes(plan: SynthesisPlan | MeasuredPlan) -> None:
    """Refuse sums that sites cannot add up together."""
    hint = "Add a [trust] table to the study: every site adds its own share of the noise."
    require(carried_by_sites(plan), "The study", "say whom the sites trust", None, hint)
    largest = max(one.size for one in plan.preparation.measurements)
    # Behind masks and encrypted, a site sends the numbers of each of its clients; an encrypted one has up to 65 bytes.
    each = {"trusted": 1, "secure-aggregation": plan.trust.hand, "homomorphic": 8 * plan.trust.hand}[plan.trust.server]
    most = ENVELOPE // 16
    rule = f"have at most {most} numbers across sites, of all clients of a site together where it is hidden"
    hint = "Leave columns out (data.ignore), take a smaller generator.coarse, or fewer clients at a site."
    require(largest * each <= most, "A sum", rule, largest * each, hint)


def columns_at_sites(described: Described) -> Table:
    """Return the columns of the sites without a row; refuse sites with rows already, or with words nobody listed."""
    outline, reading = described.outline, described.reading
    if outline is None:
        raise BadValue(
            "The sites must leave the rule for their rows open, since cells are counted: leave data.feature_bound out "
            "of their data files."
        )
    if reading is None or reading.labels.name is None:
        raise BadValue("data.target must name a column at the sites.")
    hint = "State data.categories at every site: words that nobody knows beforehand cannot be added up in parts."
    require(not outline.open_texts, "The sites", "state the categories of their columns", outline.open_texts, hint)
    return empty_table(outline, reading.labels, reading.labels.name)


def planned_at_sites(
    study: Study, request: GeneratorRequest, members: Consortium, described: Described
) -> tuple[SynthesisPlan, Table]:
    """Return the plan of a generator of what the sites hold, and their columns without a row."""
    table = columns_at_sites(described)
    plan = planned_for(together(study, members), request, table, members.shape)
    check_sizes(plan)
    return replace(plan, places=plan.places or members.places, blank_rows=members.blank_rows), table


@final
@dataclass(slots=True, kw_only=True)
class Generation:
    """Implements Job: a generator that one start of an aggregator makes with its sites."""

    study: Study
    request: GeneratorRequest
    talk: Conversation
    what: str = "generator"
    also_told: tuple[str, ...] = ()
    _table: Table = field(init=False)

    def conduct(self) -> Generator:
        """Make the generator and return it; what may be published is on the disk when this returns."""
        check_secret(self.study)
        conduct(self, self.talk)
        return Generator.read((self.talk.folder / FILE).read_bytes())

    def agree(self, members: Consortium, described: Described) -> Agreed:
        """Return the plan of the generator; every site learns the numbers of its clients."""
        plan, self._table = planned_at_sites(self.study, self.request, members, described)
        return Agreed(plan=plan, rows={site: {"numbers": one.clients} for site, one in members.members.items()})

    def carry_out(self, across: Across) -> Release:
        """Measure the counts sum after sum, and fit the generator to them."""
        plan, table, request = across.plan, self._table, self.request
        if not isinstance(plan, SynthesisPlan):
            raise TypeError("a plan of a generator was expected")
        asked = KeptQuestions(plan, request, table, self.talk.folder / "private" / "questions")
        by = across.measures(plan.stages[0].name, across.members.sizes, asked.question)
        text = learned_generator(plan.name, plan.preparation, request, table, plan.units, by).text().encode()
        return Release(output=text, files={FILE: text})


@dataclass(frozen=True, slots=True, eq=False)
class KeptQuestions:
    """The questions of a generator, on the disk before they leave.

    A choice of tables that was asked for must not change, whichever machine works it out again.
    """

    plan: SynthesisPlan
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
