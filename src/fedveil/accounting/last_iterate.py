"""Every bound on a run of which only the last model is released, with the reason why it does or does not apply.

A bound is a function from epsilon to the logarithm of delta; the certificate is the least of the certified ones. A
bound that needs convexity or a projection withdraws with a reason if they are missing; the other bounds still answer.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache, partial

import numpy as np

from fedveil.accounting.evaluator import (
    Evaluator,
    mean_theta,
    moves_of,
    needs_gaussian,
    no_contraction,
    nothing_left,
    withdrawn,
)
from fedveil.accounting.hidden import HiddenRun, checkpoints, hidden_run, shift_mus, unhidden_mus
from fedveil.accounting.sampled import sampled_evaluators
from fedveil.accounting.tight import position_bound, transport_bound
from fedveil.core.values import Vector
from fedveil.privacy.guarantee import Moves
from fedveil.privacy.mechanism import NO_FURTHER_ROUNDS, LastIterate
from fedveil.theory.blocks import LogDivergence, block_contraction, linear_contraction, nonlinear_contraction
from fedveil.theory.composition import delta_bracket
from fedveil.theory.concentrated import delta_of_curve
from fedveil.theory.divergence import log_laplace, log_theta
from fedveil.theory.loss import LaplaceLaw
from fedveil.theory.numerics import LEAST, ROUNDING, log_sum
from fedveil.theory.renyi import iteration_delta, iteration_kappa, stopped_zeta
from fedveil.theory.shift import uses_mu

# Bounds that the papers compare with: for figures, never certified.


def diffusion_bound(run: LastIterate) -> Evaluator:
    """Return the diffusion bound of Asoodeh, Diaz and Calmon (2020), Proposition 1."""
    name = "renyi-diffusion"
    fits = (
        run.noise == "gaussian"
        and run.batch == 1
        and run.passes == 1
        and run.order == "public"
        and run.place is not None
    )
    scalar = isinstance(run.step_size, float | int) and isinstance(run.noise_std, float | int)
    if not (
        fits and scalar and not run.further and run.smoothness is not None and run.stopping == "end" and run.convex
    ):
        return withdrawn(name, "stated for one place, batches of one, and constant smooth convex steps")
    step, beta, lam = float(run.step_size), run.smoothness, run.strong_convexity  # type: ignore[arg-type]
    if step > 2 / (beta + lam) or beta + lam == 0:
        return withdrawn(name, "needs step_size <= 2/(smoothness + strong_convexity)")
    shrink = math.sqrt(max(0.0, 1 - 2 * step * beta * lam / (beta + lam)))
    later = run.rounds - (run.place or 1)
    kappa = iteration_kappa(run.lipschitz, float(run.noise_std), shrink, later)  # type: ignore[arg-type]
    return Evaluator(
        name,
        "comparison",
        "Asoodeh, Diaz and Calmon (2020), Proposition 1; for figures",
        lambda e: math.log(max(iteration_delta(e, kappa), 1e-300)),
    )


def iteration_bound(run: LastIterate) -> Evaluator:
    """Return the bound of Feldman et al. (2018) for random stopping, as quoted in Asoodeh's slides."""
    name = "renyi-iteration"
    scalar = isinstance(run.noise_std, float | int)
    if not (
        run.stopping == "random"
        and not run.further
        and run.noise == "gaussian"
        and run.batch == 1
        and run.passes == 1
        and scalar
    ):
        return withdrawn(name, "stated for random stopping, one pass, and batches of one")
    noise = float(run.noise_std)  # type: ignore[arg-type]

    def log_delta(epsilon: float) -> float:
        limit = (1 + math.sqrt(1 + 2 * noise**2 / run.lipschitz**2)) / 2
        value = delta_of_curve(lambda a: stopped_zeta(a, run.lipschitz, noise, run.rounds), epsilon, (1.0001, limit))
        return math.log(max(value, 1e-300))

    return Evaluator(
        name,
        "comparison",
        "Feldman et al. (2018) for random stopping, as quoted in Asoodeh's slides; for figures",
        log_delta,
    )


