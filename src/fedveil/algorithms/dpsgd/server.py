"""The aggregator's part of DP-SGD: the questions of a window and how it is mixed; waiting is decided elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, sqrt
from typing import TYPE_CHECKING, final

import numpy as np

from fedveil.algorithms.across_sites import LOOSE, TAIL, Consortium, Standing
from fedveil.algorithms.dpsgd.method import DpSgd
from fedveil.algorithms.dpsgd.shares import advance, unit_of
from fedveil.algorithms.dpsgd.steps import dpsgd_of
from fedveil.noise.entropy import Entropy
from fedveil.sums.seam import Whole
from fedveil.values import Indices, Vector
from fedveil.wire.content import Content

if TYPE_CHECKING:
    from fedveil.plan import Plan


@final
@dataclass(frozen=True, slots=True, eq=False)
class DpSgdServer:
    """Implements Serving; one round here is a window of the method's rounds, and the row of a state is the model."""

    plan: Plan
    method: DpSgd
    members: Consortium
    unit: float

    @classmethod
    def make(cls, plan: Plan, members: Consortium, entropy: Entropy) -> DpSgdServer:
        """Set up the server; nothing is drawn here, because every client has its own noise."""
        return cls(plan, dpsgd_of(plan), members, unit_of(plan))

    @property
    def width(self) -> int:
        """Number of rounds in a window."""
        return int(self.method.network.window)

    @property
    def last(self) -> int:
        """Number of windows."""
        return -(-self.method.total // self.width)

    def begin(self) -> Standing:
        """Return a model of zeros."""
        return Standing(0, np.zeros(self.plan.dimension))

    def model(self, standing: Standing) -> Vector:
        """Return the row, which is the model."""
        return standing.row

    def proposal(self, site: str) -> dict[str, Indices]:
        """Return the numbers of the site's clients."""
        return {"numbers": self.members.members[site].clients}

    def questions(self, standing: Standing) -> dict[str, Content]:
        """Return the model for each site whose clients have rounds left."""
        turn = standing.round
        return {
            site: Content(rows={"model": standing.row}) for site in self.members.members if self.clients(turn, site)
        }

    def cohort(self, turn: int) -> int:
        """Return the number of clients with rounds left."""
        return sum(self.method.settings(client).rounds > turn * self.width for client in range(self.plan.data.clients))

    def clients(self, turn: int, site: str) -> set[int]:
        """Return the clients of a site with rounds left."""
        own = self.members.members[site].clients.tolist()
        return {client for client in own if self.method.settings(client).rounds > turn * self.width}

    def limit(self, turn: int, site: str, clients: list[int]) -> int:
        """Return the limit of a window.

        All records clipped, the noise and the penalty, times the step, for every round.
        """
        size, sizes = self.plan.dimension, np.bincount(self.members.owner, minlength=self.plan.data.clients)
        total = 0.0
        for client in clients:
            settings, records = self.method.settings(client), int(sizes[client])
            divisor = self.method.divisor(settings, records)
            individual = self.method.clipping == "individual"
            data = settings.clip * (records / divisor if individual else 1.0)
            noise = settings.noise * settings.clip * (sqrt(size) + TAIL) / (divisor if individual else 1.0)
            each = data + noise + self.plan.model.l2 * self.plan.radius
            first = turn * self.width
            steps = sum(settings.step(k) for k in range(first, min(first + self.width, settings.rounds)))
            weight = self.method.weights[client] if self.method.weights else records / self.plan.data.records
            total += weight * steps * each / self.unit
        return ceil(total * LOOSE + 2 * len(clients) * sqrt(size))

    def advance(self, standing: Standing, total: Whole) -> Standing:
        """Return the state after one more window."""
        return Standing(standing.round + 1, self.mixed(standing.row, total))

    def mixed(self, model: Vector, total: Whole) -> Vector:
        """Return the model with the updates of a window."""
        return advance(model, total, self.unit, self.plan.radius)
