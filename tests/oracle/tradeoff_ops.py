r"""Operations on trade-off functions: exchange, subsampling, composition, groups, minimum and maximum.

Every result is exact or lies below the true function. Gaussian functions stay in closed form where the operation allows
it; otherwise they are first replaced by ``size`` tangents. Theory page: trade-off-functions.md.

References:
    [DRS22] Dong, Roth, Su. Gaussian Differential Privacy. J. R. Stat. Soc. B 84(1), 2022.
    van Dijk and Nguyen 2023, sections 4.2 (sampling), 4.3 (composition), 4.6 (groups), 4.7 (Renyi).
"""

import math
from collections.abc import Callable

import numpy as np

from fedveil.core.errors import require
from fedveil.core.values import Vector
from oracle.tradeoff import Curve, GaussianTradeOff, TradeOff, delta_of
from oracle.tradeoff_thin import SIZE, discretise, thin

_LARGEST = 700.0  # exp of this is finite; steeper lines are left out, which is safe
_LEAST = 1e-12  # a log ratio nearer to zero than this is a rounding error
_TIE = 1e-13  # curves nearer than this count as equal, so that rounding does not choose between them

Pair = tuple[Vector, Vector]


def invert(curve: Curve) -> Curve:
    r"""$f^{-1}(\alpha) = \inf\{t : f(t) \le \alpha\}$: null and alternative exchanged."""
    return curve if isinstance(curve, GaussianTradeOff) else TradeOff(curve.q, curve.p)


def weakest(first: Curve, second: Curve, size: int = SIZE) -> Curve:
    r"""$\min\{f, g\}^{**}$: what may be promised when either may be the case.

    >>> weakest(GaussianTradeOff(1.0), GaussianTradeOff(2.0))
    GaussianTradeOff(mu=2.0)
    """
    if isinstance(first, GaussianTradeOff) and isinstance(second, GaussianTradeOff):
        return first if first.mu >= second.mu else second
    f, g = discretise(first, size), discretise(second, size)
    wins = bool(np.max(g.power - g.alpha) > np.max(f.power - f.alpha) + _TIE)
    mirrored = _steep_hull(TradeOff(f.q, f.p), TradeOff(g.q, g.p), wins)
    return _joined(_steep_hull(f, g, wins), mirrored)


def strongest(first: Curve, second: Curve, size: int = SIZE) -> Curve:
    r"""$\max\{f, g\}$: what may be promised when both hold.

    >>> strongest(GaussianTradeOff(1.0), GaussianTradeOff(2.0))
    GaussianTradeOff(mu=1.0)
    """
    if isinstance(first, GaussianTradeOff) and isinstance(second, GaussianTradeOff):
        return first if first.mu <= second.mu else second
    f, g = discretise(first, size), discretise(second, size)
    steep = _both_profiles(f, g)
    flat = _both_profiles(TradeOff(f.q, f.p), TradeOff(g.q, g.p))
    flattest = min(float(steep[1][0]), _gap_at_slope_one(steep, flat))
    steep[1][0] = flat[1][0] = flattest
    return _joined(_under_lines(*steep), _under_lines(*flat))


def symmetrise(curve: Curve, size: int = SIZE) -> Curve:
    r"""$\min\{f, f^{-1}\}^{**}$: one function for both orders of the data sets, ``curve`` holding for one."""
    return weakest(curve, invert(curve), size)


def sharpen(curve: Curve, size: int = SIZE) -> Curve:
    r"""$\max\{f, f^{-1}\}$: what an asymmetric ``curve`` promises when it holds for both orders."""
    return strongest(curve, invert(curve), size)