# A run that stops at a uniformly random round: the optimal shift at every stop, averaged over the stops.
#
# The released model is a mixture over the stops, and delta is jointly convex, so its delta is at most the mean of those
# at each stop; a stop before the record's first use tells nothing. Theory page: optimal-shift.md.

LARGEST_TABLE = 8000  # pairs of a place and a stop that are followed; for rounds of one kind, one place


@lru_cache(maxsize=8)
def stopped_mus(run: LastIterate) -> tuple[Vector, Vector]:
    """Return mu and weight of every stop, a row for each place: alternatives in a public order, one row in a secret
    one.

    Rounds of one kind: only the number of uses and the rounds after the last one matter, so one place serves for all.
    """
    state = hidden_run(run)
    rounds, first = run.rounds, state.places[:, 0]
    alike = state.constant and (state.weights is not None or run.place is None)
    if alike:
        first = np.zeros(1, dtype=first.dtype)
    mus = np.zeros((first.size, run.total))
    for uses in range(1, run.passes + 1):
        used = first[:, None] + rounds * np.arange(uses)[None, :]
        ends = used[:, -1:] + 1 + np.arange(rounds)[None, :]
        gaps = state.rounds.gap[used][:, None, :]
        released = np.minimum(ends, run.total) + (run.until_release - run.total)  # further rounds follow every stop
        at_stop = uses_mu(state.rounds, used[:, None, :], gaps, released)
        row, at = np.nonzero(ends <= run.total)
        mus[row, ends[row, at] - 1] = at_stop[row, at]
    weights = np.full(mus.shape, 1 / run.total)
    if state.weights is None:
        return mus, weights
    if not alike:
        return mus.reshape(1, -1), (weights * state.weights[:, None]).reshape(1, -1)
    places = np.minimum(rounds, run.total - np.arange(run.total))  # how many places see so much before the end
    return mus, places[None, :] * float(state.weights[0]) / run.total


def followed(run: LastIterate) -> bool:
    """Return whether the run is short enough to be followed stop by stop."""
    state = hidden_run(run)
    return run.total * (1 if state.constant else state.places.shape[0]) <= LARGEST_TABLE


def stopped_log_delta(run: LastIterate, epsilon: float) -> float:
    """Return the logarithm of the mean over the stops, at the worst public or over secret places; rounded up."""
    mus, weights = stopped_mus(run)
    rows = []
    for row, share in zip(mus, weights, strict=True):
        seen = row > 0
        rows.append(log_sum(log_theta(epsilon, row[seen]) + np.log(share[seen])) if seen.any() else -math.inf)
    return max(max(rows), LEAST) + ROUNDING


_MOST_STEPS = 5000  # most rounds for which one-round contraction is followed round by round


def evaluators(run: LastIterate) -> Sequence[Evaluator]:
    """Return all bounds, the certified ones first."""
    if run.sampled:
        return sampled_evaluators(run)
    if run.further.anew:
        return [nothing_left()]
    if run.further and run.stopping == "random" and not hidden_run(run).constant:
        note = "; further rounds of another kind are not followed after a random stop"  # they only process its model
        return [replace(e, reason=e.reason + note) for e in evaluators(replace(run, further=NO_FURTHER_ROUNDS))]
    makers = (
        _unhidden,
        _linear,
        _nonlinear,
        _shift,
        _block,
        transport_bound,
        position_bound,
        diffusion_bound,
        iteration_bound,
    )
    return [maker(run) for maker in makers]


def _divergence(run: LastIterate) -> LogDivergence:
    return log_theta if run.noise == "gaussian" else log_laplace


def _over_places(run: LastIterate, values: Vector) -> float:
    """Return the mean over secret places (joint convexity), or the worst public one; rounded up."""
    weights = hidden_run(run).weights
    if weights is None:
        return float(np.max(values)) + ROUNDING
    with np.errstate(divide="ignore"):
        return log_sum(values + np.log(weights)) + ROUNDING


