"""Two neighbouring data sets of a plan's shape that are easiest to tell apart: one unit against nothing.

All other rows are zero and push nowhere, so only the noise hides the victim. The victim's rows lie on the feature
bound, and its labels differ on the two data sets (or it is absent from the second).
"""

from dataclasses import dataclass

import numpy as np

from fedveil.core.checks import require
from fedveil.core.values import Indices, Vector
from fedveil.data.records import Records
from fedveil.planning.plan import Plan


@dataclass(frozen=True, slots=True, eq=False)
class Pair:
    """The two data sets; ``victim``: the rows that differ; ``direction``: of the victim's push, a unit vector."""

    first: Records
    second: Records
    victim: Indices
    direction: Vector


def worst_pair(plan: Plan) -> Pair:
    """Return the pair for a plan; refuse models for which a zero row might push somewhere."""
    hint = "Zero rows push a torch model too: audit it with canaries."
    require(plan.model.linear, "model.kind", "be a loss of linear scores", plan.model.kind, hint)
    data = plan.data
    owner = _owners(plan)
    victim = _victim(plan, owner)
    row = np.zeros(data.features)
    row[0] = data.bound
    top = float(data.classes - 1) if data.classes else 1.0
    features, targets = np.zeros((data.records, data.features)), np.zeros(data.records)
    features[victim], targets[victim] = row, top
    silent, other = features.copy(), targets.copy()
    if plan.target.neighbours == "zero-out":
        silent[victim] = 0.0
    else:
        other[victim] = 0.0 if data.classes else -1.0
    first, second = (_records(plan, X, y, owner) for X, y in ((features, targets), (silent, other)))
    return Pair(first, second, victim, _direction(plan, first, second, victim))


def _owners(plan: Plan) -> Indices:
    """Return clients in order: the first has the most records, the others as even as the shape allows."""
    data = plan.data
    sizes = np.full(data.clients, data.smallest_client)
    sizes[0] = data.largest_client
    missing = data.records - int(sizes.sum())
    for client in range(1, data.clients):
        more = min(max(missing, 0), data.largest_client - data.smallest_client)
        sizes[client] += more
        missing -= more
    require(missing == 0, "plan.data", "be counts of clients that add up", data.records)
    return np.repeat(np.arange(data.clients, dtype=np.int64), sizes)


def _victim(plan: Plan, owner: Indices) -> Indices:
    """Return the first unit; with a public order, the first of the last round, after which the least noise comes."""
    unit = 0
    if plan.method.hides and plan.run.order == "public":
        ends = np.cumsum(np.broadcast_to(np.asarray(plan.run.batch), (plan.run.rounds,)))
        unit = int(ends[-1] - (plan.run.batch if isinstance(plan.run.batch, int) else plan.run.batch[-1]))
    if plan.target.unit == "client":
        return np.flatnonzero(owner == unit).astype(np.int64)
    return np.array([unit], dtype=np.int64)


def _records(plan: Plan, features: Vector, targets: Vector, owner: Indices) -> Records:
    data = plan.data
    return Records(
        features=features, targets=targets, owner=owner, clients=data.clients, bound=data.bound, classes=data.classes
    )


def _direction(plan: Plan, first: Records, second: Records, victim: Indices) -> Vector:
    """Return the direction of the difference of the two gradients at the zero model."""
    loss, clip = plan.model.loss, plan.constants.lipschitz
    start = np.zeros(plan.dimension)
    pushes = [loss.gradient(start, r.features[victim], r.targets[victim], clip=clip)[0] for r in (first, second)]
    gap = pushes[1] - pushes[0]
    return np.asarray(gap / np.linalg.norm(gap), dtype=np.float64)