def subsample(curve: Curve, rate: float, size: int = SIZE) -> Curve:
    r"""$C_p(f) = \min\{f_p, f_p^{-1}\}^{**}$, $f_p = pf + (1-p)\mathrm{Id}$  [van Dijk and Nguyen 2023, section 4.2].

    With Poisson batches and one record added or removed, compose :func:`sampled_one_way` and symmetrise last:
    that is tight, whereas a product of these lets the order of the data sets change from round to round.

    >>> subsample(GaussianTradeOff(1.0), 0.0)
    GaussianTradeOff(mu=0.0)
    """
    return symmetrise(sampled_one_way(curve, rate, size), size)


def sampled_one_way(curve: Curve, rate: float, size: int = SIZE) -> Curve:
    r"""$f_p = pf + (1-p)\mathrm{Id} = T(P, pQ + (1-p)P)$: the record is in the second data set alone."""
    require(0 <= rate <= 1, "rate", "lie between 0 and 1", rate, "Is it a batch size?")
    if rate == 0:
        return GaussianTradeOff(0.0)
    if rate == 1:
        return curve
    f = discretise(curve, size)
    return TradeOff(f.p, rate * f.q + (1 - rate) * f.p)


def tensor(first: Curve, second: Curve, size: int = SIZE) -> Curve:
    r"""$f \otimes g = T(P \times P', Q \times Q')$: both are observed  [van Dijk and Nguyen 2023, section 4.3].

    >>> tensor(GaussianTradeOff(3.0), GaussianTradeOff(4.0))
    GaussianTradeOff(mu=5.0)
    """
    match first, second:
        case GaussianTradeOff(mu=mu), GaussianTradeOff(mu=other):
            return GaussianTradeOff(math.hypot(mu, other))
        case (GaussianTradeOff(mu=0), curve) | (curve, GaussianTradeOff(mu=0)):
            return curve
    f, g = discretise(first, size), discretise(second, size)
    return thin(np.outer(f.p, g.p).ravel(), np.outer(f.q, g.q).ravel(), size)


def tensor_power(curve: Curve, times: int, size: int = SIZE) -> Curve:
    """Return ``times`` copies composed, by repeated squaring."""
    check_count("times", times)
    if isinstance(curve, GaussianTradeOff):
        return GaussianTradeOff(curve.mu * math.sqrt(times))
    return _power(lambda f, g: tensor(f, g, size), curve, times)


def chain(first: Curve, second: Curve, size: int = SIZE) -> Curve:
    r"""$g(1 - f(\alpha))$: from $T(P, R) \ge f$ and $T(R, Q) \ge g$ follows $T(P, Q) \ge$ this.

    The mass of R is cut where either function has a knot; each piece is an atom of the result.
    """
    if isinstance(first, GaussianTradeOff) and isinstance(second, GaussianTradeOff):
        return GaussianTradeOff(first.mu + second.mu)
    f, g = discretise(first, size), discretise(second, size)
    inner, outer = f.q > 0, g.p > 0
    fp, fq, gp, gq = f.p[inner], f.q[inner], g.p[outer], g.q[outer]
    mass, i, j = _common_pieces(fq, gp)
    p = np.concatenate((mass / fq[i] * fp[i], f.p[~inner], np.zeros(int(np.sum(~outer)))))
    q = np.concatenate((mass / gp[j] * gq[j], np.zeros(int(np.sum(~inner))), g.q[~outer]))
    return thin(p, q, size)


def group(curve: Curve, members: int, size: int = SIZE) -> Curve:
    r"""$1 - (1-f)^{\circ g}$: data sets that differ in ``members`` records  [van Dijk and Nguyen 2023, section 4.6].

    >>> group(GaussianTradeOff(0.5), 4)
    GaussianTradeOff(mu=2.0)
    """
    check_count("members", members)
    if isinstance(curve, GaussianTradeOff):
        return GaussianTradeOff(curve.mu * members)
    return _power(lambda f, g: chain(f, g, size), curve, members)


