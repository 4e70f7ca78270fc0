"""A hidden run in the form that theory needs: rounds as arrays, and the places at which the victim may be used.

Places that hardly differ are charged together at the worst of them, so a million rounds cost no more than a thousand.
Everything that does not depend on epsilon is computed here, once per run.
"""

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from fedveil.core.errors import CannotCertify
from fedveil.core.values import Indices, Vector
from fedveil.privacy.mechanism import LastIterate, Numbers, sensitivity
from fedveil.theory.blocks import block_distances
from fedveil.theory.rounds import Rounds
from fedveil.theory.shift import unhidden_mu, uses_mu

_EXACT = 48  # up to so many rounds (of different kinds) nothing is merged or thinned
_CHUNK = 2_000_000  # most numbers in memory while mu is computed
_WIDEST = 13  # most uses that are followed together
_DENSE = 72  # checkpoints that stay dense next to the last use, for rounds of one kind


@dataclass(frozen=True, slots=True, eq=False)
class HiddenRun:
    """Rounds, places (rows: the rounds that use the victim, from 0), and the weight of each place.

    ``weights`` is None for a public order: then the worst place counts.
    """

    rounds: Rounds
    places: Indices
    weights: Vector | None
    constant: bool

    @property
    def last_use(self) -> Indices:
        """The last round, from 0, that uses the victim, for each place."""
        return self.places[:, -1]


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoints:
    """Rows are (groups of) places, columns are checkpoints; ``mu`` is infinite before the last use.

    ``share[g, j]``: the part of the final average that falls on group g observed after checkpoint j; ``fresh[g]``: the
    part between a use and the next checkpoint, charged at ``fresh_mu[g]``. Rows of a public order are alternatives, of
    which the worst counts.
    """

    mu: Vector
    distances: Vector
    share: Vector
    fresh: Vector
    fresh_mu: Vector


def per_round(values: Numbers | int | tuple[int, ...], run: LastIterate) -> Vector:
    """Return one number for each round of all passes."""
    array = np.atleast_1d(np.asarray(values, dtype=np.float64))
    if array.size == run.rounds:
        array = np.tile(array, run.passes)
    return np.array(np.broadcast_to(array, (run.total,)))


def first_rounds(run: LastIterate, first: int, count: int) -> LastIterate:
    """Return the run of ``count`` rounds from ``first`` on as one pass that ends with them; whoever is not used in them
    is not used at all.
    """
    batch = per_round(run.batch, run)
    dealt = None if run.order == "poisson" else int(batch[: run.rounds].sum())
    rate = 1 / run.choices if run.order == "independent" else run.rate

    def cut(values: Vector) -> Any:
        part = values[first : first + count].tolist()
        return part[0] if len(set(part)) == 1 else tuple(part)

    sizes = cut(batch)
    return replace(
        run,
        rounds=count,
        passes=1,
        records=run.records if run.records is not None else dealt,
        rate=rate,
        stopping="end",
        batch=tuple(map(int, sizes)) if isinstance(sizes, tuple) else int(sizes),
        step_size=cut(per_round(run.step_size, run)),
        noise_std=cut(per_round(run.noise_std, run)),
    )


def until_release(name: str, run: LastIterate) -> Vector:
    """Return a setting (batch, step_size, noise_std) for every round before the release, the further ones included."""
    before = per_round(getattr(run, name), run)
    if not run.further:
        return before
    after = np.asarray(getattr(run.further, name), dtype=np.float64)
    return np.append(before, np.broadcast_to(after, (run.further.rounds,)))


def kept(run: LastIterate, lipschitz: Vector) -> Vector:
    """Return the Lipschitz constants of maps that begin with a part of the model; with nothing of it they are zero."""
    part = np.ones_like(lipschitz)
    if run.further:
        part[run.total :] = run.further.keep
    with np.errstate(invalid="ignore"):
        return np.where(part == 0, 0.0, part * lipschitz)


def lipschitz_of_step(run: LastIterate, step: Vector) -> Vector:
    """Return the Lipschitz constant of a gradient step.

    Max(|1 - eta lam|, |1 - eta beta|), or 1 + eta beta if not convex.
    """
    if run.smoothness is None:
        return np.full_like(step, math.inf)
    if not run.convex:
        return 1 + step * run.smoothness
    return np.maximum(np.abs(1 - step * run.strong_convexity), np.abs(1 - step * run.smoothness))


def rounds_of(run: LastIterate) -> Rounds:
    """Return the arrays of a run, up to the release; nobody asks for gaps of further rounds, which use no victim."""
    step, batch, noise = (until_release(name, run) for name in ("step_size", "batch", "noise_std"))
    diameter = run.diameter if run.diameter is not None else math.inf
    scale = step * noise / (np.sqrt(batch) if run.noise == "gaussian" else 1.0)
    swap = 2 * run.lipschitz * step / batch
    thrown = np.maximum(1.0, step * run.strong_convexity - 1)  # a step over 2/penalty drives points apart by itself
    return Rounds(
        noise=scale,
        gap=swap * sensitivity(run.neighbours) / 2,
        swap=swap,
        lipschitz=kept(run, lipschitz_of_step(run, step)),
        image=thrown * diameter + 2 * step * run.lipschitz,
        diameter=diameter,
    )


