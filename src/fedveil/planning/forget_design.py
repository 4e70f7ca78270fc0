"""How many rounds, with which noise, forget a unit: designed for a target, with what it costs everybody else.

Rounds that go on from a part of the model use all remaining units. The first one carries the noise that hides whoever
leaves: the smaller the part, the less noise it takes. All rounds after it learn the model back; their own noise is what
the others are charged for. Rounds that begin with zeros leave nothing to hide: they are designed as any run is, for
what the others may be charged. Where what the first run learned about its columns tells too much, they learn that
again, too. Theory page: forgetting.md.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Final

import numpy as np

from fedveil.accounting.grid import choose_grid
from fedveil.accounting.hidden import per_round
from fedveil.core.errors import BadValue, CannotCertify, require
from fedveil.core.values import Vector
from fedveil.data.records import DataShape
from fedveil.planning.design import Planned, make_plan, shared_budget
from fedveil.planning.forgetting import Forgetting
from fedveil.planning.plan import HeldOutRecords, Plan, why_not_forgotten
from fedveil.planning.promises import forgotten, promise
from fedveil.privacy.mechanism import LastIterate
from fedveil.stages.evaluate.statement import NO_EVALUATION
from fedveil.stages.prepare.budget import noisier
from fedveil.stages.sums import NO_SUMS, NoisySums
from fedveil.stages.train.base import Setup
from fedveil.stages.train.hidden.design import HiddenRequest
from fedveil.stages.train.hidden.method import Hidden
from fedveil.stages.train.request import ScheduleRequest, Task
from fedveil.stages.train.yardstick import Yardstick, model_problem

_TRIED: Final = (1, 0.5, 0.25, 0.1, 0.03, 0.01)  # numbers of further rounds, of the most
_LEAST_TRIED: Final = 20  # so many rounds may be taken however short the run was
_KEPT: Final = (2.0**-6, 2.0**-4, 2.0**-2, 1.0)  # parts of the model that the first further round may begin with
_CHARGES: Final = (0.25, 0.5, 1.0)  # of the most that others may be charged
_QUESTIONS: Final = 40  # of a search for the noise, at most
_CLOSE: Final = 0.99  # of what is aimed for, where a search stops
_NEAR: Final = 4.0  # times what is aimed for, from where on a search steps towards it instead of halving
_EVENNESS: Final = (1e-6, 1e-3, 1.0)  # least weight of a round in the risk, over the largest: 1 is even noise
# Differences of risk, in parts of what there is to learn:
_ALIKE: Final = 1e-4  # by less, and the others' lower charge decides
_HARDLY: Final = 5e-3  # by less, and beginning with less of the model decides: it leaves less of whoever leaves
_UNSEEN: Final = 1e-3  # by less, and the others' charge decides which way is taken
_SLIGHTLY: Final = 0.02  # the same in parts of the risk itself, where much is left
_CHEAP: Final = 1.25  # times the least charge is about as cheap
_POORER: Final = 0.02  # by more, and training again is the better way
_WIDEST: Final = 2.0**14  # times the noise of the last round, at most


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One way to forget: ``epsilon`` of who left, ``others``: of everybody else, charged; ``risk``: expected.

    ``keep``: the part of the model that the rounds begin with. ``quality``: how much of the way from a model that has
    learned nothing to the best one is expected.
    """

    plan: Plan
    rounds: int
    keep: float
    epsilon: float
    others: float
    risk: float
    quality: float

    @property
    def columns_again(self) -> bool:
        """Whether what the first run learned about its columns is learned again, without whoever left."""
        return bool(self.plan.preparation)


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetDesign:
    """The option that was chosen among all that meet the target, and what training again would cost."""

    chosen: Option
    options: tuple[Option, ...]
    retraining_rounds: int
    retraining_epsilon: float
    retraining_risk: float
    retraining_quality: float
    learnable: float

    @property
    def retrain(self) -> str:
        """Why training again is the better way; empty where going on is."""
        if self.chosen.others >= self.retraining_epsilon:
            return "Training again without them costs everybody less."
        if self.chosen.risk > self.retraining_risk + _POORER * self.learnable:
            return "These rounds are expected to leave a poorer model than training again without them would."
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaving:
    """``units``: how many leave; ``together``: how many of them belong to one party, which is promised as a whole.

    ``away``, ``data``: sites that take no part, and what the others have then. ``cells``: those who go on have no rows,
    so that columns which the first run learned must be learned again.
    """

    units: int
    together: int = 1
    away: tuple[str, ...] = ()
    data: DataShape | None = None
    cells: bool = False


