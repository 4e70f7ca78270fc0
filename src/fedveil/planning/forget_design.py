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
from fedveil.data.records import DataShape
from fedveil.planning.forgetting import Forgetting
from fedveil.planning.plan import HeldOutRecords, Plan, why_not_forgotten
from fedveil.planning.promises import forgotten, promise
from fedveil.stages.evaluate.statement import NO_EVALUATION
from fedveil.stages.sums import NO_SUMS
from fedveil.stages.train.base import Setup
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
    retraining_risk: float

    @property
    def retrain(self) -> str:
        """Why training again is the better way; empty where going on is."""
        if self.chosen.others >= self.retraining_epsilon:
            return "Training again without them costs everybody less."
        if self.chosen.risk > self.retraining_risk:
            return "The noise that hides them disturbs the model more than training again without them would."
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaving:
    """``units``: how many leave; ``together``: how many of them belong to one party, which is promised as a whole.

    ``away``, ``data``: sites that take no part, and what the others have then.
    """

    units: int
    together: int = 1
    away: tuple[str, ...] = ()
    data: DataShape | None = None


def design_forgetting(
    before: Plan,
    model: Vector,
    leaving: Leaving,
    *,
    epsilon: float,
    others: float | None = None,
    rounds: int | None = None,
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
    aim = _Aim(before, model, leaving, epsilon, limit)
    options = [one for count in tried if (one := _option(aim, count)) is not None]
    if not options:
        raise CannotCertify(_out_of_reach(aim, tried[-1], again))
    return ForgetDesign(
        chosen=min(options, key=lambda one: one.risk),
        options=tuple(options),
        retraining_rounds=before.lineage[0].method.total,
        retraining_epsilon=again,
        retraining_risk=noise_risk(before.lineage[0]),
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Aim:
    """Who leaves which model, what is to be left of them, and the most that everybody else may be charged."""

    before: Plan
    model: Vector
    leaving: Leaving
    epsilon: float
    others: float

    def going_on(self, rounds: int, log_factor: float) -> Plan | None:
        """Return the plan of so many rounds with this noise."""
        return _going_on(self.before, self.model, self.leaving, rounds, math.exp(log_factor))

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
        risk=noise_risk(best),
    )


def _out_of_reach(aim: _Aim, rounds: int, again: float) -> str:
    """Return why no noise is enough, how far the rounds get, and what training again costs."""
    plan = aim.going_on(rounds, math.log(_WIDEST))
    floor = math.inf if plan is None else forgotten(plan)[-1].new_model.epsilon
    left, first = aim.leaving, aim.before.lineage[0]
    who = "whoever leaves"
    if left.together > 1:
        who = f"the party that leaves, {left.together} {first.target.unit}s together,"
    why = "noise hides only what training used"
    if first.preparation:
        why = "what the run released about its columns stays, and " + why
    if first.run.sampled:
        why = "rounds that records draw themselves contract by proof only if their steps are short, and " + why
    reach = f"epsilon {floor:.3g}" if math.isfinite(floor) else "no guarantee"
    return (
        f"{rounds} further rounds bring {who} down to {reach}, not to {aim.epsilon:g}, at a cost of {aim.others:.3g} "
        f"for the others: {why}. Raise --epsilon, or train again without them: {first.method.total} rounds, charged "
        f"epsilon {again:.3g}."
    )


def _going_on(before: Plan, model: Vector, leaving: Leaving, rounds: int, factor: float) -> Plan | None:
    """Return the plan of so many rounds of all units, each with ``factor`` times the noise of the last round before."""
    setup = before.setup if leaving.data is None else replace(before.setup, data=leaving.data)
    run, count = before.run, setup.units
    steps, noise = per_round(run.step_size, run), before.hidden.noise()
    smoothness = run.smoothness or 0.0
    step = min(float(steps.max()), 1 / smoothness if smoothness else math.inf)
    further = replace(
        run,
        rounds=1,
        passes=rounds,
        batch=count,
        records=None if run.records is None else count,
        order="public",
        place=None,
        rate=None,
        largest_batch=None,
        stopping="end",
        step_size=step,
        noise_std=float(noise[-1]) * factor / math.sqrt(rounds) * math.sqrt(count) / step,
    )
    method = Hidden(run=further, deal=before.hidden.deal, start=tuple(float(value) for value in model))
    exponent = _grid(setup, method)
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
        data=setup.data,
        forgetting=Forgetting(before=before.text(), units=leaving.units, together=leaving.together, away=leaving.away),
    )


def _grid(setup: Setup, method: Hidden) -> int | None:
    """Return the finest grid that holds the rounds; None where noise is too large or too small for any."""
    noise = method.noise()
    try:
        return choose_grid(method.radius(setup), float(noise.min()), float(noise.max()))
    except ValueError:
        return None


def noise_risk(plan: Plan) -> float:
    """Return the risk that the noise of a hidden run adds, where curvature is spread evenly over all parameters."""
    run = plan.run
    smoothness = run.smoothness or 0.0
    steps, noise = per_round(run.step_size, run), plan.hidden.noise()
    shrink = (1 - steps * max(smoothness / plan.dimension, run.strong_convexity)) ** 2
    kept = np.append(np.cumprod(shrink[::-1])[::-1][1:], 1.0)  # what later rounds leave of each round's noise
    return smoothness / 2 * float(np.sum(noise**2 * kept))


def table_of(options: Sequence[Option]) -> list[dict[str, float]]:
    """Return the curve: rounds, epsilon of who leaves, cost for the others, and the risk that noise adds."""
    return [
        {"rounds": one.rounds, "epsilon": one.epsilon, "others": one.others, "noise_risk": one.risk} for one in options
    ]
