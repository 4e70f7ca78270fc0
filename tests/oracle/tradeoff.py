r"""Trade-off functions: the least type II error $f(\alpha)$ of a test whose type I error is at most $\alpha$.

A piecewise-linear one is held as the finite pair of laws it belongs to, ``p`` (null) and ``q`` (alternative),
one atom a segment: tails keep their relative accuracy, and any pair of laws is valid. A smaller function
means less privacy, so every approximation is from below. Theory page: trade-off-functions.md.

References:
    [DRS22] Dong, Roth, Su. Gaussian Differential Privacy. J. R. Stat. Soc. B 84(1), 2022.
    van Dijk and Nguyen 2023, section 4, with the corrections of the theory page.
"""

import math
from dataclasses import dataclass, field
from typing import final

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit, ndtr, ndtri

from fedveil.core.errors import require
from fedveil.core.values import Vector
from fedveil.theory.divergence import log_gaussian_delta, log_theta
from fedveil.theory.numerics import LARGEST_EPSILON, check_delta, check_epsilon, smallest_epsilon

_SUM = 1e-9  # how far masses may be from summing to 1


@final
@dataclass(frozen=True, slots=True, eq=False)
class TradeOff:
    """``T(p, q)``: convex, non-increasing, piecewise linear; atoms may be given in any order.

    ``alpha``, ``beta``: the knots, from ``(0, f(0))`` to ``(1, 0)``; ``power``: ``1 - beta``, summed from the
    left, so that it is accurate where it is small; ``log_ratio``: ``log(q/p)`` of the atoms, largest first.

    >>> TradeOff(np.array([0.5, 0.5]), np.array([0.25, 0.75])).beta
    array([1.  , 0.25, 0.  ])
    """

    p: Vector
    q: Vector
    log_ratio: Vector = field(init=False, repr=False)
    alpha: Vector = field(init=False, repr=False)
    beta: Vector = field(init=False, repr=False)
    power: Vector = field(init=False, repr=False)

    def __post_init__(self) -> None:
        p, q = (_law(name, law) for name, law in (("TradeOff.p", self.p), ("TradeOff.q", self.q)))
        require(p.shape == q.shape, "TradeOff.q", f"have the shape of p, {p.shape}", q.shape)
        kept = (p > 0) | (q > 0)
        ratio = log_ratio(p[kept], q[kept])
        order = np.argsort(-ratio, kind="stable")
        p, q, ratio = p[kept][order], q[kept][order], ratio[order]
        rise = int(np.count_nonzero(ratio == np.inf))  # the vertical part at alpha = 0 is not a segment
        power = np.minimum(np.concatenate(([0.0], np.cumsum(q))), 1.0)[rise:]
        alpha = np.minimum(np.concatenate(([0.0], np.cumsum(p))), 1.0)[rise:]
        beta = np.minimum(np.concatenate((np.cumsum(q[::-1])[::-1], [0.0])), 1.0)[rise:]
        alpha[-1] = 1.0
        named = {"p": p, "q": q, "log_ratio": ratio, "alpha": alpha, "beta": beta, "power": power}
        for name, value in named.items():
            value.setflags(write=False)
            object.__setattr__(self, name, value)


@final
@dataclass(frozen=True, slots=True)
class GaussianTradeOff:
    r"""$G_\mu(\alpha) = \Phi(\Phi^{-1}(1-\alpha) - \mu)$: two normal laws ``mu`` standard deviations apart.

    >>> float(evaluate(GaussianTradeOff(1.0), 0.05))
    0.74048897...
    """

    mu: float

    def __post_init__(self) -> None:
        hint = "Without any privacy use approximate_dp(0.0, 1.0)."
        require(0 <= self.mu < math.inf, "GaussianTradeOff.mu", "be finite and non-negative", self.mu, hint)


Curve = TradeOff | GaussianTradeOff


def _law(name: str, masses: Vector) -> Vector:
    law = np.array(masses, dtype=np.float64)
    require(law.ndim == 1 and law.size > 0, name, "be a vector of masses", law.shape)
    total = float(law.sum())
    good = np.all(law >= 0) and abs(total - 1) < _SUM
    require(good, name, "be non-negative and sum to 1", f"sum {total!r}, least {float(law.min())!r}")
    return np.asarray(law / total, dtype=np.float64)


