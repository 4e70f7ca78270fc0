"""The aggregator's part of hidden training: what each site is asked in a round, and what its answer may be."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, sqrt
from typing import final

import numpy as np
from numpy.typing import NDArray

from fedveil.errors import TooFewSurvivors
from fedveil.method.parts import cohorts
from fedveil.plan import Plan
from fedveil.run.consortium import Consortium
from fedveil.run.post import Answer
from fedveil.train.deal import rounds_of_owned
from fedveil.train.entropy import Entropy
from fedveil.train.hidden import Rule, State, last_round, model_of, start
from fedveil.train.hidden_parts import advance, share_steps
from fedveil.wire.content import Content

Vector = NDArray[np.float64]
Indices = NDArray[np.int64]
_TAIL = 12.0  # deviations: a norm beyond sqrt(size) + 12 of them has a chance below exp(-72)
_LOOSE = 1 + 2.0**-20


@final
@dataclass(frozen=True, slots=True, eq=False)
class HiddenServer:
    """What the aggregator needs for every round; ``place``: the round of a pass that each record is dealt into."""

    plan: Plan
    rule: Rule
    members: Consortium
    place: Indices
    cohorts: tuple[int, ...]
    last: int

    @classmethod
    def make(cls, plan: Plan, members: Consortium, entropy: Entropy) -> "HiddenServer":
        """The order and the stop are drawn from the aggregator's key: each site learns its own records' rounds only."""
        place = rounds_of_owned(plan, members.owner, entropy)
        sizes = tuple(cohorts(plan.method, plan.data, plan.target))
        return cls(plan, Rule.of(plan), members, place, sizes, last_round(plan, entropy))

    def begin(self) -> State:
        """The state before the first round."""
        return start(self.plan)

    def model(self, state: State) -> Vector:
        """The model of a state."""
        return model_of(self.rule, state)

    def proposal(self, site: str) -> dict[str, Indices]:
        """What one site must know besides the plan."""
        member = self.members.members[site]
        return {"numbers": member.clients, "place": self.place[member.records]}

    def questions(self, state: State) -> dict[str, Content]:
        """Who is asked what in the next round: a model goes only where a record of the round is."""
        turn, model = state.round, self.model(state)
        asked: dict[str, Content] = {}
        for site, member in self.members.members.items():
            here = bool(np.any(self._of_round(turn, member.records)))
            if here:
                asked[site] = Content(rows={"model": model})
            elif self.plan.deal == "records":
                asked[site] = Content()
        return asked

    def clients(self, turn: int, site: str) -> set[int]:
        """Those of a site who take part in a round."""
        member = self.members.members[site]
        if self.plan.deal == "records":
            return set(member.clients.tolist())
        return set(self.members.owner[member.records[self._of_round(turn, member.records)]].tolist())

    def right(self, turn: int, site: str, answer: Answer) -> bool:
        """Whether an answer can be a sum of what the site's clients may send: shape, who is in it, and its size.

        What an honest site sends passes but with a chance below exp(-72); anything larger is as good as no answer.
        """
        total, clients = answer.content.rows.get("total"), answer.content.values.get("clients")
        if answer.kind != "update" or total is None or not isinstance(clients, list) or not clients:
            return False
        known = all(type(client) is int for client in clients) and set(clients) <= self.clients(turn, site)
        shaped = total.dtype == np.int64 and total.shape == (self.plan.dimension,)
        if not (known and len(set(clients)) == len(clients) and shaped):
            return False
        limit = self._limit(turn, site, len(clients))
        return sum(value * value for value in total.tolist()) <= limit * limit

    def _limit(self, turn: int, site: str, clients: int) -> int:
        """Grid steps that the norm of so many clients' sum cannot exceed."""
        records = self.members.members[site].records
        used = int(np.sum(self._of_round(turn, records)))
        size = self.plan.dimension
        units = used if self.plan.target.unit == "record" else clients
        bound = units * self.rule.clip * self.rule.steps[turn] / self.rule.batches[turn] / self.rule.unit
        noise = sqrt(clients) * share_steps(self.plan, turn, self.cohorts[turn]) * (sqrt(size) + _TAIL)
        return ceil((bound + noise) * _LOOSE + 2 * clients * sqrt(size))

    def enough(self, turn: int, answers: Mapping[str, Answer]) -> bool:
        """Whether as many clients have answered as the plan needs."""
        assert self.plan.trust is not None  # noqa: S101  plans without it are refused before
        return _count(answers) >= max(self.plan.trust.least(self.cohorts[turn]), 1)

    def advance(self, state: State, answers: Mapping[str, Answer]) -> State:
        """The next state; a round with too few answers is refused, and what was charged stays charged."""
        turn = state.round
        if not self.enough(turn, answers):
            assert self.plan.trust is not None  # noqa: S101
            needed = self.plan.trust.least(self.cohorts[turn])
            raise TooFewSurvivors(
                f"Round {turn + 1} has the answers of {_count(answers)} clients and needs {needed}: with less noise"
                " than planned its sum is not used. What was charged stays charged; go on with --resume when the sites"
                " are back."
            )
        total = np.zeros(self.plan.dimension, dtype=np.int64)
        for site in sorted(answers):
            total += answers[site].content.rows["total"].astype(np.int64)
        return advance(self.rule, state, total)

    def _of_round(self, turn: int, records: Indices) -> NDArray[np.bool_]:
        return np.asarray(self.place[records] == turn % self.plan.run.rounds)


def _count(answers: Mapping[str, Answer]) -> int:
    return sum(len(answer.content.values["clients"]) for answer in answers.values())
