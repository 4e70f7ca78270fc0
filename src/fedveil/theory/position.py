r"""Position coupling: nobody knows in which round the victim was used, which is worth more than averaging.

For a test of the released model let $p_t$, $q_t$ be its probabilities on the two data sets if the victim is at place t.
Runs at different places are themselves hard to tell apart, so all $p_t$, $q_t$ are tied together. This file uses the
ties through one place, the hub; position_program.py uses all of them. Theory page: position-coupling.md (full proof).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import log_ndtr, ndtr

from fedveil.core.checks import require
from fedveil.core.values import Indices, Vector
from fedveil.theory.divergence import log_theta
from fedveil.theory.numerics import ROUNDING, check_epsilon, log_sum
from fedveil.theory.rounds import Rounds
from fedveil.theory.shift import uses_mu

_LOWEST, _HIGHEST = (
    -37.5,
    6.0,
)  # normal quantiles searched; outside of them, secants and p <= Phi(x + up) are bounds
_TURNS, _CLOSE = 12, 1e-7  # refinements of the search; relative distance at which it stops
_UNIT = 4e-16  # twice the rounding error of one operation
_CHUNK = 2_000_000  # most numbers in memory while mu is computed


@dataclass(frozen=True, slots=True, eq=False)
class Star:
    """Every place tied to one hub: ``weight`` of each place, and the three mu that tie it.

    ``up``: place t against the hub on the same data; ``down``: place t on the other data against the hub;
    ``own``: place t on both data sets. For the hub itself ``up`` is 0 and ``down`` equals ``own``. The chance of
    not being used at all is a place whose ``own`` is 0; weights may sum to less than 1, which leaves that place
    out and promises less. ``back``: the opposite direction, where it differs.
    """

    weight: Vector
    up: Vector
    down: Vector
    own: Vector
    back: "Star | None" = None

    def __post_init__(self) -> None:
        _check_weights("Star.weight", self.weight)
        for name in ("up", "down", "own"):
            mu: Vector = getattr(self, name)
            require(mu.shape == self.weight.shape, f"Star.{name}", f"have {self.weight.size} entries", mu.shape)
            require(bool(np.all(mu >= 0)), f"Star.{name}", "be non-negative", mu.tolist())

    def best(self, epsilon: float, x: Vector) -> tuple[Vector, Vector]:
        r"""Quantiles of the best $p_t$, $q_t$ (rows) if the hub's probability is $\Phi(x)$ (columns)."""
        own, up, down = self.own[:, None], self.up[:, None], self.down[:, None]
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            free = np.where(own > 0, -epsilon / own - own / 2, -np.inf)  # the best q of this place alone
            q = np.maximum(x - down, np.minimum(free, x + up - own))
            return np.minimum(x + up, q + own), q

    def value(self, epsilon: float, x: Vector) -> Vector:
        r"""$\sum_t w_t (p_t - e^\varepsilon q_t)$ at its largest when the hub's probability is $\Phi(x)$."""
        return self._value(epsilon, x)[0]

    def _value(self, epsilon: float, x: Vector) -> tuple[Vector, Vector]:
        """Return the value and a bound on its rounding error."""
        p, q = self.best(epsilon, x)
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            gain, cost = ndtr(p), np.exp(epsilon + log_ndtr(q))
            doubt = gain * (8 + np.where(gain > 0, p * p, 0.0)) + cost * (8 + epsilon + np.where(cost > 0, q * q, 0.0))
            return self.weight @ (gain - cost), _UNIT * (self.weight @ doubt)

    def log_delta(self, epsilon: float) -> float:
        """Logarithm of an upper bound on the largest value over all hub probabilities, in both directions."""
        check_epsilon(epsilon)
        there = self._one_way(epsilon)
        return there if self.back is None else max(there, self.back.log_delta(epsilon))

    def _one_way(self, epsilon: float) -> float:
        """Return the bound in one direction: the value is concave in the hub's probability, so secants bound it."""
        x = np.linspace(_LOWEST, _HIGHEST, 59)
        values, errors = self._value(epsilon, x)
        bound = math.inf
        for _ in range(_TURNS):
            cells = self._cells(epsilon, x, values, errors)
            bound, best = min(bound, float(np.max(cells))), max(float(np.max(values)), 0.0)
            loose = np.flatnonzero(cells[1:-1] > best * (1 + _CLOSE))[:8]
            if not bound > max(best * (1 + _CLOSE), 1e-300) or loose.size == 0:
                break
            fresh = np.setdiff1d([np.linspace(x[cell], x[cell + 1], 12)[1:-1] for cell in loose], x)
            more, doubt = self._value(epsilon, fresh)
            x, values, errors = np.append(x, fresh), np.append(values, more), np.append(errors, doubt)
            order = np.argsort(x)
            x, values, errors = x[order], values[order], errors[order]
        return min(log_average(self.weight, epsilon, self.own), log_above(bound))

    def _cells(self, epsilon: float, x: Vector, values: Vector, errors: Vector) -> Vector:
        """Return upper bounds on the value between hub probability 0, the points ``x`` and 1."""
        end = float(self.weight.sum()) * -math.expm1(epsilon) if epsilon < 700 else -math.inf
        z = np.concatenate([[0.0], ndtr(x), [1.0]])
        v, e = np.concatenate([[0.0], values, [end]]), np.concatenate([[0.0], errors, [_UNIT * abs(end)]])
        cells = secant_bounds(z, v, e)
        cells[0] = min(cells[0], float(self.weight @ ndtr(x[0] + self.up)))
        with np.errstate(invalid="ignore"):
            below = (v + e < 0) | (v == -np.inf)  # it is 0 at 0 and concave, so once below 0 it stays below 0
        below[-1] = True
        cells[int(np.argmax(below)) :] = 0.0
        return cells


