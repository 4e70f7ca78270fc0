"""How far the sums that a client of DP-SGD computes in floats are from the exact ones."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from fedveil.models.rows import UNIT, rounding_bound
from fedveil.stages.train.adaptive_clip import relative_error
from fedveil.stages.train.dpsgd.client_settings import ClientSettings
from fedveil.stages.train.setup import Setup

if TYPE_CHECKING:
    from fedveil.stages.train.dpsgd.method import DpSgd

_ROUNDINGS = 60  # of a mean and its norm, beside those of the gradient


def float_error(method: DpSgd, settings: ClientSettings, setup: Setup, exponent: int) -> float:
    """Return how far the computed sum (or clipped mean) is from the exact one.

    Where records are rounded on their own, only the victim's contribution is compared with one within its clip:
    the others' are what they are, the same on both data sets (docs/dpsgd.md).
    """
    data, model = setup.data, setup.model
    if method.adaptive is not None:
        return relative_error(data.features, model.loss.outputs, setup.dimension, exponent)
    apart = method.apart(model)
    rows = 1 if apart else method.most_rows(settings, data.largest_client)
    raw = model.loss.constants(data.bound, settings.clip if method.clipping == "individual" else None)
    mean = rounding_bound(
        rows=rows,
        features=data.features,
        lipschitz=raw.lipschitz,
        smoothness=raw.smoothness,
        radius=method.radius(setup),
        outputs=model.loss.outputs,
    )
    if apart:
        half = 0.5 * math.sqrt(setup.dimension) * 2.0**exponent
        return mean + _ROUNDINGS * UNIT * raw.lipschitz + half
    if method.clipping == "individual":
        return rows * (mean + _ROUNDINGS * UNIT * raw.lipschitz)
    least = data.smallest_client  # there a batch exceeds the planned divisor most
    ratio = method.most_rows(settings, least) / method.divisor(settings, least)
    own = (_ROUNDINGS + setup.dimension) * UNIT
    return ratio * (mean + own * raw.lipschitz) + own * settings.clip