def design_forgetting(
    before: Plan,
    leaving: Leaving,
    *,
    epsilon: float,
    others: float | None = None,
    rounds: int | None = None,
    keep: float | None = None,
) -> ForgetDesign:
    """Return the rounds of least expected risk that bring whoever leaves down to ``epsilon``.

    ``others``: the largest epsilon that the rounds may cost everybody else; half of training again if left out. Of
    ways that disturb the model alike, the one that costs them least is chosen. ``rounds``, ``keep``: how many, and the
    part of the model that they begin with, if that is decided. Refuse what cannot be proved, and a target out of reach.
    """
    why = why_not_forgotten(before)
    if why:
        raise CannotCertify(why)
    delta = before.target.delta
    again = promise(before.lineage[0], "final-model", delta).epsilon
    require(0 < epsilon < math.inf, "--epsilon", "be positive and finite", epsilon)
    limit = again / 2 if others is None else others
    require(limit > 0, "--others", "be positive", limit)
    most = max(before.lineage[0].method.total // 3, _LEAST_TRIED)
    counts = dict.fromkeys(max(1, round(most * part)) for part in _TRIED)
    tried = [rounds] if rounds is not None else sorted(counts)
    aim = _Aim(before, leaving, epsilon, _KEPT if keep is None else (keep,))
    risk, learnable = expected_risk(before.lineage[0]), _yardstick(before).learnable
    options: list[Option] = []
    if keep != 0 and not leaving.cells:
        options += [one for count in tried if (one := _option(aim, count, limit)) is not None]
    if not keep:
        schedules = _schedules(aim.first.run, tried[-1], exact=rounds is not None)
        options += _from_zeros(aim, schedules, limit, again)
    if not options:
        raise CannotCertify(_out_of_reach(aim, tried[-1], again, limit))
    return ForgetDesign(
        chosen=_chosen(options, learnable),
        options=tuple(options),
        retraining_rounds=before.lineage[0].method.total,
        retraining_epsilon=again,
        retraining_risk=risk,
        retraining_quality=_quality(risk, learnable),
        learnable=learnable,
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Aim:
    """Who leaves the model of which plan, and what is to be left of them."""

    before: Plan
    leaving: Leaving
    epsilon: float
    parts: tuple[float, ...]

    @property
    def first(self) -> Plan:
        """The plan of the run that all requests go back to."""
        return self.before.lineage[0]

    @property
    def setup(self) -> Setup:
        """What those who go on have."""
        setup, data = self.before.setup, self.leaving.data
        return setup if data is None else replace(setup, data=data)

    def request(self, method: Hidden, grid: int, preparation: NoisySums = NO_SUMS) -> Plan:
        """Return the plan of these rounds, after the plan before, without those who leave."""
        before, leaving = self.before, self.leaving
        held = before.held_out if before.held_out.public else HeldOutRecords()
        return replace(
            before,
            method=method,
            grid=grid,
            preparation=preparation,
            evaluation=NO_EVALUATION,
            held_out=replace(held, baselines=False),
            data=self.setup.data,
            forgetting=Forgetting(
                before=before.text(), units=leaving.units, together=leaving.together, away=leaving.away
            ),
        )

    def option(self, plan: Plan) -> "Option":
        """Return what a plan of these rounds leaves, and costs."""
        risk = expected_risk(plan)
        return Option(
            plan=plan,
            rounds=plan.run.total,
            keep=plan.hidden.keep,
            epsilon=forgotten(plan)[-1].new_model.epsilon,
            others=promise(plan, plan.target.adversary).epsilon,
            risk=risk,
            quality=_quality(risk, _yardstick(plan).learnable),
        )

    def going_on(self, rounds: int, keep: float, hiding: float, steady: float) -> Plan | None:
        """Return the plan of so many rounds; None where no grid holds its noise, however evenly it is spread."""
        plans = (_going_on(self, rounds, keep, hiding, steady, evenness) for evenness in _EVENNESS)
        return next((plan for plan in plans if plan is not None), None)


def _chosen(options: Sequence[Option], learnable: float) -> Option:
    """Return the option of least risk; of those that hardly differ, one that costs the others about the least.

    Of these, one that begins with zeros: it leaves nothing of whoever leaves, and takes the least work.
    """
    best = min(one.risk for one in options)
    near = [one for one in options if one.risk <= best + max(_UNSEEN * learnable, _SLIGHTLY * best)]
    cheap = _CHEAP * min(one.others for one in near)
    alike = [one for one in near if one.others <= cheap]
    return min([one for one in alike if one.keep == 0] or alike, key=lambda one: one.risk)


def _schedules(first: LastIterate, rounds: int, *, exact: bool) -> list[ScheduleRequest]:
    """Return what is asked of a run that begins with zeros, in order: of at most so many rounds, or exactly so many.

    A free design is the best if its rounds are few enough; else it has as many passes as the first run, or fewer.
    """
    most = min(first.passes, rounds)
    if exact:
        passes = max(count for count in range(1, most + 1) if rounds % count == 0)
        return [ScheduleRequest(passes=passes, rounds=rounds // passes)]
    return [ScheduleRequest(), ScheduleRequest(passes=most, rounds=rounds // most)]


def _from_zeros(aim: _Aim, schedules: Sequence[ScheduleRequest], limit: float, again: float) -> list[Option]:
    """Return runs that begin with zeros, for what the others may be charged, or a part of it.

    ``schedules``: what is asked of them; the last one has as many rounds as may be. ``again``: what training again is
    charged. Columns are learned again only where what was learned of them before tells too much of whoever leaves, or
    those who go on have no rows.
    """
    before, method = aim.before, replace(aim.first.hidden, start=(), keep=0.0)
    columns = aim.leaving.cells
    if aim.first.preparation and aim.leaving.data is None and not columns:
        left = forgotten(aim.request(method, aim.first.grid))[-1].new_model.epsilon
        columns = not left <= aim.epsilon
    options: list[Option] = []
    for part in sorted(_CHARGES, reverse=True):
        try:
            planned, sums = _planned_anew(aim, schedules, limit * part, again / (limit * part) if columns else 0.0)
            plan = aim.request(replace(planned.plan.hidden, keep=0.0), planned.plan.grid, sums)
        except (CannotCertify, BadValue):
            break
        one = aim.option(plan)
        if one.epsilon <= aim.epsilon and one.others <= limit:
            options.append(one)
        noise = planned.draft.designed.chosen.arriving if planned.draft.designed is not None else math.inf
        if not 3 * noise <= _ALIKE * _yardstick(before).learnable:  # half of the charge: four times the noise's part
            break
    return options


def _planned_anew(
    aim: _Aim, schedules: Sequence[ScheduleRequest], most: float, times: float
) -> tuple[Planned, NoisySums]:
    """Return the run of least risk that costs the others at most ``most``, and the sums by which columns are learned.

    ``times``: how many times the noise of the first run's sums these have; 0 where columns stay as they are.
    """
    first, setup = aim.first, aim.setup
    target = replace(setup.target, epsilon=most)
    request = HiddenRequest(order=first.run.order, stopping=first.run.stopping, deal=first.hidden.deal)
    sums = noisier(first.preparation, times, setup.data, setup.target) if times else NO_SUMS

    def designed(task: Task) -> Planned:
        return make_plan(first.name, request, task)

    def planned(schedule: ScheduleRequest) -> Planned:
        task = Task(data=setup.data, model=setup.model, target=target, schedule=schedule, trust=setup.trust)
        if not sums and target.unit != "person":
            return designed(task)
        shared = replace(sums, share=first.preparation.share) if sums else NO_SUMS  # of this smaller budget
        return shared_budget(request, task, shared, designed, NO_EVALUATION)

    *free, capped = schedules
    rounds = (capped.passes or 1) * (capped.rounds if isinstance(capped.rounds, int) else 1)
    fitting = (one for one in map(planned, free) if one.plan.run.total <= rounds)
    return next(fitting, None) or planned(capped), sums


def _option(aim: _Aim, rounds: int, limit: float) -> Option | None:
    """Return the best of ways to go on for so many rounds: the least charge among those of about the least risk."""
    found = [one for part in _CHARGES if (one := _least_left(aim, rounds, limit * part)) is not None]
    return _first_within(found, _ALIKE * _yardstick(aim.before).learnable)


def _first_within(options: Sequence[Option], slack: float) -> Option | None:
    """Return the first option whose risk is at most so much above the least; None if there is none."""
    least = min((one.risk for one in options), default=math.inf)
    return next((one for one in options if one.risk <= least + slack), None)


def _least_left(aim: _Aim, rounds: int, others: float) -> Option | None:
    """Return the rounds that begin with the least of the model, of those with about the least risk.

    None if none forget. ``others``: the most that they may be charged. First the noise of all rounds that the others
    need is looked for, then the noise of the first round that whoever leaves needs.
    """

    def charged(log_steady: float) -> float:
        plan = aim.going_on(rounds, aim.parts[-1], 0.0, math.exp(log_steady))
        return math.inf if plan is None else promise(plan, plan.target.adversary).epsilon

    log_steady = _least(charged, others)
    if log_steady is None:
        return None
    found = (_hiding(aim, rounds, keep, math.exp(log_steady)) for keep in aim.parts)
    hidden = takewhile(lambda one: one is not None, found)  # where no noise hides a part, none hides a larger one
    met = [one for one in hidden if one is not None and one.epsilon <= aim.epsilon and one.others <= others]
    return _first_within(met, _HARDLY * _yardstick(aim.before).learnable)


def _hiding(aim: _Aim, rounds: int, keep: float, steady: float) -> Option | None:
    """Return the rounds with the least noise in the first that hides whoever leaves; None if none does."""

    def left(hiding: float) -> float:
        plan = aim.going_on(rounds, keep, hiding, steady)
        return math.inf if plan is None else forgotten(plan)[-1].new_model.epsilon

    hiding = 0.0
    if not left(0.0) <= aim.epsilon:
        if not left(_WIDEST) <= aim.epsilon:
            return None
        log_hiding = _least(lambda log: left(math.exp(log)), aim.epsilon)
        if log_hiding is None:
            return None
        hiding = math.exp(log_hiding)
    plan = aim.going_on(rounds, keep, hiding, steady)
    if plan is None:
        return None
    return aim.option(plan)


def _quality(risk: float, learnable: float) -> float:
    return max(0.0, 1 - risk / learnable) if learnable > 0 else 0.0


def _least(epsilon_at: Callable[[float], float], aim: float) -> float | None:
    """Return about the smallest logarithm of noise at which epsilon is at most ``aim``; None if it never is.

    Near the aim epsilon falls about like one over the noise, so the next noise is where that leads, if it lies between
    the bounds so far. Whatever is returned was found to meet the aim.
    """
    low, high, at = -math.log(_WIDEST), math.log(_WIDEST), 0.0
    best = None
    for _ in range(_QUESTIONS):
        epsilon = epsilon_at(at)
        low, high, best = (low, at, at) if epsilon <= aim else (at, high, best)
        if high - low < 1 - _CLOSE or _CLOSE * aim <= epsilon <= aim:
            break
        ratio = epsilon / (aim * (1 + _CLOSE) / 2)
        guess = at + math.log(ratio) if 0 < ratio < math.inf else math.inf
        at = guess if low < guess < high and 1 / _NEAR < ratio < _NEAR else (low + high) / 2
    return best


def _out_of_reach(aim: _Aim, rounds: int, again: float, others: float) -> str:
    """Return why no noise is enough, how far the rounds get, and what training again costs."""
    keep = aim.parts[0]
    plan = aim.going_on(rounds, keep, _WIDEST, 1.0) if keep > 0 else None
    floor = math.inf if plan is None else forgotten(plan)[-1].new_model.epsilon
    left, first = aim.leaving, aim.before.lineage[0]
    who = "whoever leaves"
    if left.together > 1:
        who = f"the party that leaves, {left.together} {first.target.unit}s together,"
    reach = f"epsilon {floor:.3g}" if math.isfinite(floor) else "no guarantee"
    why = f"bring {who} down to {reach}, not to {aim.epsilon:g}"
    if first.preparation:
        why += ", since what the run released about its columns stays"
    if floor <= aim.epsilon:
        why = f"have no noise that keeps the others at epsilon {others:.3g}"
    return (
        f"{rounds} further rounds {why}. Raise --epsilon or --others, or train again without them: "
        f"{first.method.total} rounds, charged epsilon {again:.3g}."
    )


def _going_on(aim: _Aim, rounds: int, keep: float, hiding: float, steady: float, evenness: float) -> Plan | None:
    """Return the plan of so many rounds of all units, noise counted in that of the last round before.

    ``keep``: the part of the model that they begin with. ``hiding``: of the first round, on top of its own;
    ``steady``: of all rounds together, spread so that it disturbs the last model least, though no more unevenly than
    ``evenness`` allows. Steps are the longest that do not expand a gap.
    """
    before, setup = aim.before, aim.setup
    run, count = before.run, setup.units
    smoothness, unit = run.smoothness or 0.0, float(before.hidden.noise()[-1])
    bend = smoothness + run.strong_convexity
    step = 2 / bend if bend > 0 else float(per_round(run.step_size, run).max())
    weights = _weights(before, np.full(rounds, step))
    shape = 1 / np.sqrt(np.maximum(weights, evenness * float(weights.max())))
    variance = (steady * unit) ** 2 * shape / shape.sum()
    variance[0] += (hiding * unit) ** 2
    noise = np.sqrt(variance) * math.sqrt(count) / step
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
        noise_std=tuple(noise.tolist()) if rounds > 1 else float(noise[0]),
    )
    method = Hidden(run=further, deal=before.hidden.deal, reach=before.radius, keep=keep)
    exponent = _grid(setup, method)
    return None if exponent is None else aim.request(method, exponent)


def _grid(setup: Setup, method: Hidden) -> int | None:
    """Return the finest grid that holds the rounds; None where noise is too large or too small for any."""
    noise = method.noise()
    try:
        return choose_grid(method.radius(setup), float(noise.min()), float(noise.max()))
    except ValueError:
        return None


def expected_risk(plan: Plan) -> float:
    """Return the expected excess risk of the last model of a lineage, on the yardstick's model problem.

    Each run begins with what it keeps of the model before, moves towards the optimum, and adds its noise.
    """
    model = _yardstick(plan)
    whole = model.curvature + model.ridge
    arrived = variance = np.zeros_like(whole)
    for one in plan.lineage:
        steps = per_round(one.run.step_size, one.run)
        left = model.kept(steps)
        begun = left[0] * (1 - steps[0] * whole)
        arrived = begun * one.hidden.keep * arrived + model.curvature / whole * (1 - begun)
        variance = (begun * one.hidden.keep) ** 2 * variance + one.hidden.noise() ** 2 @ left**2
    away = model.start * (1 - arrived) ** 2
    return float(0.5 * np.sum(model.count * model.curvature * (away + variance)))


def _weights(plan: Plan, steps: Vector) -> Vector:
    """Return what a unit of noise variance in each of these rounds adds to the risk of the model after them."""
    model = _yardstick(plan)
    return model.weights(model.kept(steps))


def _yardstick(plan: Plan) -> Yardstick:
    run = plan.run
    return model_problem(
        dimension=plan.dimension,
        lipschitz=run.lipschitz,
        data=(run.smoothness or 0.0) - run.strong_convexity,
        ridge=run.strong_convexity,
        distance=plan.model.loss.usual_reach / plan.data.bound,
        diameter=run.diameter,
        outputs=plan.model.loss.outputs,
    )


def later_requests(plan: Plan) -> str:
    """Return one sentence: whether units of a run that is planned can be forgotten by further rounds."""
    who = f"a {plan.target.unit}"
    why = why_not_forgotten(plan)
    if why:
        return f"Erasure: no further round can make this run forget {who}. {why}"
    again = ", and learn the columns again without it" if plan.preparation else ""
    return f"Erasure: further rounds can make the model forget {who}{again} (fedveil forget)."


def begins_with(option: Option) -> str:
    """Return with how much of the model the rounds of an option begin, in words."""
    keep = option.keep
    return "zeros" if keep == 0 else "the model" if keep == 1 else f"1/{round(1 / keep)} of it"


def notes_of(design: ForgetDesign) -> list[str]:
    """Return what is to be said of a design besides its numbers."""
    again = "What the run learned about its columns is learned again, without them."
    return [*([again] if design.chosen.columns_again else []), *([design.retrain] if design.retrain else [])]


def table_of(options: Sequence[Option]) -> list[dict[str, float]]:
    """Return the curve: rounds, the part of the model they begin with, epsilon of who leaves, others' cost, risk."""
    return [
        {
            "rounds": one.rounds,
            "keep": one.keep,
            "columns_again": one.columns_again,
            "epsilon": one.epsilon,
            "others": one.others,
            "expected_risk": one.risk,
            "expected_quality": one.quality,
        }
        for one in options
    ]
