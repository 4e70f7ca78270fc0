"""A fit whose preparation is learned: planned from public quantities, charged, measured, trained, certified."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from fedveil.algorithms.request import AlgorithmRequest, Task
from fedveil.checks import require
from fedveil.data.records import DataShape, Records
from fedveil.design import make_plan
from fedveil.jobs.estimators.rows import RowRule
from fedveil.noise.entropy import Entropy
from fedveil.plan import Plan
from fedveil.prepare.budget import settled
from fedveil.prepare.columns import Columns, Outline
from fedveil.prepare.learn import learn
from fedveil.prepare.learned import LearnedPreparation
from fedveil.prepare.measure import Measurer
from fedveil.prepare.request import PrepareRequest
from fedveil.prepare.statement import Preparation
from fedveil.shared_budget import shared_budget
from fedveil.tables import filled
from fedveil.target import Target
from fedveil.trust import CENTRAL
from fedveil.values import Matrix


@dataclass(frozen=True, slots=True, eq=False)
class LearnedRule:
    """The rule from an array to bounded rows that was learned; used like a stated one."""

    learned: LearnedPreparation

    @property
    def intercept(self) -> float:
        """The constant last entry of a row; 0 for none."""
        return self.learned.outline.intercept

    def rows(self, X: Matrix) -> Matrix:
        """Each row by itself: scaled, centred, cut, and with the intercept as its last entry."""
        return self.learned.rows(Columns(numbers=np.asarray(X, dtype=np.float64), texts={}))


def request_of(given: Any) -> PrepareRequest | None:
    """What an estimator's ``prepare`` asks for: a kind, or a dictionary as the [prepare] table; None for "stated"."""
    right = isinstance(given, str | Mapping)
    require(right, "prepare", "be stated, auto, private, or a dictionary as the [prepare] table of a study", given)
    table = {"kind": given} if isinstance(given, str) else dict(given)
    found: PrepareRequest = filled(PrepareRequest, table, "prepare")
    return None if found.kind == "stated" else found


def outline_of(stated: RowRule, columns: int, asked: PrepareRequest) -> Outline:
    """What is public about the columns of an array: their number, the bound, and ranges that were given."""
    names = tuple(str(place) for place in range(columns))
    scale = {}
    if stated.middle is not None and stated.half is not None:
        ends = zip(stated.middle - stated.half, stated.middle + stated.half, strict=True)
        scale = {name: (float(low), float(high)) for name, (low, high) in zip(names, ends, strict=True)}
    return Outline(
        numbers=names,
        texts=(),
        scale=scale,
        bound=stated.bound,
        intercept=stated.intercept,
        components=asked.components,
        whiten=asked.whiten,
    )


def planned(
    asked: PrepareRequest, outline: Outline, shape: DataShape, target: Target
) -> tuple[Preparation, Outline, DataShape]:
    """What will be measured, and the shape of the rows that come out."""
    found, fitted = settled(asked, outline, shape, target, CENTRAL)
    return found, fitted, replace(shape, features=fitted.width, bound=fitted.total)


@lru_cache(maxsize=128)
def plan_of(request: AlgorithmRequest, task: Task, preparation: Preparation, seeded: bool) -> Plan:
    """Return the plan whose preparation and training together meet the target; folds of one size share it."""
    return shared_budget(
        request, task, preparation, lambda inner: make_plan("estimator", request, inner, seeded=seeded)
    ).plan


def prepared(plan: Plan, outline: Outline, X: Matrix, raw: Records, entropy: Entropy) -> tuple[LearnedRule, Records]:
    """Measure what the plan says, and make the records; ``raw`` says whose each row is and what it is to predict."""
    columns = Columns(numbers=np.asarray(X, dtype=np.float64), texts={})
    by = Measurer(
        owner=raw.owner,
        clients=raw.clients,
        present=np.arange(len(raw), dtype=np.int64),
        target=plan.target,
        entropy=entropy,
        served=plan.method.served,
    )
    assert plan.preparation is not None  # noqa: S101  it was planned with one
    units = raw.clients if plan.target.unit == "client" else len(raw)
    rule = LearnedRule(learn(plan.preparation, outline, columns, raw.targets, raw.classes, units, by))
    return rule, replace(raw, features=rule.rows(columns.numbers), bound=outline.total)