def _unhidden(run: LastIterate) -> Evaluator:
    why = "every model counted as seen: one noisy sum per use of the record"
    if run.noise == "laplace" and run.passes > 1:
        state = hidden_run(run)
        ratio = float(np.max(state.rounds.gap / state.rounds.noise))

        def composed(epsilon: float) -> float:
            return math.log(max(delta_bracket([(LaplaceLaw(ratio), run.passes)], epsilon).upper, 1e-300))

        return Evaluator("unhidden", "certified", why, composed, _moves(run))
    if run.noise == "laplace":
        state = hidden_run(run)
        ratios = state.rounds.gap[state.last_use] / state.rounds.noise[state.last_use]

        def used_once(epsilon: float) -> float:
            return _over_places(run, log_laplace(epsilon, ratios))

        return Evaluator("unhidden", "certified", why, used_once, _moves(run))
    return _by_mus("unhidden", why, run, unhidden_mus(run), _moves(run))


def _by_mus(name: str, why: str, run: LastIterate, own: Vector, moves: Moves | None = None) -> Evaluator:
    """Return the bound by the mu of every place.

    In a public order a group of g moves no place by more than g times the worst one: closing plans add up, so mu is a
    norm of the gaps (theory page: persons.md). Who is dealt secretly may share a round or not: such groups hop.
    """
    mus = _distinct(run, own)

    def grouped(size: int) -> Evaluator:
        moved = None if moves is None else tuple((size * move, count) for move, count in moves)
        reason = f"{why}; all members of the group at the worst place"
        return Evaluator(name, "certified", reason, lambda e: mean_theta((size * mus[0], mus[1]), e), moved)

    public = hidden_run(run).weights is None
    return Evaluator(name, "certified", why, lambda e: mean_theta(mus, e), moves, grouped=grouped if public else None)


def _moves(run: LastIterate) -> Moves:
    """Return how far the victim moves the sum of the round that uses it, in each pass, at the worst place."""
    state = hidden_run(run)
    ratios = (state.rounds.gap / state.rounds.noise)[state.places]  # a row for each place, a column for each pass
    return moves_of((float(most), 1) for most in ratios.max(axis=0))


def _distinct(run: LastIterate, mus: Vector) -> tuple[Vector, Vector]:
    """Merge places of equal mu (rounded up slightly), so that a million equal places cost one evaluation."""
    weights = hidden_run(run).weights
    if weights is None:
        return np.array([np.max(mus)]), np.array([1.0])
    order = np.argsort(mus)
    mus, weights = mus[order], weights[order]
    if mus.size > 4096:  # neighbouring values are charged at the largest of them
        first = np.unique(np.linspace(0, mus.size, 4096, endpoint=False).astype(np.intp))
        return np.maximum.reduceat(mus, first), np.add.reduceat(weights, first)
    values, where = np.unique(mus, return_inverse=True)
    return values, np.asarray(np.bincount(where, weights=weights), dtype=np.float64)


def _images(state: HiddenRun) -> Vector:
    return np.minimum(state.rounds.lipschitz * state.rounds.diameter, state.rounds.image) / state.rounds.noise


def _one_round(run: LastIterate, name: str, rule: Callable[..., Vector]) -> Evaluator:
    if run.diameter is None:
        return withdrawn(name, "there is no projection, so a round's contraction is trivial")
    if run.passes > 1:
        return withdrawn(name, "stated for one use of each record; blocks cover several passes")
    if run.until_release > _MOST_STEPS:
        return withdrawn(name, f"followed round by round up to {_MOST_STEPS} rounds; blocks dominate it")
    state, divergence = hidden_run(run), _divergence(run)
    if run.stopping == "random" and not state.constant:
        return withdrawn(name, "random stopping is followed round by round for constant rounds only")
    ratios, distances = state.rounds.gap / state.rounds.noise, _images(state)

    def log_delta(epsilon: float) -> float:
        first = divergence(np.full_like(ratios, epsilon), ratios)
        if run.stopping == "random":
            return _stopped(run, epsilon, first, distances, rule, divergence)
        return _over_places(run, rule(epsilon, first, distances, divergence)[state.last_use])

    kind = (
        "the papers' product of contraction coefficients"
        if rule is linear_contraction
        else "sharp one-round contraction"
    )
    convex = "" if run.convex and run.smoothness is not None else "; needs neither convexity nor smoothness"
    return Evaluator(name, "certified", kind + convex, log_delta)