def secant_bounds(z: Vector, v: Vector, e: Vector) -> Vector:
    """Return the most a concave function with values ``v`` (within ``e``) at points ``z`` can reach in each cell.

    In a cell it lies below the chord of the cell before, prolonged, and below that of the cell after. A chord
    that is not finite says nothing; where neither says anything the answer is ``inf``.
    """
    width = np.diff(z)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        slope, doubt = np.diff(v) / width, (e[1:] + e[:-1]) / width
        rise = np.append(np.nan, (slope + doubt)[:-1])  # to the right from the left end of each cell
        fall = np.append((slope - doubt)[1:], np.nan)  # to the left from its right end
        left, right = (v + e)[:-1], (v + e)[1:]
        meet = (right - left - fall * width) / (rise - fall)
        meet = np.where(np.isfinite(meet), np.clip(meet, 0.0, width), 0.0)
        starts = np.minimum(left, right - fall * width)
        stops = np.minimum(left + rise * width, right)
        both = np.maximum(np.maximum(starts, stops), left + rise * meet)
        only_left = np.maximum(left, left + rise * width)
        only_right = np.maximum(right, right - fall * width)
        candidates = np.stack([only_left, only_right, both])
    return np.asarray(np.min(np.where(np.isnan(candidates), np.inf, candidates), axis=0), dtype=np.float64)


def log_average(weight: Vector, epsilon: float, own: Vector) -> float:
    """Return the logarithm of the mean of the places' own bounds, rounded up: the promise without coupling."""
    with np.errstate(divide="ignore"):
        total = log_sum(np.log(weight) + log_theta(epsilon, own))
    return min(total + ROUNDING, 0.0)


def log_above(bound: float) -> float:
    """Return the logarithm of a bound on delta, rounded up; 0 (delta = 1) in doubt."""
    if not bound < 1:
        return 0.0
    return min(math.log(max(bound, 1e-300)) + ROUNDING, 0.0)


def star(rounds: Rounds, places: Indices, weights: Vector, hub: int) -> Star:
    """Return the ties through place ``hub``; see :func:`stars`."""
    return stars(rounds, places, weights, [hub])[0]


def stars(rounds: Rounds, places: Indices, weights: Vector, hubs: Sequence[int]) -> list[Star]:
    """Return the ties through each of these places.

    ``places[t]``: the rounds (from 0, increasing, one per pass) that use the victim when it sits at place t;
    ``weights[t]``: the chance of that. Where record against nothing (``rounds.gap``) is not record against
    record (``rounds.swap``) the two directions differ, and ``back`` is the other one.
    """
    check_places(rounds, places, weights)
    for hub in hubs:
        require(0 <= hub < places.shape[0], "hub", f"be one of the {places.shape[0]} places", hub)
    own = own_mu(rounds, places)
    here, all_places = np.array(hubs, dtype=np.intp), np.arange(places.shape[0])

    def ties(theirs: Vector, own_gap: Vector) -> Vector:
        return pair_mu(rounds, places, all_places, here, theirs, own_gap)

    unused = chance_unused(weights)

    def towards(up: Vector, down: Vector, column: int, gaps: Vector, back: Star | None = None) -> Star:
        hub, up, down = hubs[column], up[:, column].copy(), down[:, column].copy()
        up[hub], down[hub] = 0.0, own[hub]
        if not unused > 0:
            return Star(weights, up, down, own, back)
        # Then the hub holds another record, and the runs differ there alone.
        apart = uses_mu(rounds, places[hub], gaps[places[hub]], np.array(rounds.count))
        up, down = np.append(up, apart), np.append(down, apart)
        return Star(np.append(weights, unused), up, down, np.append(own, 0.0), back)

    gap, swap, columns = rounds.gap, rounds.swap, range(len(hubs))
    up = ties(swap, swap)
    if symmetric(rounds, places):
        return [towards(up, up, column, swap) for column in columns]
    down, back_up, back_down = ties(gap, swap), ties(gap, gap), ties(swap, gap)
    return [towards(up, down, column, swap, towards(back_up, back_down, column, gap)) for column in columns]


