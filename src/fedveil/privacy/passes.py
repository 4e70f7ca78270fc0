"""One pass of DP-SGD in which every record takes part exactly once, as frozen values; every update is seen.

A published class never changes its meaning: old records must certify to the same numbers for ever.
"""

import math
from dataclasses import dataclass
from typing import get_args

from fedveil.core.checks import require
from fedveil.core.values import number, settle, whole
from fedveil.privacy.guarantee import Neighbours

MOST_BATCHES = 10**6


def check_noise(name: str, value: float) -> None:
    """Refuse a noise multiplier that gives no privacy, or none that can be worked with."""
    hint = "Without noise there is no privacy; leave it out to have it calibrated."
    require(0 < value < math.inf, name, "be finite and positive", value, hint)
    require(1e-6 <= value <= 1e9, name, "lie in [1e-6, 1e9]", value, "Rescale the clipping norm.")


def check_neighbours(name: str, value: str) -> None:
    """Refuse a neighbouring relation that is not known."""
    right = isinstance(value, str) and value in get_args(Neighbours)
    require(right, name, f"be one of {', '.join(get_args(Neighbours))}", value)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShuffledGaussian:
    """One pass over a fresh, uniformly random order of the records, cut into batches; every noisy sum is seen.

    A record takes part once, so it is charged as one Gaussian. A group shares batches by chance: ``batches`` says how
    many there are, and ``size`` how many records each holds (None: unknown; members then count as placed
    independently).
    """

    batches: int
    size: int | None = None
    noise_multiplier: float
    neighbours: Neighbours = "zero-out"

    def __post_init__(self) -> None:
        settle(self, whole, "batches")
        if self.size is not None:
            settle(self, whole, "size")
            require(1 <= self.size <= 10**15, "ShuffledGaussian.size", "be at least 1", self.size)
        settle(self, number, "noise_multiplier")
        require(1 <= self.batches <= 10**12, "ShuffledGaussian.batches", "lie between 1 and 1e12", self.batches)
        check_noise("ShuffledGaussian.noise_multiplier", self.noise_multiplier)
        check_neighbours("ShuffledGaussian.neighbours", self.neighbours)

    @property
    def mu(self) -> float:
        """Sensitivity over noise of one record."""
        return (2.0 if self.neighbours == "replace-one" else 1.0) / self.noise_multiplier


@dataclass(frozen=True, slots=True, kw_only=True)
class IndependentGaussian:
    """One pass in which every record picks one of the ``rounds``, uniformly, by its own secret draw.

    Also called balls in bins, random allocation or random check-in. Every noisy sum is seen; its divisor is planned,
    and a round that nobody picked still releases its noise.
    """

    rounds: int
    noise_multiplier: float
    neighbours: Neighbours = "zero-out"

    def __post_init__(self) -> None:
        settle(self, whole, "rounds")
        settle(self, number, "noise_multiplier")
        rule = f"lie between 1 and {MOST_BATCHES}"
        require(1 <= self.rounds <= MOST_BATCHES, "IndependentGaussian.rounds", rule, self.rounds)
        check_noise("IndependentGaussian.noise_multiplier", self.noise_multiplier)
        check_neighbours("IndependentGaussian.neighbours", self.neighbours)

    @property
    def mu(self) -> float:
        """One contribution over the noise (an exchange moves two rounds, each by one contribution)."""
        return 1.0 / self.noise_multiplier
