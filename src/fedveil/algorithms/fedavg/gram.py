"""Local steps through the products of a client's records with each other, for clients with fewer records than features.

Steps of all records of a linear model stay in the span of the global model and the client's rows: after each of them
the model is ``a * w + X.T @ b``. Scores follow from ``X @ w``, computed once a round, and from ``X @ X.T``, computed
once a run; the features are needed again only for the update. So several local epochs cost little more than one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedveil.model.rows import stacked_sum
from fedveil.values import Matrix, Vector

if TYPE_CHECKING:
    from fedveil.algorithms.fedavg.local import Local
    from fedveil.model.loss import ScoredLoss


def products_of(X: Vector) -> Matrix:
    """Return the products of a client's records with each other."""
    return np.asarray(np.matmul(X[None], X[None].swapaxes(1, 2))[0], dtype=np.float64)


def trained_by_products(
    local: Local, loss: ScoredLoss, model: Vector, X: Vector, y: Matrix, norms: Matrix, products: Vector
) -> Matrix:
    """Return the models of clients of one size after their local epochs, a row for each.

    ``X``: clients by records by features; ``products``: clients by records by records. A product of stacks is one
    product of matrices for each client, so a client's row has the same bits in any company.
    """
    clients, size, features = X.shape
    kept, pull = 1 - local.step * (local.l2 + local.proximal), local.step * local.proximal
    with np.errstate(all="ignore"):  # an overflow is dropped when it is clipped
        first = np.matmul(X, model.reshape(features, -1))
        part, along = 1.0, np.zeros_like(first)
        for _ in range(local.epochs):
            scores = (part * first + np.matmul(products, along)).reshape(clients * size, first.shape[2])
            slopes = loss.multipliers(scores, y.ravel(), norms.ravel(), local.clip)
            along = kept * along - (local.step / max(size, 1)) * slopes.reshape(along.shape)
            part = kept * part + pull
        moved = stacked_sum(X, along, np.ones(y.shape, dtype=np.bool_))
        return part * model + moved
