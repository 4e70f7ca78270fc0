"""Position coupling: nobody knows in which round the victim was used, which is worth more than averaging.

For a test of the released model let $p_t$, $q_t$ be its probabilities on the two data sets if the victim is at place t.
Runs at different places are themselves hard to tell apart, so all $p_t$, $q_t$ are tied together. This file uses the
ties through one place, the hub; position_program.py uses all of them. Theory page: position-coupling.md (full proof).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy

from fedveil.core.errors import require
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
            gain, cost = scipy.special.ndtr(p), np.exp(epsilon + scipy.special.log_ndtr(q))
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
        z = np.concatenate([[0.0], scipy.special.ndtr(x), [1.0]])
        v, e = np.concatenate([[0.0], values, [end]]), np.concatenate([[0.0], errors, [_UNIT * abs(end)]])
        cells = secant_bounds(z, v, e)
        cells[0] = min(cells[0], float(self.weight @ scipy.special.ndtr(x[0] + self.up)))
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


# Position coupling in full: every place tied to every other, a linear program bounded through its dual.
#
# The unknowns are the probabilities $p_t$, $q_t$ of a test when the victim sits at place t, in one list
# $x = (p, q)$. Ties are curves $x_i \le \Phi(\Phi^{-1}(x_j) + \mu_{ij})$, replaced by tangents, which lie above
# them; tangents are added where a solution breaks a curve. Theory page: position-coupling.md.

_MOST = 16  # most groups of places
_BUDGET, _FEW = 400_000, 12  # numbers spent on each table of mu; number of uses up to which a mu is cheap
_LP_TURNS, _LP_CLOSE = 10, 2e-4  # rounds of cutting; relative distance of the bound from what a test can reach
_ROOM = 0.2  # a tangent that a solution stays this far below, relatively, is dropped
# a tie with less room than this, in quantiles, gets first tangents, at these offsets
_NEAR, _MOVES = 0.1, (0.0, -0.3, 0.3)
_REACH = 60.0  # a solution may propose this multiple of the star's probabilities (the bound does not use it)
_SLACK = 1e-7  # added to the gain of every unknown, so that the solver's tolerance cannot spoil its multipliers
_TOLERANCE = 1e-9  # tolerance of the solver, in units of the answer
_LEAST_MU = 1e-6  # smaller ones are raised to this, because the heights of their tangents would be lost in rounding


@dataclass(frozen=True, slots=True, eq=False)
class Cuts:
    r"""Rows $x_i - e^\kappa x_j \le b$: what is known of every test. ``height``: $b$."""

    high: Indices
    low: Indices
    slope: Vector
    height: Vector

    def near(self, x: Vector, room: float) -> "Cuts":
        """Return the rows that leave a solution no more room than this, relative to what they allow."""
        left = self.height + self.slope * x[self.low] - x[self.high]
        kept = left <= room * (self.height + self.slope * x[self.low])
        return Cuts(self.high[kept], self.low[kept], self.slope[kept], self.height[kept])

    def join(self, other: "Cuts") -> "Cuts":
        """Return these rows and the others."""
        pairs = ((getattr(self, name), getattr(other, name)) for name in ("high", "low", "slope", "height"))
        return Cuts(*(np.concatenate(pair) for pair in pairs))


def tangents(high: Indices, low: Indices, mu: Vector, at: Vector) -> Cuts:
    r"""Tangents of $x_j \mapsto \Phi(\Phi^{-1}(x_j) + \mu)$ at $\Phi^{-1}(x_j)$ = ``at``, rounded up.

    The slope is $e^\kappa$, $\kappa = -\mu\,at - \mu^2/2$, and the height $\theta_\kappa(\mu)$; below 0,
    $\theta_\kappa = 1 - e^\kappa + e^\kappa\theta_{-\kappa}$.
    """
    mu = np.maximum(mu, _LEAST_MU)
    kappa = np.clip(-mu * at - mu * mu / 2, -600.0, 600.0)
    slope, theta = np.exp(kappa), np.exp(log_theta(np.abs(kappa), mu))
    height = np.where(kappa >= 0, theta, -np.expm1(np.minimum(kappa, 0.0)) + slope * theta)
    return Cuts(high, low, slope, height * (1 + ROUNDING))


def dual_bound(gain: Vector, cuts: Cuts, multipliers: Vector) -> float:
    r"""Return an upper bound on $\max c \cdot x$ over $x \in [0,1]^n$ within the cuts, for any multipliers.

    Weak duality, for $y \ge 0$: $c \cdot x \le b \cdot y + \sum_j \max(0, c_j - (A^T y)_j)$. A multiplier that is not
    positive counts as 0. Rounding errors are added on top.
    """
    y = np.where(multipliers > 0, multipliers, 0.0)
    size = gain.size
    income, expense = np.bincount(cuts.high, y, size), np.bincount(cuts.low, y * cuts.slope, size)
    doubt = (y.size + size) * 2.0**-52 * (np.abs(gain) + income + expense)
    missed = np.maximum(gain - income + expense + doubt, 0.0)  # each unknown may be as large as 1
    bound = (float(cuts.height @ y) + float(missed.sum())) * (1 + ROUNDING)
    return bound if not math.isnan(bound) else math.inf


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """Groups of places: ``weight`` of each, and ``ties[i, j]``, the mu between unknowns i and j.

    The unknowns are all p, then all q. ``ties`` is symmetric with zeros on the diagonal; ``inf`` where
    nothing is known. ``average``: weights and own mu of the places, ungrouped.
    """

    weight: Vector
    ties: Vector
    average: tuple[Vector, Vector]

    def __post_init__(self) -> None:
        size = 2 * self.weight.size
        require(self.ties.shape == (size, size), "Program.ties", f"have shape {(size, size)}", self.ties.shape)
        require(bool(np.all(self.ties >= 0)), "Program.ties", "be non-negative", float(np.min(self.ties)))
        require(np.array_equal(self.ties, self.ties.T), "Program.ties", "be symmetric", "another matrix")

    def log_delta(self, epsilon: float) -> float:
        """Logarithm of an upper bound on delta in both directions; at worst the average over places."""
        check_epsilon(epsilon)
        bound, other = self.one_way(epsilon), self.flipped()
        if not np.array_equal(other.ties, self.ties):
            bound = max(bound, other.one_way(epsilon))
        return min(bound, log_average(self.average[0], epsilon, self.average[1]))

    def flipped(self) -> "Program":
        """Return the program with the two data sets exchanged."""
        half = self.weight.size
        return Program(self.weight, np.roll(self.ties, (half, half), (0, 1)), self.average)

    def one_way(self, epsilon: float) -> float:
        """Return the bound from the ties only, for p against q."""
        ties = self.ties
        if not epsilon < 600:
            return 0.0
        gain = np.concatenate([self.weight, -math.exp(epsilon) * self.weight])
        at, scale = _start(self.weight, ties, epsilon)
        unit = np.maximum(scipy.special.ndtr(at), 1e-290)
        if not scale > 1e-290:
            return 0.0
        cuts = _first_cuts(ties, at)
        bound, reached = math.inf, 0.0
        for _ in range(_LP_TURNS):
            solved = _solve(gain * unit / scale, cuts, unit)
            if solved is None:
                break
            x, prices = solved
            # Row r was divided by unit[high] and the gain by scale: undo both.
            bound = min(bound, dual_bound(gain, cuts, prices * scale / unit[cuts.high]))
            quantiles = scipy.special.ndtri(np.clip(x, unit * 1e-3, 1 - 1e-12))
            centre, value = _best_shift(gain, _feasible(ties, quantiles))
            reached = max(reached, value)
            if bound <= reached * (1 + _LP_CLOSE):
                break
            cuts = cuts.near(x, _ROOM).join(_violated(ties, x, quantiles, centre))
        return log_above(bound)


def _feasible(ties: Vector, quantiles: Vector) -> Vector:
    """Lower these quantiles until they keep the ties; the result is about what some test might reach."""
    return np.asarray(np.min(quantiles[None, :] + ties, axis=1), dtype=np.float64)


def _start(weight: Vector, ties: Vector, epsilon: float) -> tuple[Vector, float]:
    """Return quantiles at the optimum of the best star, for the first tangents, and its value, for the scale."""
    half = weight.size
    x = np.concatenate([np.arange(-37.0, -12.0), np.arange(-12.0, 3.1, 0.5)])
    stars = [Star(weight, ties[:half, hub], ties[hub, half:], np.diag(ties[:half, half:])) for hub in range(half)]
    tops = np.array([np.max(star.value(epsilon, x)) for star in stars])
    best = stars[int(np.argmin(tops))]
    for _ in range(3):
        values = best.value(epsilon, x)
        top = int(np.argmax(values))
        x = np.linspace(x[max(top - 1, 0)], x[min(top + 1, x.size - 1)], 11)
    p, q = best.best(epsilon, x[5:6])
    return np.concatenate([p[:, 0], q[:, 0]]), float(best.value(epsilon, x[5:6])[0])


def _best_shift(gain: Vector, quantiles: Vector) -> tuple[Vector, float]:
    """Return the best common shift of these quantiles, which keeps every tie, and its value."""
    step, moves = 0.5, np.linspace(-2.0, 2.0, 9)
    for _ in range(3):
        values = gain @ scipy.special.ndtr(quantiles[:, None] + moves)
        top = int(np.argmax(values))
        best, value = moves[top], float(values[top])
        moves = best + np.linspace(-step, step, 9)
        step /= 4
    return quantiles + best, value


def _first_cuts(ties: Vector, at: Vector) -> Cuts:
    """Return tangents of the ties that are tight or violated at the start, there and nearby."""
    room = at[None, :] + ties - at[:, None]
    np.fill_diagonal(room, np.inf)
    half = at.size // 2
    places = np.arange(half)
    room[places, places + half] = 0.0  # the tie of a place with itself is always included
    high, low = (np.tile(index, len(_MOVES)) for index in np.nonzero(room < _NEAR))
    moves = np.repeat(_MOVES, high.size // len(_MOVES))
    return tangents(high, low, ties[high, low], at[low] + moves)


def _violated(ties: Vector, x: Vector, quantiles: Vector, centre: Vector) -> Cuts:
    """Return tangents of the violated ties, where they are violated and at the best test known."""
    excess = x[:, None] - scipy.special.ndtr(quantiles[None, :] + ties) * (1 + 1e-6)
    np.fill_diagonal(excess, 0.0)
    high, low = np.nonzero(excess > 0)
    mu = ties[high, low]
    return tangents(high, low, mu, quantiles[low]).join(tangents(high, low, mu, centre[low]))


def _solve(gain: Vector, cuts: Cuts, unit: Vector) -> tuple[Vector, Vector] | None:
    """Return the solution (in original units) and the multipliers (in the solver's) of the scaled program."""
    rows = np.arange(cuts.high.size)
    matrix = np.zeros((rows.size, unit.size))
    matrix[rows, cuts.high] = 1.0
    matrix[rows, cuts.low] = -cuts.slope * unit[cuts.low] / unit[cuts.high]
    limits = cuts.height / unit[cuts.high]
    if not (np.all(np.isfinite(matrix)) and np.all(np.isfinite(limits)) and np.all(np.isfinite(gain))):
        return None
    solved = scipy.optimize.linprog(
        -(gain + _SLACK),
        A_ub=matrix,
        b_ub=limits,
        bounds=[(0.0, min(_REACH, 1 / size)) for size in unit.tolist()],
        method="highs-ds",
        options={
            "presolve": False,
            "dual_feasibility_tolerance": _TOLERANCE,
            "primal_feasibility_tolerance": _TOLERANCE,
        },
    )
    if solved.status != 0:
        return None
    x = np.asarray(solved.x, dtype=np.float64)
    return x * unit, -np.asarray(solved.ineqlin.marginals, dtype=np.float64)


def program(rounds: Rounds, places: Indices, weights: Vector, most: int = _MOST) -> Program:
    """Return the program of at most ``most`` groups of consecutive places.

    ``places[t]``: the rounds (from 0, increasing, one per pass) that use the victim when it sits at place t;
    ``weights[t]``: the chance of that; a sum below 1 leaves a chance of not being used at all.
    """
    check_places(rounds, places, weights)
    require(most >= 1, "most", "be at least 1", most)
    own = own_mu(rounds, places)
    starts = _starts(weights, own, most)
    gap, swap = rounds.gap, rounds.swap
    within = _table(rounds, places, starts, swap, swap)
    within = np.maximum(within, within.T)
    across, other = within.copy(), within
    if not symmetric(rounds, places):
        across = _table(rounds, places, starts, swap, gap)
        other = _table(rounds, places, starts, gap, gap)
        other = np.maximum(other, other.T)
    np.fill_diagonal(within, 0.0)
    np.fill_diagonal(other, 0.0)
    np.fill_diagonal(across, np.maximum.reduceat(own, starts))
    ties = np.block([[within, across], [across.T, other]])
    return Program(np.add.reduceat(weights, starts), ties, (weights, own))


def _starts(weights: Vector, own: Vector, most: int) -> Indices:
    """Return the first members of the groups: fine where mu changes fast, and each place alone if they are few."""
    count = own.size
    if count <= most:
        return np.arange(count)
    change = np.abs(np.diff(own)) + 0.01 * float(np.max(own)) / count
    steps = np.sqrt(change * (weights[1:] + weights[:-1]))
    steps = steps if float(steps.sum()) > 0 else np.ones(count - 1)
    ahead = np.append(np.cumsum(steps[::-1])[::-1], 0.0) / steps.sum()  # how much of the change is still to come
    low, high = most - 1.0, 4.0 * count  # number of pieces: the most that leave no more groups than allowed
    for _ in range(40):
        middle = (low + high) / 2
        fits = np.unique(np.floor(ahead * middle)).size <= most
        low, high = (middle, high) if fits else (low, middle)
    return np.flatnonzero(np.append(True, np.diff(np.floor(ahead * low)) != 0))


def _table(rounds: Rounds, places: Indices, starts: Indices, gap_s: Vector, gap_t: Vector) -> Vector:
    """Return a bound on the largest mu of a member of group g (changed by ``gap_s``) and one of h (by ``gap_t``).

    It is exact, member by member, for small groups; for two large groups it is the sum of what each place has alone.
    """
    count, passes = places.shape
    ends = np.array(rounds.count)
    alone = [uses_mu(rounds, places, gap[places], ends) for gap in (gap_s, gap_t)]
    out: Vector = np.add.outer(*(np.maximum.reduceat(mu, starts) for mu in alone))
    sizes = np.diff(np.append(starts, count))
    everyone, left = np.arange(count), float(_BUDGET if 2 * passes <= _FEW else _BUDGET / 100)
    each = count * 4.0 * passes**2
    order = np.argsort(sizes, kind="stable")
    single = order[: min(int(np.count_nonzero(sizes == 1)), int(left // each))]  # these come first, and all at once
    if single.size:
        rows = pair_mu(rounds, places, starts[single], everyone, gap_s, gap_t)
        columns = rows.T if gap_s is gap_t else pair_mu(rounds, places, everyone, starts[single], gap_s, gap_t)
        out[single] = np.minimum(out[single], np.maximum.reduceat(rows, starts, axis=1))
        out[:, single] = np.minimum(out[:, single], np.maximum.reduceat(columns, starts, axis=0))
        left -= single.size * each
    for group in order[single.size :]:
        left -= float(sizes[group]) * each
        if left < 0:
            break
        members = np.arange(starts[group], starts[group] + sizes[group])
        rows = np.max(pair_mu(rounds, places, members, everyone, gap_s, gap_t), axis=0)
        columns = rows if gap_s is gap_t else np.max(pair_mu(rounds, places, everyone, members, gap_s, gap_t), axis=1)
        out[group] = np.minimum(out[group], np.maximum.reduceat(rows, starts))
        out[:, group] = np.minimum(out[:, group], np.maximum.reduceat(columns, starts))
    return out
