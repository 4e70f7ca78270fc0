"""The first round of a run as each observer sees it, for any algorithm."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fedveil.core.checks import require
from fedveil.core.errors import BadValue
from fedveil.core.values import Indices
from fedveil.data.records import Records
from fedveil.noise.entropy import Entropy
from fedveil.planning.plan import Plan
from fedveil.stages.train.observation import AttackView, Observations, attack_view


def with_noise(plan: Plan, factor: float) -> Plan:
    """Return the plan with its noise multiplied; 0 leaves none, or as little as the algorithm allows."""
    require(0 <= factor < np.inf, "factor", "be finite and non-negative", factor)
    return replace(plan, method=_view(plan).with_noise(plan, factor))


def observe(plan: Plan, records: Records, entropy: Entropy, clients: Sequence[int], *, noiseless: bool) -> Observations:
    """Return what is seen of a run of this plan; ``clients``: whose own messages are wanted."""
    require(records.shape == plan.data, "The records", f"have the plan's shape, {plan.data}", records.shape)
    return _view(plan).observe(plan, records, entropy, clients, noiseless)


def first_round(plan: Plan, records: Records, entropy: Entropy) -> Indices:
    """Return the records that the first round uses; at the server they are sorted by client."""
    return _view(plan).first_round(plan, records, entropy)


def _view(plan: Plan) -> AttackView:
    view = attack_view(plan.method.kind)
    if view is None:
        raise BadValue(
            f"The leakage attack must know what a round shows, and it does not know it of {plan.method.kind}: "
            "its messages are no gradients of a known round."
        )
    return view
