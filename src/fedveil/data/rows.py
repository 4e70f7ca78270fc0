"""Rows of bounded norm: each is multiplied by min(1, bound / norm), so that its norm is at most the bound, exactly.

Floating-point norms depend on the order of summation, by a relative error of at most (d + 2) 2^-53 for d numbers. So a
row is cut as soon as it comes within a slack of the bound that is larger than all rounding errors together, and is cut
to below the slack. Afterwards the true norm, and every way to compute it in float64, is at most the bound.
"""

import math

import numpy as np

from fedveil.core.values import Matrix, Vector


def row_norms(rows: Matrix) -> Vector:
    """Return the Euclidean norms of the rows; not finite if an entry (or its square) is not."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(np.sqrt(np.einsum("ij,ij->i", rows, rows)))


def slack(width: int, bound: float, intercept: float) -> float:
    """Return the relative room for rounding errors, enough also for the norm of the row with its intercept."""
    with_intercept = 1.0 + (intercept / bound) ** 2
    return 2 * (width + 8) * 2.0**-52 * with_intercept


def cut_rows(rows: Matrix, bound: float, intercept: float = 0.0) -> None:
    """Cut finite rows in place to norm at most ``bound``; an intercept is taken into account, but not appended.

    A second cut changes nothing; a row well within the bound is not changed; directions are kept.
    """
    room = slack(rows.shape[1], bound, intercept)
    norms = row_norms(rows)
    huge = np.flatnonzero(~np.isfinite(norms))  # entries so large that their squares overflow
    if huge.size:
        rows[huge] /= np.abs(rows[huge]).max(axis=1, keepdims=True)
        rows[huge] *= (2 * bound / row_norms(rows[huge]))[:, None]
        norms[huge] = row_norms(rows[huge])
    long = norms > bound * (1 - room)
    factors = np.ones_like(norms)
    np.divide(bound * (1 - 2 * room), norms, out=factors, where=long)
    if long.any():
        rows *= factors[:, None]


def total_bound(bound: float, intercept: float) -> float:
    """Return the bound of a row with its intercept."""
    return bound if intercept == 0 else math.hypot(bound, intercept)