def from_profile(epsilon: Vector, delta: Vector) -> TradeOff:
    r"""Return the largest of the $f_{\varepsilon_i,\delta_i}$: all that finitely many guarantees promise together.

    >>> float(delta_of(from_profile(np.array([0.5, 1.0]), np.array([0.1, 0.01])), 1.0))
    0.01
    """
    e, d = np.asarray(epsilon, dtype=np.float64), np.asarray(delta, dtype=np.float64)
    shaped = e.ndim == 1 and e.size > 0 and e.shape == d.shape
    require(shaped, "delta", "have one value for each epsilon", (e.shape, d.shape))
    ranged = np.all((e >= 0) & (e <= _LARGEST))
    require(ranged, "epsilon", f"lie between 0 and {_LARGEST:g}", e.tolist(), "Leave larger ones out.")
    require(np.all((d >= 0) & (d <= 1)), "delta", "lie between 0 and 1", d.tolist())
    # Each line meets its mirror image on the diagonal; the highest such point bounds total variation.
    flattest = float(np.min(np.tanh(e / 2) + 2 * d / (1 + np.exp(e))))
    order = np.lexsort((d, e))[int(np.sum(e == 0)) :]
    lines = _under_lines(np.append(0.0, e[order]), np.append(flattest, d[order]))
    return _joined(lines, lines)


def zcdp(curve: GaussianTradeOff) -> float:
    r"""$\mu^2/2$: the zero-concentrated privacy of $G_\mu$, exactly  [van Dijk and Nguyen 2023, section 4.7]."""
    return curve.mu**2 / 2


def renyi(curve: GaussianTradeOff, order: float) -> float:
    r"""$\alpha\mu^2/2$: the Renyi divergence of order $\alpha$ between the two laws of $G_\mu$, exactly."""
    require(1 < order < math.inf, "order", "be finite and above 1", order)
    return order * zcdp(curve)


def check_count(name: str, count: int) -> None:
    """Refuse anything but a whole number of at least 1."""
    whole = isinstance(count, int | np.integer) and count >= 1
    require(whole, name, "be a whole number, at least 1", count)


