"""Where the curves of an additive model may turn: knots from noisy counts, and how many there are to be.

A column is counted on equal cells of its range. Its knots are the quantiles of half the noisy distribution and half the
uniform one over the range: quantiles alone leave a thin tail without a knot, and equal distances leave the bulk with
few. Page: docs/preparation.md.
"""

import math
from typing import Final

import numpy as np

from fedveil.core.values import Vector
from fedveil.stages.prepare.ranges import Range

CELLS: Final = 64
_UNIFORM: Final = 0.5  # of the distribution whose quantiles are the knots
_EMPTY: Final = 0.002  # of the records: what may lie in all cells that are left out at one end
_DOUBT: Final = 2.0  # deviations of the noise that are added to what was counted there
_SPREADS: Final = 2.0  # on either side of the mean, over which a line rises
_DIGITS: Final = 5  # of a share in a histogram: noise leaves no more


def shares_of(counts: Vector) -> Vector:
    """Return the share of each cell: noisy counts without what is below zero; equal shares where nothing is left."""
    kept = np.clip(counts, 0.0, None)
    total = float(kept.sum())
    return np.round(kept / total, _DIGITS) if total > 0 else np.full(counts.size, 1 / counts.size)


def trimmed(own: Range, counts: Vector, deviation: float) -> tuple[Range, Vector]:
    """Return the range without those cells at its ends that surely hold hardly a record, and counts of its own cells.

    Ranges end at powers of two, and knots where no record is are a waste. Where noise leaves a doubt, a cell is kept.
    """
    most = _EMPTY * max(float(counts.sum()), 0.0)
    doubt = _DOUBT * deviation * np.sqrt(np.arange(1, counts.size + 1))
    first = int(np.count_nonzero(np.logical_and.accumulate(np.cumsum(counts) + doubt < most)))
    last = counts.size - int(np.count_nonzero(np.logical_and.accumulate(np.cumsum(counts[::-1]) + doubt < most)))
    edges = np.linspace(-1.0, 1.0, counts.size + 1)
    low, high = own.numbers(edges[[first, last]]).tolist() if first < last else (own.low, own.high)
    if not own.low <= low < high <= own.high:
        return own, counts
    below = np.concatenate([[0.0], np.cumsum(counts[first:last])])
    finer = np.interp(np.linspace(0, last - first, counts.size + 1), np.arange(last - first + 1), below)
    return Range(low, high, own.unit), np.diff(finer)


def line_of(counts: Vector, deviation: float) -> tuple[float, float]:
    """Return where a column's line rises: its middle, and half its width, on the scale from -1 to 1.

    It rises over two spreads on either side of the mean. What the noise does not show of the spread makes it wider.
    """
    places = (np.arange(counts.size) + 0.5) * 2 / counts.size - 1
    total = max(float(counts.sum()), 1.0)
    mean = min(max(float(counts @ places) / total, -1.0), 1.0)
    squares = (places - mean) ** 2
    seen = max(float(counts @ squares), deviation * math.sqrt(float(squares @ squares))) / total
    half = _SPREADS * math.sqrt(max(seen, (2 / counts.size) ** 2))
    return mean, min(half, 1.0 + abs(mean))


def knots_of(shares: Vector, cells: int) -> tuple[float, ...]:
    """Return up to ``cells + 1`` knots on the scale from -1 to 1, both ends among them, and a cell apart.

    >>> knots_of(np.full(CELLS, 1 / CELLS), 4)
    (-1.0, -0.5, 0.0, 0.5, 1.0)
    """
    mixed = (1 - _UNIFORM) * shares / shares.sum() + _UNIFORM / shares.size
    below = np.concatenate([[0.0], np.cumsum(mixed)])
    ends = np.linspace(-1.0, 1.0, shares.size + 1)
    wanted = np.interp(np.linspace(0.0, 1.0, cells + 1)[1:-1], below / below[-1], ends)
    width, kept = 2 / shares.size, [-1.0]
    for knot in wanted.tolist():
        if knot >= kept[-1] + width * (1 - 1e-9) and knot <= 1.0 - width * (1 - 1e-9):
            kept.append(knot)
    return (*kept, 1.0)
