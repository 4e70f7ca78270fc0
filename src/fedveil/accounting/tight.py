"""The two finest bounds on a hidden run: transport (the last rounds followed exactly) and position coupling."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Protocol

import numpy as np

from fedveil.accounting.evaluator import (
    Evaluator,
    even_hops,
    mean_theta,
    needs_gaussian,
    no_contraction,
    withdrawn,
)
from fedveil.accounting.hidden import first_rounds, hidden_run, shift_mus
from fedveil.core.values import Indices
from fedveil.privacy.mechanism import LastIterate
from fedveil.theory.composition import group_curve
from fedveil.theory.divergence import log_theta
from fedveil.theory.numerics import ROUNDING, log_sum
from fedveil.theory.position import Star, chance_unused, program, stars, unused_star
from fedveil.theory.transport import Transport, transport

_MOST_TABLES = 8  # most rounds after the use that transport follows
_WIDEST = 5.0  # largest diameter over noise at which transport is tried
_MOST_PLACES = 20_000  # most places for which position coupling is computed
_MOST_USES = {True: 1_000_000, False: 200_000}  # most rounds in all for which it is, with and without a projection
_MOST_STAR = 3000  # most places for which it is tried through hubs
_MOST_STOPS = 200  # most rounds for which it is averaged over random stops
_MOST_PROGRAM = 400  # most places for which its linear program is tried too


class Coupling(Protocol):
    """One form of position coupling."""

    def log_delta(self, epsilon: float, /) -> float:
        """Return the logarithm of an upper bound on delta."""
        ...


def transport_bound(run: LastIterate) -> Evaluator:
    """Return the bound by transport; theory page: transport.md."""
    name = "transport"
    state = hidden_run(run)
    if (refused := needs_gaussian(run, name)) is not None:
        return refused
    if run.passes > 1 or run.diameter is None or not state.rounds.contracts:
        return withdrawn(name, "needs one use of each record, a projection and known Lipschitz constants")
    if run.stopping == "random":
        return withdrawn(name, "worked out for the last model only, not for random stopping")
    widest = float(run.diameter / np.min(state.rounds.noise))
    if widest > _WIDEST:
        return withdrawn(
            name,
            f"the domain is {widest:.3g} noise widths wide; it is worked out up to {_WIDEST:g}",
        )
    after = run.until_release - 1 - state.last_use
    if state.weights is None and int(after.min()) == 0:
        return withdrawn(name, "no round follows the worst place, so nothing is hidden there")
    if state.weights is None and int(after.min()) > _MOST_TABLES:
        return withdrawn(name, f"{int(after.min())} rounds follow the use; it is worked out up to {_MOST_TABLES}")
    near = np.flatnonzero(after <= _MOST_TABLES)
    others = _rest(run, near)

    def log_delta(epsilon: float) -> float:
        chain = _chain(run)
        values = [
            chain.delta(
                epsilon,
                gap=float(state.rounds.gap[state.last_use[t]]),
                noise=float(state.rounds.noise[state.last_use[t]]),
                following=int(after[t]),
            )
            for t in near
        ]
        logs = np.log(np.maximum(values, 1e-300))
        if state.weights is None:
            return max(float(logs.max()), others(epsilon)) + ROUNDING
        return float(np.logaddexp(log_sum(logs + np.log(state.weights[near])), others(epsilon))) + ROUNDING

    return Evaluator(
        name,
        "certified",
        "optimal tests followed backward through the last rounds, rounded outward",
        log_delta,
    )


@lru_cache(maxsize=16)
def _chain(run: LastIterate) -> Transport:
    state = hidden_run(run)
    last = min(_MOST_TABLES, run.until_release - 1 - int(state.last_use.min()))
    tail = slice(run.until_release - last, run.until_release)
    return transport(
        [float(c) for c in state.rounds.lipschitz[tail]],
        [float(s) for s in state.rounds.noise[tail]],
        state.rounds.diameter,
    )


def _rest(run: LastIterate, near: Indices) -> Callable[[float], float]:
    """Return the bound for places that transport does not follow, by their optimal shift."""
    state = hidden_run(run)
    far = np.setdiff1d(np.arange(state.places.shape[0]), near)
    if far.size == 0:
        return lambda _: -math.inf
    mus = shift_mus(run)[far]
    if state.weights is None:
        return lambda e: float(log_theta(e, float(mus.max())))
    weights = state.weights[far]
    first = np.unique(np.linspace(0, far.size, min(far.size, 2048), endpoint=False).astype(np.intp))
    merged = np.maximum.reduceat(mus, first), np.add.reduceat(weights, first)
    return lambda e: mean_theta(merged, e)


def position_bound(run: LastIterate) -> Evaluator:
    """Return the bound by position coupling; theory page: position-coupling.md."""
    name = "position"
    state = hidden_run(run)
    if state.weights is None:
        return withdrawn(name, "the order is public")
    if (refused := needs_gaussian(run, name)) is not None:
        return refused
    if run.stopping == "random":
        return _stopped_position(run)
    if run.rounds == 1:
        return withdrawn(name, "needs at least two rounds to choose from")
    most = _MOST_USES[run.diameter is not None]
    if run.rounds > _MOST_PLACES or run.until_release > most:
        return withdrawn(name, f"worked out for up to {_MOST_PLACES} rounds a pass and {most} in all")
    if not state.rounds.contracts:
        return withdrawn(name, no_contraction(run))

    def log_delta(epsilon: float) -> float:
        return min(part.log_delta(epsilon) for part in _couplings(run)) + ROUNDING

    return Evaluator(
        name,
        "certified",
        "nobody knows the record's round, and runs with different rounds are alike",
        log_delta,
        grouped=lambda size: _position_of_group(run, size, log_delta),
    )


def _position_of_group(run: LastIterate, size: int, one: Callable[[float], float]) -> Evaluator:
    """Return the bound for a group: all hops at one epsilon, or composed hops whose places are tied through one.

    Composing hops asks for their bound at a hundred epsilons, for each of which the linear program would take long.
    """
    tied = [part for part in _couplings(run) if isinstance(part, Star)]
    hops = group_curve(lambda at: min(part.log_delta(at) for part in tied) + ROUNDING, size) if tied else None

    def log_delta(epsilon: float) -> float:
        even = even_hops(one, size, epsilon)
        return even if hops is None else min(even, hops(epsilon))

    why = "nobody knows the members' rounds; as many hops between neighbours as the group has members"
    return Evaluator("position", "certified", why, log_delta)


def _stopped_position(run: LastIterate) -> Evaluator:
    """Return the mean over the stops: whoever knows the stop learns no less, and each stop is a shorter run.

    A record that was not used before the stop counts as a place at which it changes nothing.
    """
    name = "position"
    if run.passes > 1 or run.total > _MOST_STOPS:
        return withdrawn(name, f"random stopping is followed for one pass of up to {_MOST_STOPS} rounds")
    if not hidden_run(run).rounds.contracts:
        return withdrawn(name, no_contraction(run))

    def log_delta(epsilon: float) -> float:
        stops = np.array([ties.log_delta(epsilon) for ties in _stopped_couplings(run)])
        return min(log_sum(stops) - math.log(run.total), 0.0) + ROUNDING

    why = "nobody knows the record's round, and runs with different rounds are alike; the mean over the stops"
    return Evaluator(name, "certified", why, log_delta)


@lru_cache(maxsize=8)
def _stopped_couplings(run: LastIterate) -> tuple[Coupling, ...]:
    """Return the ties of the run up to each stop, through the best place of a few."""
    probe = 2.0 * float(np.median(shift_mus(replace(run, stopping="end"))))
    couplings = []
    for stop in range(1, run.total + 1):
        state = hidden_run(first_rounds(run, 0, stop))
        weights = state.weights if state.weights is not None else np.ones(1)
        tied = stars(state.rounds, state.places, weights, sorted({0, stop // 2, stop - 1}))
        if chance_unused(weights) > 0:
            tied.append(unused_star(state.rounds, state.places, weights))
        couplings.append(min(tied, key=lambda star: star.log_delta(probe)))
    return tuple(couplings)


@lru_cache(maxsize=16)
def _couplings(run: LastIterate) -> tuple[Coupling, ...]:
    """Return the best hub of a few, and the linear program if it is small enough."""
    state = hidden_run(run)
    weights = state.weights if state.weights is not None else np.ones(1)
    chosen: list[Coupling] = []
    if run.rounds <= _MOST_STAR:
        last = run.rounds - 1
        hubs = sorted({0, last // 8, last // 4, last // 2, (3 * last) // 4, (7 * last) // 8, last})
        tied = stars(state.rounds, state.places, weights, hubs)
        probe = 2.0 * float(np.median(shift_mus(run)))
        if chance_unused(weights) > 0:
            tied.append(unused_star(state.rounds, state.places, weights))
        chosen += [min(tied, key=lambda s: s.log_delta(probe)), tied[-1]]
    if run.rounds <= _MOST_PROGRAM or run.rounds > _MOST_STAR:
        chosen.append(program(state.rounds, state.places, weights))
    return tuple(chosen)
