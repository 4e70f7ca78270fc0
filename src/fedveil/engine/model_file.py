"""The file of a released model: plain arrays."""

import io
from hashlib import sha256
from typing import Any

import numpy as np

from fedveil.planning.plan import Plan
from fedveil.stages.prepare.learned import LearnedRule


def model_file(plan: Plan, model: Any, learned: LearnedRule | None = None) -> bytes:
    """Plain arrays that load without pickle; equal models give equal bytes.

    A learned preparation is part of the model: its file is named here by its digest.
    """
    loss = plan.model.loss
    if loss.linear:
        table, real = model.reshape(plan.data.features, loss.outputs), plan.real_features
        more: dict[str, Any] = {"coefficients": table[:real]}
        if plan.canaries:  # drop the canaries' columns, which are zero in every record but a canary
            more["canaries"] = table[real:]
    else:  # training learned the difference from a public start, and the model is their sum
        more = {"start": loss.start(plan.data.features)}
    if learned is not None:
        more["preparation"] = np.array(sha256(learned.text().encode()).hexdigest())
    buffer = io.BytesIO()
    np.savez(buffer, kind=np.array(loss.kind), parameters=model, **more)
    return buffer.getvalue()
