r"""One round of noise, bounded by a coupling: $\sup_h \int h\,(\varphi(\cdot - x) - g\varphi)$ from above.

``h`` ranges over tests with $h(y) - \gamma h(y') \le V(\gamma; |y - y'|)$; a :class:`Table` bounds ``V``.
The density changes sign at a pivot. Mass above it, in cells, is paired with mass below it, outwards on
both sides; a cell of mass ``p`` paired with mass ``m`` costs at most ``p V(m/p; d)``. *Any* pairing gives an
upper bound: paths are found roughly, then summed with outward rounding. Theory page: transport.md.
"""

import math
from dataclasses import dataclass, field
from typing import NamedTuple, final

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from fedveil.core.values import Vector
from fedveil.theory.numerics import ROUNDING

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
        found, _ = self.look(np.abs(log_slope), self.step.size - 1)
        return _any_slope(log_slope, found)

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
        return np.asarray(ndtr(self.x - far) - self.g * ndtr(-far))

    def within(self, u: Vector) -> Vector:
        """Return the mass below the pivot that is nearer than ``u``, up to a constant."""
        far = u - self.pivot
        return np.asarray(self.g * ndtr(far) - ndtr(far + self.x))

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
    found = np.empty((*start.shape, d.size - 1))
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
        found[..., j - 1] = v
    return found, np.asarray(-mu[-1] * (z + mu[-1] / 2))


def too_high(table: Table, ask: Shifts, start: Vector) -> NDArray[np.bool_]:
    """Return whether a path from ``start`` leaves more mass below than its last slope can use."""
    found, log_slope = paths(table, ask, start)
    v = found[..., -1]
    u = table.distance[-1] / ask.noise - v
    spare = ask.g * ndtr(ask.pivot - u) - ndtr(ask.pivot - ask.x - u)
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
