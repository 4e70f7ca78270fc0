"""DP-SGD whose next segment is chosen by a rule, all clients in step; the budget is asked before every segment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from fedveil.core.errors import BadValue, require
from fedveil.core.values import Vector
from fedveil.data.records import Records
from fedveil.noise.entropy import Entropy
from fedveil.stages.adding import Adder
from fedveil.stages.protocol import Consortium, State
from fedveil.stages.train.acting import Session, Trained
from fedveil.stages.train.base import Training
from fedveil.stages.train.dpsgd.answering import DpSgdAnswering
from fedveil.stages.train.dpsgd.asking import DpSgdAsking
from fedveil.stages.train.dpsgd.method import DpSgd
from fedveil.stages.train.dpsgd.rounds import costs_of_segments
from fedveil.stages.train.dpsgd.shared import SharedAnswering, SharedAsking
from fedveil.stages.train.dpsgd.sides import sides_of
from fedveil.stages.train.dpsgd.steps import dpsgd_of
from fedveil.stages.train.settings import IN_ORDER, Choice, Purse, plateau

Rule = Callable[[Choice, Sequence[int], Sequence[float], Purse], int | None]


def train_chosen(plan: Training, records: Records, entropy: Entropy, session: Session, rule: Rule = plateau) -> Trained:
    """Train segment by segment, as the rule chooses, until it ends the run or nothing is affordable.

    A segment that would overspend is refused before any of its rounds uses a record, whatever the rule.
    """
    method, public = dpsgd_of(plan), session.public_loss
    choice = method.choice
    if not choice or public is None:
        raise BadValue("algorithm.choose must go with held-out records that are public (data.held_out.public = true).")
    require(records.shape == plan.data, "The records", f"have the plan's shape, {plan.data}", records.shape)
    purse = Purse(costs=costs_of_segments(method), left=Fraction(choice.budget))
    chosen, losses = list[int](), [public(np.zeros(plan.dimension))]
    run: _Run | None = None
    while (number := rule(choice, tuple(chosen), tuple(losses), purse)) is not None:
        purse = purse.after(number)
        chosen.append(number)
        so_far = _stage_of(plan, _run_so_far(method, chosen))
        run = _Run.begin(so_far, records, entropy) if run is None else run.follow(so_far)
        run = run.through(method.client_settings[number].rounds, entropy, session)
        losses.append(public(run.model))
    done = 0 if run is None else run.state.round
    size = 8 * plan.dimension * done * records.clients
    return Trained(
        model=np.zeros(plan.dimension) if run is None else run.model,
        dropped=0 if run is None else run.answering.dropped,
        bytes_up=size,
        bytes_down=size,
        chosen=tuple(chosen),
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Run:
    """A run between two segments."""

    stage: Training
    asking: SharedAsking | DpSgdAsking
    answering: SharedAnswering | DpSgdAnswering
    state: State

    @classmethod
    def begin(cls, stage: Training, records: Records, entropy: Entropy) -> _Run:
        asking = sides_of(stage).asking(stage, Consortium.here(records), entropy)
        numbers = tuple(range(records.clients))
        return cls(stage, asking, sides_of(stage).answering(stage, records, numbers, entropy), asking.start())

    def follow(self, stage: Training) -> _Run:
        """Go on with one more segment."""
        self.answering.choose(dpsgd_of(stage))
        return replace(self, stage=stage, asking=replace(self.asking, stage=stage, method=dpsgd_of(stage)))

    def through(self, rounds: int, entropy: Entropy, session: Session) -> _Run:
        """Do so many rounds."""
        clients, state = self.stage.data.clients, self.state
        adder = Adder(
            answering=self.answering,
            noising=sides_of(self.stage).noising(self.stage, entropy),
            entropy=entropy,
            trust=self.stage.trust,
            cohort=lambda turn: clients,
            shared=self.stage.trust.shared,
            add_up=session.add_up,
            fails=session.fails,
        )
        for _ in range(rounds):
            question = self.asking.question(state)
            if question is None:
                raise TypeError("a question to everybody is never empty")
            state = self.asking.advance(state, adder.total(state.round, question))
            session.tick(state.round)
        return replace(self, state=state)

    @property
    def model(self) -> Vector:
        """What would be released now."""
        return self.asking.model(self.state)


def _stage_of(plan: Training, method: DpSgd) -> Training:
    return Training(
        method=method, data=plan.data, model=plan.model, target=plan.target, grid=plan.grid, trust=plan.trust
    )


def _run_so_far(method: DpSgd, chosen: Sequence[int]) -> DpSgd:
    """Return the method with the chosen segments in the order in which they were chosen, as if planned so."""
    parts = tuple(method.client_settings[index] for index in chosen)
    return replace(method, client_settings=parts, choice=IN_ORDER)
