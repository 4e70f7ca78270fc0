"""How many rounds, with which noise, forget a unit: designed for a target, with what it costs everybody else.

All rounds use all remaining units. More rounds with less noise each hide the unit alike and disturb the model less, but
cost the others more. Theory page: forgetting.md.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from fedveil.accounting.grid import choose_grid
from fedveil.accounting.hidden import per_round
from fedveil.core.errors import CannotCertify, require
from fedveil.core.values import Vector
from fedveil.planning.forgetting import Forgetting
from fedveil.planning.plan import HeldOutRecords, Plan, why_not_forgotten
from fedveil.planning.promises import forgotten, promise
from fedveil.privacy.mechanism import LastIterate
from fedveil.stages.evaluate.statement import NO_EVALUATION
from fedveil.stages.sums import NO_SUMS
from fedveil.stages.train.hidden.method import Hidden

_TRIED: Final = (1, 2, 3, 5, 8, 12, 20, 32, 50, 80, 120, 200, 320, 500, 800)  # numbers of further rounds
_HALVINGS: Final = 12  # of the search for the noise: to within half a percent
_WIDEST: Final = 2.0**14  # times the noise of the last round, at most


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One way to forget: ``epsilon`` of who left, ``others``: of everybody else, charged; ``risk``: noise left."""

    plan: Plan
    rounds: int
    epsilon: float
    others: float
    risk: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetDesign:
    """The option that was chosen among all that meet the target, and what training again would cost."""

    chosen: Option
    options: tuple[Option, ...]
    retraining_rounds: int
    retraining_epsilon: float

    @property
    def retrain(self) -> bool:
        """Whether training again is cheaper for everybody than going on."""
        return self.chosen.others >= self.retraining_epsilon


def design_forgetting(
    before: Plan, model: Vector, units: int, *, epsilon: float, others: float | None = None, rounds: int | None = None
) -> ForgetDesign:
    """Return the rounds of least expected risk that bring whoever leaves down to ``epsilon``.

    ``others``: the largest epsilon that the rounds may cost everybody else; a tenth of training again if left
    out. ``rounds``: how many, if that is decided. Refuse what cannot be proved, and a target out of reach.
    """
    why = why_not_forgotten(before)
    if why:
        raise CannotCertify(why)
    delta = before.target.delta
    again = promise(before.lineage[0], "final-model", delta).epsilon
    require(0 < epsilon < math.inf, "--epsilon", "be positive and finite", epsilon)
    limit = again / 10 if others is None else others
    most = max(1, before.lineage[0].method.total // 3)
    tried = [rounds] if rounds is not None else [k for k in _TRIED if k <= max(most, 20)]
    aim = _Aim(before, model, units, epsilon, limit)
    options = [one for count in tried if (one := _option(aim, count)) is not None]
    if not options:
        floor = _floor(aim, tried[-1])
        raise CannotCertify(
            f"{tried[-1]} further rounds bring whoever leaves down to epsilon {floor:.3g}, not to {epsilon:g}: what "
            "the run released about its columns stays, and noise hides only what training used. Raise --epsilon, or "
            "train again without the unit."
        )
    return ForgetDesign(
        chosen=min(options, key=lambda one: one.risk),
        options=tuple(options),
        retraining_rounds=before.lineage[0].method.total,
        retraining_epsilon=again,
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Aim:
    """Who leaves which model, what is to be left of them, and the most that everybody else may be charged."""

    before: Plan
    model: Vector
    units: int
    epsilon: float
    others: float

    def going_on(self, rounds: int, log_factor: float) -> Plan | None:
        """Return the plan of so many rounds with this noise."""
        return _going_on(self.before, self.model, self.units, rounds, math.exp(log_factor))

    def met_by(self, plan: Plan) -> bool:
        """Return whether a plan forgets enough, and costs the others no more than they may be charged."""
        enough = forgotten(plan)[-1].new_model.epsilon <= self.epsilon
        return enough and promise(plan, plan.target.adversary).epsilon <= self.others


def _option(aim: _Aim, rounds: int) -> Option | None:
    """Return the least noise, on a scale, with which so many rounds meet the aim; None if none does."""
    low, high = -math.log(_WIDEST), math.log(_WIDEST)
    best = aim.going_on(rounds, high)
    if best is None or not aim.met_by(best):
        return None
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        plan = aim.going_on(rounds, middle)
        low, high, best = (low, middle, plan) if plan is not None and aim.met_by(plan) else (middle, high, best)
    return Option(
        plan=best,
        rounds=rounds,
        epsilon=forgotten(best)[-1].new_model.epsilon,
        others=promise(best, best.target.adversary).epsilon,
        risk=_risk(best),
    )


def _floor(aim: _Aim, rounds: int) -> float:
    """Return what is left for whoever leaves however much noise the rounds have."""
    plan = aim.going_on(rounds, math.log(_WIDEST))
    return math.inf if plan is None else forgotten(plan)[-1].new_model.epsilon


def _going_on(before: Plan, model: Vector, units: int, rounds: int, factor: float) -> Plan | None:
    """Return the plan of so many rounds of all units, each with ``factor`` times the noise of the last round before."""
    run, count = before.run, before.units
    steps, noise = per_round(run.step_size, run), before.hidden.noise()
    smoothness = run.smoothness or 0.0
    step = min(float(steps.max()), 1 / smoothness if smoothness else math.inf)
    further = replace(
        run,
        rounds=1,
        passes=rounds,
        batch=count,
        order="public",
        place=None,
        rate=None,
        largest_batch=None,
        stopping="end",
        step_size=step,
        noise_std=float(noise[-1]) * factor / math.sqrt(rounds) * math.sqrt(count) / step,
    )
    method = Hidden(run=further, deal=before.hidden.deal, start=tuple(float(value) for value in model))
    exponent = _grid(before, method, further)
    if exponent is None:
        return None
    held = before.held_out if before.held_out.public else HeldOutRecords()
    return replace(
        before,
        name=before.name,
        method=method,
        grid=exponent,
        preparation=NO_SUMS,
        evaluation=NO_EVALUATION,
        held_out=replace(held, baselines=False),
        forgetting=Forgetting(before=before.text(), units=units),
    )


def _grid(before: Plan, method: Hidden, run: LastIterate) -> int | None:
    """Return the finest grid that holds the rounds; None where noise is too large or too small for any."""
    noise = method.noise()
    try:
        return choose_grid(method.radius(before.setup), float(noise.min()), float(noise.max()))
    except ValueError:
        return None


def _risk(plan: Plan) -> float:
    """Return the risk that the noise of the rounds adds, where curvature is spread evenly over all parameters."""
    run, size = plan.run, plan.dimension
    smoothness = run.smoothness or 0.0
    step, noise = float(np.max(per_round(run.step_size, run))), float(plan.hidden.noise()[-1])
    shrink = (1 - step * max(smoothness / size, run.strong_convexity)) ** 2
    kept = run.total if shrink >= 1 else (1 - shrink**run.total) / (1 - shrink)
    return smoothness / 2 * noise**2 * kept


def table_of(options: Sequence[Option]) -> list[dict[str, float]]:
    """Return the curve: rounds, epsilon of who leaves, cost for the others, and the risk that noise adds."""
    return [
        {"rounds": one.rounds, "epsilon": one.epsilon, "others": one.others, "noise_risk": one.risk} for one in options
    ]
