"""A smaller clip with longer steps, where the noise limits the steps of DP-SGD and all is left to the design.

Clipped to a half, records that the model still gets wrong pull as before, relative to the noise, and records that it
nearly gets right pull more. The noise moves the model as far as it did. Page: dpsgd.md.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from fedveil.stages.train.dpsgd.method import DpSgd
from fedveil.stages.train.request import Task
from fedveil.stages.train.settings import OptimizerRequest

if TYPE_CHECKING:
    from fedveil.stages.train.dpsgd.design import DpSgdRequest

_TIGHTEST: Final = 0.5  # of the model's clip
_PLANNED: Final = ("rounds", "passes", "batch", "step_size", "noise_std")
_ASKED: Final = ("clip", "steps", "rate", "rounds", "noise_multiplier", "segments", "own_epsilon", "correlation")


def leaves_open(request: DpSgdRequest, task: Task) -> bool:
    """Return whether clip, steps, rates and rounds are all left to the design: what is stated keeps its meaning."""
    stated = [getattr(task.schedule, name) for name in _PLANNED] + [getattr(request, name) for name in _ASKED]
    model = task.model
    usual = model.clip == model.loss.usual_clip(task.data.bound)
    fixed = any(value is not None for value in stated) or request.clipping == "batch"
    return usual and not fixed and replace(request.optimizer, momentum=None) == OptimizerRequest()


def tightened(method: DpSgd, room: float) -> DpSgd:
    """Return the method with a smaller clip and longer steps; ``room``: what the noise leaves of the first step.

    The yardstick that compares designs knows nothing of it.
    """
    one = method.client_settings[0]
    factor = max(_TIGHTEST, min(1.0, room))
    steps = tuple((one.steps() / factor).tolist())
    return replace(method, client_settings=(replace(one, clip=one.clip * factor, step_size=steps),))
