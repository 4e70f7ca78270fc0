r"""Hidden state by transport: what a record used once reveals through the noisy rounds that follow; certified.

Rounds are $W_k = \mathrm{proj}(\psi_k(W_{k-1}) + N_k)$: $\psi_k$ is $c_k$-Lipschitz, $N_k$ is Gaussian with deviation
$\sigma_k$, the domain is closed and convex with diameter ``D``. From states ``d`` apart, the probabilities of any event
at the end satisfy $h \le \gamma h' + V(\gamma; d)$. ``V`` is built backward, one table per round; the tables of the
last ``r`` rounds serve every record that ``r`` rounds follow. Theory page: transport.md.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, final

import numpy as np
import scipy
from numpy.typing import NDArray

from fedveil.core.errors import require
from fedveil.core.values import Vector
from fedveil.theory.divergence import log_theta
from fedveil.theory.numerics import ROUNDING, check_delta, check_epsilon, smallest_epsilon

# One round of noise, bounded by a coupling: $\sup_h \int h\,(\varphi(\cdot - x) - g\varphi)$ from above.
#
# ``h`` ranges over tests with $h(y) - \gamma h(y') \le V(\gamma; |y - y'|)$; a :class:`Table` bounds ``V``.
# The density changes sign at a pivot. Mass above it, in cells, is paired with mass below it, outwards on
# both sides; a cell of mass ``p`` paired with mass ``m`` costs at most ``p V(m/p; d)``. *Any* pairing gives an
# upper bound: paths are found roughly, then summed with outward rounding. Theory page: transport.md.

_UNIT = 1e-13  # relative error of the normal distribution function; measured: 3.3e-14 above -13
_VANISHING = 1e-30  # covers what its far tail loses
_LOG_OFF = 1e-15  # absolute error of the logarithm of a ratio near 1
_ROOT = 1 / math.sqrt(2 * math.pi)
_STEEPEST = 300.0  # limits exponents in the search for a path, which need not be exact


@final
@dataclass(frozen=True, slots=True)
class Table:
    r"""Upper bounds on $V(\gamma; d)$ at distances $d_0 < d_1 < \dots$, each at even steps of $\ln\gamma$.

    ``value[i, j]`` bounds it at $d_j$ and $\ln\gamma = i\,$``step[j]``. From $d_{j-1}$ (at first 0) to $d_j$
    it rises above its chord by at most ``bend[i, j]``, for slopes between the nodes ``i`` and ``i + 1``.
    ``scale`` guesses $d \mapsto \mu$ for the search.
    """

    distance: Vector
    scale: Vector
    step: Vector
    value: Vector
    bend: Vector

    def look(self, log_slope: Vector, column: int | NDArray[np.intp]) -> tuple[Vector, Vector]:
        """Return bounds on V and on its bend; ``V`` is convex in the slope, so its chord lies above it."""
        size = self.step[column]
        spot = np.minimum(log_slope / size, self.value.shape[0] - 1.000001)
        row = np.where(spot > 0, spot, 0.0).astype(np.intp)  # for NaN any row will do, since the result stays NaN
        share = np.expm1((spot - row) * size) / np.expm1(size)
        low, high = self.value[row, column], self.value[row + 1, column]
        return np.asarray(low + share * (high - low)), self.bend[row, column]

    def at_diameter(self, log_slope: Vector) -> Vector:
        """Return a bound on V at the largest distance, for any slope."""
        result, _ = self.look(np.abs(log_slope), self.step.size - 1)
        return _any_slope(log_slope, result)

    def over_cells(self, log_slope: Vector, share: Vector) -> Vector:
        """Return V averaged over each cell of distances; ``share`` bounds where in the cell the mean distance lies."""
        columns = np.arange(self.step.size, dtype=np.intp)
        size = np.abs(log_slope)
        high, bend = self.look(size, columns)
        low = np.zeros_like(high)  # V(g; 0) = 0 for g >= 1
        low[:, 1:] = np.minimum(self.look(size[:, 1:], columns[:-1])[0], high[:, 1:])
        return _any_slope(log_slope, np.minimum(high, low + share * (high - low) + bend))


def _any_slope(log_slope: Vector, value: Vector) -> Vector:
    r"""$V(\gamma) = 1 - \gamma + \gamma V(1/\gamma)$ below slope 1: the complement of a test is a test."""
    below = np.minimum(log_slope, 0.0)
    return np.asarray(-np.expm1(below) + np.exp(below) * value, dtype=np.float64)


@final
@dataclass(frozen=True, slots=True)
class Shifts:
    r"""Questions: shifts ``x`` over the noise, $\ell = \ln g/x \ge 0$ (``tilt``), the noise as a distance."""

    x: Vector
    tilt: Vector
    noise: float
    g: Vector = field(init=False)
    pivot: Vector = field(init=False)  # where the density changes sign

    def __post_init__(self) -> None:
        object.__setattr__(self, "g", np.exp(self.tilt * self.x))
        object.__setattr__(self, "pivot", self.tilt + self.x / 2)

    def beyond(self, v: Vector) -> Vector:
        """Return the mass above the pivot that is farther than ``v`` from it."""
        far = self.pivot + v
        return np.asarray(scipy.special.ndtr(self.x - far) - self.g * scipy.special.ndtr(-far))

    def within(self, u: Vector) -> Vector:
        """Return the mass below the pivot that is nearer than ``u``, up to a constant."""
        far = u - self.pivot
        return np.asarray(self.g * scipy.special.ndtr(far) - scipy.special.ndtr(far + self.x))

    def densities(self, v: Vector, u: Vector) -> tuple[Vector, Vector]:
        """Return the density at ``v`` above the pivot, and its negative at ``u`` below."""
        right, left = v + (self.pivot - self.x), u - self.pivot
        up = _ROOT * np.exp(-right * right / 2) * -np.expm1(-self.x * v)
        down = _ROOT * np.exp(self.tilt * self.x - left * left / 2) * -np.expm1(-self.x * u)
        return np.asarray(up), np.asarray(down)


def paths(table: Table, ask: Shifts, start: Vector) -> tuple[Vector, Vector]:
    r"""Return how far above the pivot each distance $d_j$ begins (last axis), and the last log slope.

    Follows the Euler-Lagrange equations of the best pairing for Gaussian ``V`` with ``table.scale`` for
    $\mu(d)$, from the probit ``start`` of the test at the pivot: $z' = -\mu' u'$,
    $\ln\gamma = -\mu(z + \mu/2)$. A step is guessed with the last rate, then corrected (Newton, once) towards
    cell masses in the ratio $\gamma$. Neither side ever goes back.
    """
    d = np.concatenate([[0.0], table.distance / ask.noise])
    mu = np.concatenate([[0.0], table.scale])
    v, z, speed = np.zeros(start.shape), start, np.full(start.shape, 0.5)
    left, used = ask.beyond(v), ask.within(v)
    result = np.empty((*start.shape, d.size - 1))
    for j in range(1, d.size):
        width, rise, size = d[j] - d[j - 1], mu[j] - mu[j - 1], (mu[j] + mu[j - 1]) / 2
        slope = np.exp(np.clip(-size * (z - rise / 2 * (1 - speed) + size / 2), -_STEEPEST, _STEEPEST))
        guess = v + width * speed
        up, down = ask.densities(guess, d[j] - guess)
        excess = ask.within(d[j] - guess) - used - slope * (left - ask.beyond(guess))
        speed = speed + excess / (down + slope * up + _VANISHING) / width
        speed = np.where(speed > 0, np.minimum(speed, 1.0), 0.0)
        v, z = v + width * speed, z - rise * (1 - speed)
        left, used = ask.beyond(v), ask.within(d[j] - v)
        result[..., j - 1] = v
    return result, np.asarray(-mu[-1] * (z + mu[-1] / 2))


def too_high(table: Table, ask: Shifts, start: Vector) -> NDArray[np.bool_]:
    """Return whether a path from ``start`` leaves more mass below than its last slope can use."""
    result, log_slope = paths(table, ask, start)
    v = result[..., -1]
    u = table.distance[-1] / ask.noise - v
    spare = ask.g * scipy.special.ndtr(ask.pivot - u) - scipy.special.ndtr(ask.pivot - ask.x - u)
    return np.asarray(spare > np.exp(np.minimum(log_slope, _STEEPEST)) * np.maximum(ask.beyond(v), 0.0))


class _Cells(NamedTuple):
    above: Vector  # mass above the pivot, rounded up
    below: Vector  # mass below it, rounded down
    share: Vector  # where in its cell the mean distance lies, rounded up
    above_left: Vector  # beyond the last cell
    below_left: Vector


def bound(table: Table, ask: Shifts, found: Vector) -> Vector:
    """Return the cost of each path's pairing, an upper bound on the supremum for any path; at most 1."""
    with np.errstate(all="ignore"):
        cells = _cells(table.distance / ask.noise, ask, found)
        slopes = np.log(cells.below / cells.above) - _LOG_OFF
        near = (cells.above * table.over_cells(slopes, cells.share)).sum(axis=-1)
        far = cells.above_left * table.at_diameter(np.log(cells.below_left / cells.above_left) - _LOG_OFF)
        total = (near + far) * (1 + ROUNDING) + _VANISHING
    return np.asarray(np.where(total < 1, total, 1.0), dtype=np.float64)  # NaN becomes the trivial bound