def _stopped(
    run: LastIterate,
    epsilon: float,
    first: Vector,
    distances: Vector,
    rule: Callable[..., Vector],
    divergence: LogDivergence,
) -> float:
    """Return the bound for random stopping.

    The rounds before each stop are a run of their own; rounds of one kind share one sequence.
    """
    state = hidden_run(run)
    along = rule(epsilon, first, distances, divergence)[::-1]  # entry r: r rounds follow
    place = 0 if run.place is None else run.place - 1
    counts = np.full(run.rounds - place, 1 / run.rounds)
    if state.weights is not None:
        counts = np.arange(run.rounds, 0, -1) * float(state.weights[0]) / run.rounds
    further = run.until_release - run.total
    return log_sum(along[further : further + counts.size] + np.log(counts)) + ROUNDING


def _linear(run: LastIterate) -> Evaluator:
    return _one_round(run, "linear-contraction", linear_contraction)


def _nonlinear(run: LastIterate) -> Evaluator:
    return _one_round(run, "nonlinear-contraction", nonlinear_contraction)


def _shift(run: LastIterate) -> Evaluator:
    name = "shift"
    state = hidden_run(run)
    if run.stopping == "random" and run.passes > 1 and run.noise == "gaussian":
        return _stopped_shift(run)
    if (refused := needs_gaussian(run, name)) is not None:
        return refused
    if run.stopping == "random":
        return withdrawn(name, "with random stopping the block bound averages it over the stops")
    if not state.rounds.contracts:
        return withdrawn(name, no_contraction(run))
    return _by_mus(name, "later noise closes the gap at the best pace" + _growth(state), run, shift_mus(run))


def _stopped_shift(run: LastIterate) -> Evaluator:
    """Return the bound for several passes and a random stop: the mean over the stops of the optimal shift."""
    if not followed(run):
        return withdrawn("shift", f"random stopping is followed for {LARGEST_TABLE} places and stops, not for more")
    state = hidden_run(run)
    why = "later noise closes the gaps at the best pace; the mean over the stops" + _growth(state)
    if not state.rounds.contracts:
        why = "every model up to the stop counted as seen; the mean over the stops; " + no_contraction(run)
    return Evaluator("shift", "certified", why, partial(stopped_log_delta, run))


def _growth(state: HiddenRun) -> str:
    worst = float(np.max(state.rounds.lipschitz))
    return f"; steps may expand by {worst:.4g} (no convexity, or step size above 2/smoothness)" if worst > 1 else ""


def _block(run: LastIterate) -> Evaluator:
    name = "block"
    state = hidden_run(run)
    if (refused := needs_gaussian(run, name)) is not None:
        return refused
    if not state.rounds.contracts and run.diameter is None:
        return withdrawn(name, no_contraction(run) + ", and there is no projection")
    table = checkpoints(run)
    started = np.isfinite(table.mu)

    def log_delta(epsilon: float) -> float:
        start = np.where(started, log_theta(epsilon, np.where(started, table.mu, 1.0)), 0.0)
        value = block_contraction(epsilon, start, table.distances, started)
        with np.errstate(divide="ignore"):
            rows = value + np.log(table.share)
            fresh = log_theta(epsilon, table.fresh_mu) + np.log(table.fresh)
        per_row = [log_sum(np.append(row, extra)) for row, extra in zip(rows, fresh, strict=True)]
        return (log_sum(np.array(per_row)) if state.weights is not None else max(per_row)) + ROUNDING

    reason = "best chain of optimal shifts and contractions over blocks of rounds"
    if not state.rounds.contracts:
        reason = "one-round contraction on the bounded domain; " + no_contraction(run)
    return Evaluator(name, "certified", reason + _growth(state) * state.rounds.contracts, log_delta)
