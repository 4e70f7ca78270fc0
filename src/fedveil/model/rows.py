"""Rows of numbers: their norms, and sums that leave out what is no number."""

import numpy as np
from numpy.typing import NDArray

from fedveil.values import Vector


def row_norms(X: Vector) -> Vector:
    """The Euclidean norm of each row; not finite where a row is not, or where its square overflows."""
    with np.errstate(all="ignore"):
        return np.asarray(np.sqrt(np.vecdot(X, X)), dtype=np.float64)


def weighted_sum(X: Vector, coefficients: Vector, usable: NDArray[np.bool_], weights: Vector | None) -> Vector:
    """Sum of weight * outer(row, coefficients) over the usable rows, flat; ``coefficients`` may be overwritten."""
    if not usable.all():  # zero times infinity is no zero: the rows themselves have to go
        X, coefficients = X[usable], coefficients[usable]
        weights = None if weights is None else weights[usable]
    if weights is not None:
        coefficients *= weights if coefficients.ndim == 1 else weights[:, None]
    product = X.T @ coefficients if coefficients.ndim == 1 else (coefficients.T @ X).T  # the long side last is faster
    return np.asarray(product, dtype=np.float64).ravel()
