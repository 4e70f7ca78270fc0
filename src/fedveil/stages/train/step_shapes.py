"""Step sizes that rise at first and fall later: constant, linear or cosine, after a warm-up. They look at no data."""

import math
from typing import Any, Literal

import numpy as np

from fedveil.core.checks import require
from fedveil.privacy.mechanism import Numbers

Decay = Literal["constant", "linear", "cosine"]


def shaped(step: Any, rounds: int, decay: Decay | None, warm_up: int | None) -> Numbers:
    """Return the steps of all rounds, the largest of which is ``step``; a list is returned as it is.

    A warm-up of w rounds takes 1/w, 2/w, ... of the step. The rounds after it fall from the whole step: linearly to
    ``step / rest`` in the last of them, or by half a cosine.

    >>> shaped(1.0, 6, "linear", 2)
    (0.5, 1.0, 1.0, 0.75, 0.5, 0.25)
    """
    listed = isinstance(step, list | tuple)
    if decay is None and warm_up is None:
        return tuple(step) if listed else float(step)
    hint = "A list states the step of every round."
    stated = (decay, warm_up)
    require(not listed, "algorithm.optimizer: decay and warm_up", "be left out with a list of steps", stated, hint)
    early = warm_up or 0
    rule = f"leave a round of the {rounds} to train at the full step"
    require(early < rounds, "algorithm.optimizer.warm_up", rule, early)
    if decay in (None, "constant") and not early:
        return float(step)
    rest = rounds - early
    done = np.arange(rest) / rest
    falls = {"linear": 1 - done, "cosine": (1 + np.cos(math.pi * done)) / 2}.get(decay or "constant", np.ones(rest))
    rises = np.arange(1, early + 1) / early if early else np.empty(0)
    return tuple((float(step) * np.concatenate([rises, falls])).tolist())
