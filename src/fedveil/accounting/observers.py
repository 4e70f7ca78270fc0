"""One run, five observers, one guarantee for each: what is certified depends on who is looking.

Theory page: observers.md.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import get_args

import numpy as np

from fedveil.accounting.calibrate import bracket, drawn_guide, exchange_factor, guided_factor, least_factor, scaled
from fedveil.accounting.curious import (
    NOBODY,
    ONE_HOLDER,
    SERVERS,
    curious_bounds,
    sampled_views,
    sampled_views_of_shares,
    secret_from_client,
)
from fedveil.accounting.evaluator import Evaluator, bound_of, least_of, withdrawn
from fedveil.accounting.hidden import per_round
from fedveil.accounting.last_iterate import evaluators
from fedveil.accounting.participation import Participation as Participation
from fedveil.accounting.participation import Shares as Shares
from fedveil.accounting.sampled import least_epsilon
from fedveil.core.errors import require
from fedveil.core.values import Vector, number
from fedveil.privacy.guarantee import Adversary, Answer, Neighbours
from fedveil.privacy.mechanism import NO_FURTHER_ROUNDS, LastIterate
from fedveil.theory.numerics import check_delta, check_epsilon

_MANY = 50  # rounds of units that draw their own: beyond, bounds take long to work out,
_DEAR = 1e-4  # and the noise is calibrated in few steps, and no closer than this


def observe(
    run: LastIterate,
    adversary: Adversary,
    participation: Participation,
    *,
    delta: float | None = None,
    epsilon: float | None = None,
) -> Answer:
    """Return the smallest proved (epsilon, delta) against this observer: give one, get the other.

    >>> run = LastIterate(rounds=20, batch=5, records=100, step_size=0.5, lipschitz=1.0, smoothness=1.0, noise_std=4.0)
    >>> who = Participation(clients=100, every_round=False)
    >>> [round(observe(run, seen, who, delta=1e-5).epsilon, 2) for seen in ("every-model", "server")]
    [0.82, 1.99]
    """
    _check(run, adversary, participation)
    given = (delta is None) != (epsilon is None)
    require(given, "observe", "be given exactly one of delta and epsilon", (delta, epsilon))
    if delta is not None:
        check_delta(delta := number("delta", delta))
    if epsilon is not None:
        check_epsilon(epsilon := number("epsilon", epsilon))
    return least_of([bound_of(e, delta, epsilon) for e in views(run, adversary, participation)], delta, epsilon)


def calibrate_views(
    run: LastIterate,
    views_of: Callable[[LastIterate], Sequence[Evaluator]],
    *,
    epsilon: float,
    delta: float,
    tolerance: float = 1e-5,
) -> tuple[float, LastIterate]:
    """Return the same as :func:`calibrate_for`, for an observer that is given by its bounds."""
    epsilon, delta = number("epsilon", epsilon), number("delta", delta)
    require(1e-9 <= epsilon <= 1e5, "epsilon", "lie in [1e-9, 1e5]", epsilon)
    check_delta(delta)
    require(1e-9 <= number("tolerance", tolerance) <= 1, "tolerance", "lie in [1e-9, 1]", tolerance)
    aim = epsilon * (1 - 1e-6)  # so that inverting the curve again stays below the target

    def noisy(factor: float) -> LastIterate:
        result = scaled(run, factor)
        return result if isinstance(result, LastIterate) else run

    def excess(log_factor: float) -> float:
        values = [
            e.log_delta(aim)
            for e in views_of(noisy(math.exp(log_factor)))
            if e.status == "certified" and e.log_delta is not None
        ]
        return min(values, default=0.0) - math.log(delta)

    def dear(log_factor: float, changed: Neighbours | None = None) -> float:
        """In terms of epsilon, which falls nearly like a power of the noise."""
        result = noisy(math.exp(log_factor))
        value = least_epsilon(views_of(replace(result, neighbours=changed) if changed else result), delta)
        return math.log(max(value, 1e-300)) - math.log(aim)

    if run.order == "independent" and run.neighbours == "replace-one":
        factor = exchange_factor(dear, partial(dear, changed="zero-out"), max(tolerance, _DEAR))
        return factor, noisy(factor)
    if run.sampled and run.total > _MANY:
        factor = guided_factor(dear, drawn_guide(run, aim, delta), max(tolerance, _DEAR))
        return factor, noisy(factor)
    low, high = bracket(excess)
    factor = least_factor(excess, low, high, tolerance)
    return factor, noisy(factor)


def views(run: LastIterate, adversary: Adversary, participation: Participation) -> Sequence[Evaluator]:
    """Return every bound on what this observer learns.

    Rounds that go on without the unit hide it from those alone who see nothing but the model after them.
    """
    if run.further and adversary != "final-model":
        run = replace(run, further=NO_FURTHER_ROUNDS)
    if run.sampled:
        return sampled_views(run, adversary, participation)
    if participation.alone and adversary in SERVERS:
        return every_update(run, f"{ONE_HOLDER}, and it deals them")
    match adversary:
        case "final-model":
            return _final(run, participation)
        case "curious-client":
            return curious_bounds(run, participation)
        case "every-model":
            return every_update(run, "every model seen: one noisy sum per use of the unit")
        case "server-with-secure-aggregation":
            return _summed(run, participation)
        case _:
            why = "each unit's own noisy update seen: local, one noisy answer per use, at the worst round"
            return every_update(replace(run, batch=1, order="public", records=None), why)


def noise_left(run: LastIterate, adversary: Adversary, participation: Participation) -> Vector:
    """Return the least share of each round's noise variance that this observer does not know.

    It serves whatever else is measured against the noise, such as the errors of a grid.
    """
    _check(run, adversary, participation)
    batch = per_round(run.batch, run)
    if participation.alone:
        return np.ones(run.total)
    match adversary:
        case "final-model" | "every-model":
            return np.ones(run.total)
        case "curious-client":
            known = float(participation.largest_client)
            return np.asarray(np.maximum(batch - known, 1.0) / batch, dtype=np.float64)
        case "server-with-secure-aggregation":
            missing = float(participation.colluders + participation.dropouts)
            return np.asarray(np.maximum(batch - missing, 0.0) / batch, dtype=np.float64)
        case _:
            return np.asarray(1 / batch, dtype=np.float64)


def _check(run: LastIterate, adversary: Adversary, participation: Participation) -> None:
    require(isinstance(run, LastIterate), "run", "be a LastIterate", run)
    known = isinstance(adversary, str) and adversary in get_args(Adversary)
    require(known, "adversary", f"be one of {', '.join(get_args(Adversary))}", adversary)
    require(isinstance(participation, Participation), "participation", "be a Participation", participation)


def _final(run: LastIterate, who: Participation) -> Sequence[Evaluator]:
    """Return all bounds on the last model.

    Coupling of positions exchanges single units, so it needs clients with one unit each.
    """
    result = evaluators(run)
    if not who.whole_clients:
        return result
    why = "whole clients are dealt, so exchanging two rounds of a unit moves all units of its client"
    return [withdrawn(e.name, why) if e.name == "position" and e.log_delta is not None else e for e in result]


def every_update(run: LastIterate, why: str) -> Sequence[Evaluator]:
    """Return the bound that counts every noisy sum as seen: composition, which needs only the gaps and the noise."""
    return [replace(e, reason=why) for e in evaluators(run) if e.name == "unhidden"]


def _summed(run: LastIterate, who: Participation) -> Sequence[Evaluator]:
    """Return bounds for an observer of every sum who calls the clients.

    It knows their rounds, and does not know all of their noise.
    """
    batch, missing = per_round(run.batch, run), who.colluders + who.dropouts
    left = noise_left(run, "server-with-secure-aggregation", who)
    place = slice(None) if run.place is None else slice(run.place - 1, None, run.rounds)
    if not bool(np.all(left[place] > 0)):
        why = f"{missing} units may add no noise that counts, and a round has {np.min(batch[place]):g}"
        return [withdrawn("unhidden", why)]
    noise = per_round(run.noise_std, run) * np.sqrt(np.where(left > 0, left, 1.0))  # other places do not count
    why = "every sum seen, at the worst round: the server knows who takes part"
    if missing:
        why += f"; the noise of {missing} units a round is taken off"
    return every_update(replace(run, order="public", noise_std=tuple(noise.tolist())), why)


# Observers of a run whose clients add the noise in shares: what each does not know of it.
#
# The planned noise of a round is made up by the shares of the honest clients that surely answer; any more is extra.
# Theory page: noise-shares.md.


def observe_shares(
    run: LastIterate, adversary: Adversary, who: Participation, shares: Shares, *, delta: float
) -> Answer:
    """Return the smallest epsilon that is proved against this observer, for ideal, real-valued shares."""
    bounds = [bound_of(e, delta, None) for e in views_of_shares(run, adversary, who, shares)]
    return least_of(bounds, delta, None)


def views_of_shares(run: LastIterate, adversary: Adversary, who: Participation, shares: Shares) -> Sequence[Evaluator]:
    """Return every bound on what this observer learns."""
    require(run.noise == "gaussian", "The noise", "be gaussian when clients share it", run.noise)
    honest = shares.honest(run)
    if run.sampled:
        left = shares.beside(run)
        return sampled_views_of_shares(run, adversary, who, everyone=shares.everyone, honest=honest, beside=left)
    match adversary:
        case "final-model":
            return _apart(views(run, adversary, who), shares)
        case "every-model":
            return views(run, adversary, who)
        case "curious-client":
            return _curious(run, who, shares)
        case "server-with-secure-aggregation":
            why = "every sum seen, at the worst round, with the planned noise of the honest clients that answer"
            return every_update(replace(run, order="public"), why)
        case _:
            why = "each client's own update seen with its own share of the noise, at the worst round"
            return every_update(_scaled(replace(run, order="public"), 1 / honest), why)


def _curious(run: LastIterate, who: Participation, shares: Shares) -> Sequence[Evaluator]:
    """Return bounds for a client that knows its own share."""
    if who.clients == 1:
        return every_update(run, NOBODY)
    left = shares.beside(run)
    if shares.together > 1:  # it may have a client in every round, so all models and sums are counted as seen
        why = f"every model counted as seen, at the worst round; a site of {shares.together} clients knows their shares"
        return every_update(_scaled(replace(run, order="public"), left), why)
    if shares.everyone or shares.opened:
        dealt = run if secret_from_client(run, who) else replace(run, order="public")
        seen = "takes part in every round" if shares.everyone else "can open sums"
        return every_update(_scaled(dealt, left), f"every model counted as seen, as the client {seen}; its share known")
    # It enters one round of a pass, where a client among C equals is charged with (C - 1)/C of the noise. If it
    # knows more because others may be missing, all noise is counted as less.
    cohort = per_round(shares.cohort, run)
    usual = np.where(cohort > 1, (cohort - 1) / cohort, 1.0)
    result = _apart(curious_bounds(_scaled(run, np.minimum(1.0, left / usual)), who), shares)
    if not shares.named:
        return result
    why = "clients of a round learn who else is in it, so one of them may know whether the victim is"
    return [withdrawn(e.name, why) if e.name == "position" and e.log_delta is not None else e for e in result]


def _apart(found: Sequence[Evaluator], shares: Shares) -> Sequence[Evaluator]:
    """Withdraw coupling of positions unless all rounds have the same noise, because it compares arrangements."""
    if shares.steady:
        return found
    why = "clients may be missing, so how much noise a round has may depend on who was dealt into it"
    return [withdrawn(e.name, why) if e.name == "position" and e.log_delta is not None else e for e in found]


def _scaled(run: LastIterate, variance: Vector) -> LastIterate:
    """Return the run with this share of each round's variance."""
    factor = np.sqrt(variance)
    if bool(np.all(factor == factor[0])) and not isinstance(run.noise_std, tuple):
        return run if factor[0] == 1 else replace(run, noise_std=float(run.noise_std * factor[0]))
    noise = per_round(run.noise_std, run) * factor
    return replace(run, noise_std=tuple(noise.tolist()))
