"""Norms of rows, and sums of rows that leave out those that are not finite."""

import numpy as np
from numpy.typing import NDArray

from fedveil.values import Vector


def row_norms(X: Vector) -> Vector:
    """Return the Euclidean norm of each row; not finite if the row is not, or if its square overflows."""
    with np.errstate(all="ignore"):
        return np.asarray(np.sqrt(np.vecdot(X, X)), dtype=np.float64)


def weighted_sum(X: Vector, coefficients: Vector, usable: NDArray[np.bool_], weights: Vector | None) -> Vector:
    """Return the sum of weight * outer(row, coefficients) over the usable rows, flat.

    May overwrite ``coefficients``.
    """
    if not usable.all():  # zero times infinity is not zero, so the rows themselves must be removed
        X, coefficients = X[usable], coefficients[usable]
        weights = None if weights is None else weights[usable]
    if weights is not None:
        coefficients *= weights if coefficients.ndim == 1 else weights[:, None]
    product = X.T @ coefficients if coefficients.ndim == 1 else (coefficients.T @ X).T  # faster with the long side last
    return np.asarray(product, dtype=np.float64).ravel()
