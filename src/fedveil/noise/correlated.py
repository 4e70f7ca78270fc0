"""Correlated noise on the grid, round by round, in the memory of its band; a round that is asked again gets the same.

The noise of round t is fresh noise from the address of t, less what the matrix says of the noise of the rounds before,
rounded to whole steps. It is a function of the key, the label and the round: after a restart the earlier rounds are
drawn again, from the same addresses, and give the same numbers to the bit. Theory page: correlated-noise.md.
"""

import math
from typing import Final, final

import numpy as np

from fedveil.core.errors import require
from fedveil.core.values import Vector
from fedveil.noise.entropy import Entropy
from fedveil.noise.grid import rounded_normal
from fedveil.theory.correlated import Factor

_PART: Final = 4096  # coordinates drawn at a time, so that drawing needs no memory the size of the model


@final
class CorrelatedNoise:
    """The noise of one party for a vector of ``size`` numbers; ``steps``: deviation of the fresh noise in grid steps.

    Held are ``factor.memory`` vectors, and nothing else the size of the model. Sums go through the coordinates by
    themselves and in a fixed order, so that no other machine or number of threads gives other numbers.
    """

    __slots__ = ("_entropy", "_factor", "_held", "_label", "_next", "_size", "_steps")

    def __init__(self, factor: Factor, entropy: Entropy, label: str, steps: float, size: int, rounds: int) -> None:
        exact = factor.largest(steps, rounds) < math.inf
        hint = "Take a coarser grid or fewer bands."
        require(exact, "correlated noise", "stay below 2**52 grid steps", steps, hint)
        self._factor, self._entropy, self._label = factor, entropy, label
        self._steps, self._size, self._next = steps, size, 0
        self._held = np.zeros((factor.memory, size))

    def at(self, turn: int) -> Vector:
        """Return the noise of a round, counted from 0, in whole grid steps.

        Rounds in order cost one round each; going back costs all rounds before once more.
        """
        require(turn >= 0, "round", "be at least 0", turn)
        if turn < self._next:
            self._next = 0
            self._held[:] = 0.0
        result = np.empty(self._size)
        while self._next <= turn:
            self._draw(self._next, result)
            self._next += 1
        return result

    def _draw(self, turn: int, found: Vector) -> None:
        source = self._entropy.stream(self._label, turn)
        for first in range(0, self._size, _PART):
            part = slice(first, min(first + _PART, self._size))
            found[part] = rounded_normal(source, self._steps, part.stop - part.start)
            found[part] -= np.rint(self._taken_off(turn, part))
            self._keep(turn, part, found[part])

    def _taken_off(self, turn: int, part: slice) -> Vector:
        """Return what the matrix says of earlier rounds: the weighted sum of their noise."""
        total = np.zeros(part.stop - part.start)
        if self._factor.banded:
            column, held = self._factor.column, self._factor.memory
            for age in range(1, min(held, turn) + 1):
                total += column[age] * self._held[(turn - age) % held, part]
            return total
        for scale, row in zip(self._factor.scales, self._held, strict=True):
            total += scale * row[part]
        return total

    def _keep(self, turn: int, part: slice, noise: Vector) -> None:
        if self._factor.banded:
            if self._factor.memory:
                self._held[turn % self._factor.memory, part] = noise
            return
        for decay, row in zip(self._factor.decays, self._held, strict=True):
            row[part] = decay * row[part] + noise
