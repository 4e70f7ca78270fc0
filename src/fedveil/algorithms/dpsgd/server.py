"""The aggregator's part of DP-SGD: the questions of a window and how it is mixed; waiting is decided elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, sqrt
from typing import TYPE_CHECKING, final

import numpy as np

from fedveil.algorithms.across_sites import LOOSE, TAIL, Consortium, Standing
from fedveil.algorithms.dpsgd.client import starting_weights
from fedveil.algorithms.dpsgd.client_settings import ClientSettings
from fedveil.algorithms.dpsgd.method import DpSgd
from fedveil.algorithms.dpsgd.shares import advance, unit_of
from fedveil.algorithms.dpsgd.steps import dpsgd_of, released
from fedveil.checks import require
from fedveil.noise.entropy import Entropy
from fedveil.sums.seam import Whole
from fedveil.values import Indices, Vector
from fedveil.wire.content import Content

if TYPE_CHECKING:
    from fedveil.plan import Plan


@final
@dataclass(frozen=True, slots=True, eq=False)
class DpSgdServer:
    """Implements Serving; one round here is a window of the method's rounds.

    The row of a state is the model; the moving average of the models comes after it, if that is what is released.
    """

    plan: Plan
    method: DpSgd
    members: Consortium
    unit: float

    @classmethod
    def make(cls, plan: Plan, members: Consortium, entropy: Entropy) -> DpSgdServer:
        """Set up the server; nothing is drawn here, because every client has its own noise."""
        hint = "State segments that are all run, or run the study in one process."
        choose = dpsgd_of(plan).choose
        require(choose is None, "algorithm.choose", "be left out across sites", choose, hint)
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
        return Standing(0, np.zeros(self.plan.dimension * (1 if self.method.average is None else 2)))

    def model(self, standing: Standing) -> Vector:
        """Return the model, or the average of all so far: the end of the row in either case."""
        return standing.row[-self.plan.dimension :]

    def proposal(self, site: str) -> dict[str, Indices]:
        """Return the numbers of the site's clients."""
        return {"numbers": self.members.members[site].clients}

    def questions(self, standing: Standing) -> dict[str, Content]:
        """Return the model for each site whose clients have rounds left."""
        turn = standing.round
        return {
            site: Content(rows={"model": self._latest(standing)})
            for site in self.members.members
            if self.clients(turn, site)
        }

    def cohort(self, turn: int) -> int:
        """Return the number of clients with rounds left."""
        return sum(self.method.rounds_of(client) > turn * self.width for client in range(self.plan.data.clients))

    def clients(self, turn: int, site: str) -> set[int]:
        """Return the clients of a site with rounds left."""
        own = self.members.members[site].clients.tolist()
        return {client for client in own if self.method.rounds_of(client) > turn * self.width}

    def limit(self, turn: int, site: str, clients: list[int]) -> int:
        """Return the limit of a window.

        All records clipped, the noise and the penalty, gathered in the velocity, times the step, for every round.
        """
        size, sizes = self.plan.dimension, np.bincount(self.members.owner, minlength=self.plan.data.clients)
        total, first = 0.0, turn * self.width
        for client in clients:
            records = int(sizes[client])
            weight = self.method.weights[client] if self.method.weights else records / self.plan.data.records
            for k in range(first, min(first + self.width, self.method.rounds_of(client))):
                total += weight * self._longest(client, k, records) / self.unit
        return ceil(total * LOOSE + 2 * len(clients) * sqrt(size))

    def _longest(self, client: int, turn: int, records: int) -> float:
        """Return a norm that a client's update of one round hardly exceeds.

        The velocity holds what came before: with momentum m it is up to 1 / (1 - m) times as long as one gradient.
        """
        method, optimiser = self.method, self.method.optimiser
        each = max(self._gradient(client, settings, records) for settings in method.parts_of(client))
        step = method.settings(client, turn).step(turn - method.segment(client, turn)[1])
        longest = optimiser.longest(each, self.plan.dimension)
        if optimiser.weight_decay:
            longest += optimiser.weight_decay * (self.plan.radius + float(np.linalg.norm(starting_weights(self.plan))))
        return step * longest * self._coarser

    def _gradient(self, client: int, settings: ClientSettings, records: int) -> float:
        """Return a norm that a client's noised mean gradient, with the penalty's pull, hardly exceeds."""
        method, size = self.method, self.plan.dimension
        clip = settings.clip if method.segments else method.longest(method.place(client))
        part = 1.0 if method.adaptive is None else method.adaptive.of_sum
        individual, divisor = method.clipping == "individual", method.divisor(settings, records)
        data = clip * (records / divisor if individual else 1.0)
        noise = settings.noise / part * clip * (sqrt(size) + TAIL) / (divisor if individual else 1.0)
        return data + noise + self.plan.model.l2 * self.plan.radius

    @property
    def _coarser(self) -> float:
        """By how much compression may lengthen an update."""
        match self.method.compression:
            case "random-k":
                return 1 / self.method.keep
            case "quantised" | "rotated":  # at most one level in each coordinate; a rotation pads to a power of two
                return 1 + sqrt(2 * self.plan.dimension) / self.method.levels
            case _:
                return 1.0

    def advance(self, standing: Standing, total: Whole) -> Standing:
        """Return the state after one more window."""
        model = self.mixed(self._latest(standing), total)
        if self.method.average is None:
            return Standing(standing.round + 1, model)
        average = released(self.method, self.model(standing), model, standing.round + 1)
        return Standing(standing.round + 1, np.concatenate([model, average]))

    def _latest(self, standing: Standing) -> Vector:
        """Return the model that the next window starts from."""
        return standing.row[: self.plan.dimension]

    def mixed(self, model: Vector, total: Whole) -> Vector:
        """Return the model with the updates of a window."""
        return advance(model, total, self.unit, self.plan.radius)
