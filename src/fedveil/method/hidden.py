"""Noisy projected steps of which only the last model is released: the schedule, and what is dealt into rounds."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, get_args

import numpy as np

from fedveil.account.grid import Grid
from fedveil.account.hidden import lipschitz_of_step, per_round
from fedveil.account.observers import Participation, observe
from fedveil.checks import require
from fedveil.data.records import DataShape
from fedveil.guarantee import Adversary, Answer
from fedveil.mechanism import LastIterate
from fedveil.mechanism_file import last_iterate_table, mechanism_of
from fedveil.model.rounding import rounding_bound
from fedveil.model.spec import ModelPlan
from fedveil.target import Target
from fedveil.theory.numerics import Vector

Deal = Literal["records", "clients"]
_UNIT = 2.0**-53
_STEP_ROUNDINGS = 40  # the projection (its norm is summed pairwise: train/hidden.py), scaling, stepping


@dataclass(frozen=True, slots=True, kw_only=True)
class Hidden:
    """``deal``: whether records or whole clients are dealt into rounds; ``run``: the schedule, with its noise."""

    run: LastIterate
    deal: Deal = "records"

    kind: ClassVar[str] = "hidden"

    def __post_init__(self) -> None:
        require(self.deal in get_args(Deal), "algorithm.deal", "be records or clients", self.deal)

    @property
    def total(self) -> int:
        """Rounds of all passes."""
        return self.run.total

    def check(self, data: DataShape, model: ModelPlan, target: Target) -> None:
        """What is accounted for is what the model's enforced constants say, never less."""
        _check_units(self, data, target)
        _check_constants(self.run, model, data)

    def answer(self, adversary: Adversary, data: DataShape, target: Target, delta: float) -> Answer:
        """The bounds on hidden runs, as this observer sees them."""
        return observe(self.run, adversary, self.participation(data, target), delta=delta)

    def participation(self, data: DataShape, target: Target) -> Participation:
        """How often clients take part, as the observers' accounting wants to know."""
        held = 1 if target.unit == "client" else data.largest_client
        return Participation(largest_client=held, clients=data.clients, every_round=self.deal == "records" and held > 1)

    def radius(self, data: DataShape, model: ModelPlan) -> float:
        """As stated, or too large to be reached by steps and noise in practice."""
        if model.radius is not None:
            return model.radius
        step = per_round(self.run.step_size, self.run)
        noise = float(np.sqrt(np.sum(self.noise() ** 2) * model.loss.size(data.features)))
        return 2.0 ** math.ceil(math.log2(float(step.sum()) * self.run.lipschitz + 10 * noise))

    def noise(self) -> Vector:
        """The noise of every round: standard deviation per coordinate, or Laplace scale."""
        run = self.run
        step, batch, std = (per_round(v, run) for v in (run.step_size, run.batch, run.noise_std))
        return np.asarray(step * std / (1.0 if run.noise == "laplace" else np.sqrt(batch)), dtype=np.float64)

    def grid(self, exponent: int, adversary: Adversary, data: DataShape, model: ModelPlan, target: Target) -> Grid:
        """State and noise on multiples of 2**exponent; floating-point errors of the step included."""
        run = self.run
        grid = Grid.of(
            exponent=exponent,
            dimension=model.loss.size(data.features),
            noise=self.noise(),
            lipschitz=self.stretch(),
            errors=self.float_errors(data, model, target),
            law=run.noise,
        )
        if adversary in ("final-model", "every-model"):
            return grid
        # The others know part of a round's noise; some unit's share is left, or no guarantee is given at all.
        left = 1 / float(per_round(run.batch, run).max())
        return replace(grid, distance=grid.distance / math.sqrt(left))

    def stretch(self) -> Vector:
        """How much a step of each round may enlarge the rounding of the state that it starts from.

        Of unknown smoothness a record's gradient may be any function, so also that of the rounded state: what the
        rounding moves is the state alone, and no step stretches that (docs/torch.md).
        """
        step = per_round(self.run.step_size, self.run)
        return np.ones_like(step) if self.run.smoothness is None else lipschitz_of_step(self.run, step)

    def float_errors(self, data: DataShape, model: ModelPlan, target: Target) -> Vector:
        """How far a step computed in floats is from the exact one: the gradient's rounding, and the step's own.

        In one piece or in parts: rounding errors of parts add up to no more than those of the whole.
        """
        step = per_round(self.run.step_size, self.run)
        raw, radius = model.loss.constants(data.bound, model.clip), self.radius(data, model)
        each = data.largest_client if target.unit == "client" else 1
        gradient = rounding_bound(
            rows=int(per_round(self.run.batch, self.run).max()) * each,
            features=data.features,
            lipschitz=max(raw.lipschitz, self.run.lipschitz),
            smoothness=raw.smoothness,
            radius=radius,
            outputs=model.loss.outputs,
        )
        size = radius * (1 + step * model.l2) + step * max(raw.lipschitz, self.run.lipschitz)
        return np.asarray(step * gradient + _STEP_ROUNDINGS * _UNIT * size, dtype=np.float64)

    def assumptions(
        self, adversary: Adversary, data: DataShape, model: ModelPlan, target: Target
    ) -> Sequence[tuple[str, str, str]]:
        """Stated in fedveil.assumptions, where the whole plan is known."""
        return ()

    def table(self) -> dict[str, Any]:
        """As in a mechanism file, with what is dealt."""
        return {"deal": self.deal, **last_iterate_table(self.run)}

    @classmethod
    def read(cls, table: Mapping[str, Any]) -> "Hidden":
        """From the table that :meth:`table` writes."""
        values = dict(table)
        deal: Any = values.pop("deal", None)
        run = mechanism_of(values)
        right = isinstance(run, LastIterate)
        require(right, "The plan's mechanism", "be a last-iterate one", type(run).__name__)
        return cls(run=run, deal=deal)  # type: ignore[arg-type]

    def facts(self, data: DataShape, target: Target) -> Sequence[tuple[str, str]]:
        """Order, rounds and noise."""
        run = self.run
        batch = f"{run.batch:,}" if isinstance(run.batch, int) else f"{min(run.batch):,} to {max(run.batch):,}"
        return [
            ("order", "secret" if run.order == "secret" else "public"),
            ("rounds", f"{run.passes:,} x {run.rounds:,} of {batch} {target.unit}s"),
            ("step", _span(run.step_size)),
            (f"noise a {target.unit}", _span(run.noise_std)),
            ("released", "the last model" if run.stopping == "end" else "the model after a random round"),
        ]


