"""Rows of numbers: their norms, sums that leave out what is no number, and how far rounding may take such a sum.

Matrix products are fast, but the last bits of a row's result depend on how many other rows there are. With a ``grain``
rows are taken one by one and added up in whole numbers instead: then nothing of a row depends on the others.
"""

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fedveil.core.errors import require
from fedveil.core.values import Matrix, Vector

UNIT = 2.0**-53  # largest relative error of one rounded operation
SLACK = 48  # roundings per record that do not grow with the sizes: exponentials, scaling, weights, the division
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
    products = np.empty((X.shape[0], w.shape[1]))
    for column in range(w.shape[1]):
        products[:, column] = np.vecdot(X, np.ascontiguousarray(w[:, column]))
    return products


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


def rounding_bound(
    *, rows: int, features: int, lipschitz: float, smoothness: float | None, radius: float, outputs: int = 1
) -> float:
    """Return an upper bound on |computed average - exact average| of clipped gradients, in the Euclidean norm.

    Proof: docs/theory/losses.md, "Rounding".

    ``rows``: how many are summed, in any order and in any number of parts, with weights whose absolute values add up to
    at most the divisor. ``lipschitz``, ``smoothness``: of the clipped data part. ``radius``: bounds the norm of the
    parameters; infinite gives infinity. If the smoothness is unknown (None) no privacy bound uses it, so a record's
    gradient may be any function of the parameters: it is defined as the computed one, and only the sum has an error
    (docs/torch.md).

    >>> rounding_bound(rows=1000, features=100, lipschitz=1.0, smoothness=0.25, radius=10.0) < 2e-13
    True
    """
    for name, count in (("rows", rows), ("features", features), ("outputs", outputs)):
        require(1 <= count <= 2**40, name, "lie between 1 and 2**40", count)
    for name, value in (("lipschitz", lipschitz), ("smoothness", smoothness)):
        if value is not None:
            require(1e-15 <= value <= 1e15, name, "lie in [1e-15, 1e15]", value)
    require(radius >= 0, "radius", "be non-negative", radius)
    sums = lipschitz * _growth(rows + features + outputs + SLACK)
    scores = 0.0 if smoothness is None else smoothness * radius * _growth(features + 2 + math.isqrt(outputs))
    return (sums + scores) * (1 + 8 * UNIT)  # this expression is rounded too


def _growth(roundings: int) -> float:
    """Return gamma_n = n u / (1 - n u), which bounds |product - 1| for n factors 1 + delta with |delta| <= u."""
    share = roundings * UNIT
    return share / (1 - share)  # sizes are limited above, so share is below 1/1000
