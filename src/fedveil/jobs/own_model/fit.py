"""A linear model fitted to a party's own records, drawn towards another model: no noise, since it stays there."""

import numpy as np
from scipy.optimize import minimize

from fedveil.core.values import Matrix, Vector
from fedveil.models.loss import Loss

_NO_CLIP = 1e99
_STEPS = 100
_PRECISE = 1e-6  # of the loss: a choice by records right or wrong needs no more


def fitted(loss: Loss, features: Matrix, targets: Vector, towards: Vector, strength: float, start: Vector) -> Vector:
    """Return the minimiser of the mean loss plus ``strength / 2`` times the squared distance from ``towards``.

    ``start``: where the search begins; the minimum is the same.
    """
    count = targets.size

    def value(w: Vector) -> tuple[float, Vector]:
        away = w - towards
        total, _ = loss.gradient(w, features, targets, clip=_NO_CLIP)
        height = loss.value(w, features, targets) + strength / 2 * float(away @ away)
        return height, total / count + strength * away

    found = minimize(value, start, jac=True, method="L-BFGS-B", options={"maxiter": _STEPS, "ftol": _PRECISE})
    return np.asarray(found.x, dtype=np.float64)


def steepness(loss: Loss, bound: float) -> float:
    """Return the smoothness of the loss, by which strengths are measured."""
    return loss.constants(bound, None).smoothness or 1.0
