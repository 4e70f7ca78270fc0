"""The two finest bounds on a hidden run: transport (the last rounds followed exactly) and position coupling."""

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Protocol

import numpy as np

from fedveil.accounting.evaluator import Evaluator, mean_theta, needs_gaussian, no_contraction, withdrawn
from fedveil.accounting.hidden import hidden_run, shift_mus
from fedveil.core.values import Indices
from fedveil.privacy.mechanism import LastIterate
from fedveil.theory.divergence import log_theta
from fedveil.theory.numerics import ROUNDING, log_sum
from fedveil.theory.position import stars
from fedveil.theory.position_program import program
from fedveil.theory.transport import Transport, transport

_MOST_TABLES = 8  # most rounds after the use that transport follows
_WIDEST = 5.0  # largest diameter over noise at which transport is tried
_MOST_PLACES = 20_000  # most places for which position coupling is computed
_MOST_USES = {True: 1_000_000, False: 200_000}  # most rounds in all for which it is, with and without a projection
_MOST_STAR = 3000  # most places for which it is tried through hubs
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
    after = run.total - 1 - state.last_use
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
    last = min(_MOST_TABLES, run.total - 1 - int(state.last_use.min()))
    tail = slice(run.total - last, run.total)
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
    if run.stopping == "random" or run.rounds == 1:
        return withdrawn(name, "needs a fixed last round and at least two rounds to choose from")
    most = _MOST_USES[run.diameter is not None]
    if run.rounds > _MOST_PLACES or run.total > most:
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
    )


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
        chosen += [min(tied, key=lambda s: s.log_delta(probe)), tied[-1]]
    if run.rounds <= _MOST_PROGRAM or run.rounds > _MOST_STAR:
        chosen.append(program(state.rounds, state.places, weights))
    return tuple(chosen)
