"""What a site reads in a question: the model, which must be a finite row of the right length."""

import numpy as np
from numpy.typing import NDArray

from fedveil.plan import Plan
from fedveil.wire.content import Content
from fedveil.wire.envelope import Refused

Vector = NDArray[np.float64]


def model_in(asked: Content, plan: Plan) -> Vector | None:
    """The model, or None if none was sent; what is no model is refused."""
    model = asked.rows.get("model")
    if model is None:
        return None
    if model.dtype != np.float64 or model.shape != (plan.dimension,) or not np.all(np.isfinite(model)):
        raise Refused("wrong-shape")
    return model.astype(np.float64)


def model_needed(asked: Content, plan: Plan) -> Vector:
    """The model, which must be there."""
    model = model_in(asked, plan)
    if model is None:
        raise Refused("no-model")
    return model
