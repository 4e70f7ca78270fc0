"""A site's part of federated averaging: the clipped update of each of its clients in the round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import numpy as np

from fedveil.algorithms.across_sites import model_needed
from fedveil.algorithms.fedavg.shares import Rule, contribution
from fedveil.algorithms.fedavg.steps import Held, weights_of
from fedveil.algorithms.shares import message, share
from fedveil.data.records import Records
from fedveil.noise.entropy import Entropy
from fedveil.sums.seam import Whole
from fedveil.values import Vector
from fedveil.wire.content import Content
from fedveil.wire.envelope import Refused

if TYPE_CHECKING:
    from fedveil.plan import Plan


@final
@dataclass(frozen=True, slots=True, eq=False)
class FedAvgSite:
    """Implements SiteWork (fedveil.algorithms.across_sites); ``numbers``: its clients' numbers in the whole study."""

    plan: Plan
    rule: Rule
    held: Held
    weights: Vector
    numbers: tuple[int, ...]
    entropy: Entropy

    @classmethod
    def make(cls, plan: Plan, records: Records, numbers: tuple[int, ...], entropy: Entropy) -> FedAvgSite:
        """Set up the work of a site for one run."""
        rule = Rule.of(plan)
        return cls(plan, rule, Held.of(records), weights_of(rule.method, records.sizes), numbers, entropy)

    def parts(self, turn: int, asked: Content) -> dict[int, Whole]:
        """Return the updates of the clients that were drawn."""
        if not 0 <= turn < self.rule.method.rounds:
            raise Refused("no-such-round")
        model, drawn = model_needed(asked, self.plan), asked.rows.get("clients")
        if drawn is None or drawn.dtype != np.int64 or not set(drawn.tolist()) <= set(self.numbers):
            raise Refused("malformed")
        found: dict[int, Whole] = {}
        for number in sorted(set(drawn.tolist())):
            weight = float(self.weights[self.numbers.index(number)])
            part = contribution(self.rule, turn, model, self._alone(number), number, weight, self.entropy)
            sent = message(part, share(self.entropy, number, turn, self.rule.share, model.size))
            if sent is not None:
                found[number] = sent
        return found

    def _alone(self, number: int) -> Held:
        """Return one client's records under its number in the study, from which its local order is drawn."""
        place = self.numbers.index(number)
        rows = slice(int(self.held.starts[place]), int(self.held.starts[place + 1]))
        starts = np.zeros(number + 2, dtype=np.int64)
        starts[-1] = rows.stop - rows.start
        return Held(self.held.features[rows], self.held.targets[rows], self.held.norms[rows], starts)
