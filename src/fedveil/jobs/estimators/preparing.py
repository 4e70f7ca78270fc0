"""A fit whose preparation is learned: planned from public quantities, charged, measured, trained, certified."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedveil.core.errors import require
from fedveil.core.tables import filled
from fedveil.core.values import Indices, Matrix, Vector, number
from fedveil.data.missing import scaled
from fedveil.data.records import DataShape, Records
from fedveil.data.rows import cut_rows, total_bound
from fedveil.models.spec import ModelPlan
from fedveil.noise.entropy import Entropy
from fedveil.planning.design import Planned, make_plan, shared_budget
from fedveil.planning.plan import Plan
from fedveil.privacy.target import Target
from fedveil.privacy.trust import CENTRAL
from fedveil.stages.evaluate.statement import NO_EVALUATION
from fedveil.stages.measuring import Measurer, Measures
from fedveil.stages.prepare.budget import settle_preparation
from fedveil.stages.prepare.columns import Columns, Outline
from fedveil.stages.prepare.learn import learn
from fedveil.stages.prepare.learned import LearnedRule, usual_factor
from fedveil.stages.prepare.ranges import BINS
from fedveil.stages.prepare.request import PrepareRequest
from fedveil.stages.prepare.shape import settle_shape, with_shape
from fedveil.stages.sums import Measurement, NoisySums, Sums
from fedveil.stages.train.request import AlgorithmRequest, Task

# The public rule from an array to bounded rows: ranges to [-1, 1], the cut, the intercept; nothing is learned.

Array = NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class StatedRows:
    """``middle`` and ``half`` of each column's public range (None: not scaled); rows are cut to norm ``bound``."""

    bound: float
    intercept: float
    middle: Array | None = None
    half: Array | None = None

    @classmethod
    def of(cls, bound: Any, span: Any, intercept: bool, columns: int) -> "StatedRows":
        """Return the rule for an estimator's parameters; ``span``: (low, high), each a number or one per column."""
        bound = number("feature_bound", bound)
        require(1e-6 <= bound <= 1e6, "feature_bound", "lie in [1e-6, 1e6]", bound)
        constant = 1.0 if intercept else 0.0
        if span is None:
            return cls(bound, constant)
        pair = isinstance(span, tuple | list | np.ndarray) and len(span) == 2
        require(pair, "feature_range", "be a pair (low, high)", span)
        low, high = (_column("feature_range", end, columns) for end in span)
        require(bool(np.all(low < high)), "feature_range", "have every low below its high", "one that is not")
        return cls(bound, constant, low / 2 + high / 2, high / 2 - low / 2)

    @property
    def total(self) -> float:
        """The bound of a row with its intercept."""
        return total_bound(self.bound, self.intercept)

    def rows(self, X: Array) -> Matrix:
        """Return each row scaled, cut, and with the intercept as its last entry."""
        width = X.shape[1]
        rows = np.empty((X.shape[0], width + (self.intercept > 0)))
        part = rows[:, :width]
        part[:] = X
        if self.middle is not None and self.half is not None:
            with np.errstate(over="ignore"):  # overflow far outside a narrow range is cut in the next line
                part[:] = (part - self.middle) / self.half
            np.clip(part, -1.0, 1.0, out=part)
        cut_rows(part, self.bound, self.intercept)
        if self.intercept:
            rows[:, -1] = self.intercept
        return rows


def _column(name: str, value: Any, columns: int) -> Array:
    """Return one finite number per column."""
    try:
        given = np.broadcast_to(np.asarray(value, dtype=np.float64), (columns,))
    except (ValueError, TypeError):
        require(False, name, f"hold numbers, one or {columns}", value)
        raise
    require(bool(np.isfinite(given).all()), name, "be finite", "NaN or infinity")
    return given


_SURE = 12.0  # deviations of the noise: with fewer units the largest of its counts may pass for the bulk of the targets
TARGET = "target "  # how targets are called among the columns, which are called by their numbers


@dataclass(frozen=True, slots=True, eq=False)
class LearnedRows:
    """The rule from an array to bounded rows that was learned; used like a stated one.

    ``target``: the range of the targets, where that was learned too.
    """

    learned: LearnedRule
    target: tuple[float, float] | None = None

    @property
    def intercept(self) -> float:
        """The constant last entry of a row; 0 for none."""
        return self.learned.outline.intercept

    def rows(self, X: Matrix) -> Matrix:
        """Each row by itself: scaled, centred, cut, and with the intercept as its last entry."""
        return self.learned.rows(Columns(numbers=np.asarray(X, dtype=np.float64), texts={}))


def request_of(given: Any, bound: Any) -> PrepareRequest | None:
    """What an estimator's ``prepare`` asks for: a kind, or a dictionary as the [prepare] table; None for "stated".

    Where nothing is asked, it is as in a study: what is not stated is learned, unless the ``bound`` of rows is given.
    """
    if given is None:
        return PrepareRequest() if bound is None else None
    right = isinstance(given, str | Mapping)
    require(right, "prepare", "be stated, auto, private, or a dictionary as the [prepare] table of a study", given)
    table = {"kind": given} if isinstance(given, str) else dict(given)
    result: PrepareRequest = filled(PrepareRequest, table, "prepare")
    return None if result.kind == "stated" else result


