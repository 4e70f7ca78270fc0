"""One measurement carried out: every client's whole numbers, the noise, and the sum that comes out.

With central noise one trusted party adds the noise to the sum. With shares every client adds its own share before its
numbers leave it, and whoever adds up sees nothing but the sum (fedveil.sums.seam). An algorithm without a server has no
such party either, so its clients add shares too. Noise is a function of the run's key and of the measurement's name, so
a run that is begun again measures the same numbers; a client on another machine sends what it adds up here.
"""

from dataclasses import dataclass

import numpy as np

from fedveil.algorithms.noise_shares import share_deviation
from fedveil.algorithms.shares import Fails, gathered, message, nobody_fails, plain_sum
from fedveil.checks import require
from fedveil.noise.entropy import Entropy
from fedveil.noise.grid import rounded_normal
from fedveil.stages.sums import ALL, STEPS, Measurement
from fedveil.stages.units import Sums, by_client, whole_client
from fedveil.sums.seam import Summing, Whole
from fedveil.target import Target
from fedveil.trust import CENTRAL, Trust
from fedveil.values import Indices, Vector


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Measurer:
    """Who owns which row, who is protected, and how noise is added.

    ``present``: the rows that are not blank. ``add_up`` and ``fails`` matter where the clients share the noise.
    ``served``: whether the algorithm has a server, which may be trusted with the noise.
    """

    owner: Indices
    clients: int
    present: Indices
    target: Target
    entropy: Entropy
    trust: Trust = CENTRAL
    add_up: Summing = plain_sum
    fails: Fails = nobody_fails
    served: bool = True

    def noisy_sum(self, planned: Measurement, contributions: Sums, size: int) -> Vector:
        """Return the noisy sum of all units' contributions, in the units of the measurement."""
        require(size <= planned.size, f"prepare.{planned.name}", f"have at most {planned.size} numbers", size)
        shared = self.trust.all_send or not (self.served or planned.threshold is not None)
        added = self._in_shares if shared else self._at_once
        return np.asarray(added(planned, contributions, size) / STEPS, dtype=np.float64)

    def _at_once(self, planned: Measurement, contributions: Sums, size: int) -> Whole:
        noise = rounded_normal(self.entropy.stream(f"prepare {planned.name}"), planned.deviation, size)
        if self.target.unit == "record":
            return contributions(self.present) + noise
        own = whole_client(contributions)
        return sum((own(rows) for rows in by_client(self.owner, self.clients, self.present)), start=noise)

    def _in_shares(self, planned: Measurement, contributions: Sums, size: int) -> Whole:
        turn, rows = ALL.index(planned.name), list(by_client(self.owner, self.clients, self.present))
        shares = ClientShares(self.target, self.entropy, self.trust, self.clients)

        def answer(client: int) -> Whole | None:
            return shares.sent(planned, contributions, rows[client], client)

        least = self.trust.least(self.clients)
        return gathered(turn, range(self.clients), answer, self.add_up, least, self.fails).total[:size]


@dataclass(frozen=True, slots=True, eq=False)
class ClientShares:
    """What clients that share the noise send; ``clients``: of the whole study, ``entropy``: of the one who computes."""

    target: Target
    entropy: Entropy
    trust: Trust
    clients: int

    def deviation(self, planned: Measurement) -> float:
        """Return the deviation of one client's share of a measurement's noise, in grid steps."""
        return share_deviation(planned.deviation, self.trust, self.clients)

    def sent(self, planned: Measurement, contributions: Sums, rows: Indices, client: int) -> Whole | None:
        """Return the whole numbers that leave a client, by its number in the study, noise included.

        There are as many as the plan says, whatever is counted: numbers that nobody contributes to are noise alone.
        """
        own = (contributions if self.target.unit == "record" else whole_client(contributions))(rows)
        require(own.size <= planned.size, f"prepare.{planned.name}", f"have at most {planned.size} numbers", own.size)
        stream = self.entropy.stream(f"prepare {planned.name} share {client}")
        noise = rounded_normal(stream, self.deviation(planned), planned.size)
        return message(np.pad(own, (0, planned.size - own.size)), noise)
