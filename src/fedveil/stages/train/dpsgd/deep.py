"""What DP-SGD asks of torch models, about whose gradients nothing is known but the clip, and how long its steps are.

Page: torch.md.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy as np

from fedveil.core.checks import require
from fedveil.core.values import Vector
from fedveil.stages.train.dpsgd.client_settings import DEALT
from fedveil.stages.train.request import Task

if TYPE_CHECKING:
    from fedveil.stages.train.dpsgd.method import DpSgd
    from fedveil.stages.train.stage import Training

# In lengths of the starting parameters, chosen on two networks for scikit-learn's digits: how far
_WALK: Final = 3.0  # the noise of all rounds may move the model,
_STRIDE: Final = 1.0  # and a round may, if every record pulls the same way


def deep_step(task: Task, clip: float, momentum: float, walk: float) -> float:
    """Return the first of steps that fall linearly for a torch model, from public numbers alone.

    ``walk``: how far the noise of all rounds moves the score of the longest row if the first step is 1. The starting
    parameters are public, and their length is the one scale that is known of a module; it counts as 1 at least, since
    all of them may be zero.
    """
    require(not task.model.linear, "The model", "be a torch model", task.model.kind)
    start = task.model.loss.start(task.data.features)
    length = max(1.0, float(np.linalg.norm(start)))
    noise = walk / task.data.bound * math.sqrt(start.size)  # of the whole model
    return length * min(_WALK / noise, _STRIDE * (1 - momentum) / clip)


def check_deep(method: DpSgd) -> None:
    """Refuse what is not proved for a torch model."""
    hint = "Nothing else bounds what a record can do to a torch model."
    each = method.clipping == "individual"
    require(each, "algorithm.clipping", "be individual for a torch model", method.clipping, hint)
    hint = "Correlated noise with drawn batches is not proved for it."
    dealt = method.correlated is None or method.sampling in DEALT
    require(dealt, "algorithm.sampling", "be cyclic for a torch model with correlated noise", method.sampling, hint)


def check_company(method: DpSgd, task: Task) -> None:
    """Try whether a torch module gives a record the same bits in any company, where batches are drawn."""
    loss = task.model.loss
    if method.apart(task.model):
        loss.check_sampling(task.data.features)
    if loss.answers(task.data.features):
        _check_pair(method, task)


def _check_pair(method: DpSgd, task: Task) -> None:
    """Refuse an adversarial pair where its answer would be added up with others' or a step could be of any length."""
    hint = 'Several holders of one pair are not there yet: [clients] kind = "equal", count = 1.'
    require(task.data.clients == 1, "[clients]", "be one for an adversarial pair", task.data.clients, hint)
    require(not task.trust.tables(), "[trust]", "be left out with an adversarial pair", task.trust.server)
    hint = "Its steps have a length whatever the judge says."
    adam = method.optimiser.kind == "adam"
    require(adam, "algorithm.optimizer", "be adam for an adversarial pair", method.optimiser.kind, hint)
    plain = method.correlated is None and method.choice is None and not method.segments
    require(plain, "[algorithm]", "have neither correlated noise nor segments with an adversarial pair", "one of them")


def add_answer(plan: Training, model: Vector, direction: Vector, turn: int) -> Vector:
    """Return a noised direction with what a torch module adds to it from the model and the round: post-processing."""
    loss, features = plan.model.loss, plan.data.features
    return loss.add_answer(model, direction, features, turn, plan.model.clip or 1.0)
