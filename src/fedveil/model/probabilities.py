"""From scores to probabilities of classes, for the losses whose scores mean that."""

from typing import Literal

import numpy as np
from scipy.special import expit, softmax

from fedveil.model.loss import Loss
from fedveil.model.torch import TorchLoss
from fedveil.values import Indices, Matrix

Link = Literal["logistic", "softmax"]


def link_of(loss: Loss) -> Link | None:
    """Return how a loss turns scores into probabilities.

    None where they are no more than scores (a hinge), or a number.
    """
    if isinstance(loss, TorchLoss):
        links: dict[str, Link] = {"cross-entropy": "softmax", "logistic": "logistic"}
        return links.get(loss.criterion)
    if loss.kind == "logistic":
        return "logistic"
    return "softmax" if loss.kind == "softmax" else None


def probabilities(loss: Loss, scores: Matrix) -> Matrix | None:
    """One column a class, rows that add up to 1; None where the loss gives scores only."""
    match link_of(loss):
        case "logistic":
            return np.column_stack([expit(-scores[:, 0]), expit(scores[:, 0])])
        case "softmax":
            return np.asarray(softmax(scores, axis=1))
        case _:
            return None


def likeliest(scores: Matrix) -> Indices:
    """Return the class number that the scores speak for, as the losses' ``predict`` has it."""
    if scores.shape[1] == 1:
        return (scores[:, 0] > 0).astype(np.int64)
    return np.asarray(scores.argmax(axis=1), dtype=np.int64)
