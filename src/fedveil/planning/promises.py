"""What a plan promises to each observer: the accountants applied to the plan, including the cost of the grid."""

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import get_args

from fedveil.accounting.evaluator import Evaluator, bound_of, least_of, withdrawn
from fedveil.accounting.grid import Grid, delta_on_grid, on_grid
from fedveil.accounting.profile import composed
from fedveil.accounting.sampling_alone import SeenByAll, seen_by_all
from fedveil.accounting.selection import TrialCurve, selected_answer
from fedveil.core.errors import CannotCertify
from fedveil.planning.plan import Plan
from fedveil.privacy.guarantee import Adversary, Answer, Bound
from fedveil.privacy.mechanism import Gaussian

ADVERSARIES: tuple[Adversary, ...] = get_args(Adversary)
# The deltas at which the curve of a candidate is certified, beside that of its own target.
_POINTS = (0.3, 0.15, 0.08, 0.04, 0.02, 0.01, 5e-3, 2e-3, 5e-4, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-9, 1e-11)
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
    beside = heard(plan, adversary)
    if beside is None:
        return least_of([bound_of(withdrawn("loss-distribution", _ALL_KNOWN), delta, None)], delta, None)
    return plan.method.answer(adversary, plan.setup, delta, beside)


def heard(plan: Plan, adversary: Adversary) -> Gaussian | None:
    """What this observer hears of the noisy sums over units that train, before and after training, as one release.

    None where there are none, or where it knows all of the noise.
    """
    if plan.selection:
        raise CannotCertify("a selection among several trials is no single run: ask for what it promises as a whole")
    parts = [sums.heard(adversary, data, plan.target, plan.trust) for sums, data in plan.measured]
    if len(parts) < 2:
        return parts[0] if parts else None
    known = [part.noise_multiplier for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    whole = 1 / math.sqrt(math.fsum(1 / noise**2 for noise in known)) * (1 - 2.0**-40)
    return Gaussian(noise_multiplier=whole, neighbours=plan.target.neighbours)


def hidden_views(plan: Plan, adversary: Adversary) -> Sequence[Evaluator]:
    """Every bound on what this observer learns from a hidden run (and its preparation), with ideal noise."""
    beside = heard(plan, adversary)
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
    beside, grid, counted = heard(plan, seen), grid_of(plan, seen), plan.evaluation

    def judge(view: Evaluator, delta: float) -> float:
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
def promise(plan: Plan, adversary: Adversary, delta: float | None = None) -> Answer:
    """Return the smallest epsilon that is proved against this observer, at the target's delta or another."""
    delta = plan.target.delta if delta is None else delta
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
