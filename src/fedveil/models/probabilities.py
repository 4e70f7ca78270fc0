"""From scores to classes: the likeliest, the margin between two, and probabilities where a loss's scores mean that."""

import numpy as np
from scipy.special import expit, softmax

from fedveil.core.values import Indices, Matrix, Vector
from fedveil.models.adjusted import score_at
from fedveil.models.loss import Loss


def probabilities(loss: Loss, scores: Matrix) -> Matrix | None:
    """One column a class, rows that add up to 1; None where the loss gives scores only."""
    match loss.link:
        case "logistic":
            return np.column_stack([expit(-scores[:, 0]), expit(scores[:, 0])])
        case "softmax":
            return np.asarray(softmax(scores, axis=1))
        case _:
            return None


def likeliest(scores: Matrix, threshold: float | None = None) -> Indices:
    """Return the class number that the scores speak for, as the losses' ``predict`` has it.

    ``threshold``: the probability above which it is the second of two classes; None: one half.
    """
    if scores.shape[1] == 1:
        return (scores[:, 0] > (0.0 if threshold is None else score_at(threshold))).astype(np.int64)
    return np.asarray(scores.argmax(axis=1), dtype=np.int64)


def margins(scores: Matrix) -> Vector:
    """Return one number for each record that ranks two classes: above 0 the second is the likelier one.

    >>> margins(np.array([[1.0, 3.0], [2.0, 0.5]])).tolist(), margins(np.array([[0.5], [-1.0]])).tolist()
    ([2.0, -1.5], [0.5, -1.0])
    """
    return np.ascontiguousarray(scores[:, 0] if scores.shape[1] == 1 else scores[:, 1] - scores[:, 0])
