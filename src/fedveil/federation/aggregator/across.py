"""The adder across sites: every sum of every stage comes about by asking them, and is kept before the next question.

What was kept is not asked again, so a restarted aggregator asks the question at which it stopped, and a site gives the
same answer.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

import numpy as np

from fedveil.core.values import Indices, Vector
from fedveil.engine.keeper import Checkpoint, load_checkpoint, save_checkpoint
from fedveil.federation.aggregator.round_sums import RoundSums
from fedveil.federation.aggregator.turn import Turn, sum_limit, turn_of
from fedveil.federation.agreements import Carried, Span, least_of, spans
from fedveil.stages.measuring import Asked
from fedveil.stages.protocol import Asking, Consortium, State, Total
from fedveil.stages.sums import STEPS, Measurement, Sums
from fedveil.stages.train.rounds import packed, unpacked
from fedveil.wire.content import Content

Questions = Callable[[int, Asked, list[Vector]], Content]  # of a measurement by its place, and the sums before it


@final
@dataclass(slots=True, kw_only=True, eq=False)
class Across:
    """One start of an aggregator; ``path`` and ``mark``: where sums and states are kept, and of which run.

    ``tick`` is called with the number of turns done, and of turns in all.
    """

    plan: Carried
    members: Consortium
    sums: RoundSums
    path: Path
    mark: str
    tick: Callable[[int, int], None]
    _known: dict[int, Vector] = field(default_factory=dict)  # the noisy sums of measurements, by turn
    _state: State | None = None  # of the stage that trains

    def open(self, lists: Mapping[str, bytes]) -> None:
        """Make the keys that adding up needs, and read what was kept; ``lists``: what sites have enrolled for masks."""
        self.sums.prepare(lists)
        found = load_checkpoint(self.path, plan=self.mark, run=self.sums.run)
        if found is None:
            return
        turns, *rows = unpacked(np.array(found.state, dtype=np.float64))
        if "trained" in found.counts:
            self._state = State(found.counts["trained"], rows.pop())
        self._known = dict(zip(turns.astype(np.int64).tolist(), rows, strict=True))

    def span(self, name: str) -> Span:
        """Return the turns of a stage, by its name."""
        return next(span for span in spans(self.plan) if span.stage.name == name)

    def measures(
        self,
        name: str,
        sizes: Indices,
        questions: Questions | None = None,
        *,
        times: int = 1,
        beside: Mapping[str, Vector] | None = None,
    ) -> "SitesMeasurer":
        """Return what gives the noisy sums of a stage.

        ``sizes``: how many records of each client are counted; ``times``: how often the bound of a contribution a unit
        may add. ``questions``: None where a question is the sums so far, and what is ``beside`` them.
        """

        def usual(place: int, asked: Asked, sums: list[Vector]) -> Content:
            row = np.concatenate(sums) if sums else np.zeros(0)
            return Content(rows={"sums": row, **(beside or {})})

        return SitesMeasurer(self, self.span(name), sizes, questions or usual, times)

    def rounds(self, name: str, asking: Asking, begun: State | None = None) -> State:
        """Carry out a stage that trains, and return its last state; ``begun``: its first, if it is not its own."""
        first = asking.start() if begun is None else begun
        span, state = self.span(name), first if self._state is None else self._state
        trace = self.sums.trace
        while state.round < asking.last:
            total = self.sums.sum(turn_of(self.plan, span, asking, state, self.members))
            with trace.span("advance", round=span.first + state.round):
                state = asking.advance(state, Total(total))
            self._state = state
            self._save(span.first + state.round)
        return state

    def tell(self, name: str) -> None:
        """Tell the sites all sums of a stage: what they learn from it decides their answers in the stages after it."""
        span = self.span(name)
        row = np.concatenate([self._known[turn] for turn in range(span.first, span.end)])
        self.sums.tell(span.place, row, {site: member.clients.size for site, member in self.members.members.items()})

    def known(self, turn: int) -> Vector | None:
        """Return the sum of a turn that was added up before."""
        return self._known.get(turn)

    def measured(self, turn: Turn) -> Vector:
        """Add up a measurement, and keep its sum."""
        self._known[turn.number] = np.asarray(self.sums.sum(turn) / STEPS, dtype=np.float64)
        self._save(turn.number + 1)
        return self._known[turn.number]

    def _save(self, done: int) -> None:
        turns = sorted(self._known)
        rows = [np.array(turns, dtype=np.float64), *(self._known[turn] for turn in turns)]
        counts = {}
        if self._state is not None:
            rows.append(self._state.row)
            counts["trained"] = self._state.round
        row = np.concatenate(packed(*rows))
        kept = Checkpoint(plan=self.mark, run=self.sums.run, round=done, state=row, counts=counts)
        with self.sums.trace.span("save", round=done - 1):
            save_checkpoint(self.path, kept)
        self.tick(done, spans(self.plan)[-1].end)


@final
@dataclass(slots=True, eq=False)
class SitesMeasurer:
    """Implements Measures: asks the sites for what their clients contribute, whose rows nobody has here."""

    across: Across
    span: Span
    sizes: Indices
    questions: Questions
    times: int
    present: Indices = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    def noisy_sum(self, planned: Measurement, contributions: Sums, size: int) -> Vector:
        """Return the noisy sum of all sites, in the units of the measurement."""
        stage, across = self.span.stage, self.across
        place = stage.sums.measurements.index(planned)
        known = [across.known(self.span.first + k) for k in range(place)]
        question = self.questions(place, Asked(planned, contributions, size), [row for row in known if row is not None])
        number = self.span.first + place
        result, sites = across.known(number), across.members.members
        if result is None:
            turn = Turn(
                number=number,
                size=planned.size,
                least=least_of(across.plan, number),
                questions=dict.fromkeys(sites, question),
                clients={site: set(member.clients.tolist()) for site, member in sites.items()},
                limit=lambda site, clients: sum_limit(across.plan, planned, self.sizes, clients, self.times),
            )
            result = across.measured(turn)
        return result[:size]
