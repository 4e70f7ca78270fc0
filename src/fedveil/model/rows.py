"""Rows of numbers: their norms, and sums that leave out what is no number.

Matrix products are fast, but the last bits of a row's result depend on how many other rows there are. With a ``grain``
rows are taken one by one and added up in whole numbers instead: then nothing of a row depends on the others.
"""

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fedveil.values import Matrix, Vector

_FINE: Final = 46  # bits of a record's gradient, so that float64 holds the sum of 64 of them exactly
_AT_ONCE: Final = 64
_ENTRIES: Final = 2**16  # numbers worked on at once: they stay in the processor's cache


def row_norms(X: Vector) -> Vector:
    """Return the Euclidean norm of each row; not finite if the row is not, or if its square overflows."""
    with np.errstate(all="ignore"):
        return np.asarray(np.sqrt(np.vecdot(X, X)), dtype=np.float64)


def grain_of(clip: float, rows: int) -> float:
    """Return a power of two, in multiples of which the exact sum of so many clipped gradients fits into 64 bits."""
    bits = min(_FINE, 61 - math.ceil(math.log2(max(rows, 1))))
    return float(2.0 ** (math.ceil(math.log2(clip)) - bits))


def scores(X: Vector, w: Vector, grain: float | None = None) -> Vector:
    """X @ w; with a grain each row's products are summed on their own, in an order that no other row can change."""
    return np.asarray(X @ w, dtype=np.float64) if grain is None else rows_apart(X, w)


def rows_apart(X: Vector, w: Vector) -> Vector:
    """Return X @ w, with each row's products summed on their own."""
    if w.ndim == 1:
        return np.asarray(np.vecdot(X, w), dtype=np.float64)
    found = np.empty((X.shape[0], w.shape[1]))
    for column in range(w.shape[1]):
        found[:, column] = np.vecdot(X, np.ascontiguousarray(w[:, column]))
    return found


def weighted_sum(
    X: Vector, coefficients: Vector, usable: NDArray[np.bool_], weights: Vector | None, grain: float | None = None
) -> Vector:
    """Return the sum of weight * outer(row, coefficients) over the usable rows, flat.

    May overwrite ``coefficients``.
    """
    if not usable.all():  # zero times infinity is not zero, so the rows themselves must be removed
        X, coefficients = X[usable], coefficients[usable]
        weights = None if weights is None else weights[usable]
    if weights is not None:
        coefficients *= weights if coefficients.ndim == 1 else weights[:, None]
    if grain is not None:
        return _exact_sum(X, coefficients, grain)
    product = X.T @ coefficients if coefficients.ndim == 1 else (coefficients.T @ X).T  # faster with the long side last
    return np.asarray(product, dtype=np.float64).ravel()


def stacked_sum(X: Vector, coefficients: Vector, usable: NDArray[np.bool_]) -> Matrix:
    """Return :func:`weighted_sum` of each of many batches of one size, a row for each, to the same bits as alone.

    ``X`` is batches by rows by features. A product of stacks is one product of matrices for each batch, of the very
    shape that the batch has alone; what a batch gets does not depend on the others.
    """
    if coefficients.ndim == 2:
        total = np.matmul(X.swapaxes(1, 2), coefficients[:, :, None])[:, :, 0]
    else:
        product = np.matmul(coefficients.swapaxes(1, 2), X)
        turned = np.empty((X.shape[0], X.shape[2], coefficients.shape[2]))
        for column in range(coefficients.shape[2]):  # several times faster than turning all at once
            turned[:, :, column] = product[:, column]
        total = turned.reshape(X.shape[0], -1)
    for place in np.flatnonzero(~usable.all(axis=1)).tolist():
        total[place] = weighted_sum(X[place], coefficients[place], usable[place], None)
    return np.asarray(total, dtype=np.float64)


def _exact_sum(X: Vector, coefficients: Vector, grain: float) -> Vector:
    """Return the sum of outer products, each rounded to the grain, so that the sum is the same in any order."""
    each = np.atleast_2d(coefficients.T).T * (1 / grain)  # exact: a power of two
    total = np.zeros((each.shape[1], X.shape[1]), dtype=np.int64)
    rows = max(1, min(_AT_ONCE, _ENTRIES // max(1, X.shape[1])))
    room = np.empty((rows, X.shape[1]))
    for first in range(0, X.shape[0], rows):
        here = X[first : first + rows]
        product = room[: here.shape[0]]
        for column in range(each.shape[1]):
            np.multiply(here, each[first : first + rows, column, None], out=product)
            np.rint(product, out=product)
            total[column] += product.sum(axis=0).astype(np.int64)
    return total.T.ravel().astype(np.float64) * grain
