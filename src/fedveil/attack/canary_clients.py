"""Canary clients in a federated run: each holds one record in a random direction, and all of them take part.

How far the model leans towards them, compared with fresh directions that nobody held, gives the estimate of Andrew et
al. (2023) from a single run of the real trainer. Page: docs/audit-canaries.md.
"""

from dataclasses import replace

import numpy as np

from fedveil.algorithms.fedavg.method import FedAvg
from fedveil.audit.canary_estimate import cosines, estimate
from fedveil.audit.finding import Finding
from fedveil.checks import require
from fedveil.data.records import Records
from fedveil.guarantee import Adversary, finite_or_none
from fedveil.jobs.local import Given, Wanted, open_study
from fedveil.ledger.costs import cost_of
from fedveil.model.loss import Loss
from fedveil.noise.entropy import Entropy
from fedveil.plan import Plan
from fedveil.run.train import train
from fedveil.values import Vector

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
    """Return the estimate for a fedavg study with ``canaries`` more clients and ``fresh`` directions that took no part.

    ``every_round``: for an observer of every model, who takes the largest cosine over the changes in the rounds (each
    round's model is recomputed, so the work grows with the square of the rounds); otherwise for the final model only.
    """
    require(10 <= canaries <= 10_000, "canaries", "lie between 10 and 10000", canaries)
    require(10 <= fresh <= 1_000_000, "fresh", "lie between 10 and 1000000", fresh)
    found, loaded = open_study(study, data)
    rows, spare = (directions(n, loaded.train, generator) for n in (canaries, fresh))
    records = with_clients(loaded.train, rows)
    plan = replace(found, canaries=None).planned(records.shape).plan
    require(isinstance(plan.method, FedAvg), "algorithm.kind", "be fedavg for canary clients", plan.method.kind)
    require(plan.model.kind != "torch", "model.kind", "be one that the attack knows", plan.model.kind)
    source = Entropy.from_system() if entropy is None else entropy
    key = source.words("canary clients", 0, 4).tobytes()
    seen = _changes(plan, records, key) if every_round else train(plan, records, Entropy.from_key(key)).model
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


def _changes(plan: Plan, records: Records, key: bytes) -> Vector:
    """Return the change of the model in every round.

    The noise of a round is a function of key and round, so runs share it.
    """
    method = plan.method
    assert isinstance(method, FedAvg)  # noqa: S101  for the type checker
    models = [np.zeros(plan.dimension)]
    for rounds in range(1, method.rounds + 1):
        shorter = replace(plan, method=replace(method, rounds=rounds))
        models.append(train(shorter, records, Entropy.from_key(key)).model)
    return np.diff(np.array(models), axis=0)
