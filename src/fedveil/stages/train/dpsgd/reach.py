"""How far DP-SGD goes: the radius of a ball that is too large to matter, from the plan's numbers alone."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from fedveil.stages.train.dpsgd.segments import most_segments
from fedveil.stages.train.setup import Setup

if TYPE_CHECKING:
    from fedveil.stages.train.dpsgd.method import DpSgd


def usual_radius(method: DpSgd, setup: Setup) -> float:
    """Return a power of two that is larger than descent and noise reach together.

    Descent goes no farther than sqrt(2 steps * loss). Adam goes by the length of its steps, whatever the gradients are.
    """
    size, data = setup.dimension, setup.data
    pairs = ((settings, method.longest(index)) for index, settings in enumerate(method.client_settings))
    reach = []
    for settings, clip in set(pairs):
        planned = 1.0 if method.clipping == "batch" else method.divisor(settings, data.smallest_client)
        steps = np.array([settings.step(turn) for turn in range(settings.rounds)]) / (1 - method.optimiser.momentum)
        walk = settings.noise * clip / planned * math.sqrt(size * float(steps @ steps))
        way = math.sqrt(2 * float(steps.sum()) * math.log(max(data.classes, 3)))
        if method.optimiser.kind == "adam":
            way, walk = float(settings.steps().sum()) * math.sqrt(size), 0.0
        reach.append(2 * way + 4 * walk)
    times = most_segments(method) if method.segments else 1
    return float(2.0 ** math.ceil(math.log2(max(1.0, times * max(reach)))))
