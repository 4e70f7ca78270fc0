"""What an algorithm does when its clients are on many machines: one side at the aggregator, one at every site.

``federation`` calls these two protocols and knows nothing else about an algorithm.
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

TAIL = 12.0  # deviations: a norm beyond sqrt(size) + 12 of them has a chance below exp(-72)
LOOSE = 1 + 2.0**-20  # float errors of the limit itself


@dataclass(frozen=True, slots=True, eq=False)
class Member:
    """One site: its clients' numbers in the study, and the number of each of its records."""

    clients: Indices
    records: Indices


@dataclass(frozen=True, slots=True, eq=False)
class Consortium:
    """All sites, what the plan may know of their data, and which client owns each record of the study.

    ``places``, ``blank_rows``: what any of the sites says about its own records, as in a plan.
    """

    members: Mapping[str, Member]
    shape: DataShape
    owner: Indices
    places: Places | None = None
    blank_rows: bool = False

    def stated(self, plan: Plan) -> Plan:
        """Return the plan with what the sites say about their records, for the certificate to name."""
        return replace(plan, places=plan.places or self.places, blank_rows=plan.blank_rows or self.blank_rows)


@dataclass(frozen=True, slots=True, eq=False)
class Standing:
    """Where a run stands after ``round`` rounds: all that the server keeps, in one row of numbers."""

    round: int
    row: Vector


class Serving(Protocol):
    """One algorithm at the aggregator; it holds no data."""

    @property
    def plan(self) -> Plan:
        """The plan that runs."""

    @property
    def last(self) -> int:
        """After how many rounds the model is released."""

    def begin(self) -> Standing:
        """Before the first round."""

    def model(self, standing: Standing) -> Vector:
        """The model of a standing."""

    def proposal(self, site: str) -> dict[str, Indices]:
        """What one site must know besides the plan."""

    def questions(self, standing: Standing) -> dict[str, Content]:
        """Who is asked what in the next round: fixed by the standing, so that asking again is asking the same."""

    def cohort(self, turn: int) -> int:
        """How many clients take part in a round."""

    def clients(self, turn: int, site: str) -> set[int]:
        """The clients of a site who take part in a round."""

    def limit(self, turn: int, site: str, clients: list[int]) -> int:
        """Grid steps that the norm of these clients' sum does not exceed, but with a chance below exp(-72)."""

    def advance(self, standing: Standing, total: Whole) -> Standing:
        """The next standing."""


class SiteWork(Protocol):
    """One algorithm at a site, for one run."""

    def parts(self, turn: int, asked: Content) -> dict[int, Whole]:
        """What its clients of this round send, by their numbers in the study; the noise is in it.

        The same round and the same question give the same answer, also after a restart.
        """


def model_in(asked: Content, plan: Plan) -> Vector | None:
    """The model in a question, or None if none was sent; what is no finite row of the right length is refused."""
    model = asked.rows.get("model")
    if model is None:
        return None
    if model.dtype != np.float64 or model.shape != (plan.dimension,) or not np.all(np.isfinite(model)):
        raise Refused("wrong-shape")
    return model.astype(np.float64)


def model_needed(asked: Content, plan: Plan) -> Vector:
    """The model in a question that must hold one."""
    model = model_in(asked, plan)
    if model is None:
        raise Refused("no-model")
    return model
