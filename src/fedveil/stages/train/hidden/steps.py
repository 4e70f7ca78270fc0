"""Rounds of noisy projected gradient steps of which only the last model leaves.

Asoodeh and Calmon 2020, Algorithm 1; in Asoodeh, Diaz and Calmon 2020 a round has one record. Theory pages:
noisy-iteration.md, grid-noise.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedveil.accounting.hidden import per_round
from fedveil.core.errors import require
from fedveil.core.values import Vector
from fedveil.models.loss import Loss
from fedveil.noise.entropy import Entropy, uniform_below
from fedveil.noise.grid import rounded_laplace, rounded_normal
from fedveil.privacy.mechanism import LastIterate
from fedveil.stages.protocol import Total
from fedveil.stages.train.base import Training
from fedveil.stages.train.hidden.deal import Batch
from fedveil.stages.train.hidden.method import hidden_of
from fedveil.stages.train.optimiser import project

LARGEST = 2**52  # grid steps a coordinate may lie from the origin: sums with noise stay exact in float64


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """The model after ``round`` rounds, before projection, in whole grid steps; and how many updates were dropped."""

    round: int
    position: Vector
    dropped: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Rule:
    """What every round needs, computed once from the plan."""

    loss: Loss
    clip: float
    l2: float
    radius: float
    unit: float
    steps: Vector
    batches: Vector
    noise: Vector
    laplace: bool
    grain: float | None = None

    @classmethod
    def of(cls, plan: Training) -> Rule:
        """Return the rule that a plan states."""
        run: LastIterate = hidden_of(plan).run
        steps, batches = (per_round(v, run) for v in (run.step_size, run.batch))
        unit = 2.0**plan.grid
        laplace = run.noise == "laplace"
        noise = hidden_of(plan).noise() / unit
        grain, l2 = hidden_of(plan).grain(plan.data), plan.model.l2
        return cls(plan.model.loss, run.lipschitz, l2, plan.radius, unit, steps, batches, noise, laplace, grain)


def start(plan: Training) -> State:
    """Return the model before the first round."""
    return State(0, start_row(plan))


def start_row(plan: Training) -> Vector:
    """Return the public parameters that a plan starts from, in whole grid steps: zeros, whatever the data are, or those
    that it states.
    """
    stated = hidden_of(plan).start
    return begun(plan, np.array(stated)) if stated else np.zeros(plan.dimension)


def begun(plan: Training, models: Vector) -> Vector:
    """Return with what a plan begins that goes on from these models (rows), in whole grid steps."""
    method = hidden_of(plan)
    longest = float(np.max(np.linalg.norm(np.atleast_2d(models), axis=1)))
    fits = bool(method.start) or method.keep == 0 or longest <= method.reach * (1 + 1e-9)
    require(fits, "The model", "be one that the plan goes on from", longest)
    return np.asarray(np.rint(method.keep * models / 2.0**plan.grid) + 0.0)  # -0.0 would tell the sign of what is gone


def model_of(rule: Rule, state: State) -> Vector:
    """Return the model of a state: in real units, projected on the ball."""
    return project(state.position * rule.unit, rule.radius)


def contributions(rule: Rule, turn: int, total: Vector) -> Vector:
    """Return what a sum of clipped gradients adds to the model: minus the step times their average, in grid steps."""
    return np.asarray(-(rule.steps[turn] * (total / rule.batches[turn])) / rule.unit, dtype=np.float64)


def shrunk(rule: Rule, turn: int, model: Vector) -> Vector:
    """Return the model after the pull of the penalty, in grid steps, not rounded yet."""
    return np.asarray((model - rule.steps[turn] * rule.l2 * model) / rule.unit, dtype=np.float64)


def step(rule: Rule, state: State, batch: Batch, noise: Vector) -> State:
    """One round: average the clipped gradients of the batch, step, round to the grid, add the noise.

    The divisor is the planned batch, whoever answers; a gradient that is not finite contributes nothing and is counted.
    Several runs may be made at once: positions one a row, and rows of the batch that are zero but for their own run's
    columns (fedveil.jobs.attack.batched_runs). Such sums are not exact: their last bits are not those of a single run.
    """
    turn = state.round
    model = model_of(rule, state)
    grain = rule.grain if isinstance(batch.features, np.ndarray) else None
    total, dropped = rule.loss.gradient(
        model.ravel(),
        batch.features,
        batch.targets,
        clip=rule.clip,
        weights=batch.weights,
        norms=batch.norms,
        grain=grain,
    )
    moved = Total(contributions(rule, turn, total.reshape(model.shape)), noise).onto(shrunk(rule, turn, model))
    position = np.clip(moved, -LARGEST, LARGEST)
    return State(turn + 1, position, state.dropped + dropped)


def draw(rule: Rule, turn: int, size: int, entropy: Entropy) -> Vector:
    """Return the noise of a round in whole grid steps: a function of the run's key and the round only.

    It is the sum of the clients' shares, drawn at once, so that nobody in this process sees a single share.
    """
    sample = rounded_laplace if rule.laplace else rounded_normal
    return sample(entropy.stream("noise", turn), float(rule.noise[turn]), size).astype(np.float64)


def last_round(plan: Training, entropy: Entropy) -> int:
    """Return after how many rounds the model is released: all, or with random stopping a uniformly random number."""
    total = hidden_of(plan).run.total
    return total if hidden_of(plan).run.stopping == "end" else 1 + uniform_below(entropy, "stop", total)