def _cells(d: Vector, ask: Shifts, found: Vector) -> _Cells:
    r"""Masses and means of the cells, in closed form, each with its rounding taken outward.

    With $y$ the pivot the density is $\varphi(v + y - x)(1 - e^{-xv})$ at $v$ above it, and minus
    $g\varphi(u - y)(1 - e^{-xu})$ at $u$ below; first moments follow from $t\varphi(t) = -\varphi'(t)$.
    """
    each = Shifts(ask.x[:, None], ask.tilt[:, None], ask.noise)
    x, y, g = each.x, each.pivot, each.g
    ends = np.concatenate([[0.0], d])
    v = np.concatenate([np.zeros((found.shape[0], 1)), found], axis=1)
    u = ends - v
    unit = _UNIT * (1 + 0.1 * (x + y + d[-1]))  # the arguments are rounded too

    ndtr = scipy.special.ndtr
    gain, loss = ndtr(x - y - v), g * ndtr(-y - v)  # above v
    p, p_off = -np.diff(gain - loss, axis=1), unit * (gain + loss)[:, :-1] + _VANISHING
    cost, back = g * ndtr(u - y), ndtr(u - y + x)  # from -infinity of the mirrored line to u
    m, m_off = np.diff(cost - back, axis=1), unit * (cost + back)[:, 1:] + _VANISHING

    up, down = each.densities(v, u)
    mean_v = _mean(-np.diff(up, axis=1) + (x - y) * p - x * np.diff(loss, axis=1), up, unit, x + y, p, p_off)
    mean_u = _mean(-np.diff(down, axis=1) + y * m + x * np.diff(back, axis=1), down, unit, x + y, m, m_off)
    share = (mean_v + mean_u - ends[:-1]) / np.diff(ends) + ROUNDING
    share = np.where(share < 1, np.maximum(share, 0.0), 1.0)

    left = (gain - loss)[:, -1:] + unit * (gain + loss)[:, -1:] + _VANISHING
    spare, other = g * ndtr(y - u[:, -1:]), ndtr(y - x - u[:, -1:])
    spare = spare - other - unit * (spare + other)
    return _Cells(p + p_off, _positive(m - m_off), share, left[:, 0], _positive(spare)[:, 0])


