"""Fewer cells for a column, decided by its noisy counts alone: what noise would drown is counted together.

Neighbouring cells of a column of numbers are joined until each holds enough; rare words are joined into one cell. Rows
that are drawn later get a fine cell again, by the noisy counts within the joined one.
"""

from typing import Final

import numpy as np

from fedveil.core.values import Indices, Matrix, Vector

CLEAR: Final = 3.0  # deviations of the noise above which a count is taken to be there


def shares_of(counts: Vector, deviation: float, total: float) -> Vector:
    """Return shares that are not negative and sum to 1, near to noisy counts; a cell that cannot be has -inf.

    Counts that stand out of the noise are believed. What they leave of the total is given to the faint ones, none of
    which could be told from noise by itself, and where they leave nothing, these get nothing.
    """
    clear = counts > CLEAR / 2 * deviation
    faint = ~clear & np.isfinite(counts)
    left = total - counts[clear].sum()
    found = np.zeros(counts.size)
    if left > 0 and faint.any():
        found[clear] = counts[clear]
        found[faint] = _nearest(counts[faint], left)
    elif clear.any():
        found[clear] = _nearest(counts[clear], max(total, 1.0))
    else:
        found[:] = 1.0
    return np.asarray(found / found.sum(), dtype=np.float64)


def _nearest(values: Vector, total: float) -> Vector:
    """The nearest numbers that are not negative and have this sum: all are moved by the same amount, and cut at 0."""
    order = np.sort(values)[::-1]
    moved = (np.cumsum(order) - total) / np.arange(1, order.size + 1)
    last = int(np.flatnonzero(order > moved)[-1])
    return np.asarray(np.clip(values - moved[last], 0.0, None), dtype=np.float64)


def merged_numbers(shares: Vector, least: float, most: int) -> Indices:
    """Return the group of each cell in order, at most ``most`` groups, each with a share of at least ``least``.

    Neighbours are joined until each group holds ``least``. While there are too many groups, the two neighbours that
    hold least together are joined.
    """
    groups, held = np.zeros(shares.size, dtype=np.int64), [0.0]
    for cell, share in enumerate(shares.tolist()):
        if held[-1] > 0 and held[-1] >= least:
            held.append(0.0)
        groups[cell] = len(held) - 1
        held[-1] += share
    if len(held) > 1 and held[-1] < least:
        groups[groups == len(held) - 1] = len(held) - 2
        held[-2:] = [held[-2] + held[-1]]
    while len(held) > most:
        first = int(np.argmin(np.add(held[1:], held[:-1])))
        held[first : first + 2] = [held[first] + held[first + 1]]
        groups[groups > first] -= 1
    return groups


def merged_words(shares: Vector, least: float, most: int) -> Indices:
    """Return the group of each cell: frequent ones by themselves, the most frequent first, and all others together.

    Cells of no share at all are counted with the most frequent one, and never drawn.
    """
    order = [int(cell) for cell in np.argsort(-shares, kind="stable") if shares[cell] > 0]
    alone = [cell for cell in order if shares[cell] >= least][: max(most - 1, 1)]
    if len(order) <= len(alone) + 1 and len(order) <= most:  # one that is left over would be a group of its own anyway
        alone = order
    groups = np.zeros(shares.size, dtype=np.int64)
    groups[order] = len(alone)
    groups[alone] = np.arange(len(alone))
    return groups


def added(values: Vector, groups: Indices) -> Vector:
    """Return the sums of values by group."""
    return np.asarray(np.bincount(groups, weights=values, minlength=int(groups.max()) + 1), dtype=np.float64)


def indicator(groups: Indices) -> Matrix:
    """Return the matrix of zeros and ones that adds cells up by group."""
    found = np.zeros((int(groups.max()) + 1, groups.size))
    found[groups, np.arange(groups.size)] = 1.0
    return found
