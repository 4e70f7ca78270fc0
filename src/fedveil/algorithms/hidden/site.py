"""A site's part of hidden training: the whole numbers that each of its clients sends in a round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import numpy as np

from fedveil.algorithms.across_sites import model_in, model_needed
from fedveil.algorithms.hidden.drawn import Drawn
from fedveil.algorithms.hidden.shares import Laid, contribution, laid_by, share_steps
from fedveil.algorithms.hidden.steps import Rule
from fedveil.algorithms.shares import message, share
from fedveil.checks import require
from fedveil.data.records import Records
from fedveil.noise.entropy import Entropy
from fedveil.sums.seam import Whole
from fedveil.values import Indices
from fedveil.wire.content import Content
from fedveil.wire.envelope import Refused

if TYPE_CHECKING:
    from fedveil.plan import Plan


@final
@dataclass(frozen=True, slots=True, eq=False)
class HiddenSite:
    """What a site needs for every round; ``numbers`` are its clients' numbers in the whole study."""

    plan: Plan
    rule: Rule
    laid: Laid | Drawn
    numbers: tuple[int, ...]
    cohorts: tuple[int, ...]
    entropy: Entropy

    @classmethod
    def make(
        cls, plan: Plan, records: Records, numbers: tuple[int, ...], place: Indices | None, entropy: Entropy
    ) -> HiddenSite:
        """``place``: the round of a pass that each of the site's own records is dealt into; -1: none.

        It is None where units draw their own rounds: then the site draws, from its own key.
        """
        sizes = tuple(plan.method.cohorts(plan.setup))
        if place is None:
            return cls(plan, Rule.of(plan), Drawn(plan, records, numbers, entropy), numbers, sizes, entropy)
        inside = place.shape == (len(records),) and bool(np.all((place >= -1) & (place < plan.run.rounds)))
        require(inside, "place", f"give each of {len(records)} records a round of the plan", place.shape)
        return cls(plan, Rule.of(plan), laid_by(plan, records, place), numbers, sizes, entropy)

    def parts(self, turn: int, asked: Content) -> dict[int, Whole]:
        """Return what the clients of this round send, by their numbers in the study, with the noise included.

        A model is sent to a site only for rounds in which it has a record; without one its clients send noise alone.
        Where units draw, every question must hold one: to ask only those who drew a record would tell who did.
        """
        if not 0 <= turn < self.plan.run.total:
            raise Refused("no-such-round")
        model = (model_needed if self.plan.run.sampled else model_in)(asked, self.plan)
        found: dict[int, Whole] = {}
        steps = share_steps(self.plan, turn, self.cohorts[turn])
        for client in self.laid.cohort(turn):
            batch = self.laid.part(turn, client)
            if batch is not None and model is None:
                raise Refused("no-model")
            start = np.zeros(self.plan.dimension) if model is None else model
            part = contribution(self.rule, turn, start, batch)
            number = self.numbers[client]
            noise = share(self.entropy, number, turn, steps, self.plan.dimension)
            sent = message(part, noise)
            if sent is not None:
                found[number] = sent
        return found
