"""What a plan promises to each observer: the accountants applied to the plan, including the cost of the grid."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial

from fedveil.accounting.compare import group_bound
from fedveil.accounting.evaluator import Evaluator, bound_of, for_group, least_of, withdrawn
from fedveil.accounting.grid import Grid, delta_on_grid, on_grid
from fedveil.accounting.hidden import per_round
from fedveil.accounting.profile import composed
from fedveil.accounting.sampling_alone import SeenByAll, seen_by_all
from fedveil.accounting.selection import TrialCurve, selected_answer
from fedveil.core.errors import CannotCertify
from fedveil.planning.plan import AnyPlan, Plan
from fedveil.privacy.guarantee import ADVERSARIES as ADVERSARIES
from fedveil.privacy.guarantee import Adversary, Answer, Bound
from fedveil.privacy.mechanism import FurtherRounds, Gaussian
from fedveil.stages.evaluate.statement import NO_EVALUATION
from fedveil.stages.measured.plan import MeasuredPlan
from fedveil.stages.sums import NO_SUMS

# The deltas at which the curve of a candidate is certified, beside that of its own target.
_POINTS = (0.3, 0.15, 0.08, 0.04, 0.02, 0.01, 5e-3, 2e-3, 5e-4, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-9, 1e-11)
_PARTS_OF_CURVE = (0.05, 0.1, 0.2, 0.3, 0.45, 0.6, 0.8, 1.0)  # of the rounds, where epsilon is worked out
_FARTHEST = 300.0  # an epsilon beyond which hops are not added up
_TRIES = 12  # of the search for an epsilon that hops of a smaller delta stay below
_ALL_KNOWN = "it knows all of the preparation's noise, or there is no other client"  # or the evaluation's


def grid_of(plan: Plan, adversary: Adversary = "final-model") -> Grid:
    """Return how far the run on its grid may differ from the ideal one, in units of noise unknown to the observer."""
    found = plan.method.grid(adversary, plan.setup, plan.grid)
    if not plan.measured:
        return found
    # Contributions to these sums are whole numbers of steps, so nothing is displaced: docs/theory/preparation.md.
    variation, mishap = found.total_variation, found.mishap
    for sums, data in plan.measured:
        variation += sums.total_variation(data, plan.trust, plan.method.served)
        mishap += sums.mishap(adversary, plan.trust)
    return replace(found, total_variation=min(1.0, variation), mishap=min(1.0, mishap))


def ideal(plan: Plan, adversary: Adversary, delta: float) -> Answer:
    """Return the smallest epsilon that is proved against this observer for ideal, real-valued noise."""
    if not plan.measured:
        return plan.method.answer(adversary, plan.setup, delta)
    beside = mechanism_seen_by(plan, adversary)
    if beside is None:
        return least_of([bound_of(withdrawn("loss-distribution", _ALL_KNOWN), delta, None)], delta, None)
    return plan.method.answer(adversary, plan.setup, delta, beside)


def mechanism_seen_by(plan: Plan, adversary: Adversary) -> Gaussian | None:
    """What this observer hears of the noisy sums over units that train, before and after training, as one release.

    None where there are none, or where it knows all of the noise.
    """
    if plan.selection:
        raise CannotCertify("a selection among several trials is no single run: ask for what it promises as a whole")
    parts = [sums.mechanism_seen_by(adversary, data, plan.target, plan.trust) for sums, data in plan.measured]
    if len(parts) < 2:
        return parts[0] if parts else None
    known = [part.noise_multiplier for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    whole = 1 / math.sqrt(math.fsum(1 / noise**2 for noise in known)) * (1 - 2.0**-40)
    return Gaussian(noise_multiplier=whole, neighbours=plan.target.neighbours)


def hidden_views(plan: Plan, adversary: Adversary) -> Sequence[Evaluator]:
    """Every bound on what this observer learns from a hidden run (and its preparation), with ideal noise."""
    beside = mechanism_seen_by(plan, adversary)
    if plan.measured and beside is None:
        return [withdrawn("loss-distribution", _ALL_KNOWN)]
    return plan.hidden.views(adversary, plan.setup, beside)


@lru_cache(maxsize=64)
def every_model_seen(plan: Plan) -> SeenByAll | None:
    """What a hidden plan would promise at its noise if every model were seen, by how its records are sampled.

    It counts what the certificate counts: the preparation, the rounds on their grid, and the evaluation. None where
    nothing is hidden, or where several trials run.
    """
    if not plan.hides:
        return None
    seen: Adversary = "every-model"
    beside, grid, counted = mechanism_seen_by(plan, seen), grid_of(plan, seen), plan.evaluation

    def judge(view: Evaluator, delta: float) -> float:
        view = for_group(view, plan.target.largest_person)
        whole = view if beside is None else composed([view], beside)
        try:
            found = on_grid(grid, lambda inner: least_of([bound_of(whole, inner, None)], inner, None), delta).epsilon
        except CannotCertify:
            return math.inf
        if not counted.apart:
            return found
        return max(found, counted.answer(seen, plan.data, plan.target, plan.trust, delta).epsilon)

    return seen_by_all(plan.hidden.run, plan.target.delta, judge)


@lru_cache(maxsize=64)
def promise(plan: AnyPlan, adversary: Adversary, delta: float | None = None) -> Answer:
    """Return the smallest epsilon that is proved against this observer, at the target's delta or another."""
    delta = plan.target.delta if delta is None else delta
    if isinstance(plan, MeasuredPlan):
        return plan.promise(adversary, delta)
    if plan.selection:
        return _selected(plan, adversary, delta)
    found = on_grid(grid_of(plan, adversary), lambda inner: ideal(plan, adversary, inner), delta)
    counted = plan.evaluation
    if not counted.apart:
        return found
    # A unit either trains or is held out. What is promised to all of them is the weaker of the two promises.
    alone = counted.answer(adversary, plan.data, plan.target, plan.trust, delta)
    return alone if alone.epsilon > found.epsilon else found