def _mean(moment: Vector, density: Vector, unit: Vector, lever: Vector, mass: Vector, off: Vector) -> Vector:
    """Return first moment over mass, from above: with rounding of densities, and of masses times their lever."""
    slack = 2 * (unit * (density[:, 1:] + density[:, :-1]) + lever * off)
    return np.asarray(np.where(mass > off, (moment + slack) / (mass - off), np.inf))


def _positive(mass: Vector) -> Vector:
    return np.maximum(mass, 1e-300)


_CELLS = (32, 64)  # number of distances in a table: at least, at most
_GRADING = 1.25  # they are denser towards zero, where V has a corner
_FIRST_SLOPES, _SLOPES = 300, 75  # number of slopes of the first table (closed form) and of the others
_TAIL = 7.5  # slopes reach this many deviations; beyond, V is taken as at the end
_WIDEST = 16.0  # mu beyond which a pair counts as distinguished
_HIDDEN = 1e4  # diameters of more deviations than this count as infinite
_LOWEST, _HIGHEST = -12.0, 6.0  # range of the probit of a test at the pivot
_FARTHEST = 40.0  # shifts beyond this (in deviations) are distinguished for certain
_LARGEST_EPSILON = 200.0  # beyond this only the closed form is used


@final
@dataclass(frozen=True, slots=True)
class Transport:
    """Tables for the last 1, 2, ... rounds; made by :func:`transport`.

    ``rates``: Gaussian bounds, mu per unit of distance, for the same rounds. ``tables`` is empty if the domain is too
    wide to help.
    """

    tables: tuple[Table, ...]
    rates: tuple[float, ...]

    def delta(self, epsilon: float, *, gap: float, noise: float, following: int) -> float:
        r"""Return an upper bound on $E_\varepsilon$ of the final laws; ``following`` rounds come after the record's.

        ``gap``: how far the record moves its round; ``noise``: that round's deviation.

        >>> chain = transport([1.0], [1.0], diameter=1.0)
        >>> [round(chain.delta(0.0, gap=1.0, noise=1.0, following=r), 3) for r in (0, 1)]
        [0.383, 0.141]
        """
        check_epsilon(epsilon)
        require(0 <= gap < math.inf, "gap", "be finite and non-negative", gap)
        require(0 < noise < math.inf, "noise", "be finite and positive", noise)
        places = range(len(self.rates) + 1)
        rule = f"be a whole number from 0 to {places[-1]}"
        require(following in places, "following", rule, following, "Build the chain with more rounds.")
        spread = math.hypot(noise, 1 / self.rates[following - 1]) if following else noise
        smooth = math.exp(float(log_theta(epsilon, gap / spread))) * (1 + ROUNDING)
        if not (gap > 0 and following and self.tables and epsilon <= _LARGEST_EPSILON):
            return min(smooth, 1.0)
        return min(smooth, _ask(self.tables[following - 1], epsilon, gap / noise, noise))

    def epsilon(self, delta: float, *, gap: float, noise: float, following: int) -> float:
        """Return the least epsilon at which :meth:`delta` is at most ``delta``, from above; ``inf`` beyond reach.

        >>> chain = transport([1.0], [1.0], diameter=1.0)
        >>> chain.epsilon(1e-5, gap=1.0, noise=1.0, following=1)
        1.323...
        """
        check_delta(delta)

        def log_delta(epsilon: float) -> float:
            value = self.delta(epsilon, gap=gap, noise=noise, following=following)
            return math.log(value) if value > 0 else -math.inf

        return smallest_epsilon(log_delta, delta, tolerance=1e-6)


