"""What the yardstick that all designs share expects of a DP-SGD plan, and how much work it is."""

import math

import numpy as np

from fedveil.stages.train.dpsgd.method import DpSgd
from fedveil.stages.train.request import Task
from fedveil.stages.train.yardstick import risk_with_momentum, yardstick_of


def expected_risk(method: DpSgd, task: Task) -> float | None:
    """What the yardstick expects if all clients are like the first and answer at once; None if it has no say."""
    one, data = method.client_settings[0], task.data
    plain = len(method.client_settings) == 1 and method.clipping == "individual" and method.compression.kind == "none"
    plain = plain and method.adaptive is None and not method.segments and method.optimiser.kind == "momentum"
    plain = plain and method.correlated is None
    if task.model.constants(data.bound).smoothness is None or not plain:
        return None
    model, batch = yardstick_of(task), one.rate * data.records
    steps = np.broadcast_to(np.asarray(one.step_size, dtype=np.float64), (one.rounds,))
    return risk_with_momentum(
        model,
        steps,
        momentum=method.optimiser.momentum,
        noise=(one.noise * one.clip) ** 2 * data.clients / batch**2,
        dealing=model.spread * (1 - one.rate) / batch,
    )


def passes_of(method: DpSgd) -> float:
    """Return how often a run computes the gradients of all records."""
    each = [settings.rate * settings.rounds for settings in method.client_settings]
    return math.fsum(each) if method.segments else max(each)
