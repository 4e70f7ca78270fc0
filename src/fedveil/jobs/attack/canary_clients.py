"""Canary clients in a federated run: each holds one record in a random direction, and all of them take part.

How far the model leans towards them, compared with fresh directions that nobody held, gives the estimate of Andrew et
al. (2023) from a single run of the real trainer. Page: docs/audit-canaries.md.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from fedveil.audit.canary_estimate import cosines, estimate
from fedveil.audit.finding import Finding
from fedveil.core.errors import BadValue, require
from fedveil.core.values import Vector
from fedveil.data.records import Records
from fedveil.engine.train import train
from fedveil.jobs.local import Given, Wanted, open_study
from fedveil.ledger.costs import cost_of
from fedveil.models.loss import Loss
from fedveil.noise.entropy import Entropy
from fedveil.planning.plan import Plan
from fedveil.privacy.guarantee import Adversary, finite_or_none
from fedveil.stages.train.base import Method
from fedveil.stages.train.observation import attack_view

_INSIDE = 1 - 2.0**-40


def canary_estimate(
    study: Wanted,
    data: Given = None,
    *,
    canaries: int = 100,
    fresh: int = 1000,
    every_round: bool = False,
    generator: np.random.Generator,
    entropy: Entropy | None = None,
) -> Finding:
    """Return the estimate for a study with ``canaries`` more clients, against ``fresh`` directions that took no part.

    The algorithm must be one that averages the updates of whole clients.

    ``every_round``: an observer of every model, who takes the largest cosine over the rounds' changes (each round's
    model is computed anew: the work grows with the square of the rounds); else the final model alone.
    """
    require(10 <= canaries <= 10_000, "canaries", "lie between 10 and 10000", canaries)
    require(10 <= fresh <= 1_000_000, "fresh", "lie between 10 and 1000000", fresh)
    found, loaded = open_study(study, data)
    rows, spare = (directions(n, loaded.train, generator) for n in (canaries, fresh))
    records = with_clients(loaded.train, rows)
    plan = replace(found, canaries=0).planned(records.shape).plan
    shortened = _shortened(plan)
    require(plan.model.linear, "model.kind", "be one that the attack knows", plan.model.kind)
    source = Entropy.from_system() if entropy is None else entropy
    key = source.words("canary clients", 0, 4).tobytes()
    seen = _changes(plan, records, key, shortened) if every_round else train(plan, records, Entropy.from_key(key)).model
    loss = plan.model.loss
    inside, outside = (cosines(seen, pushes(loss, group, records.classes)) for group in (rows, spare))
    who: Adversary = "every-model" if every_round else "final-model"
    certified = finite_or_none(cost_of(plan, who).epsilon)
    return estimate(inside, outside, adversary=who, certified=certified, delta=plan.target.delta)


def directions(count: int, records: Records, generator: np.random.Generator) -> Vector:
    """Return rows in uniformly random directions, of the largest norm that rows may have."""
    rows = generator.standard_normal((count, records.features.shape[1]))
    return np.asarray(rows * (records.bound * _INSIDE / np.linalg.norm(rows, axis=1)[:, None]))


def with_clients(records: Records, rows: Vector) -> Records:
    """Return the records with a new client added for each row."""
    count = rows.shape[0]
    extra = tuple(f"canary {place + 1}" for place in range(count)) if records.names else ()
    return Records(
        features=np.vstack([records.features, rows]),
        targets=np.append(records.targets, np.full(count, _target(records.classes))),
        owner=np.append(records.owner, records.clients + np.arange(count, dtype=np.int64)),
        clients=records.clients + count,
        bound=records.bound,
        classes=records.classes,
        names=(*records.names, *extra),
    )


def pushes(loss: Loss, rows: Vector, classes: int) -> Vector:
    """Return the direction in which each row alone would move the zero model."""
    zero, target = np.zeros(loss.size(rows.shape[1])), np.array([_target(classes)])
    return np.array([-loss.gradient(zero, row[None, :], target, clip=1.0)[0] for row in rows])


def _target(classes: int) -> float:
    return 0.0 if classes else 1.0


def _shortened(plan: Plan) -> Callable[[Plan, int], Method]:
    view = attack_view(plan.method.kind)
    releases = None if view is None else view.releases
    result = releases.shortened if releases is not None and releases.clients else None
    rule = "be one that averages updates of whole clients"
    if result is None:
        raise BadValue(f"algorithm.kind must {rule} for canary clients, got {plan.method.kind!r}.")
    return result


def _changes(plan: Plan, records: Records, key: bytes, shortened: Callable[[Plan, int], Method]) -> Vector:
    """Return the change of the model in every round.

    The noise of a round is a function of key and round, so runs share it.
    """
    turns = range(1, plan.method.total + 1)
    models = [
        train(replace(plan, method=shortened(plan, turn)), records, Entropy.from_key(key)).model for turn in turns
    ]
    return np.diff(np.array([np.zeros(plan.dimension), *models]), axis=0)