def transport(
    contractions: Sequence[float], noises: Sequence[float], diameter: float, cells: int | None = None
) -> Transport:
    """Return the chain of the rounds that follow, in order of time; more ``cells`` take more time and are tighter.

    >>> len(transport([1.0, 0.9], [1.0, 2.0], diameter=3.0).tables)
    2
    """
    require(len(contractions) == len(noises), "noises", "be as many as contractions", len(noises))
    for c in contractions:
        require(0 <= c < math.inf, "contractions", "be finite and non-negative", c)
    for sigma in noises:
        require(0 < sigma < math.inf, "noises", "be finite and positive", sigma)
    require(diameter > 0, "diameter", "be positive (infinite without projection)", diameter)
    require(cells is None or cells in range(8, 1001), "cells", "be a whole number from 8 to 1000", cells)
    steps = [(max(c, 1e-6), sigma) for c, sigma in zip(contractions, noises, strict=True)]
    rates: list[float] = []
    for c, sigma in reversed(steps):
        rates.append(c / (math.hypot(sigma, 1 / rates[-1]) if rates else sigma))
    relative = diameter / min(noises, default=math.inf)
    if not 0 < relative <= _HIDDEN:
        return Transport((), tuple(rates))
    number = cells or min(max(_CELLS[0], math.ceil(24 + 8 * relative)), _CELLS[1])
    distance = diameter * (np.arange(1, number + 1) / number) ** _GRADING
    tables: list[Table] = []
    for (c, sigma), rate in zip(reversed(steps), rates, strict=True):
        tables.append(_before(tables[-1], c, sigma, rate) if tables else _last(distance, c / sigma))
    return Transport(tuple(tables), tuple(rates))


def _last(distance: Vector, rate: float) -> Table:
    """Return the table of the last round alone, after which every test is allowed."""
    log_slope = _slopes(distance * rate, _FIRST_SLOPES)
    return _table(distance, log_slope, np.ones(log_slope.shape), rate, rate, 1.0)


def _before(after: Table, c: float, sigma: float, rate: float) -> Table:
    """Return the table with one round put before the rounds of ``after``."""
    x = c * after.distance / sigma
    mu = 2 * math.sqrt(2) * scipy.special.erfinv(np.minimum(_total_variation(after, x, sigma), 1.0))
    log_slope = _slopes(mu, _SLOPES)
    ask = Shifts(np.broadcast_to(x, log_slope.shape).ravel(), (log_slope / x).ravel(), sigma)
    start = _starts(after, log_slope, x, sigma)
    result, _ = paths(after, ask, start.ravel())
    value = bound(after, ask, result).reshape(log_slope.shape)
    return _table(after.distance, log_slope, value, c / sigma, rate, float(after.value[0, -1]))


