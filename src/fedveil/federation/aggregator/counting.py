"""The aggregator's part of a generator: its sums are all the rounds of a run, and the questions follow from them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

import numpy as np

from fedveil.algorithms.across_sites import Consortium, Standing
from fedveil.errors import BadValue
from fedveil.federation.aggregator.serving import sum_limit
from fedveil.federation.agreements.turns import length_of, measured, measurement_of
from fedveil.prepare.synthesis.asking import Question, after
from fedveil.prepare.synthesis.generator import Generator
from fedveil.prepare.synthesis.plan import SynthesisPlan
from fedveil.prepare.synthesis.request import GeneratorRequest
from fedveil.prepare.synthesis.table import Table
from fedveil.run.files import write_atomically
from fedveil.stages.sums import STEPS
from fedveil.sums.seam import Whole
from fedveil.values import Indices, Vector
from fedveil.wire.content import Content


@final
@dataclass(slots=True, eq=False)
class CountingServer:
    """Implements Serving: one round a measurement. The row of a state is the noisy sums so far.

    ``table``: the columns of the sites, without a row. ``log``: where the questions are kept, since a choice of tables
    that was asked for must not change, whichever machine works it out again.
    """

    plan: SynthesisPlan
    request: GeneratorRequest
    table: Table
    members: Consortium
    log: Path
    _next: dict[int, Question | Generator] = field(default_factory=dict)

    @property
    def last(self) -> int:
        """The number of rounds after which the generator is made."""
        return measured(self.plan)

    def begin(self) -> Standing:
        """Return the state before the first sum."""
        return Standing(0, np.zeros(0))

    def model(self, standing: Standing) -> Vector:
        """Return the noisy sums so far: what a generator is made from."""
        return standing.row

    def generator(self, standing: Standing) -> Generator:
        """Return the generator, once all sums are known."""
        found = self._after(standing)
        if not isinstance(found, Generator):
            raise BadValue("All sums of a generator must be known before it is made.")
        return found

    def proposal(self, site: str) -> dict[str, Indices]:
        """Return what one site must know besides the plan: the numbers of its clients."""
        return {"numbers": self.members.members[site].clients}

    def questions(self, standing: Standing) -> dict[str, Content]:
        """Return the question of the next round, which is the same for all sites and on the disk before it leaves."""
        turn, kept = standing.round, self._kept()
        if turn >= len(kept):
            found = self._after(standing)
            if not isinstance(found, Question):
                raise BadValue("A generator that is made asks for nothing more.")
            kept = [*kept, found.text()]
            write_atomically(self.log, Content(blocks={str(place): one for place, one in enumerate(kept)}).write())
        return {site: Content(blocks={"question": kept[turn]}) for site in self.members.members}

    def cohort(self, turn: int) -> int:
        """Return how many clients take part: all of them."""
        return self.plan.data.clients

    def clients(self, turn: int, site: str) -> set[int]:
        """Return the clients of a site that take part in a round: all of them."""
        return set(self.members.members[site].clients.tolist())

    def limit(self, turn: int, site: str, clients: list[int]) -> int:
        """Return a norm in grid steps that the sum of these clients exceeds with a chance below exp(-72)."""
        one = measurement_of(self.plan, turn)
        if one is None:
            raise BadValue(f"A generator must have a round {turn + 1} to be summed.")
        sizes = np.bincount(self.members.owner, minlength=self.plan.data.clients)
        return sum_limit(self.plan, one, sizes, clients)

    def advance(self, standing: Standing, total: Whole) -> Standing:
        """Return the state after one more round; it is the last where nothing is left to be measured."""
        row = np.concatenate([standing.row, np.asarray(total / STEPS, dtype=np.float64)])
        found = Standing(standing.round + 1, row)
        return Standing(self.last, row) if isinstance(self._after(found), Generator) else found

    def _after(self, standing: Standing) -> Question | Generator:
        sums = self._sums(standing)
        if len(sums) not in self._next:
            asked = [Question.read(text) for text in self._kept()[: len(sums)]]
            self._next[len(sums)] = after(self.plan, self.request, self.table, sums, asked)
        return self._next[len(sums)]

    def _sums(self, standing: Standing) -> list[Vector]:
        """The sums so far; the last one is missing where nothing was left to be measured."""
        ends = np.cumsum([length_of(self.plan, turn) for turn in range(self.last)]).tolist()
        known = ends.index(standing.row.size) + 1 if standing.row.size else 0
        return np.split(standing.row, ends[: known - 1]) if known else []

    def _kept(self) -> list[bytes]:
        """The questions that were asked so far, by round."""
        blocks: Mapping[str, bytes] = Content.read(self.log.read_bytes()).blocks if self.log.exists() else {}
        return [blocks[str(place)] for place in range(len(blocks))]
