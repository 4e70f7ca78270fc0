"""A site's part of a private evaluation: what its clients add to the counts of a model's scores, after training.

A question brings the model and the noisy sums so far. Whatever they are, a unit adds no more than the plan is charged
for; and a round is answered once, for one question (docs/theory/evaluation.md).
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np

from fedveil.algorithms.across_sites import SiteWork, model_needed
from fedveil.data.records import Records
from fedveil.errors import FedveilError
from fedveil.federation.agreements.turns import evaluated_from, measurement_of
from fedveil.federation.site.data import SiteData
from fedveil.federation.site.measuring import Measuring, sums_in
from fedveil.federation.site.prepared import PreparedWork, learned_at
from fedveil.noise.entropy import Entropy
from fedveil.plan import Plan
from fedveil.prepare.learned import LearnedRule
from fedveil.run.evaluating import Adding, ModelEvaluator, evaluation_in
from fedveil.stages.adding import ClientShares
from fedveil.stages.units import by_client
from fedveil.sums.seam import Whole
from fedveil.wire.content import Content
from fedveil.wire.envelope import Refused

Rule = Callable[[], LearnedRule | None]  # what the preparation of the run has learned, None without one


def check_evaluation(plan: Plan, data: SiteData) -> None:
    """Refuse an evaluation of held-out records that the site does not have, or that is charged for too little.

    Every client of a site owns records of both kinds. Where clients are protected, both costs must add up for them.
    """
    planned = plan.evaluation
    if plan.test_apart is not None:  # nobody has compared the rows of several sites, so nobody may certify it
        raise Refused("other-evaluation")
    if planned is None or planned.trains:
        return
    counted, held = planned.shape(plan.data), data.held
    if held is None or (plan.target.unit == "client" and not planned.joint) or counted.clients != plan.data.clients:
        raise Refused("other-evaluation")
    mine = held.shape
    within = counted.smallest_client <= mine.smallest_client and mine.largest_client <= counted.largest_client
    if not (within and mine.records <= counted.records):
        raise Refused("other-evaluation")


def whole_work(
    plan: Plan,
    data: SiteData,
    proposal: Content,
    entropy: Entropy,
    sums: Path,
    trained: Callable[[Records], SiteWork],
) -> SiteWork:
    """Return the work of all rounds: the preparation's, training's and the evaluation's, as far as the plan has them.

    ``sums``: where the sums of the preparation are kept. ``trained``: the work of training, on these records.
    """
    measuring = Measuring.make(plan, data, proposal, entropy)
    if measuring is None:
        work = trained(data.records)
    else:
        work = PreparedWork(measuring, sums, trained) if plan.method.served else measuring
    if plan.evaluation is None:
        return work

    def rule() -> LearnedRule | None:
        return None if measuring is None else learned_at(measuring, sums)

    return EvaluatedWork(plan, data, tuple(proposal.rows["numbers"].tolist()), entropy, rule, work)


@final
@dataclass(slots=True, eq=False)
class EvaluatedWork:
    """Implements SiteWork: the rounds of ``then``, and after them the sums of the evaluation.

    ``numbers``: the numbers of the site's clients in the whole study. ``rule``: called once the rounds of ``then`` are
    over.
    """

    plan: Plan
    data: SiteData
    numbers: tuple[int, ...]
    entropy: Entropy
    rule: Rule
    then: SiteWork
    _records: Records | None = None

    def parts(self, turn: int, asked: Content) -> dict[int, Whole]:
        """Return what the clients of this round send, noise included."""
        first = evaluated_from(self.plan)
        if turn < first:
            return self.then.parts(turn, asked)
        if measurement_of(self.plan, turn) is None:
            raise Refused("no-such-round")
        model = model_needed(asked, self.plan)
        sums = sums_in(self.plan, asked, range(first, turn))
        if self._records is None:
            self._records = self.data.counted(self.rule(), held=not evaluation_in(self.plan).trains)
        records = self._records
        try:
            one, contributions = Adding(ModelEvaluator.of(self.plan, model), records).after(sums)
        except (FedveilError, ValueError, ArithmeticError) as error:
            raise Refused("wrong-sums") from error
        present = np.flatnonzero(~records.blank).astype(np.int64)
        shares = ClientShares(self.plan.target, self.entropy, self.plan.trust, self.plan.data.clients)
        parts: dict[int, Whole] = {}
        for number, rows in zip(self.numbers, by_client(records.owner, records.clients, present), strict=True):
            sent = shares.sent(one, contributions, rows, number)
            if sent is not None:
                parts[number] = sent
        return parts
