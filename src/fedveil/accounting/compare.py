"""The main function: how private is a mechanism under every bound that applies, and which bound certifies it."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial

from fedveil.accounting.base import Accountant, Curve, curve_of
from fedveil.accounting.central_limit import CentralLimitAccountant
from fedveil.accounting.evaluator import (
    NOT_COMPUTED,
    Evaluator,
    bound_of,
    for_group,
    group_log_delta,
    least_of,
    moves_of,
    not_computed,
)
from fedveil.accounting.last_iterate import evaluators
from fedveil.accounting.loss_distribution import LossCurve, LossDistributionAccountant
from fedveil.accounting.profile import law_of_bounds
from fedveil.accounting.renyi import RenyiAccountant
from fedveil.accounting.sampled import best_pairs
from fedveil.core.errors import CannotCertify, require
from fedveil.core.values import number, whole
from fedveil.privacy.guarantee import Answer, Bound, Moves, Status
from fedveil.privacy.mechanism import (
    Gaussian,
    IndependentGaussian,
    LastIterate,
    Mechanism,
    SampledGaussian,
    ShuffledGaussian,
    alike,
    flatten,
)
from fedveil.theory.composition import log_delta_upper
from fedveil.theory.loss import FiniteLaw
from fedveil.theory.numerics import REPORTED_DELTA, check_delta, check_epsilon, smallest_epsilon


def account_for(
    mechanism: Mechanism, *, delta: float | None = None, epsilon: float | None = None, group: int = 1
) -> Answer:
    """Return the smallest proved (epsilon, delta): give one of them, get the other.

    ``group`` records are protected together.

    >>> from fedveil.privacy.mechanism import Gaussian
    >>> round(account_for(Gaussian(noise_multiplier=1.0), delta=1e-5).epsilon, 5)
    4.37718
    """
    require(
        (delta is None) != (epsilon is None),
        "account_for",
        "be given exactly one of delta and epsilon",
        (delta, epsilon),
    )
    require(isinstance(mechanism, Mechanism), "mechanism", "be a mechanism", mechanism)
    group = whole("group", group)
    require(1 <= group <= 1000, "group", "be a whole number from 1 to 1000", group)
    if delta is not None:
        check_delta(delta := number("delta", delta))
    if epsilon is not None:
        check_epsilon(epsilon := number("epsilon", epsilon))
    _check_places(mechanism, group)
    charged = alike(mechanism)
    run = _single_run(charged)
    rows = _hidden_rows(run) if run is not None else _released_rows(charged)
    bounds = [row(delta, epsilon, group) for row in rows]
    if charged is not mechanism:
        note = "; the parts name different neighbours, so all are charged for replace-one"
        bounds = [replace(bound, reason=bound.reason + note) for bound in bounds]
    answer = least_of(bounds, delta, epsilon)
    return replace(answer, delta_at=partial(_delta_at, mechanism, group))


def _delta_at(mechanism: Mechanism, group: int, epsilon: float) -> float:
    return account_for(mechanism, epsilon=epsilon, group=group).delta


def _check_places(mechanism: Mechanism, group: int) -> None:
    """Refuse a given place for a group larger than its batch, because the rest of the group is used in other rounds."""
    for run, _ in flatten(mechanism):
        if isinstance(run, LastIterate) and run.place is not None:
            there = run.batch[run.place - 1] if isinstance(run.batch, tuple) else run.batch
            hint = "Leave place out: the others may sit in worse rounds."
            require(group <= there, "group", f"be at most the batch at the given place, {there}", group, hint)


Row = Callable[[float | None, float | None, int], Bound]


def _single_run(mechanism: Mechanism) -> LastIterate | None:
    parts = flatten(mechanism)
    return parts[0][0] if len(parts) == 1 and parts[0][1] == 1 and isinstance(parts[0][0], LastIterate) else None


def _hidden_rows(run: LastIterate) -> list[Row]:
    return [partial(group_bound, evaluator) for evaluator in evaluators(run)]


def group_bound(evaluator: Evaluator, delta: float | None, epsilon: float | None, group: int) -> Bound:
    """Return a bound on a hidden run at a point, for so many units together."""
    return bound_of(for_group(evaluator, group), delta, epsilon)


def _released_rows(mechanism: Mechanism) -> list[Row]:
    losses = LossDistributionAccountant(certified_law)
    return [
        partial(_loss_bound, losses, mechanism),
        partial(
            _accountant_bound,
            RenyiAccountant(),
            mechanism,
            "renyi",
            "certified",
            "Renyi divergences add; lossless conversion",
        ),
        partial(
            _accountant_bound,
            CentralLimitAccountant(),
            mechanism,
            "central-limit",
            "comparison",
            "Gaussian limit of many rounds; may promise too much",
        ),
    ]


def _loss_bound(
    accountant: LossDistributionAccountant,
    mechanism: Mechanism,
    delta: float | None,
    epsilon: float | None,
    group: int,
) -> Bound:
    reason = "exact composition of the privacy loss, rounded outward on both sides"
    together = replace(accountant, group=group, hidden=partial(certified_law, group=group))
    try:
        curve = curve_of(together, mechanism)
    except CannotCertify:
        if group == 1:
            raise
        return bound_of(_in_hops(accountant, mechanism, group, reason), delta, epsilon)
    bound = _bound_of_curve(together, curve, reason, delta, epsilon)
    if group == 1:
        return replace(bound, moves=_moves(mechanism))
    if any(isinstance(part, SampledGaussian) and part.sampling == "fixed-size" for part, _ in flatten(mechanism)):
        # The law of such a group bounds how many members share a batch, so hops from record to record may be tighter.
        hops = bound_of(_hops_of(accountant, mechanism, group, 1, reason), delta, epsilon)
        return min(bound, hops, key=lambda one: _number(one.delta if delta is None else one.epsilon))
    return bound


def _number(value: float | None) -> float:
    return math.inf if value is None else value


def _bound_of_curve(
    together: LossDistributionAccountant, curve: LossCurve, reason: str, delta: float | None, epsilon: float | None
) -> Bound:
    if delta is not None:
        lower, upper = together.bracket(curve, delta)
        return Bound(name="loss-distribution", status="certified", reason=reason, epsilon=upper, epsilon_lower=lower)
    least = min(max(together.delta(curve, epsilon or 0.0), REPORTED_DELTA), 1.0)
    return Bound(name="loss-distribution", status="certified", reason=reason, epsilon=epsilon, delta=least)


def _in_hops(accountant: LossDistributionAccountant, mechanism: Mechanism, group: int, reason: str) -> Evaluator:
    """Return the bound for a group whose own law is not known: hops of the largest half, quarter, ... that has one."""
    part = group
    while True:
        part = (part + 1) // 2
        try:
            return _hops_of(accountant, mechanism, group, part, reason)
        except CannotCertify:
            if part == 1:
                raise


def _hops_of(
    accountant: LossDistributionAccountant, mechanism: Mechanism, group: int, part: int, reason: str
) -> Evaluator:
    """Return the bound for a group by as many hops as it takes with smaller groups of size ``part``."""
    smaller = replace(accountant, group=part, hidden=partial(certified_law, group=part))
    one = partial(log_delta_upper, smaller.alternatives(curve_of(smaller, mechanism)))
    reason += "; a group is several hops between smaller ones, whose trade-off functions compose"
    return Evaluator("loss-distribution", "certified", reason, group_log_delta(one, -(-group // part)))


def _moves(mechanism: Mechanism) -> Moves | None:
    """Return how far one record moves each release, over its noise; None if a part is not a Gaussian release."""
    moves: list[tuple[float, int]] = []
    for part, times in flatten(mechanism):
        match part:
            case Gaussian() | ShuffledGaussian():
                moves.append((part.mu, times))
            case IndependentGaussian(neighbours="zero-out"):  # any of the pass's rounds may be the one
                moves.append((part.mu, times * part.rounds))
            case IndependentGaussian():  # both records may pick the same round
                moves.append((2 * part.mu, times * part.rounds))
            case SampledGaussian(sampling="poisson", neighbours="zero-out"):
                moves.append((part.mu, times))
            case SampledGaussian():  # an exchange removes one contribution and adds another
                moves.append((2 * part.mu, times))
            case _:
                return None
    return moves_of(moves)


def _accountant_bound(
    accountant: Accountant[Curve],
    mechanism: Mechanism,
    name: str,
    status: Status,
    reason: str,
    delta: float | None,
    epsilon: float | None,
    group: int,
) -> Bound:
    try:
        curve = curve_of(accountant, mechanism)

        def log_delta(at: float) -> float:
            return math.log(max(accountant.delta(curve, at), 1e-300))

        grouped = group_log_delta(log_delta, group)
        if delta is not None:
            value = accountant.epsilon(curve, delta) if group == 1 else smallest_epsilon(grouped, delta, tolerance=1e-6)
            return Bound(name=name, status=status, reason=reason, epsilon=value)
        least = min(1.0, max(math.exp(min(grouped(epsilon or 0.0), 0.0)), REPORTED_DELTA))
        return Bound(name=name, status=status, reason=reason, epsilon=epsilon, delta=least)
    except CannotCertify as refused:
        return Bound(name=name, status="does-not-apply", reason=str(refused))
    except NOT_COMPUTED as error:
        if name == "loss-distribution":
            raise
        return not_computed(name, error)


def certified_log_delta(run: LastIterate) -> Callable[[float], float]:
    """Return the logarithm of the least certified delta of a hidden run, as a function of epsilon."""
    able = [e.log_delta for e in evaluators(run) if e.status == "certified" and e.log_delta is not None]
    return lambda epsilon: min((bound(epsilon) for bound in able), default=0.0)


@lru_cache(maxsize=32)
def certified_law(run: LastIterate, group: int = 1) -> FiniteLaw | LossCurve:
    """Return a hidden run as one use in a composition, for a group of records.

    It is given by its dominating pairs, or by the law of its certified trade-off function. The true profile is convex
    in exp(epsilon), so it lies below the convex minorant of certified points.
    """
    if group == 1 and run.sampled and (pairs := best_pairs(run)) is not None:
        known = None if pairs.disclosed_mu is None else LossCurve(pairs.disclosed_mu**2, bracketed=False)
        return LossCurve(0.0, pairs.forward, pairs.backward, bracketed=False, known=known)
    able = [for_group(e, group) for e in evaluators(run) if e.status == "certified"]
    return law_of_bounds([e.log_delta for e in able if e.log_delta is not None])
