"""Mechanisms of one pass and of one number, as frozen values that an accountant reads.

A published class never changes its meaning: old records must certify to the same numbers for ever.
"""

import math
from dataclasses import dataclass
from typing import Final, get_args

from fedveil.core.errors import require
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


# Gaussian noise with its tails pulled in by arsinh, in one dimension: accounted for, never trained with.
#
# A published class never changes its meaning: old records must certify to the same numbers for ever.

NAME: Final = "arsinh-gaussian"
COSTS_MORE: Final = (
    "Arsinh-transformed noise costs more than it saves: its thin tails make large losses likely, and Gaussian noise of "
    "the same deviation has a smaller epsilon (docs/theory/arsinh-noise.md)."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArsinhGaussian:
    """A number of size at most C, plus a * arsinh(N / a), N normal of deviation noise_multiplier * C, a = scale * C."""

    noise_multiplier: float
    scale: float
    neighbours: Neighbours = "zero-out"

    def __post_init__(self) -> None:
        settle(self, number, "noise_multiplier", "scale")
        check_noise("ArsinhGaussian.noise_multiplier", self.noise_multiplier)
        check_neighbours("ArsinhGaussian.neighbours", self.neighbours)
        require(0.1 <= self.scale <= 1e9, "ArsinhGaussian.scale", "lie in [0.1, 1e9]", self.scale)
        rule = f"be at least noise_multiplier, {self.noise_multiplier:g}"
        hint = "Below that the noise has two peaks, and its worst pair is not known."
        require(self.scale >= self.noise_multiplier, "ArsinhGaussian.scale", rule, self.scale, hint)

    @property
    def shift(self) -> float:
        """How far one record moves the number, in units of a."""
        return (2.0 if self.neighbours == "replace-one" else 1.0) / self.scale

    @property
    def ratio(self) -> float:
        """The scale over the deviation of the noise before the transformation."""
        return self.scale / self.noise_multiplier