def _selected(plan: Plan, adversary: Adversary, delta: float) -> Answer:
    """Return what is promised for the best of several trials: who sees only the final model sees one trial only."""
    found = plan.selection
    score_mu = 1 / found.score_noise if found.private else 0.0
    try:
        curve = TrialCurve.of([certified_points(one, adversary) for one in plan.candidates], score_mu)
    except CannotCertify as error:
        bound = Bound(name="every-trial", status="certified", reason=str(error), epsilon=math.inf)
        return Answer(epsilon=math.inf, delta=delta, certified_by=None, bounds=(bound,))
    return selected_answer(curve, found.law, found.most, found.slip, delta, sees_all=adversary != "final-model")


@lru_cache(maxsize=1024)
def certified_points(plan: Plan, adversary: Adversary) -> tuple[tuple[float, float], ...]:
    """Return certified (epsilon, delta) of one run at several deltas, that of its own target among them."""
    deltas = sorted({*_POINTS, plan.target.delta}, reverse=True)
    found = []
    for delta in deltas:
        try:
            found.append((promise(plan, adversary, delta).epsilon, delta))
        except CannotCertify:
            continue
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Forgotten:
    """What is promised to the units that left when one plan of a lineage began.

    ``units``: how many; ``together``: how many of them are promised as one; ``left``: the hash of that plan.
    ``new_model``: against whoever has the newest model and none before; ``every_model``: against whoever kept all
    models of the lineage.
    """

    units: int
    together: int
    left: str
    new_model: Answer
    every_model: Answer


@lru_cache(maxsize=64)
def forgotten(plan: Plan) -> tuple[Forgotten, ...]:
    """Return what is promised to everybody who left, in the order of leaving."""
    lineage = plan.lineage
    rows = []
    for place in range(1, len(lineage)):
        used = lineage[:place]
        rows.append(
            Forgotten(
                units=lineage[place].forgetting.units,
                together=lineage[place].forgetting.together,
                left=lineage[place].hash,
                new_model=_left_behind(lineage, place),
                every_model=_kept(used, plan.target.delta, lineage[place].forgetting.together),
            )
        )
    return tuple(rows)


@lru_cache(maxsize=8)
def forgetting_curve(plan: Plan) -> tuple[tuple[int, float], ...]:
    """Return epsilon of whoever left last, after so many of the plan's rounds, from the old model to the new one."""
    before, total = plan.lineage[:-1], plan.run.total
    points = [(0, _kept(before, plan.target.delta, plan.forgetting.together).epsilon)]
    if plan.hidden.keep == 0:  # nothing of the model before is left from the first round on
        return (*points, (total, _left_behind(plan.lineage, len(before)).epsilon))
    for rounds in sorted({round(total * part) for part in _PARTS_OF_CURVE} - {0}):
        run = plan.run
        steps, noise = (per_round(values, run)[:rounds].tolist() for values in (run.step_size, run.noise_std))
        cut = replace(run, passes=rounds, step_size=tuple(steps), noise_std=tuple(noise))
        shorter = replace(plan, method=replace(plan.hidden, run=cut))
        points.append((rounds, _left_behind((*before, shorter), len(before)).epsilon))
    return tuple(points)


def _left_behind(lineage: Sequence[Plan], place: int) -> Answer:
    """Return what the last model of a lineage tells of a unit that was used before ``place`` and never since.

    The unit leaves run after run (hops): each hop is the run that used it, followed by all later rounds, which did not
    or which use it alike on both sides. Hops of (e_i, d_i) add up, in either direction, to their sum E and to at most
    exp(E) times the sum of d_i. Whoever also has the models before learns no less, so what is promised against them
    holds as well. Theory page: forgetting.md.
    """
    added, together = _hops(lineage, place), lineage[place].forgetting.together
    kept = _kept(lineage[:place], lineage[-1].target.delta, together)
    return added if added.epsilon <= kept.epsilon else kept


