"""Noise on a grid: normal and Laplace noise rounded to whole steps, exact up to a total variation of 2**-100.

Floating-point noise added to floating-point numbers leaves traces of both in the last bits (Mironov, On significance of
the least significant bits for differential privacy, 2012). Here the state is a whole number of steps, and so is the
noise. Proposals are uniform on blocks chosen from a table, and accepted by comparing a random number with the density:
in floats where these decide, and in eighty digits where they do not. Theory page: grid-noise.md.
"""

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Context, Decimal, localcontext
from fractions import Fraction
from functools import lru_cache
from math import ceil, frexp, ldexp
from typing import Final, Protocol, final

import numpy as np
from numpy.typing import NDArray

from fedveil.core.errors import require
from fedveil.core.values import Vector
from fedveil.theory.grid import MOST_STEPS

Whole = NDArray[np.int64]
Words = NDArray[np.uint64]

FEWEST_STEPS: Final = 2.0**-8  # least noise in grid steps; below this, cells would need more than 64 bits

_SLOTS: Final = 4096  # entries of the table that chooses a block: 12 bits of a word
_INNER: Final = np.uint64(52)  # the remaining bits: the position in the block
_MASK: Final = np.uint64(2**52 - 1)
_DOUBT: Final = 2.0**-40  # floats err by less than 2**-43 in the acceptance probability


class Source(Protocol):
    """A source of uniform 64-bit words, each returned once."""

    def words(self, count: int, /) -> Words:
        """Return the next ``count`` words."""


@dataclass(frozen=True, slots=True)
class _Shape:
    """A density exp(-fall(x)), with x in units of the noise, cut off at ``reach``."""

    reach: float
    fall: Callable[[Vector], Vector]
    exact: Callable[[Fraction], Fraction]


_NORMAL: Final = _Shape(12.0, lambda x: x * x / 2, lambda x: x * x / 2)  # beyond: 2 Q(12) < 2**-107
_LAPLACE: Final = _Shape(70.0, np.abs, abs)  # beyond: exp(-70) < 2**-100.9


@dataclass(frozen=True, slots=True, eq=False)
class _Table:
    """For each slot.

    Where its block starts (in cells, 2**52 a block), and the envelope's height relative to the density.
    """

    start: Whole
    share: Vector  # scale / slots of the block, at most exp(fall) anywhere in the block
    slots: Whole
    scale: int


@lru_cache(maxsize=128)  # 33 widths for each of the two shapes cover all noise levels
def _table(shape: _Shape, eighths: int) -> _Table:
    """Blocks of 8 / eighths noise units; a block has at least ``scale * density at its inner edge`` slots."""
    side = ceil(shape.reach * eighths / 8)
    edges: Vector = np.arange(side, dtype=np.float64) * (8.0 / eighths)
    height = np.exp(-shape.fall(edges)) * (1 + 1e-9)

    def slots_at(scale: int) -> Whole:
        return np.ceil(scale * height).astype(np.int64)

    scale = 1
    while 2 * slots_at(scale + 1).sum() <= _SLOTS:
        scale += 1
    right = slots_at(scale)
    slots = np.concatenate([right[::-1], right])  # blocks -side .. side - 1
    # the remaining slots go to one block: more proposals there, accepted less often
    slots[side] += _SLOTS - slots.sum()
    start = np.repeat(np.arange(-side, side, dtype=np.int64) << np.int64(52), slots)
    table = _Table(start, np.repeat(scale / slots, slots), np.repeat(slots, slots), scale)
    for values in (table.start, table.share, table.slots):
        values.setflags(write=False)  # read-only, because the cached table is shared
    return table


def rounded_normal(source: Source, steps: float, size: int) -> Whole:
    """Return ``size`` independent whole numbers with the law of round(N(0, steps**2)), up to 2**-100 in total
    variation.

    >>> from fedveil.noise.entropy import Entropy
    >>> rounded_normal(Entropy.from_seed(0).stream("noise", 1), steps=1000.0, size=3).dtype
    dtype('int64')
    """
    return Sampler.of(_NORMAL, steps).draw(source, size)


def rounded_laplace(source: Source, steps: float, size: int) -> Whole:
    """Return ``size`` independent whole numbers like :func:`rounded_normal`, for Laplace noise of scale ``steps``."""
    return Sampler.of(_LAPLACE, steps).draw(source, size)


@final
@dataclass(frozen=True, slots=True, eq=False)
class Sampler:
    """Rejection sampler of one shape at one width.

    A block has 2**block grid steps, an eighth to a quarter of the noise.
    """

    shape: _Shape
    steps: float
    block: int
    table: _Table
    doubt: float = _DOUBT

    @classmethod
    def of(cls, shape: _Shape, steps: float) -> "Sampler":
        """Return the sampler for noise of so many grid steps."""
        right = FEWEST_STEPS <= steps <= MOST_STEPS
        require(right, "steps", "lie between 2**-8 and 2**45 (noise over grid step)", steps, "Choose another grid.")
        block = frexp(steps)[1] - 3
        return cls(shape, float(steps), block, _table(shape, ceil(ldexp(steps, 3 - block))))

    def draw(self, source: Source, size: int) -> Whole:
        """Return ``size`` numbers; how many words this takes depends on which proposals are accepted."""
        result: list[Whole] = [np.zeros(0, dtype=np.int64)]
        missing = size
        while missing > 0:
            count = missing + missing // 4 + 8
            words = source.words(2 * count)
            result.append(self.accepted(words[:count], words[count:], source)[:missing])
            missing -= result[-1].size
        return np.concatenate(result)

    def accepted(self, places: Words, coins: Words, source: Source) -> Whole:
        """Return the proposals that are accepted, rounded. A place is a slot of the table and a cell of its block."""
        slot = places >> _INNER
        cell = self.table.start[slot] + (places & _MASK).astype(np.int64)
        unit = ldexp(1.0, self.block - 52) / self.steps
        chance = self.table.share[slot] * np.exp(-self.shape.fall((cell + 0.5) * unit))
        lead = chance - (coins >> np.uint64(11)) * 2.0**-53
        taken = lead > 0
        for i in np.flatnonzero(np.abs(lead) <= self.doubt).tolist():
            coin = (int(coins[i]) << 64) + int(source.words(1)[0])
            taken[i] = self._accepts(int(cell[i]), int(self.table.slots[slot[i]]), coin)
        shift = np.int64(52 - self.block)  # so many bits of a cell's number lie below the grid step
        half = np.int64(1) << (shift - np.int64(1))
        return np.asarray((cell[taken] + half) >> shift, dtype=np.int64)

    def _accepts(self, cell: int, slots: int, coin: int) -> bool:
        """Return whether coin / 2**128 < scale / slots * density at the cell's middle, in eighty digits."""
        middle = Fraction(2 * cell + 1) * Fraction(2) ** (self.block - 53) / Fraction(self.steps)
        fall = self.shape.exact(middle)
        with localcontext(Context(prec=80)):
            density = (-Decimal(fall.numerator) / Decimal(fall.denominator)).exp()
            return coin * slots < density * self.table.scale * 2**128
