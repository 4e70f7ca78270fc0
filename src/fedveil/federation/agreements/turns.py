"""The turns of a run across sites, counted on the wire through all stages of the plan.

Both sides work this out from the plan. A turn is answered once, so no two stages may share a number: a stage begins
after the last turn that the stage before it may have, also if that ends before.
"""

from dataclasses import dataclass
from functools import lru_cache

from fedveil.engine.sums import Floors
from fedveil.federation.agreements.carried import Carried
from fedveil.stages.stage import Stage
from fedveil.wire.envelope import Refused


@dataclass(frozen=True, slots=True)
class Span:
    """The turns of one stage: its place among the stages, and the number of its first turn."""

    place: int
    first: int
    stage: Stage

    @property
    def end(self) -> int:
        """The number of the first turn after it."""
        return self.first + self.stage.turns


@lru_cache(maxsize=16)
def spans(plan: Carried) -> tuple[Span, ...]:
    """Return the turns of every stage, in order."""
    found: list[Span] = []
    for place, stage in enumerate(plan.stages):
        found.append(Span(place, found[-1].end if found else 0, stage))
    return tuple(found)


def span_of(plan: Carried, turn: int) -> Span:
    """Return the stage that a turn belongs to; refuse a turn that the plan does not have."""
    found = next((span for span in spans(plan) if span.first <= turn < span.end), None)
    if found is None:
        raise Refused("no-such-round")
    return found


def length_of(plan: Carried, turn: int) -> int:
    """Return how many numbers the sum of a turn has."""
    span = span_of(plan, turn)
    return span.stage.size(turn - span.first)


def least_of(plan: Carried, turn: int) -> int:
    """Return how many clients must answer in a turn."""
    span = span_of(plan, turn)
    return max(plan.trust.least(span.stage.cohort(turn - span.first)), 1)


def all_floors(plan: Carried) -> Floors:
    """Return, for each sum of the run, how many clients take part in it and how many must answer."""
    sizes = [span.stage.cohort(turn) for span in spans(plan) for turn in range(span.stage.turns)]
    return [(size, max(1, plan.trust.least(size))) for size in sizes]


def server_of(plan: Carried, turn: int) -> str:
    """Return who adds up a turn: as the plan's trust says; nobody, where the algorithm has no server.

    Its other stages are then added up behind masks.
    """
    if all(span.stage.served for span in spans(plan)):
        return plan.trust.server
    return "secure-aggregation" if span_of(plan, turn).stage.served else ""
