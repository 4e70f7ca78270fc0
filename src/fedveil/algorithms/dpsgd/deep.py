"""What DP-SGD asks of torch models, about whose gradients nothing is known but the clip. Page: torch.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedveil.algorithms.adaptive_clip import ADAPTIVE
from fedveil.algorithms.dpsgd.client_settings import DEALT
from fedveil.algorithms.request import Task
from fedveil.checks import require
from fedveil.model.torch import TorchLoss

if TYPE_CHECKING:
    from fedveil.algorithms.dpsgd.method import DpSgd


def check_deep(method: DpSgd) -> None:
    """Refuse what is not proved for a torch model."""
    hint = "Nothing else bounds what a record can do to a torch model."
    each = method.clipping == "individual"
    require(each, "algorithm.clipping", "be individual for a torch model", method.clipping, hint)
    hint = "Correlated noise with drawn batches is not proved for it."
    dealt = method.correlated is None or method.sampling in DEALT
    require(dealt, "algorithm.sampling", "be cyclic for a torch model with correlated noise", method.sampling, hint)
    hint = "A vote must not depend, in its last bits, on who else is in the batch: state the clip."
    require(method.clip_quantile is None, "algorithm.clip", "be a number for a torch model", ADAPTIVE, hint)


def check_company(method: DpSgd, task: Task) -> None:
    """Try whether a torch module gives a record the same bits in any company, where batches are drawn."""
    loss = task.model.loss
    if isinstance(loss, TorchLoss) and method.apart(loss.kind):
        loss.check_company(task.data.features)
