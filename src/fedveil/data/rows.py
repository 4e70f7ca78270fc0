"""Rows of bounded norm: each is multiplied by min(1, bound / norm), so that its norm is at most the bound, exactly.

Floating-point norms depend on the order of summation, by a relative error of at most (d + 2) 2^-53 for d numbers. So a
row is cut as soon as it comes within a slack of the bound that is larger than all rounding errors together, and is cut
to below the slack. Afterwards the true norm, and every way to compute it in float64, is at most the bound.
"""

import math
from typing import Any

import numpy as np

from fedveil.core.errors import BadValue, require
from fedveil.core.importing import named
from fedveil.core.limits import check_cells
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


# A frozen, public map that every record goes through alone, before its row is cut: hand-made or learned elsewhere.
#
# The map is no part of what is trained, so the model on top of it stays linear and keeps its convexity. Each record is
# given to it as a batch of one: whatever the map does, it cannot mix records. Page: docs/feature-maps.md.

_KEY = "data.feature_map"


def check_name(text: Any) -> None:
    """Refuse what cannot name a function."""
    shown = isinstance(text, str) and len(text) <= 300 and text.isprintable() and ":" in text
    require(shown, _KEY, 'name a function of rows, "package.file:function"', text)


def check_stated(name: str | None, learned: str) -> None:
    """Refuse a source's map that cannot be one, or whose rows are left to be learned."""
    if name is not None:
        check_name(name)
        hint = "State feature_bound, and the ranges and categories of the columns, which the map then gets."
        require(learned == "nothing", _KEY, "be left out where the rule for rows is learned", name, hint)


def mapped_rows(name: str, rows: Matrix, bound: float, intercept: float) -> Matrix:
    """Return the rows that the map makes of these, one by one, cut to ``bound``; a constant entry is appended if asked.

    The first record is mapped again at the end: a map that is random, or remembers, is refused.
    """
    require(len(rows) >= 1, "The data", "have at least one record for the feature map", 0)
    function = named(name, _KEY)
    first = _one(function, rows[0])
    check_cells(_KEY, len(rows), first.size)
    result = np.zeros((len(rows), first.size + (intercept > 0)))
    for place, row in enumerate(rows):
        entries = _one(function, row)
        require(entries.size == first.size, _KEY, f"give every record {first.size} numbers", entries.size)
        result[place, : first.size] = entries
    hint = "It must give a record the same numbers every time, whatever came before."
    steady = np.array_equal(first, _one(function, rows[0])) and np.array_equal(first, result[0, : first.size])
    require(steady, _KEY, "be a function of its row", "two results for one record", hint)
    cut_rows(result[:, : first.size], bound, intercept)
    if intercept:
        result[:, -1] = intercept
    return result


def _one(function: Any, row: Vector) -> Vector:
    """Return what the map makes of one record."""
    try:
        found = np.asarray(function(row[None].copy()))
    except Exception as error:  # a user's function may fail in any way
        reason = (str(error).splitlines() or [""])[0]
        told = f"{type(error).__name__}: {reason}"
        raise BadValue(f"{_KEY} must take an array of shape {(1, row.size)}, and that failed: {told}.") from error
    right = found.ndim >= 1 and found.shape[0] == 1 and found.size >= 1 and found.dtype.kind in "biuf"
    require(right, _KEY, "return an array of numbers, a row for each record", (found.shape, str(found.dtype)))
    plain = found.reshape(-1).astype(np.float64)
    require(bool(np.isfinite(plain).all()), _KEY, "give finite numbers", "others")
    return plain


def map_names(count: int) -> tuple[str, ...]:
    """Return what the entries of a mapped row are called."""
    return tuple(f"feature {place + 1}" for place in range(count))
