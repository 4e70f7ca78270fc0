"""A site's part of a generator: what its clients add to the tables of counts that a question names.

A question says which cells each column has and which tables are counted, as follows from the noisy sums so far. The
site checks that a record adds no more to them than the plan is charged for, so it need not know whether they follow;
and a round is answered once, for one question.
"""

from dataclasses import dataclass, replace
from typing import final

import numpy as np

from fedveil.errors import FedveilError
from fedveil.federation.agreements.terms import fits
from fedveil.federation.agreements.turns import measurement_of
from fedveil.federation.site.data import SiteData
from fedveil.federation.site.work import check_numbers
from fedveil.noise.entropy import Entropy
from fedveil.prepare.contributions import range_counts
from fedveil.prepare.magnitudes import BINS
from fedveil.prepare.synthesis.asking import Question
from fedveil.prepare.synthesis.cells import NumberCells, WordCells
from fedveil.prepare.synthesis.counts import TableCounts
from fedveil.prepare.synthesis.plan import SynthesisPlan
from fedveil.prepare.synthesis.table import Table
from fedveil.stages.adding import ClientShares
from fedveil.stages.sums import Measurement
from fedveil.stages.units import Sums, by_client, root_up
from fedveil.sums.seam import Whole
from fedveil.wire.content import Content
from fedveil.wire.envelope import Refused


def check_synthesis(plan: SynthesisPlan, proposal: Content, data: SiteData) -> None:
    """Refuse a generator that the site's columns are not for, and counts of words that nobody has listed."""
    table = table_at(data)
    columns = len(table.outline.numbers) + len(table.outline.texts) + 1
    if not 2 <= plan.data.features <= columns or "categories" in plan.preparation:
        raise Refused("other-generator")
    fits(plan, replace(data.records.shape, features=plan.data.features, bound=plan.data.bound))
    check_numbers(plan.data.clients, proposal, data.records)


def table_at(data: SiteData) -> Table:
    """Return the site's cells; refuse a site that has rows in their place, or that leaves words to be learned."""
    cells = data.cells
    if cells is None or cells.reading is None or cells.reading.labels.name is None or cells.outline.open_texts:
        raise Refused("other-generator")
    labels = cells.reading.labels
    return Table(
        outline=cells.outline,
        columns=cells.columns,
        targets=data.records.targets,
        labels=labels,
        target=cells.reading.labels.name,
    )


@final
@dataclass(frozen=True, slots=True, eq=False)
class CountedWork:
    """Implements SiteWork: one round a measurement; ``numbers``: the site's clients in the whole study."""

    plan: SynthesisPlan
    data: SiteData
    numbers: tuple[int, ...]
    entropy: Entropy

    def parts(self, turn: int, asked: Content) -> dict[int, Whole]:
        """Return what the clients add to the measurement of this round, by their numbers, noise included."""
        one = measurement_of(self.plan, turn)
        if one is None:
            raise Refused("no-such-round")
        try:
            contributions = self._contributions(one, asked.blocks.get("question", b""))
        except (FedveilError, ValueError, ArithmeticError, LookupError, TypeError) as error:
            raise Refused("wrong-question") from error
        records = self.data.records
        present = np.flatnonzero(~records.blank).astype(np.int64)
        shares = ClientShares(self.plan.target, self.entropy, self.plan.trust, self.plan.data.clients)
        parts: dict[int, Whole] = {}
        for number, rows in zip(self.numbers, by_client(records.owner, records.clients, present), strict=True):
            sent = shares.sent(one, contributions, rows, number)
            if sent is not None:
                parts[number] = sent
        return parts

    def _contributions(self, one: Measurement, text: bytes) -> Sums:
        """Return what each record adds, of norm at most that of the plan."""
        question, table = Question.read(text), table_at(self.data)
        if one.name == "ranges":
            places = [k for k, name in enumerate(table.outline.numbers) if name not in table.outline.scale]
            right = question.name == one.name and len(places) >= 1 and one.bound >= root_up(len(places))
            if not right or BINS * len(places) > one.size:
                raise Refused("wrong-question")
            return range_counts(table.columns, places)
        question.check(one)
        self._check_columns(question, table)
        return TableCounts(table.codes(question.cells), question.counted)

    def _check_columns(self, question: Question, table: Table) -> None:
        """Refuse cells of columns that the site does not have, or has as something else; the target is the last."""
        numbers, texts = set(table.outline.numbers), set(table.outline.texts)
        *features, last = question.cells
        known = all(one.name in (numbers if isinstance(one, NumberCells) else texts) for one in features)
        once = len({one.name for one in question.cells}) == len(question.cells)
        same = isinstance(last, NumberCells) or (isinstance(last, WordCells) and last.words == table.labels.classes)
        alike = isinstance(last, NumberCells) == (table.labels.span is not None)
        if not (known and once and same and alike and last.name == table.target):
            raise Refused("wrong-question")
