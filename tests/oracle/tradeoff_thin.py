"""Fewer segments, from below: replace a trade-off function by the largest of some of its tangents.

Every atom is split between two neighbouring likelihood ratios; joining atoms instead would be post-processing and would
promise too much. Theory page: trade-off-functions.md.

References:
    [DGKKM22] Doroshenko, Ghazi, Kamath, Kumar, Manurangsi. Connect the Dots: Tighter Discrete Approximations
        of Privacy Loss Distributions. PoPETs 2022(4).
"""

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtr, ndtri

from fedveil.core.errors import require
from fedveil.core.values import Vector
from oracle.tradeoff import Curve, GaussianTradeOff, TradeOff, log_ratio

SIZE = 1000  # segments kept by default
_REACH = 9.5  # normal scores kept on each side; a tail beyond has mass 1e-21


def discretise(curve: Curve, size: int = SIZE) -> TradeOff:
    r"""At most about ``size`` segments, from below: $G_\mu$ by tangents, dense in both tails down to 1e-21.

    >>> discretise(GaussianTradeOff(0.0)).beta
    array([1., 0.])
    """
    require(size >= 8, "size", "be at least 8", size)
    match curve:
        case TradeOff():
            return thin(curve.p, curve.q, size) if curve.p.size > size else curve
        case GaussianTradeOff(mu=mu):
            if mu == 0:
                return TradeOff(np.ones(1), np.ones(1))
            grid, step = np.linspace(-_REACH, _REACH, size // 2, retstep=True)
            x = np.unique(np.concatenate((grid, grid + mu + step / 2)))
            edges = mu * x - mu * mu / 2
            apart = np.concatenate(([True], np.diff(edges) > 0))
            x, edges = x[apart], edges[apart]
            return spread(_normal_bins(x), _normal_bins(x - mu), edges)


def _normal_bins(x: Vector) -> Vector:
    """Return the masses of the standard normal between the points, and outside of them, by the nearer tail."""
    ends = np.concatenate(([-np.inf], x, [np.inf]))
    low, high = ends[:-1], ends[1:]
    flip = low > 0
    near, far = np.where(flip, -low, high), np.where(flip, -high, low)
    return np.asarray(np.exp(log_ndtr(near)) * -np.expm1(log_ndtr(far) - log_ndtr(near)), dtype=np.float64)


def thin(p: Vector, q: Vector, size: int = SIZE) -> TradeOff:
    """Return ``T(p, q)`` from below with about ``size`` segments; exact if no more ratios are distinct."""
    kept = (p > 0) | (q > 0)
    p, q = p[kept], q[kept]
    s = log_ratio(p, q)
    finite = np.isfinite(s)
    if not finite.any():
        return TradeOff(p, q)
    order = np.argsort(s[finite])
    sorted_s, sorted_p, sorted_q = s[finite][order], p[finite][order], q[finite][order]
    grid = _apart(sorted_s)
    if grid.size > size:
        points = [_quantiles(sorted_s, masses, size // 2) for masses in (sorted_p, sorted_q)]
        grid = _apart(np.sort(np.concatenate((sorted_s[[0, -1]], *points))))
    if grid[-1] < sorted_s[-1]:  # the largest ratio must stay, otherwise its mass would move to infinity
        grid = np.append(grid[:-1], sorted_s[-1]) if grid.size > 1 else sorted_s[-1:]
    return spread(p, q, grid)


def _apart(s: Vector) -> Vector:
    """Return sorted values, the least of each cell of width 1e-12, since smaller differences are rounding errors."""
    return s[np.concatenate(([True], np.diff(np.floor(s * 1e12)) > 0))]


def _quantiles(s: Vector, masses: Vector, count: int) -> Vector:
    """Return values of ``s`` at evenly spaced normal scores of the masses, so that tails get as many as the middle."""
    left, right = np.cumsum(masses), np.cumsum(masses[::-1])  # each tail by its own sum
    low = np.clip(ndtri(min(left[0], 0.5)), -_REACH, 0.0)
    high = np.clip(-ndtri(min(right[0], 0.5)), 0.0, _REACH)
    scores = np.linspace(low, high, count)
    lower = np.searchsorted(left, ndtr(scores[scores < 0]))
    upper = s.size - 1 - np.searchsorted(right, ndtr(-scores[scores >= 0]))
    return s[np.clip(np.concatenate((lower, upper)), 0, s.size - 1)]


def spread(p: Vector, q: Vector, grid: Vector) -> TradeOff:
    r"""Split every atom between the two neighbouring log ratios of ``grid``, keeping its ``p`` and its ``q``.

    The result lies below ``T(p, q)`` and touches it where the slope is $-e^s$, ``s`` in ``grid``: it is the
    largest of those tangents. Between ends $s_0 \le s \le s_1$, with $A = 1-e^{s_0-s}$, $B = 1-e^{s-s_1}$ and
    $C = 1-e^{s_0-s_1}$: $p_0 = pB/C$, $p_1 = pe^{s-s_1}A/C$, $q_0 = qe^{s_0-s}B/C$, $q_1 = qA/C$.
    """
    kept = (p > 0) | (q > 0)
    p, q = p[kept], q[kept]
    s = log_ratio(p, q)
    ends = np.concatenate(([-np.inf], grid, [np.inf]))
    finite = np.isfinite(s)
    x = s[finite]
    lower = np.searchsorted(grid, x, side="right")  # the end at or below x, as an index into ends
    s0, s1 = ends[lower], ends[lower + 1]
    a, b, c = -np.expm1(s0 - x), -np.expm1(x - s1), -np.expm1(s0 - s1)
    where = np.concatenate((lower, lower + 1, np.where(s[~finite] > 0, ends.size - 1, 0)))
    new_p = np.concatenate((p[finite] * b / c, p[finite] * np.exp(x - s1) * a / c, p[~finite]))
    new_q = np.concatenate((q[finite] * np.exp(s0 - x) * b / c, q[finite] * a / c, q[~finite]))
    return TradeOff(_sums(where, new_p, ends.size), _sums(where, new_q, ends.size))


def _sums(where: NDArray[np.intp], masses: Vector, count: int) -> Vector:
    return np.asarray(np.bincount(where, masses, minlength=count), dtype=np.float64)