def log_ratio(p: Vector, q: Vector) -> Vector:
    """Return ``log(q/p)``, infinite where one of them is zero; not both may be zero."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(q) - np.log(p), dtype=np.float64)


def approximate_dp(epsilon: float, delta: float) -> TradeOff:
    r"""$\max\{0, 1-\delta-e^\varepsilon\alpha, e^{-\varepsilon}(1-\delta-\alpha)\}$
    [van Dijk and Nguyen 2023, section 4].

    >>> approximate_dp(0.0, 0.25).beta
    array([0.75 , 0.375, 0.   , 0.   ])
    """
    check_epsilon(epsilon)
    require(0 <= delta <= 1, "delta", "lie between 0 and 1", delta)
    rare, usual = (1 - delta) * float(expit(-epsilon)), (1 - delta) * float(expit(epsilon))
    return TradeOff(np.array([0.0, rare, usual, delta]), np.array([delta, usual, rare, 0.0]))


def through(alpha: Vector, beta: Vector) -> TradeOff:
    """Return the function through these knots, which must run from ``(0, f(0))`` to ``(1, 0)`` and be convex.

    >>> float(evaluate(through(np.array([0.0, 0.25, 1.0]), np.array([1.0, 0.25, 0.0])), 0.125))
    0.625
    """
    x, y = np.asarray(alpha, dtype=np.float64), np.asarray(beta, dtype=np.float64)
    shaped = x.ndim == 1 and x.size >= 2 and x.shape == y.shape
    require(shaped, "beta", "have one value for each of at least two knots", (x.shape, y.shape))
    step, drop = np.diff(x), -np.diff(y)
    spans = x[0] == 0 and x[-1] == 1 and np.all(step > 0)
    require(spans, "alpha", "increase from 0 to 1", x.tolist())
    falls = y[0] <= 1 and y[-1] == 0 and np.all(drop >= 0)
    require(falls, "beta", "start at most at 1, not increase, and end at 0", y.tolist())
    slope = drop / step
    convex = np.all(slope[1:] <= slope[:-1] * (1 + _SUM) + _SUM)
    require(convex, "beta", "be convex in alpha", y.tolist(), "Take the lower convex hull first.")
    return TradeOff(np.concatenate(([0.0], step)), np.concatenate(([1 - y[0]], drop)))


def evaluate(curve: Curve, alpha: ArrayLike) -> Vector:
    """Return the least type II error at each type I error ``alpha``."""
    x = np.asarray(alpha, dtype=np.float64)
    require(np.all((x >= 0) & (x <= 1)), "alpha", "lie between 0 and 1", alpha)
    match curve:
        case GaussianTradeOff(mu=mu):
            return np.asarray(ndtr(-ndtri(x) - mu), dtype=np.float64)
        case TradeOff():
            return np.asarray(np.interp(x, curve.alpha, curve.beta), dtype=np.float64)


def delta_of(curve: Curve, epsilon: ArrayLike) -> Vector:
    r"""$\delta(\varepsilon) = \sup_\alpha 1 - f(\alpha) - e^\varepsilon\alpha = E_\varepsilon(Q\|P)$.

    >>> float(delta_of(approximate_dp(1.0, 1e-5), 1.0))
    1e-05
    """
    e = np.asarray(epsilon, dtype=np.float64)
    require(np.all((e >= 0) & (e < np.inf)), "epsilon", "be finite and non-negative", epsilon)
    match curve:
        case GaussianTradeOff(mu=mu):
            return np.asarray(np.exp(log_theta(e, mu)), dtype=np.float64)
        case TradeOff():
            segments = curve.log_ratio[curve.log_ratio < np.inf]
            vertex = np.searchsorted(-segments, -e, side="left")  # the last with a steeper segment before it
            with np.errstate(divide="ignore"):
                cost = np.exp(np.minimum(e + np.log(curve.alpha[vertex]), 1.0))
            return np.asarray(np.clip(curve.power[vertex] - cost, 0.0, 1.0), dtype=np.float64)


def epsilon_of(curve: Curve, delta: float) -> float:
    """Return the least epsilon with ``delta_of(curve, epsilon) <= delta``, from above; ``inf`` if there is none.

    >>> round(epsilon_of(GaussianTradeOff(1.0), 1e-5), 5)
    4.37718
    """
    check_delta(delta)
    match curve:
        case GaussianTradeOff(mu=mu):
            return smallest_epsilon(lambda e: log_gaussian_delta(e, mu), delta)
        case TradeOff(alpha=alpha, power=power):
            if power[0] > delta:
                return math.inf
            above = power > delta
            if not above.any():
                return 0.0
            # delta_of is the largest of the lines power - exp(epsilon) alpha: solve each and keep the worst.
            worst = float(np.max(np.log(power[above] - delta) - np.log(alpha[above])))
            least = max(worst, 0.0) * (1 + 1e-12) + (1e-12 if worst > 0 else 0.0)
            return least if least <= LARGEST_EPSILON else math.inf
