"""Gaussian noise with its tails pulled in by arsinh, in one dimension: accounted for, never trained with.

A published class never changes its meaning: old records must certify to the same numbers for ever.
"""

from dataclasses import dataclass
from typing import Final

from fedveil.core.checks import require
from fedveil.core.values import number, settle
from fedveil.privacy.guarantee import Neighbours
from fedveil.privacy.passes import check_neighbours, check_noise

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