def outline_of(stated: StatedRows, columns: int, asked: PrepareRequest, with_target: bool) -> Outline:
    """What is public about the columns of an array: their number, the bound, and ranges that were given.

    ``with_target``: the range of the targets is not known either, so that they are measured with the columns.
    """
    names = tuple(str(place) for place in range(columns))
    turned = asked.components is not None or asked.whiten
    hint = "Directions are measured among the columns alone."
    require(not (with_target and turned), "target_range", "be given with components or whiten", None, hint)
    scale = {}
    if stated.middle is not None and stated.half is not None:
        ends = zip(stated.middle - stated.half, stated.middle + stated.half, strict=True)
        scale = {name: (float(low), float(high)) for name, (low, high) in zip(names, ends, strict=True)}
    return Outline(
        numbers=(*names, *(f"{TARGET}{copy + 1}" for copy in range(_copies(columns)))) if with_target else names,
        texts=(),
        scale=scale,
        bound=stated.bound,
        intercept=stated.intercept,
        components=asked.components,
        whiten=asked.whiten,
    )


def planned(
    asked: PrepareRequest, model: ModelPlan, outline: Outline, shape: DataShape, target: Target
) -> tuple[ModelPlan, NoisySums, Outline, DataShape]:
    """The model with its shape decided, what will be measured, and the shape of the rows that come out."""
    model, _, _ = settle_shape(model, _without_copies(outline), shape, target, CENTRAL)
    outline = with_shape(outline, model)
    if model.additive:  # of the copies of the targets the range alone is measured: one knot, which nobody counts
        copies = [name for name in outline.numbers if name.startswith(TARGET)]
        outline = replace(outline, knots_at={**outline.knots_at, **dict.fromkeys(copies, (0.0,))})
    result, fitted = settle_preparation(asked, outline, shape, target, CENTRAL)
    return model, result, fitted, replace(shape, features=_without_copies(fitted).width, bound=fitted.total)


def _without_copies(outline: Outline) -> Outline:
    """The columns that rows are made of."""
    return replace(outline, numbers=tuple(name for name in outline.numbers if not name.startswith(TARGET)))


def _copies(columns: int) -> int:
    """How often the targets stand among the columns: averaged over the copies, the noise on them is less.

    A range that is wrong costs the use of one column, and of all predictions where it is that of the targets.
    """
    return max(2, (columns + 1) // 2)


def copies_in(outline: Outline) -> int:
    """How many of the columns are copies of the targets: the last ones."""
    return sum(name.startswith(TARGET) for name in outline.numbers)


def unsure_range(planned: NoisySums, outline: Outline, shape: DataShape, target: Target) -> str | None:
    """Return a warning where noise alone may choose the range of the targets; it looks at public numbers only."""
    units = shape.clients if target.unit == "client" else shape.records
    noise = planned["ranges"].noise * planned["ranges"].bound / math.sqrt(copies_in(outline))
    if units >= _SURE * noise:
        return None
    return (
        f"The range of the targets is learned from {units} {target.counted}s with noise of about {noise:.0f} of them "
        "on each count, and may be far off, and predictions with it: state target_range, or raise epsilon."
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Averaged:
    """Noisy sums in which every copy of the targets has the mean of all copies: computed from noisy sums alone."""

    inner: Measures
    copies: int
    columns: int

    @property
    def present(self) -> Indices:
        """The rows that are not blank."""
        return self.inner.present

    def noisy_sum(self, planned: Measurement, contributions: Sums, size: int) -> Vector:
        """Return the noisy sum; in every measurement of numbers the columns have equally many entries, in order."""
        result = self.inner.noisy_sum(planned, contributions, size)
        if planned.name == "cells":  # of which the copies have none
            return result
        columns = self.columns if planned.name != "ranges" else size // BINS  # columns with a stated range have none
        table = result.reshape(columns, -1)
        table[-self.copies :] = table[-self.copies :].mean(axis=0)
        return table.reshape(-1)


@lru_cache(maxsize=128)
def plan_of(request: AlgorithmRequest, task: Task, preparation: NoisySums, seeded: bool) -> Plan:
    """Return the plan whose preparation and training together meet the target; folds of one size share it."""

    def designed(inner: Task) -> Planned:
        return make_plan("estimator", request, inner, seeded=seeded)

    return shared_budget(request, task, preparation, designed, NO_EVALUATION).plan


def prepared(
    plan: Plan, outline: Outline, X: Matrix, numbers: Vector | None, raw: Records, entropy: Entropy
) -> tuple[LearnedRows, Records]:
    """Measure what the plan says, and make the records; ``raw`` says whose each row is and what it is to predict.

    ``numbers``: what is to be predicted in its own unit, where its range is to be learned.
    """
    rows = np.asarray(X, dtype=np.float64)
    by: Measures = Measurer(
        owner=raw.owner,
        clients=raw.clients,
        present=np.arange(len(raw), dtype=np.int64),
        target=plan.target,
        entropy=entropy,
        served=plan.method.served,
    )
    cells, copies = rows, copies_in(outline)
    if numbers is not None:
        cells = np.column_stack([rows, *[numbers] * copies])
        by = _Averaged(by, copies, len(outline.numbers))
    units = raw.clients if plan.target.unit == "client" else len(raw)
    columns = Columns(numbers=cells, texts={})
    rule = LearnedRows(learn(plan.preparation, outline, columns, raw.targets, raw.classes, units, by))
    targets = raw.targets
    if numbers is not None:
        rule = _without_targets(rule.learned, copies)
        targets = scaled(numbers, rule.target or (-1.0, 1.0))
    return rule, replace(raw, features=rule.rows(rows), targets=targets, bound=outline.total)


def _without_targets(learned: LearnedRule, copies: int) -> LearnedRows:
    """The rule for rows alone, and the range of the targets."""
    numbers, result = learned.numbers[:-copies], learned.numbers[-1].range
    outline = _without_copies(learned.outline)
    factor = usual_factor(outline, np.zeros(0))
    return LearnedRows(replace(learned, outline=outline, numbers=numbers, factor=factor), (result.low, result.high))