def chance_unused(weights: Vector) -> float:
    """Return the chance of not being used at all, rounded down; at most 0 if every record is used."""
    return (1 - float(weights.sum())) * (1 - 1e-9) - 1e-12


def unused_star(rounds: Rounds, places: Indices, weights: Vector) -> Star:
    """Return the ties through the place of a record that is not used: a run at place t differs from it at t alone."""
    check_places(rounds, places, weights)
    unused = chance_unused(weights)
    require(unused > 0, "weights", "leave a chance of not being used", float(weights.sum()))
    weight, own = np.append(weights, unused), np.append(own_mu(rounds, places), 0.0)
    if symmetric(rounds, places):
        return Star(weight, own, own, own)
    swapped = uses_mu(rounds, places, rounds.swap[places], np.array(rounds.count))
    other = np.append(swapped, 0.0)
    return Star(weight, other, own, own, Star(weight, own, other, own))


def symmetric(rounds: Rounds, places: Indices) -> bool:
    """Return whether the victim's own gap is that of a record against a record: then both directions agree."""
    return bool(np.array_equal(rounds.gap[places], rounds.swap[places]))


def own_mu(rounds: Rounds, places: Indices) -> Vector:
    """Return mu of each place between the two data sets."""
    return uses_mu(rounds, places, rounds.gap[places], np.array(rounds.count))


def pair_mu(rounds: Rounds, places: Indices, s: Indices, t: Indices, gap_s: Vector, gap_t: Vector) -> Vector:
    """Return mu of runs that differ at place ``s[i]`` by ``gap_s`` and at ``t[j]`` by ``gap_t``: row i, column j.

    The gaps are given for every round. Entries of a place with itself have no meaning. Computed in chunks.
    """
    passes = places.shape[1]
    out = np.empty((s.size, t.size))
    width = min(2 * passes, 13)  # longer sets of uses are not computed all at once
    step = max(1, _CHUNK // max(1, t.size * max(width * width, 2 * passes)))
    for first in range(0, s.size, step):
        some = s[first : first + step]
        shape = (some.size, t.size, passes)
        uses = np.concatenate(
            [np.broadcast_to(places[some][:, None], shape), np.broadcast_to(places[t][None], shape)], axis=-1
        )
        gaps = np.concatenate(
            [
                np.broadcast_to(gap_s[places[some]][:, None], shape),
                np.broadcast_to(gap_t[places[t]][None], shape),
            ],
            axis=-1,
        )
        order = np.argsort(uses, axis=-1)
        uses, gaps = np.take_along_axis(uses, order, -1), np.take_along_axis(gaps, order, -1)
        out[first : first + step] = uses_mu(rounds, uses, gaps, np.array(rounds.count))
    return out


def check_places(rounds: Rounds, places: Indices, weights: Vector) -> None:
    """Refuse places that share a round or lie outside the run, and weights that are not probabilities."""
    require(
        places.ndim == 2 and places.size >= 1,
        "places",
        "have a row for each place, a column for each pass",
        places.shape,
    )
    inside = bool(np.all((places >= 0) & (places < rounds.count)))
    require(inside, "places", f"name rounds 0 to {rounds.count - 1}", (int(places.min()), int(places.max())))
    require(bool(np.all(np.diff(places, axis=1) > 0)), "places", "increase along each row", places[:3].tolist())
    require(
        np.unique(places).size == places.size,
        "places",
        "share no round: a round belongs to one batch",
        places[:3].tolist(),
    )
    require(weights.shape == places.shape[:1], "weights", f"have {places.shape[0]} entries", weights.shape)
    _check_weights("weights", weights)


def _check_weights(name: str, weights: Vector) -> None:
    total = float(weights.sum())
    require(
        bool(np.all(weights >= 0)) and total <= 1 + 1e-9,
        name,
        "be probabilities with a sum of at most 1",
        total,
    )
