"""A site's part of federated averaging: the clipped update of each of its clients in the round."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import numpy as np

from fedveil.algorithms.across_sites import model_needed
from fedveil.algorithms.fedavg.drawing import own_draws
from fedveil.algorithms.fedavg.local import Held
from fedveil.algorithms.fedavg.method import FedAvg
from fedveil.algorithms.fedavg.shares import Rule, contribution, nothing
from fedveil.algorithms.fedavg.steps import method_of, weights_of
from fedveil.algorithms.shares import message, share
from fedveil.data.records import Records
from fedveil.noise.entropy import Entropy
from fedveil.sums.seam import Whole
from fedveil.values import Indices, Vector
from fedveil.wire.content import Content
from fedveil.wire.envelope import Refused

if TYPE_CHECKING:
    from fedveil.plan import Plan


@final
@dataclass(frozen=True, slots=True, eq=False)
class FedAvgSite:
    """Implements SiteWork (fedveil.algorithms.across_sites); ``numbers``: its clients' numbers in the whole study."""

    plan: Plan
    method: FedAvg
    rules: Callable[[int], Rule]
    held: Held
    weights: Vector
    numbers: tuple[int, ...]
    entropy: Entropy
    joined: Callable[[int], Indices] | None

    @classmethod
    def make(cls, plan: Plan, records: Records, numbers: tuple[int, ...], entropy: Entropy) -> FedAvgSite:
        """Set up the work of a site for one run."""
        method = method_of(plan)
        weights = weights_of(method, records.sizes)
        joined = own_draws(method, plan.data.clients, numbers, entropy) if method.own_draws else None
        return cls(plan, method, Rule.each(plan), Held.of(records), weights, numbers, entropy, joined)

    def parts(self, turn: int, asked: Content) -> dict[int, Whole]:
        """Return what the clients that were asked send: their updates, or noise alone where they drew nothing."""
        if not 0 <= turn < self.method.rounds:
            raise Refused("no-such-round")
        model, drawn = model_needed(asked, self.plan), asked.rows.get("clients")
        if drawn is None or drawn.dtype != np.int64 or not set(drawn.tolist()) <= set(self.numbers):
            raise Refused("malformed")
        if self.joined is not None and set(drawn.tolist()) != set(self.numbers):
            raise Refused("malformed")  # where clients draw for themselves, all of them send in every round
        rule, clip, found = self.rules(turn), self._clip(asked), dict[int, Whole]()
        active = None if self.joined is None else set(self.joined(turn).tolist())
        for number in sorted(set(drawn.tolist())):
            part: Whole | None = nothing(rule, model)
            if active is None or number in active:
                weight = float(self.weights[self.numbers.index(number)])
                part = contribution(rule, turn, model, clip, self._alone(number), number, weight, self.entropy)
            sent = message(part, share(self.entropy, number, turn, rule.share, self.plan.sum_length))
            if sent is not None:
                found[number] = sent
        return found

    def _clip(self, asked: Content) -> float:
        """Return the bound on this round's updates; a bound that lies costs no privacy, as sums are in units of it."""
        if self.method.adaptive is None:
            return self.method.update_norm
        row = asked.rows.get("clip")
        if row is None or row.dtype != np.float64 or row.shape != (1,) or not 1e-100 <= row[0] <= 1e100:
            raise Refused("malformed")
        return float(row[0])

    def _alone(self, number: int) -> Held:
        """Return one client's records under its number in the study, from which its local order is drawn."""
        place = self.numbers.index(number)
        rows = slice(int(self.held.starts[place]), int(self.held.starts[place + 1]))
        starts = np.zeros(number + 2, dtype=np.int64)
        starts[-1] = rows.stop - rows.start
        return Held(self.held.features[rows], self.held.targets[rows], self.held.norms[rows], starts)