def _hops(lineage: Sequence[Plan], place: int) -> Answer:
    """Return the sum of all hops of a unit that leaves run after run."""
    delta, grid = lineage[-1].target.delta, _joint_grid(lineage)
    together, reserved = lineage[place].forgetting.together, 0.0
    for _ in range(_TRIES):
        each = delta / place * math.exp(-reserved)
        hops = [on_grid(grid, partial(_hop, lineage, i, together=together), each) for i in range(place)]
        total = math.fsum(hop.epsilon for hop in hops)
        if place == 1 or total <= reserved:
            by = hops[0].certified_by if place == 1 else None
            bounds = tuple(bound for hop in hops for bound in hop.bounds)
            return Answer(epsilon=total, delta=delta, certified_by=by, bounds=bounds)
        if not total < _FARTHEST:
            break
        reserved = total * 1.02 + 0.01  # a smaller delta asks for a little more
    return Answer(epsilon=math.inf, delta=delta, certified_by=None, bounds=())


def _hop(lineage: Sequence[Plan], index: int, delta: float, together: int = 1) -> Answer:
    """Return the guarantee, with ideal noise, of the run that used the unit, after all rounds that follow it.

    ``together``: so many units leave as one; a bound for one unit becomes one for all of them hop by hop. What a
    preparation released stays in the model, until a later plan learns the columns again; what an evaluation counted is
    withdrawn with its model.
    """
    after = lineage[index + 1 :]
    anew = any(one.preparation for one in after)
    plan = replace(
        lineage[index],
        preparation=NO_SUMS if anew else lineage[index].preparation,
        evaluation=NO_EVALUATION,
    )
    later = [one.run for one in after]

    def listed(name: str) -> list[float]:
        return [float(value) for run in later for value in per_round(getattr(run, name), run)]

    further = FurtherRounds(
        rounds=sum(run.total for run in later),
        batch=tuple(map(int, listed("batch"))),
        step_size=tuple(listed("step_size")),
        noise_std=tuple(listed("noise_std")),
        keep=tuple(part for one in after for part in (one.hidden.keep, *[1.0] * (one.run.total - 1))),
    )
    method = replace(plan.hidden, run=replace(plan.run, further=further))
    beside = mechanism_seen_by(plan, "final-model")
    if plan.measured and beside is None:
        return least_of([bound_of(withdrawn("loss-distribution", _ALL_KNOWN), delta, None)], delta, None)
    views = method.views("final-model", plan.setup, beside)
    return least_of([group_bound(one, delta, None, together) for one in views], delta, None)


def _joint_grid(lineage: Sequence[Plan]) -> Grid:
    """Return a grid that costs no less than those of all runs of a lineage, one after the other.

    A run that starts from a released model rounds it to its own grid; its first round counts the state before it as
    rounded already.
    """
    grids = [grid_of(one) for one in lineage]
    return replace(
        grids[-1],
        rounds=sum(grid.rounds for grid in grids),
        distance=math.fsum(grid.distance for grid in grids),
        total_variation=min(1.0, math.fsum(grid.total_variation for grid in grids)),
        mishap=min(1.0, math.fsum(grid.mishap for grid in grids)),
    )


def _kept(used: Sequence[Plan], delta: float, together: int = 1) -> Answer:
    """Return what all released models of the runs that used a unit tell of it: the runs add up.

    Of several units together nothing is promised: the runs were planned for one.
    """
    if together > 1:
        return Answer(epsilon=math.inf, delta=delta, certified_by=None, bounds=())
    if len(used) == 1:
        return promise(used[0], "final-model", delta)
    epsilon = math.fsum(promise(one, "final-model", delta / len(used)).epsilon for one in used)
    return Answer(epsilon=epsilon, delta=delta, certified_by=None, bounds=())


def promised_delta(plan: Plan, adversary: Adversary, epsilon: float) -> float:
    """Return the smallest delta proved for a hidden run at this epsilon.

    It is several times cheaper than searching for it with :func:`promise`.
    """
    return promise_at(plan, adversary, epsilon).delta


def promise_at(plan: Plan, adversary: Adversary, epsilon: float, among: Collection[str] = ()) -> Answer:
    """Return what is proved of a hidden run at this epsilon.

    ``among``: names of the only bounds to compute, to save time. Each bound holds alone, so delta can only be larger.
    """
    views, counted = hidden_views(plan, adversary), plan.evaluation
    named = [view for view in views if view.name in among]
    # where held-out records are counted, the bound on the counts may be the only one named
    seen = named if named or (among and not counted.apart) else views

    def ideal_at(inner: float) -> Answer:
        return least_of([bound_of(view, None, inner) for view in seen], None, inner)

    found = delta_on_grid(grid_of(plan, adversary), ideal_at, epsilon)
    if not counted.apart:
        return found
    view = counted.alone(adversary, plan.data, plan.target, plan.trust)

    def alone_at(inner: float) -> Answer:
        return least_of([bound_of(view, None, inner)], None, inner)

    alone = delta_on_grid(counted.grid(adversary, plan.data, plan.trust), alone_at, epsilon)
    return alone if alone.delta > found.delta else found
