"""What a comparison costs, and the one entry in the study's ledger that pays for all of it."""

import math
import os
from collections.abc import Sequence
from hashlib import sha256

from fedveil.compare.result import Comparison
from fedveil.data.load import Loaded
from fedveil.errors import BadValue
from fedveil.guarantee import Adversary
from fedveil.ledger import Cap, Cost, Ledger
from fedveil.ledger.budget import total
from fedveil.plan import Plan
from fedveil.promises import ADVERSARIES, promise
from fedveil.study import Study


def costs_of(study: Study, plans: Sequence[Plan], runs: int) -> tuple[Cost, ...]:
    """What all runs cost together, against each observer."""
    target = study.target
    rows = []
    for adversary in ADVERSARIES:
        each = [_cost(plan, adversary, study) for plan in plans for _ in range(runs)]
        rows.append(total([[cost] for cost in each], adversary, target.unit, target.neighbours))
    return tuple(rows)


def _cost(plan: Plan, adversary: Adversary, study: Study) -> Cost:
    target, answer = study.target, promise(plan, adversary)
    epsilon = math.inf if plan.unprotected else answer.epsilon
    return Cost(
        adversary=adversary, unit=target.unit, neighbours=target.neighbours, epsilon=epsilon, delta=answer.delta
    )


def charge(comparison: Comparison, loaded: Loaded, plans: Sequence[Plan]) -> str:
    """All of it or nothing, under one name, before the first model is trained; the name."""
    study, name = comparison.study, f"compare-{os.urandom(12).hex()}"
    target, hashes = study.target, [plan.hash for plan in plans]
    caps = [
        Cap(adversary=who, unit=target.unit, neighbours=target.neighbours, epsilon=epsilon, delta=delta)
        for who, epsilon, delta in study.books.caps
    ]
    with _books(study, loaded) as ledger:
        ledger.charge(
            name,
            sha256(" ".join(hashes).encode()).hexdigest(),
            comparison.costs,
            rounds=comparison.runs * sum(plan.method.total for plan in plans),
            extra={"comparison": hashes, "runs": comparison.runs},
            caps=caps,
        )
    return name


def record(comparison: Comparison, loaded: Loaded, name: str) -> None:
    """What came of it, by the hash of compare.json; the models themselves are not kept."""
    with _books(comparison.study, loaded) as ledger:
        ledger.release(name, sha256(comparison.text().encode()).hexdigest(), also=["compare.json"])


def _books(study: Study, loaded: Loaded) -> Ledger:
    if study.books.ledger is None:
        raise BadValue("The study must name a ledger to be charged.")
    return Ledger.open(study.books.ledger, loaded.train.fingerprint)