def _slopes(mu: Vector, number: int) -> Vector:
    """Return logarithms of slopes, from 0 to where V is negligible for a Gaussian pair ``mu`` apart."""
    mu = np.clip(mu, 1e-12, _WIDEST)
    return np.asarray(np.arange(number)[:, None] * (mu * mu / 2 + _TAIL * mu) / (number - 1))


def _table(distance: Vector, log_slope: Vector, value: Vector, lever: float, rate: float, swing: float) -> Table:
    """Take the Gaussian bound where it is better, make ``value`` fall with the slope, and bound the bend.

    ``lever``: shift over noise for a unit of distance; ``swing``: the largest difference of two values of a
    test after this round.
    """
    smooth = np.exp(log_theta(log_slope, rate * distance)) * (1 + ROUNDING)
    value = np.minimum.accumulate(np.minimum(value, smooth), axis=0)
    slope = np.exp(log_slope)
    least = np.full(value.shape, np.inf)  # an upper bound on the smaller probability of the best test
    for back in (1, 2, 4, 8, 16):
        cut = slope[:-back] * np.expm1(back * log_slope[1])
        least[back:] = np.minimum(least[back:], value[:-back] / cut)
    height = np.minimum(value + slope * np.exp(log_slope[1]) * least, swing)
    width = np.diff(distance, prepend=0.0) * lever
    scale = np.minimum(2 * math.sqrt(2) * scipy.special.erfinv(value[0]), _WIDEST)
    return Table(distance, scale, log_slope[1], value, height * width**2 / 8 * (1 + ROUNDING))


def _total_variation(after: Table, x: Vector, sigma: float) -> Vector:
    """Return V at slope 1, roughly, by pairing mirror images; it only sets the grid of slopes."""
    half = np.concatenate([[0.0], after.distance]) / (2 * sigma)
    tests = np.concatenate([[0.0], after.value[0]])
    mass = scipy.special.ndtr(half - x[:, None] / 2) - scipy.special.ndtr(half + x[:, None] / 2)
    inside = (np.diff(mass, axis=1) * (tests[1:] + tests[:-1]) / 2).sum(axis=1)
    return np.asarray(inside - mass[:, -1] * tests[-1])


def _starts(after: Table, log_slope: Vector, x: Vector, sigma: float) -> Vector:
    """Return starts of balanced paths: found by bisection on a coarse lattice, interpolated between."""
    rows = np.unique(np.linspace(0, log_slope.shape[0] - 1, 11).round().astype(np.intp))
    columns = np.unique(np.linspace(0, x.size - 1, 7).round().astype(np.intp))
    some = np.broadcast_to(x[columns], (rows.size, columns.size))
    ask = Shifts(some[..., None], (log_slope[np.ix_(rows, columns)] / some)[..., None], sigma)
    low, width, parts = np.full(some.shape, _LOWEST), _HIGHEST - _LOWEST, 9
    with np.errstate(all="ignore"):
        for _ in range(3):
            width /= parts
            over = too_high(after, ask, low[..., None] + width * np.arange(1, parts))
            low += width * (parts - 1 - over.sum(axis=-1))  # what is too high stays too high further up
    down, across = _weights(rows, log_slope.shape[0]), _weights(columns, x.size)
    return np.asarray(down @ (low + width / 2) @ across.T)


def _weights(knots: NDArray[np.intp], size: int) -> Vector:
    """Return the matrix of linear interpolation from ``knots`` to 0..size-1."""
    hats = np.eye(knots.size)
    return np.stack([np.interp(np.arange(size), knots, hat) for hat in hats], axis=1)


def _ask(table: Table, epsilon: float, x: float, noise: float) -> float:
    """Answer one shift: search for the balanced path, and take the best of its neighbours."""
    if not x <= _FARTHEST:
        return float(table.at_diameter(np.array(epsilon))) * (1 + ROUNDING)

    def ask(number: int) -> Shifts:
        return Shifts(np.full(number, x), np.full(number, epsilon / x), noise)

    with np.errstate(all="ignore"):
        wide = np.linspace(_LOWEST, _HIGHEST, 25)
        over = too_high(table, ask(wide.size), wide)
        edge = int(np.argmax(over)) if over.any() else wide.size - 1
        near = np.linspace(wide[max(edge - 1, 0)], wide[edge], 16)
        result, _ = paths(table, ask(near.size), near)
    return float(bound(table, ask(near.size), result).min())