@lru_cache(maxsize=8)  # small, because a long run holds many megabytes
def hidden_run(run: LastIterate) -> HiddenRun:
    """Return everything that is shared by the bounds that follow a record through rounds known beforehand."""
    if run.sampled:
        raise CannotCertify(f"places are not defined where every record draws its own rounds (order {run.order})")
    rounds = rounds_of(run)
    first = np.arange(run.rounds) if run.place is None else np.array([run.place - 1])
    places = first[:, None] + run.rounds * np.arange(run.passes)[None, :]
    weights = None
    if run.order == "secret":
        batch = per_round(run.batch, run)[: run.rounds]
        weights = batch / (run.records if run.records is not None else batch.sum())
    arrays = [rounds.noise, rounds.gap, rounds.lipschitz, rounds.reach]
    arrays += [weights] if weights is not None else []  # equal rounds may hold unequal batches
    return HiddenRun(rounds, places, weights, all(bool(np.all(a == a[0])) for a in arrays))


def unhidden_mus(run: LastIterate) -> Vector:
    """Return mu of each place if every model is seen."""
    state = hidden_run(run)
    return unhidden_mu(state.rounds, state.places)


def shift_mus(run: LastIterate) -> Vector:
    """Return mu of each place if only the last model is seen."""
    state = hidden_run(run)
    return _mu(state, state.places, np.array([state.rounds.count]))


def _mu(state: HiddenRun, places: Indices, ends: Indices) -> Vector:
    return uses_mu(state.rounds, places, state.rounds.gap[places], ends)


@lru_cache(maxsize=16)
def checkpoints(run: LastIterate) -> Checkpoints:
    """Return the table that block contraction uses."""
    state = hidden_run(run)
    if state.constant:
        return _constant_rounds(run, state)
    return _changing_rounds(run, state)


def _constant_rounds(run: LastIterate, state: HiddenRun) -> Checkpoints:
    """Return the table for rounds of one kind.

    Only the number of rounds after the last use matters, so one row serves every place.
    """
    first, longest = state.places[:1], run.rounds - int(state.places[0, 0]) - 1
    further = run.until_release - run.total
    after = np.union1d(_thinned(longest + further), further + _thinned(longest)) if further else _thinned(longest)
    ends = first[0, -1] + 1 + after
    mu = _mu(state, first[:, None, :], ends[None, :])
    following = further + np.arange(longest + 1)
    at = np.searchsorted(after, following, side="right") - 1  # the checkpoint at or before, by data processing
    if run.stopping == "random":
        counts = _stopping_counts(run, state, longest)
    elif state.weights is None:
        counts = np.eye(1, longest + 1, 0 if run.place is None else longest)[0]
    else:
        counts = state.weights[::-1]
    share = np.asarray(np.bincount(at, weights=counts, minlength=after.size), dtype=np.float64)
    return Checkpoints(mu, block_distances(state.rounds, ends), share[None, :], np.zeros(1), np.zeros(1))


def _stopping_counts(run: LastIterate, state: HiddenRun, longest: int) -> Vector:
    """Return the part of the average that falls on "r rounds after the last use", for a uniform random stop."""
    following = np.arange(longest + 1)
    if state.weights is None:
        return np.full(longest + 1, 1 / run.total)  # the first place, which is observed most often
    return np.asarray((longest + 1 - following) * float(state.weights[0]) / run.total, dtype=np.float64)


def _thinned(longest: int) -> Indices:
    """Return 0, 1, 2, ... and then more and more widely spaced numbers, up to ``longest``."""
    if longest <= 2 * _DENSE:
        return np.arange(longest + 1)
    sparse = np.unique(np.geomspace(_DENSE, longest, 48).astype(np.intp))
    return np.unique(np.concatenate([np.arange(_DENSE), sparse, [longest]]))


def _changing_rounds(run: LastIterate, state: HiddenRun) -> Checkpoints:
    """Return the table for general schedules: groups of places, and checkpoints that are denser towards the end."""
    total, last = state.rounds.count, state.last_use
    ends = _crowded(total, int(last.min()) + 1)
    groups = _groups(last.size)
    rows = []
    step = max(1, _CHUNK // (state.places.size * min(run.passes, _WIDEST)))
    for some in (ends[first : first + step, None] for first in range(0, ends.size, step)):
        mu = _mu(state, state.places[None], some)
        mu = np.where(last < some, mu, np.inf)
        rows.append(np.maximum.reduceat(mu, groups, axis=1))
    mu = np.concatenate(rows).T
    fresh = np.zeros(groups.size)
    if run.stopping == "random":  # further rounds of another kind would not follow a stop: see whole_rounds
        share = np.diff(np.append(ends, total + 1)) / total * np.isfinite(mu)
        seen = ends[np.argmax(np.isfinite(mu), axis=1)]  # the first checkpoint after every use in the group
        fresh = (seen - np.minimum.reduceat(last, groups) - 1) / total
    else:
        share = np.zeros(mu.shape)
        share[:, -1] = 1.0
    if state.weights is not None:
        weights = np.add.reduceat(state.weights, groups)
        share, fresh = share * weights[:, None], fresh * weights
    fresh_mu = np.maximum.reduceat(unhidden_mu(state.rounds, state.places), groups)
    return Checkpoints(mu, block_distances(state.rounds, ends), share, fresh, fresh_mu)


def _crowded(total: int, earliest: int) -> Indices:
    if total - earliest <= _EXACT:
        return np.arange(earliest, total + 1)
    number = int(min(36, max(10, 4e6 // total)))  # any choice is valid; a million rounds allow fewer
    back = np.unique(np.geomspace(1, total - earliest + 1, number).astype(np.intp)) - 1
    near = np.arange(earliest, min(earliest + 4, total))
    return np.unique(np.concatenate([near, total - np.concatenate([back, np.arange(number // 3)])]))


def _groups(count: int) -> Indices:
    """Return the first members of groups of consecutive places.

    Single ones at the end, longer and longer ones before.
    """
    if count <= _EXACT:
        return np.arange(count)
    back = np.concatenate([np.arange(1, 24), np.geomspace(24, count, 48)]).astype(np.intp)
    return np.unique(np.maximum(count - back, 0))
