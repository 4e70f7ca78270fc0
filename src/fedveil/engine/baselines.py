"""Models for comparison: the same model fitted without noise, on pooled data or by plain rounds over the clients.

These models are computed from private data without any protection, so a number derived from them is a release.
"""

import numpy as np
from scipy.optimize import minimize

from fedveil.core.values import Vector
from fedveil.data.records import Records
from fedveil.models.spec import ModelPlan
from fedveil.noise.entropy import Entropy, permutation
from fedveil.planning.plan import Plan
from fedveil.stages.train.projection import project

_NO_CLIP = 1e99
_RATE = 0.1  # used if the smoothness is unknown; no rule gives a better value
_PASSES, _BATCHES = 100, 20  # without noise: enough to converge within a few seconds


def centralised(model: ModelPlan, records: Records) -> Vector:
    """Return the minimiser of the pooled loss: all data in one place, no noise."""
    loss, count = model.loss, records.targets.size
    l2 = max(model.l2, 1e-6)  # separable data would have no finite minimiser

    def value(w: Vector) -> tuple[float, Vector]:
        total, _ = loss.gradient(w, records.features, records.targets, clip=_NO_CLIP)
        return loss.value(w, records.features, records.targets) + l2 / 2 * float(w @ w), total / count + l2 * w

    first = np.zeros(loss.size(records.features.shape[1]))
    found = minimize(value, first, jac=True, method="L-BFGS-B", options={"maxiter": 500})
    return np.asarray(found.x, dtype=np.float64)


def non_private(plan: Plan, records: Records, entropy: Entropy) -> Vector:
    """Train by plain rounds over the clients without noise, with the step sizes and passes usual for open training."""
    loss, model, count = plan.model.loss, plan.model, records.targets.size
    order = permutation(entropy, count, "baseline")
    features, targets = records.features[order], records.targets[order]
    smooth = plan.constants.smoothness
    batch, rate = max(1, count // _BATCHES), _RATE if smooth is None else 1 / smooth
    w = np.zeros(plan.dimension)
    for _ in range(_PASSES):
        for first in range(0, count - batch + 1, batch):
            part = slice(first, first + batch)
            total, _ = loss.gradient(w, features[part], targets[part], clip=_NO_CLIP)
            w = w - rate * (total / batch + model.l2 * w)
    return project(w, plan.radius)
