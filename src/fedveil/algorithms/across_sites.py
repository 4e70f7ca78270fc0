"""The interface of an algorithm whose clients are on many machines: one side at the aggregator, one at every site.

``federation`` uses these two protocols and knows nothing else about an algorithm.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np

from fedveil.data.records import DataShape
from fedveil.data.spec import Places
from fedveil.sums.seam import Whole
from fedveil.values import Indices, Vector
from fedveil.wire.content import Content
from fedveil.wire.envelope import Refused

if TYPE_CHECKING:
    from fedveil.plan import Plan
    from fedveil.prepare.synthesis.plan import SynthesisPlan

TAIL = 12.0  # deviations: the chance of a norm beyond sqrt(size) + 12 of them is below exp(-72)
LOOSE = 1 + 2.0**-20  # covers float errors of the limit itself


@dataclass(frozen=True, slots=True, eq=False)
class Member:
    """One site: the numbers of its clients in the study, and the number of each of its records."""

    clients: Indices
    records: Indices


@dataclass(frozen=True, slots=True, eq=False)
class Consortium:
    """All sites, what the plan may know of their data, and which client owns each record of the study.

    ``places``, ``blank_rows``: what any of the sites says about its own records, as in a plan. ``held``: the shape of
    what they hold out, if they do, and how many records that is for each client.
    """

    members: Mapping[str, Member]
    shape: DataShape
    owner: Indices
    places: Places | None = None
    blank_rows: bool = False
    held: DataShape | None = None
    held_sizes: Indices | None = None

    def stated(self, plan: Plan) -> Plan:
        """Return the plan with what the sites say about their records, so that the certificate names it."""
        return replace(plan, places=plan.places or self.places, blank_rows=plan.blank_rows or self.blank_rows)


@dataclass(frozen=True, slots=True, eq=False)
class Standing:
    """The state of a run after ``round`` rounds: everything that the server keeps, in one row of numbers."""

    round: int
    row: Vector


class Serving(Protocol):
    """An algorithm at the aggregator, which holds no data."""

    @property
    def plan(self) -> Plan | SynthesisPlan:
        """The plan that runs."""

    @property
    def last(self) -> int:
        """The number of rounds after which the model is released."""

    def begin(self) -> Standing:
        """Return the state before the first round."""

    def model(self, standing: Standing) -> Vector:
        """Return the model of a state."""

    def proposal(self, site: str) -> dict[str, Indices]:
        """Return what one site must know besides the plan."""

    def questions(self, standing: Standing) -> dict[str, Content]:
        """Return the questions of the next round by site.

        They depend only on the state, so a repeated question is the same.
        """

    def cohort(self, turn: int) -> int:
        """Return how many clients take part in a round."""

    def clients(self, turn: int, site: str) -> set[int]:
        """Return the clients of a site that take part in a round."""

    def limit(self, turn: int, site: str, clients: list[int]) -> int:
        """Return a norm in grid steps that the sum of these clients exceeds with a chance below exp(-72)."""

    def advance(self, standing: Standing, total: Whole) -> Standing:
        """Return the state after one more round, with this sum."""


class SiteWork(Protocol):
    """An algorithm at a site, for one run."""

    def parts(self, turn: int, asked: Content) -> dict[int, Whole]:
        """Return what the clients of this round send, by their numbers in the study, with the noise included.

        The same round and the same question give the same answer, also after a restart.
        """


def model_in(asked: Content, plan: Plan) -> Vector | None:
    """Return the model in a question, or None if none was sent.

    Anything but a finite row of the right length is refused.
    """
    model = asked.rows.get("model")
    if model is None:
        return None
    if model.dtype != np.float64 or model.shape != (plan.dimension,) or not np.all(np.isfinite(model)):
        raise Refused("wrong-shape")
    return model.astype(np.float64)


def model_needed(asked: Content, plan: Plan) -> Vector:
    """Return the model in a question; refuse a question without one."""
    model = model_in(asked, plan)
    if model is None:
        raise Refused("no-model")
    return model
