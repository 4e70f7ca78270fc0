r"""Position coupling in full: every place tied to every other, a linear program bounded through its dual.

The unknowns are the probabilities $p_t$, $q_t$ of a test when the victim sits at place t, in one list
$x = (p, q)$. Ties are curves $x_i \le \Phi(\Phi^{-1}(x_j) + \mu_{ij})$, replaced by tangents, which lie above
them; tangents are added where a solution breaks a curve. Theory page: position-coupling.md.
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy.optimize import linprog
from scipy.special import ndtr, ndtri

from fedveil.core.checks import require
from fedveil.core.values import Indices, Vector
from fedveil.theory.divergence import log_theta
from fedveil.theory.numerics import ROUNDING, check_epsilon
from fedveil.theory.position import Star, check_places, log_above, log_average, own_mu, pair_mu, symmetric
from fedveil.theory.rounds import Rounds
from fedveil.theory.shift import uses_mu

_MOST = 16  # most groups of places
_BUDGET, _FEW = 400_000, 12  # numbers spent on each table of mu; number of uses up to which a mu is cheap
_TURNS, _CLOSE = 10, 2e-4  # rounds of cutting; relative distance of the bound from what a test can reach
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
        unit = np.maximum(ndtr(at), 1e-290)
        if not scale > 1e-290:
            return 0.0
        cuts = _first_cuts(ties, at)
        bound, reached = math.inf, 0.0
        for _ in range(_TURNS):
            solved = _solve(gain * unit / scale, cuts, unit)
            if solved is None:
                break
            x, prices = solved
            # Row r was divided by unit[high] and the gain by scale: undo both.
            bound = min(bound, dual_bound(gain, cuts, prices * scale / unit[cuts.high]))
            quantiles = ndtri(np.clip(x, unit * 1e-3, 1 - 1e-12))
            centre, value = _best_shift(gain, _feasible(ties, quantiles))
            reached = max(reached, value)
            if bound <= reached * (1 + _CLOSE):
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
        values = gain @ ndtr(quantiles[:, None] + moves)
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
    excess = x[:, None] - ndtr(quantiles[None, :] + ties) * (1 + 1e-6)
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
    solved = linprog(
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