def _power(multiply: Callable[[Curve, Curve], Curve], curve: Curve, times: int) -> Curve:
    if times == 1:
        return curve
    half = _power(multiply, curve, times // 2)
    whole = multiply(half, half)
    return multiply(whole, curve) if times % 2 else whole


def _common_pieces(a: Vector, b: Vector) -> tuple[Vector, Vector, Vector]:
    """Return [0, 1] cut by the partial sums of ``a`` and of ``b``: lengths, and the piece of each they belong to."""
    cuts = a.size - 1 + b.size - 1
    left = np.concatenate((np.cumsum(a)[:-1], np.cumsum(b)[:-1]))
    right = np.concatenate((np.cumsum(a[::-1])[::-1][1:], np.cumsum(b[::-1])[::-1][1:]))
    order = np.lexsort((-right, np.minimum(left, 0.5)))  # near 1 the distance from 1 is more accurate
    of_a = np.append(0, np.cumsum(order < a.size - 1))
    of_b = np.arange(cuts + 1) - of_a
    left = np.concatenate(([0.0], left[order], [1.0]))
    right = np.concatenate(([1.0], right[order], [0.0]))
    lengths = np.where(left[1:] < 0.5, np.diff(left), -np.diff(right))
    return np.maximum(lengths, 0.0), of_a, of_b


def _joined(steep: Pair, flat: Pair) -> TradeOff:
    """Return the atoms steeper than slope -1, those flatter (mirrored), and between them one of ratio 1."""
    (p, q), (q_flat, p_flat) = steep, flat
    rest = 1 - (p.sum() + p_flat.sum() + q.sum() + q_flat.sum()) / 2
    middle = [max(float(rest), 0.0)]
    return TradeOff(np.concatenate((p, middle, p_flat)), np.concatenate((q, middle, q_flat)))


def _steep_hull(f: TradeOff, g: TradeOff, second_at_one: bool) -> Pair:
    """Return the part of the lower hull of both that is steeper than -1, as atoms.

    Between two neighbouring slopes each function has one vertex. The hull takes the lower one in that direction, and
    both if they change places inside. Which is lower at slope -1 is given, so that the steep and the flat half agree.
    """
    falling = _steep_slopes(f, g)[::-1]
    (alpha_f, power_f), (alpha_g, power_g) = _vertices(f, falling), _vertices(g, falling)
    steepness, noise = np.exp(np.append(falling, 0.0)), _TIE * np.maximum(power_f, power_g)
    lower = power_g - steepness * alpha_g > power_f - steepness * alpha_f + noise
    lower[-1] = second_at_one
    upper = np.append(power_g[0] > power_f[0] + noise[0], lower[:-1])
    alpha, power = np.empty(2 * lower.size), np.empty(2 * lower.size)
    for side, second in enumerate((upper, lower)):
        alpha[side::2] = np.where(second, alpha_g, alpha_f)
        power[side::2] = np.where(second, power_g, power_f)
    return np.maximum(np.diff(alpha, prepend=0.0), 0.0), np.maximum(np.diff(power, prepend=0.0), 0.0)


def _vertices(f: TradeOff, falling: Vector) -> Pair:
    """Return the vertex of ``f`` above the first slope, between it and the second, and so on."""
    segments = f.log_ratio[f.log_ratio < np.inf]
    first = np.count_nonzero(segments > _LARGEST)  # so steep that their alpha is negligible
    at = np.append(first, np.searchsorted(-segments, -falling, side="right"))
    return np.where(at > first, f.alpha[at], 0.0), f.power[at]


def _steep_slopes(f: TradeOff, g: TradeOff) -> Vector:
    """Return all slopes of both that are steeper than -1, as increasing logarithms."""
    slopes = np.unique(np.concatenate((f.log_ratio, g.log_ratio)))
    return slopes[(slopes > _LEAST) & (slopes <= _LARGEST)]


def _both_profiles(f: TradeOff, g: TradeOff) -> Pair:
    """Return the lesser delta of both at every epsilon where one of them has a knot, from 0 upwards."""
    epsilon = np.append(0.0, _steep_slopes(f, g))
    return epsilon, np.minimum(delta_of(f, epsilon), delta_of(g, epsilon))


def _gap_at_slope_one(steep: Pair, flat: Pair) -> float:
    """Return the least total variation that one steep and one flat line allow together."""
    (e1, d1), (e2, d2) = ((e[(e > 0) & (e < 300)], d[(e > 0) & (e < 300)]) for e, d in (steep, flat))
    if e1.size == 0 or e2.size == 0:
        return 1.0
    x, y = np.expm1(e1)[:, None], np.expm1(e2)
    return float(np.min((x * (y + d2) + y * d1[:, None]) / (x * y + x + y)))


def _under_lines(epsilon: Vector, delta: Vector) -> Pair:
    r"""Atoms of $\max_i 1 - \delta_i - e^{\varepsilon_i}\alpha$, for increasing epsilons."""
    u, d = np.expm1(epsilon), np.minimum.accumulate(delta)
    # A line too near to slope -1 has no well-defined crossing with it: leave it out.
    useful = np.concatenate(([True], (np.diff(d) < 0) & (np.diff(u) > 0) & (u[1:] > 1e-6 * d[0])))
    u, d, keep = u[useful], d[useful], np.zeros(1, dtype=np.bool_)
    while not keep.all():
        crossing = -np.diff(d) / np.diff(u)  # where a line meets the next; unless it falls, a line never counts
        keep = np.concatenate(([True], np.diff(crossing) < 0, [True]))[: u.size]
        u, d = u[keep], d[keep]
    alpha = np.append(-np.diff(d) / np.diff(u), 0.0)
    power = d + (1 + u) * alpha
    return np.diff(alpha[::-1], prepend=0.0), np.maximum(np.diff(power[::-1], prepend=0.0), 0.0)
