r"""The matrix behind correlated noise, as numbers that a plan can hold, and how exactly floats follow it on the grid.

Theory page: correlated-noise.md.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np

from fedveil.core.checks import require
from fedveil.core.values import Vector, number
from fedveil.theory.correlated import coefficients_of, coefficients_of_buffers, inverse_of, sensitivity
from fedveil.theory.grid import LARGEST_STATE

MOST_ROUNDS: Final = 20_000
MOST_BANDS: Final = 4096
MOST_BUFFERS: Final = 16
_UNIT: Final = 2.0**-53
_REACH: Final = 12.25  # deviations beyond which the sampler draws nothing: 12, and a part of one block of its table
_UP: Final = 1.01  # covers products of relative errors, and the rounding of these bounds themselves


@dataclass(frozen=True, slots=True, kw_only=True)
class Factor:
    r"""A lower-triangular Toeplitz matrix $C$ with ones on its diagonal.

    Banded: ``column`` holds $c_0 = 1, \dots, c_{b-1}$. With buffers: ``scales`` and ``decays`` stand for
    $c_t = \sum_i \alpha_i \lambda_i^{t-1}$, and the column is empty. Floats stand for the exact numbers that they are.
    """

    column: tuple[float, ...] = ()
    scales: tuple[float, ...] = ()
    decays: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        for name in ("column", "scales", "decays"):
            given: Any = getattr(self, name)
            require(isinstance(given, list | tuple), f"factor.{name}", "be a list of numbers", given)
            object.__setattr__(self, name, tuple(number(f"factor.{name}", value) for value in given))
        one = bool(self.column) != bool(self.scales)
        require(one, "factor", "be banded or have buffers, one of the two", (self.column, self.scales))
        if self.column:
            fine = self.column[0] == 1 and all(abs(value) <= 1 for value in self.column)
            require(fine, "factor.column", "begin with 1 and lie in [-1, 1]", self.column[:4])
            require(len(self.column) <= MOST_BANDS, "factor.column", f"have at most {MOST_BANDS}", len(self.column))
            require(not self.decays, "factor.decays", "go with scales", self.decays)
            return
        fits = len(self.scales) == len(self.decays) <= MOST_BUFFERS
        require(fits, "factor.decays", f"be as many as scales, at most {MOST_BUFFERS}", len(self.decays))
        fine = all(0 <= value <= 1 for value in self.scales) and math.fsum(self.scales) <= 1
        require(fine, "factor.scales", "be non-negative and sum to at most 1", self.scales)
        fine = all(0 <= value < 1 for value in self.decays)
        require(fine, "factor.decays", "lie in [0, 1)", self.decays)

    @property
    def banded(self) -> bool:
        """True if the matrix is banded; otherwise it has buffers."""
        return bool(self.column)

    @property
    def memory(self) -> int:
        """How many vectors the size of the model the noise of a round has to remember of the rounds before."""
        return len(self.column) - 1 if self.column else len(self.scales)

    def coefficients(self, rounds: int) -> Vector:
        """Return the first column of the matrix for so many rounds."""
        if self.column:
            return coefficients_of(self.column, rounds)
        return coefficients_of_buffers(self.scales, self.decays, rounds)

    def sensitivity(self, rounds: int, participations: int, separation: int) -> float:
        """Return how far one unit can move the release, for contributions of norm at most 1; rounded up."""
        return _sensitivity(self, rounds, participations, separation)

    def spread(self, rounds: int) -> float:
        """Return the sum of all coefficients of a column, in absolute value: how far an error in every round adds up.

        Rounded up.
        """
        return float(np.sum(np.abs(self.coefficients(rounds)))) * _UP

    def of_a_round(self, rounds: int) -> float:
        """Return the deviation of a round's correlated noise over that of independent noise, root mean square."""
        squares = inverse_of(self.coefficients(rounds)) ** 2
        return math.sqrt(float(np.sum(squares * (1 - np.arange(rounds) / rounds))))

    def growth(self, rounds: int) -> float:
        """Return by what the largest correlated number exceeds the largest independent one at most; rounded up."""
        return _growth(self, rounds)

    def largest(self, steps: float, rounds: int) -> float:
        """Return a bound on correlated noise in grid steps, for independent noise of deviation ``steps``.

        Infinite where floats cannot follow the matrix.
        """
        growth, loose = self.growth(rounds), self._relative(rounds)
        if not growth * loose < 0.5:
            return math.inf
        found = growth * (_REACH * steps + 2) / (1 - growth * loose) * _UP
        return found if found <= LARGEST_STATE else math.inf

    def rounding(self, steps: float, rounds: int) -> float:
        """Return how far a round's mean is displaced at most in a coordinate, in grid steps: half a step, and floats.

        Infinite where floats cannot follow the matrix.
        """
        return 0.0 if self.memory == 0 else (0.5 + self._relative(rounds) * self.largest(steps, rounds)) * _UP

    def _relative(self, rounds: int) -> float:
        """Return the error of what a round takes off its independent noise, over the largest correlated number."""
        if self.column:
            return (len(self.column) + 2) * _UNIT * math.fsum(abs(value) for value in self.column[1:]) * _UP
        total = 0.0
        for scale, decay in zip(self.scales, self.decays, strict=True):
            held = min(float(rounds), 1 / (1 - decay))  # what a buffer sums up, in units of the largest number in it
            total += scale * (2 * held * held + (len(self.scales) + 2) * held) * _UNIT
        return total * _UP


@lru_cache(maxsize=256)
def _sensitivity(factor: Factor, rounds: int, participations: int, separation: int) -> float:
    return sensitivity(factor.coefficients(rounds), participations, separation)


@lru_cache(maxsize=256)
def _growth(factor: Factor, rounds: int) -> float:
    total = float(np.sum(np.abs(inverse_of(factor.coefficients(rounds)))))
    return total * _UP if total < math.inf else math.inf
