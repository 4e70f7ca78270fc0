"""The stages of a run, one after another; what each asks for is added up in this process or across sites.

One loop carries out every run. It is given the records, of which whoever adds up across sites has none, and an adder,
the one part that knows how a sum comes about.
"""

import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np

from fedveil.core.values import Indices, Vector
from fedveil.data.records import Records
from fedveil.data.row_rule import Labels
from fedveil.engine.evaluator import evaluator_of
from fedveil.engine.job import PLAN, Release
from fedveil.engine.measure import published, to_json_value
from fedveil.planning.plan import Plan
from fedveil.stages.measuring import Measures
from fedveil.stages.prepare.columns import Columns, Outline, Words
from fedveil.stages.prepare.learn import learn
from fedveil.stages.prepare.learned import LearnedRule, made_monotone
from fedveil.stages.sums import FILE as PREPARATION


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


Released = dict[str, Any]  # what each stage has released, by the stage's name
BEFORE: Final = "before"  # in its place: the model that was released before, of a plan that goes on from it
NOTHING: Final[Mapping[str, Any]] = {}


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Whose each row is among so many clients, and which rows are not blank."""

    owner: Indices
    clients: int
    present: Indices

    @classmethod
    def of(cls, records: Records) -> "Rows":
        """Return those of records."""
        return cls(records.owner, records.clients, np.flatnonzero(~records.blank).astype(np.int64))


NO_ROWS: Final = Rows(np.zeros(0, dtype=np.int64), 0, np.zeros(0, dtype=np.int64))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Cells:
    """The columns that a preparation measures, and what is to be predicted from them."""

    outline: Outline
    columns: Columns
    targets: Vector
    classes: int
    rows: Rows

    @classmethod
    def without_rows(cls, outline: Outline, classes: int) -> "Cells":
        """Return columns like these without a row: what whoever adds up across sites knows of them."""
        empty = Words(spelt=(), codes=np.zeros(0, dtype=np.int64))
        columns = Columns(numbers=np.zeros((0, len(outline.numbers))), texts=dict.fromkeys(outline.texts, empty))
        return cls(outline=outline, columns=columns, targets=np.zeros(0), classes=classes, rows=NO_ROWS)


class Data(Protocol):
    """The records of a run, as far as this process has them; rows follow from what the stages before released."""

    def stated(self, plan: Plan, /) -> Released:
        """Return what is known before the first stage: the rule for rows, where the study states all of it."""

    def cells(self, plan: Plan, /) -> Cells:
        """Return the columns that the plan's preparation measures."""

    def train(self, released: Released, /) -> Records:
        """Return the records that train."""

    def public_test(self, released: Released, /) -> Records | None:
        """Return held-out records that are public, None where there are none."""

    def counted(self, plan: Plan, released: Released, /) -> tuple[Records | None, Labels | None]:
        """Return the records that the plan's evaluation counts, where they are here, and how the target is called."""

    def metrics(self, plan: Plan, released: Released, /) -> dict[str, Any]:
        """Return what the held-out records that are here say of the model."""


class Adder(Protocol):
    """How the sums of a plan come about: in this process, or across sites."""

    def measures(self, stage: str, rows: Rows, beside: Mapping[str, Vector], /) -> Measures:
        """Return what gives the noisy sums of a stage; ``beside``: what its questions show besides the sums so far."""

    def train(self, plan: Plan, data: Data, released: Released, /) -> Vector:
        """Add up all rounds of the plan's training, and return the model."""


def run_stages(plan: Plan, data: Data, adder: Adder, before: Mapping[str, Any] = NOTHING) -> Released:
    """Carry out the stages of a plan in order; return what each released.

    ``before``: what was released before they begin.
    """
    released = {**before, **data.stated(plan)}
    for stage in plan.stages:
        released[stage.name] = _ACTS[stage.name](plan, data, adder, released)
    return released


def prepare(plan: Plan, data: Data, adder: Adder, released: Released) -> LearnedRule:
    """Learn the rule for rows that the study leaves open."""
    cells = data.cells(plan)
    by = adder.measures("preparation", cells.rows, {})
    return learn(plan.preparation, cells.outline, cells.columns, cells.targets, cells.classes, plan.units, by)


def _train(plan: Plan, data: Data, adder: Adder, released: Released) -> Vector:
    """Train; shapes that the model must keep are made of what was trained, which looks at no record."""
    if plan.goes_on and BEFORE not in released:
        raise TypeError("a plan that goes on from a released model must be given it")
    model = adder.train(plan, data, released)
    return made_monotone(plan.model, released["preparation"], model) if "preparation" in released else model


def evaluate(plan: Plan, data: Data, adder: Adder, released: Released) -> dict[str, Any]:
    """Count with noise how good the model is, on the records that the plan names."""
    model = released["training"]
    records, labels = data.counted(plan, released)
    by = adder.measures("evaluation", NO_ROWS if records is None else Rows.of(records), {"model": model})
    return evaluator_of(plan, model).counted(records, by, labels)


_ACTS: Final[Mapping[str, Callable[[Plan, Data, Adder, Released], Any]]] = {
    "preparation": prepare,
    "training": _train,
    "evaluation": evaluate,
}


def release_of(
    plan: Plan, data: Data, released: Released, private: Path, tuning: Mapping[str, Any] | None = None
) -> Release:
    """Return the model with all that may be said of it; ``tuning``: what may be said of the trials, if there were any.

    What the held-out records say without noise stays in the ``private`` folder unless the plan publishes it.
    """
    metrics = published(plan, data.metrics(plan, released), private)
    if "evaluation" in released:
        metrics["evaluation"] = to_json_value(released["evaluation"])
    if tuning:
        metrics = {**metrics, "tuning": tuning}
    output = model_file(plan, released["training"], released.get("preparation"))
    also = ["metrics.json"] if metrics["test"] or "evaluation" in released or tuning else []
    files = {"model.npz": output, "metrics.json": (json.dumps(metrics, indent=1, allow_nan=False) + "\n").encode()}
    if "preparation" in released:
        also.append(PREPARATION)
        files = {PREPARATION: released["preparation"].text().encode(), **files}
    if tuning:  # the plan now names the candidate that was chosen, which is a part of the release
        files = {PLAN: plan.text().encode(), **files}
    return Release(output=output, files=files, also=also, timed=not tuning)
