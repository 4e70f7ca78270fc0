"""A site's part of federated averaging: the clipped update of each of its clients in the round."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, final

import numpy as np

from fedveil.algorithms.across_sites import model_needed
from fedveil.algorithms.fedavg.drawing import own_draws
from fedveil.algorithms.fedavg.local import Held
from fedveil.algorithms.fedavg.method import FedAvg
from fedveil.algorithms.fedavg.resending import Resending
from fedveil.algorithms.fedavg.shares import Rule, contribution, nothing, resending_of, sent_again
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
    resending: Resending | None
    memory: Path

    @classmethod
    def make(cls, plan: Plan, records: Records, numbers: tuple[int, ...], entropy: Entropy, memory: Path) -> FedAvgSite:
        """Set up the work of a site for one run; ``memory``: where updates are kept that are sent again."""
        method = method_of(plan)
        weights = weights_of(method, records.sizes)
        joined = own_draws(method, plan.data.clients, numbers, entropy) if method.own_draws else None
        resending = resending_of(method, plan.data.clients)
        if resending is not None:
            resending.read(memory)
        return cls(
            plan, method, Rule.each(plan), Held.of(records), weights, numbers, entropy, joined, resending, memory
        )

    def parts(self, turn: int, asked: Content) -> dict[int, Whole]:
        """Return what the clients that were asked send: their updates, or noise alone where they drew nothing."""
        if not 0 <= turn < self.method.rounds:
            raise Refused("no-such-round")
        model, drawn = model_needed(asked, self.plan), asked.rows.get("clients")
        if drawn is None or drawn.dtype != np.int64 or not set(drawn.tolist()) <= set(self.numbers):
            raise Refused("malformed")
        active = self._active(turn, asked, set(drawn.tolist()))
        rule, clip, found = self.rules(turn), self._clip(asked), dict[int, Whole]()
        for number in sorted(set(drawn.tolist())):
            part: Whole | None = nothing(rule, model)
            weight = float(self.weights[self.numbers.index(number)])
            if number in active:
                part = contribution(rule, turn, model, clip, self._alone(number), number, weight, self.entropy)
            part = sent_again(rule, self.resending, turn, number, weight, part, number in active)
            sent = message(part, share(self.entropy, number, turn, rule.share, self.plan.sum_length))
            if sent is not None:
                found[number] = sent
        if self.resending is not None and active:
            self.resending.write(self.memory)
        return found

    def _active(self, turn: int, asked: Content, drawn: set[int]) -> set[int]:
        """Return which of the clients that send have an update of this round.

        Where clients draw for themselves, or send updates again, all of them send in every round.
        """
        if (self.joined is not None or self.resending is not None) and drawn != set(self.numbers):
            raise Refused("malformed")
        if self.joined is not None:
            return set(self.joined(turn).tolist())
        if self.resending is None:
            return drawn
        row = asked.rows.get("joined")
        if row is None or row.dtype != np.int64 or not set(row.tolist()) <= drawn:
            raise Refused("malformed")
        found = set(row.tolist())
        if not self.resending.allows(turn, found, drawn - found):
            raise Refused("other-cohort")
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
        held = self.held
        return Held(held.features[rows], held.targets[rows], held.norms[rows], starts, held.products)
