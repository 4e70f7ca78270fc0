"""One measurement carried out: every client's whole numbers, the noise, and the sum that comes out.

With central noise one trusted party adds the noise to the sum. With shares every client adds its own share before its
numbers leave it, and whoever adds up sees nothing but the sum (fedveil.sums.seam). Noise is a function of the run's key
and of the measurement's name, so a run that is begun again measures the same numbers.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fedveil.algorithms.noise_shares import share_deviation
from fedveil.algorithms.shares import Fails, gathered, message, nobody_fails, plain_sum
from fedveil.checks import require
from fedveil.noise.entropy import Entropy
from fedveil.noise.grid import rounded_normal
from fedveil.prepare.contributions import Sums, by_client, whole_client
from fedveil.prepare.statement import NAMES, STEPS, Measurement
from fedveil.sums.seam import Summing, Whole
from fedveil.target import Target
from fedveil.trust import CENTRAL, Trust
from fedveil.values import Indices, Vector


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Measurer:
    """Who owns which row, who is protected, and how noise is added.

    ``present``: the rows that are not blank. ``add_up`` and ``fails`` matter where the clients share the noise.
    """

    owner: Indices
    clients: int
    present: Indices
    target: Target
    entropy: Entropy
    trust: Trust = CENTRAL
    add_up: Summing = plain_sum
    fails: Fails = nobody_fails

    def noisy_sum(self, planned: Measurement, contributions: Sums, size: int) -> Vector:
        """Return the noisy sum of all units' contributions, in the units of the measurement."""
        require(size <= planned.size, f"prepare.{planned.name}", f"have at most {planned.size} numbers", size)
        if self.trust.shared:
            total = self._shared(planned, contributions, size)
        else:
            noise = rounded_normal(self.entropy.stream(f"prepare {planned.name}"), planned.deviation, size)
            total = self._together(contributions, size) + noise
        return np.asarray(total / STEPS, dtype=np.float64)

    def _together(self, contributions: Sums, size: int) -> Whole:
        if self.target.unit == "record":
            return contributions(self.present)
        total = np.zeros(size, dtype=np.int64)
        for part in self._parts(contributions):
            total += part
        return total

    def _parts(self, contributions: Sums) -> Iterator[Whole]:
        own = contributions if self.target.unit == "record" else whole_client(contributions)
        for rows in by_client(self.owner, self.clients, self.present):
            yield own(rows)

    def _shared(self, planned: Measurement, contributions: Sums, size: int) -> Whole:
        turn, parts = NAMES.index(planned.name), list(self._parts(contributions))
        deviation = share_deviation(planned.deviation, self.trust, self.clients)

        def answer(client: int) -> Whole | None:
            stream = self.entropy.stream(f"prepare {planned.name} share {client}")
            return message(parts[client], rounded_normal(stream, deviation, size))

        least = self.trust.least(self.clients)
        return gathered(turn, range(self.clients), answer, self.add_up, least, self.fails).total