def _span(values: float | tuple[float, ...]) -> str:
    if isinstance(values, float):
        return f"{values:.4g}"
    return f"{values[0]:.4g} to {values[-1]:.4g}"


def _check_units(method: Hidden, data: DataShape, target: Target) -> None:
    run, unit, deal = method.run, target.unit, method.deal
    require(run.place is None, "plan.run.place", "be left out", run.place, "A certificate speaks for every unit.")
    fits = unit == "record" or deal == "clients"
    require(fits, "algorithm.deal", "be clients when clients are protected", deal)
    if unit == "record" and deal == "clients":
        even = data.largest_client == data.smallest_client
        sizes = f"{data.smallest_client} to {data.largest_client}"
        hint = 'Deal records, or protect clients (privacy.unit = "client").'
        require(even, "Clients", "be of one size when they are dealt whole but records are protected", sizes, hint)
        batches = run.batch if isinstance(run.batch, tuple) else (run.batch,)
        filled = all(count % data.largest_client == 0 for count in batches)
        require(filled, "plan.run.batch", f"hold whole clients of {data.largest_client}", run.batch)
    units = data.clients if unit == "client" else data.records
    require(run.records == units, "plan.run.records", f"be the number of units, {units}", run.records)
    same = run.neighbours == target.neighbours
    require(same, "plan.run.neighbours", "match the target", run.neighbours)


def _check_constants(run: LastIterate, model: ModelPlan, data: DataShape) -> None:
    real = model.constants(data.bound)
    require(run.lipschitz >= real.lipschitz, "plan.run.lipschitz", f"be at least {real.lipschitz}", run.lipschitz)
    require(run.convex <= real.convex, "plan.run.convex", "be true only for a convex loss", run.convex)
    if run.smoothness is not None:
        least = np.inf if real.smoothness is None else real.smoothness
        require(run.smoothness >= least, "plan.run.smoothness", f"be at least {least}", run.smoothness)
    most = real.strong_convexity
    require(run.strong_convexity <= most, "plan.run.strong_convexity", f"be at most {most}", run.strong_convexity)
    largest = float(np.max(per_round(run.step_size, run)))
    hint = "Larger steps throw the model out by the penalty alone, which the bounds do not cover."
    require(largest * model.l2 <= 2, "schedule.step_size", f"be at most 2/l2, with l2 {model.l2}", largest, hint)
    radius = model.radius
    kept = run.diameter is None or (radius is not None and run.diameter >= 2 * radius)
    require(kept, "plan.run.diameter", "be at least twice the radius", run.diameter)
