"""Fewer cells for a column, decided by its noisy counts alone: what noise would drown is counted together.

Neighbouring cells of a column of numbers are joined until each holds enough; rare words are joined into one cell. Rows
that are drawn later get a fine cell again, by the noisy counts within the joined one.
"""

from typing import Final

import numpy as np

from fedveil.values import Indices, Matrix, Vector

CLEAR: Final = 3.0  # deviations of the noise above which a count is taken to be there


def shares_of(counts: Vector, deviation: float, total: float) -> Vector:
    """Return shares that are not negative and sum to 1, nearest to noisy counts; what noise makes alone is left out."""
    kept = np.where(counts > CLEAR / 2 * deviation, counts, 0.0) / max(total, 1.0)
    if not kept.sum() > 0:
        return np.full(counts.size, 1.0 / counts.size)
    order = np.sort(kept)[::-1]
    moved = (np.cumsum(order) - 1.0) / np.arange(1, order.size + 1)
    last = int(np.flatnonzero(order > moved)[-1])
    found = np.clip(kept - moved[last], 0.0, None)
    found = np.where(kept > 0, found, 0.0)
    return np.asarray(found / found.sum(), dtype=np.float64)


def merged_numbers(shares: Vector, least: float, most: int) -> Indices:
    """Return the group of each cell in order: neighbours are joined until a group holds ``least`` and 1 / ``most``.

    A cell that holds so much by itself is kept apart, so there may be up to 2 * ``most`` + 2 groups.
    """
    enough = max(least, 1.0 / most)
    groups, held, group = np.zeros(shares.size, dtype=np.int64), 0.0, 0
    for cell, share in enumerate(shares.tolist()):
        if held > 0 and (held >= enough or (share >= enough and held >= least)):
            group, held = group + 1, 0.0
        groups[cell] = group
        held += share
    if group > 0 and held < least:
        groups[groups == group] = group - 1
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
