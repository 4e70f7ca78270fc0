"""What privacy is compared with: the same model fitted without noise, pooled or by plain rounds over the clients.

These models are computed from private data without any protection: a number derived from them is a release.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from fedveil.account.hidden import per_round
from fedveil.data.records import Records
from fedveil.plan import ModelPlan, Plan
from fedveil.train.deal import deal
from fedveil.train.entropy import Entropy
from fedveil.train.hidden import Rule, model_of, start, step

Vector = NDArray[np.float64]
_NO_CLIP = 1e99
_PASSES, _ROUNDS = 100, 3000  # of a run without noise: enough to converge, and no more than a few seconds


def centralised(model: ModelPlan, records: Records) -> Vector:
    """The minimiser of the pooled loss: all data in one place, no noise."""
    loss, count = model.loss, records.targets.size
    l2 = max(model.l2, 1e-6)  # separable data have no finite minimiser

    def value(w: Vector) -> tuple[float, Vector]:
        total, _ = loss.gradient(w, records.features, records.targets, clip=_NO_CLIP)
        return loss.value(w, records.features, records.targets) + l2 / 2 * float(w @ w), total / count + l2 * w

    first = np.zeros(loss.size(records.features.shape[1]))
    found = minimize(value, first, jac=True, method="L-BFGS-B", options={"maxiter": 500})
    return np.asarray(found.x, dtype=np.float64)


def non_private(plan: Plan, records: Records, entropy: Entropy) -> Vector:
    """The same rounds over the clients without noise, with the steps and passes one takes when nothing is hidden."""
    smooth, batches = plan.constants.smoothness, per_round(plan.run.batch, plan.run)[: plan.run.rounds]
    passes = min(_PASSES, max(1, _ROUNDS // plan.run.rounds))
    steps = np.full(passes * plan.run.rounds, 1 / smooth)
    rule = replace(Rule.of(plan), steps=steps, batches=np.tile(batches, passes))
    dealt, state, silence = deal(plan, records, entropy), start(plan), np.zeros(plan.dimension)
    while state.round < steps.size:
        state = step(rule, state, dealt.batch(state.round), silence)
    return model_of(rule, state)
