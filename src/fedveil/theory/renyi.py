r"""Renyi divergences, and their lossless conversion to and from (epsilon, delta).

``alpha > 1``: the order; ``zeta``: a bound on $D_\alpha$; ``a = alpha - 1``. Page: renyi-conversion.md.

Every conversion evaluates one inequality, true for all $0 \le y < x$ because the convex $t^\alpha$ lies above
its tangents at ``y`` and ``x``, which cross at $\Gamma$:
$e^{a\zeta} \ge B(y) + A(x, y)\,E_{\ln\Gamma(x, y)}$ with $B = \alpha y^a - a y^\alpha$,
$A = \alpha (x^a - y^a)$, $\Gamma = a (x^\alpha - y^\alpha) / A$. The best ``x, y`` give the lossless value;
any others give a weaker, still valid one, so where the search stops decides tightness and never safety.
Below, $y = e^{-w}$ and $x = e^s y$.

References:
    [ALCKS21] Asoodeh, Liao, Calmon, Kosut, Sankar. Three Variants of Differential Privacy. 2021.
    [M17] Mironov. Renyi Differential Privacy. CSF 2017.
    [MTZ19] Mironov, Talwar, Zhang. Renyi Differential Privacy of the Sampled Gaussian Mechanism. 2019.
    [A16] Abadi et al. Deep Learning with Differential Privacy. CCS 2016.
    [FMTT18] Feldman, Mironov, Talwar, Thakurta. Privacy Amplification by Iteration. FOCS 2018.
    [ADC20] Asoodeh, Diaz, Calmon. Privacy Amplification of Iterative Algorithms via Contraction Coefficients.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
import scipy
from numpy.typing import ArrayLike

from fedveil.core.errors import require
from fedveil.theory.numerics import ROUNDING, check_delta, check_epsilon, log_sum

LARGEST_SAMPLED_ORDER = 10_000  # beyond this, the rounding error of the binomial sum exceeds ROUNDING
_ULPS = 8 * 2.0**-52  # each logarithm below is a few roundings of the terms it names
_STEPS = 56  # bisections of a bracket in log scale; the bound is flat at its optimum
# After so many bisections an order lies this much, relatively, above its end at most (measured: a hundredth of it); one
# that is farther behind the best is given up.
_EPSILON_HEATS = ((8, 0.1), (14, 1e-3), (24, 1e-6))
_DELTA_HEATS = ((20, 5e-2), (32, 1e-5))


def check_order(alpha: float) -> None:
    """Refuse a number that is not a Renyi order here."""
    hint = "Order 1 is Kullback-Leibler, infinity is pure privacy: neither converts this way."
    require(1 < alpha < math.inf, "alpha", "be finite and above 1", alpha, hint)


def check_zeta(zeta: float) -> None:
    """Refuse a number that is not a bound on a divergence; ``inf`` promises nothing and is allowed."""
    require(zeta >= 0, "zeta", "be non-negative", zeta, "It bounds a Renyi divergence.")


def least_epsilon(alpha: float, zeta: float, delta: float) -> float:
    r"""Return the least epsilon with which every $(\alpha, \zeta)$-RDP mechanism is (epsilon, delta)-DP, from above.

    >>> round(least_epsilon(2, 0.1, 1e-5), 5), round(least_epsilon(10, 1.0, 1e-5), 6)
    (7.87484, 1.917997)
    """
    return _ended(_begin_epsilon(alpha, zeta, delta))


def _begin_epsilon(alpha: float, zeta: float, delta: float) -> "float | _Search":
    """Return the least epsilon where it has a closed form, and else the search for it."""
    check_order(alpha)
    check_zeta(zeta)
    check_delta(delta)
    if zeta == 0 or zeta == math.inf:
        return zeta
    if alpha * delta >= 1:
        value = zeta + math.log1p(-delta)
        return max(0.0, value + _ULPS * (zeta + abs(value)))

    def value_of(bounds: list[float]) -> float:
        return max(0.0, min(bounds, default=math.inf))

    return _Search(lambda w: _epsilon_at(alpha, zeta, delta, w), delta, alpha, value_of)


def least_delta(alpha: float, zeta: float, epsilon: float) -> float:
    r"""Return the least delta with which every $(\alpha, \zeta)$-RDP mechanism is (epsilon, delta)-DP, from above.

    >>> f"{least_delta(10, 1.0, 1.917997):.4e}", least_delta(10, 0.0, 0.0)
    ('1.0000e-05', 0.0)
    """
    return _ended(_begin_delta(alpha, zeta, epsilon))


def _begin_delta(alpha: float, zeta: float, epsilon: float) -> "float | _Search":
    """Return the least delta where it has a closed form, and else the search for it."""
    check_order(alpha)
    check_zeta(zeta)
    check_epsilon(epsilon)
    if zeta == 0:
        return 0.0
    if zeta == math.inf:
        return 1.0
    if epsilon - zeta <= math.log1p(-1 / alpha):  # here delta >= 1/alpha
        return min(1.0, _ULPS - math.expm1(epsilon - zeta - _ULPS * (epsilon + zeta)))

    def value_of(bounds: list[float]) -> float:
        return max(math.exp(min([0.0, *bounds])), 2.0**-1022)  # an underflow does not prove zero

    return _Search(lambda t: _log_delta_at(alpha, zeta, epsilon, epsilon + t), 1e-32, alpha, value_of)


def largest_zeta(alpha: float, epsilon: float, delta: float) -> float:
    r"""Return the largest zeta at which $(\alpha, \zeta)$-RDP implies (epsilon, delta)-DP, from below [ALCKS21].

    >>> round(largest_zeta(2, 7.87484, 1e-5), 5), round(largest_zeta(2, 1.0, 0.5), 6)
    (0.1, 1.693147)
    """
    check_order(alpha)
    check_epsilon(epsilon)
    check_delta(delta)
    if alpha * delta >= 1:
        value = epsilon - math.log1p(-delta)
        return max(0.0, value - _ULPS * value)

    def value_of(bounds: list[float]) -> float:
        return max([0.0, *bounds])

    return _Search(lambda t: _zeta_at(alpha, epsilon, delta, epsilon + t), delta, alpha, value_of).after(_STEPS)


def closed_epsilon(alpha: float, zeta: float, delta: float) -> float:
    r"""Return a closed upper bound on :func:`least_epsilon` [ALCKS21]; exact when $\alpha\delta \ge 1$.

    >>> round(closed_epsilon(2, 0.1, 1e-5), 4), round(closed_epsilon(10, 1.0, 1e-5), 6)
    (8.5678, 1.918011)
    """
    check_order(alpha)
    check_zeta(zeta)
    check_delta(delta)
    if zeta == 0 or zeta == math.inf:
        return zeta
    a, moment = alpha - 1, max((alpha - 1) * zeta, 2.0**-1022)
    if alpha * delta >= 1:
        return max(0.0, zeta + math.log1p(-delta))
    log_h = -math.log(alpha) + a * math.log1p(-1 / alpha)
    power = moment - math.log(delta) + log_h
    chi = _log1p_exp(moment + math.log(_em(moment)) - math.log(alpha * delta))
    return max(0.0, min(power, chi) / a)


def mironov_epsilon(alpha: float, zeta: float, delta: float) -> float:
    r"""$\zeta + \ln(1/\delta)/(\alpha - 1)$  [M17]; for figures.

    >>> round(mironov_epsilon(2, 0.1, 1e-5), 4), round(mironov_epsilon(10, 1.0, 1e-5), 6)
    (11.6129, 2.279214)
    """
    check_order(alpha)
    check_zeta(zeta)
    check_delta(delta)
    return zeta - math.log(delta) / (alpha - 1)


def _epsilon_at(alpha: float, zeta: float, delta: float, w: float) -> tuple[float, bool]:
    """Return epsilon proved by tangents at ``w`` and where zeta is used up, and whether ``w`` should grow."""
    a = alpha - 1
    log_gap, moment = _log_gap(a, zeta, w), a * zeta
    log_step = log_gap - math.log(delta) - math.log(alpha)  # log of x^a - y^a
    a_s = _log1p_exp(log_step + a * w)
    s, share = a_s / a, _em(a_s)
    log_x = (max(log_step, -a * w) + math.log1p(math.exp(-abs(log_step + a * w)))) / a
    epsilon = log_x + _bend(alpha, s)
    size = share / a * (abs(log_gap) - math.log(delta) + math.log(alpha) + moment + 2)
    slack = _ULPS * (1 + abs(epsilon) + min(w, s + abs(log_x)) + size)
    return epsilon + slack, _widen(alpha, delta, s, w)


def _log_delta_at(alpha: float, zeta: float, epsilon: float, s: float) -> tuple[float, bool]:
    """Return log delta proved by tangents ``s`` apart that cross at epsilon, and whether ``s`` should grow."""
    a = alpha - 1
    w, log_x, log_share = _crossing(alpha, epsilon, s)
    if not w > 0:
        return 0.0, True
    log_gap = _log_gap(a, zeta, w)
    log_delta = log_gap - math.log(alpha) - a * log_x - log_share
    slack = _ULPS * (2 + a * (zeta + abs(log_x)) + abs(log_gap) + math.log(alpha) + abs(log_share))
    return log_delta + slack, _widen(alpha, math.exp(min(log_delta, 1.0)), s, w)


def _zeta_at(alpha: float, epsilon: float, delta: float, s: float) -> tuple[float, bool]:
    """Return zeta forced on a pair with that delta by tangents ``s`` apart, and whether ``s`` should grow."""
    a = alpha - 1
    w, log_x, log_share = _crossing(alpha, epsilon, s)
    if not w > 0:
        return 0.0, True
    log_term = math.log(delta) + math.log(alpha) + a * log_x + log_share  # log of delta A(x, y)
    log_term -= _ULPS * (2 - math.log(delta) + math.log(alpha) + a * abs(log_x) + abs(log_share))
    if log_term > 30:
        log_moment = log_term  # B >= 0 is dropped: it is below one part in 1e13
    else:
        excess = math.exp(log_term) - _missing(alpha, w) * (1 + 2 * _ULPS)
        log_moment = math.log1p(max(excess, 0.0))  # a pair of tangents that proves nothing gives zero
    return log_moment / a - _ULPS * abs(log_moment / a), _widen(alpha, delta, s, w)


def _crossing(alpha: float, epsilon: float, s: float) -> tuple[float, float, float]:
    """Return ``w``, log x and log(1 - (y/x)^a) of the tangents ``s`` apart that cross slightly below epsilon."""
    bend, hair = _bend(alpha, s), _ULPS * (1 + epsilon)
    return s + bend - epsilon + hair, epsilon - bend - hair, math.log(_em((alpha - 1) * s))


class _Search:
    """A bisection in log scale for the best tangents, taken up where it stopped; every step proves a bound."""

    def __init__(
        self,
        bound_at: Callable[[float], tuple[float, bool]],
        least: float,
        alpha: float,
        value_of: Callable[[list[float]], float],
    ) -> None:
        self._bound_at, self._value_of = bound_at, value_of
        self._low, self._high = math.log(least), math.log(_widest(alpha))
        self._steps, self._bounds = 0, list[float]()

    def after(self, steps: int) -> float:
        """Return the best value met in this many steps, without NaNs."""
        for _ in range(self._steps, steps):
            middle = (self._low + self._high) / 2
            bound, widen = self._bound_at(math.exp(middle))
            if not math.isnan(bound):
                self._bounds.append(bound)
            self._low, self._high = (middle, self._high) if widen else (self._low, middle)
        self._steps = max(steps, self._steps)
        return self._value_of(self._bounds)


def _ended(search: float | _Search) -> float:
    return search.after(_STEPS) if isinstance(search, _Search) else search


def _widen(alpha: float, delta: float, s: float, w: float) -> bool:
    """Return whether better tangents lie farther apart: the sign of the derivative, which changes once."""
    return alpha * delta * _em(s) * _em((alpha - 1) * s) > _missing(alpha, s) * _em(w)


def _widest(alpha: float) -> float:
    """Return where y^a has underflowed, so that wider tangents change nothing."""
    return 800 / min(alpha - 1, 1.0)


def _log_gap(a: float, zeta: float, w: float) -> float:
    """Return the log of e^(a zeta) - B(y), as a sum of positive terms."""
    moment = a * zeta
    return moment if moment > 700 else math.log(math.expm1(moment) + _missing(a + 1, w))


def _bend(alpha: float, s: float) -> float:
    """Return the log of Gamma/x, from 0 at s = 0 down to log(1 - 1/alpha)."""
    a = alpha - 1
    return math.log(a * _em(alpha * s) / (alpha * _em(a * s)))


def _missing(alpha: float, w: float) -> float:
    """Return 1 - B(e^-w) >= 0, by how much the tangent at e^-w passes below the point (1, 1)."""
    a, z = alpha - 1, alpha * w
    if z >= 0.5:
        return _em(a * w) - a * math.exp(-a * w) * _em(w)
    log_alpha, power, total = math.log1p(a), z, 0.0
    for j in range(2, 20):  # e^-z sum over j of (alpha^j - alpha) w^j / j!, all positive
        power *= z / j
        total += power * _em((j - 1) * log_alpha)
        if power < 1e-18 * total:
            break
    return math.exp(-z) * total


def _em(x: float) -> float:
    return -math.expm1(-x)


def _log1p_exp(x: float) -> float:
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


def epsilon_over_orders(orders: ArrayLike, zetas: ArrayLike, delta: float) -> tuple[float, float]:
    """Return the least epsilon over several orders, from above, and the order that gives it.

    Each zeta is taken as larger by ``ROUNDING``, which covers the rounding of the divergences in this module.

    >>> epsilon_over_orders([2, 10], [0.1, 0.5], 1e-5)
    (1.41677..., 10.0)
    """
    return _over_orders(orders, zetas, lambda alpha, zeta: _begin_epsilon(alpha, zeta, delta), _EPSILON_HEATS)


def delta_over_orders(orders: ArrayLike, zetas: ArrayLike, epsilon: float) -> tuple[float, float]:
    """Return the least delta over several orders, from above, and the order that gives it.

    >>> delta_over_orders([2, 10], [0.1, 0.5], 1.42)
    (9.7135...e-06, 10.0)
    """
    return _over_orders(orders, zetas, lambda alpha, zeta: _begin_delta(alpha, zeta, epsilon), _DELTA_HEATS)


def _over_orders(
    orders: ArrayLike,
    zetas: ArrayLike,
    begin: Callable[[float, float], float | _Search],
    heats: Sequence[tuple[int, float]],
) -> tuple[float, float]:
    """Return the least value and its order. Orders that lie far behind after a few steps are not searched to the end.

    Leaving an order out is as safe as never having asked for it.
    """
    alphas, bounds = np.asarray(orders, dtype=np.float64), np.asarray(zetas, dtype=np.float64)
    paired = alphas.ndim == 1 and alphas.size > 0 and alphas.shape == bounds.shape
    require(paired, "zetas", f"pair with the orders, shape {alphas.shape}", bounds.shape)
    inflated = (bounds * (1 + ROUNDING)).tolist()
    running = [(begin(alpha, zeta), alpha) for alpha, zeta in zip(alphas.tolist(), inflated, strict=True)]
    for steps, margin in heats:
        found = [one.after(steps) if isinstance(one, _Search) else one for one, _ in running]
        enough = min(found) * (1 + margin)
        running = [one for one, value in zip(running, found, strict=True) if value <= enough]
    return min((_ended(one), alpha) for one, alpha in running)


# The divergences that follow have a relative error below ROUNDING.


def renyi_gaussian(alpha: float, r: float) -> float:
    r"""$\alpha r^2/2$ for Gaussians of equal covariance, means ``r`` standard deviations apart [M17]."""
    check_order(alpha)
    require(0 <= r < math.inf, "r", "be finite and non-negative", r)
    return alpha * r * r / 2


def renyi_laplace(alpha: float, r: float) -> float:
    r"""$\ln\{(\alpha e^{(\alpha-1)r}+(\alpha-1)e^{-\alpha r})/(2\alpha-1)\}/(\alpha-1)$  [M17].

    For one-dimensional Laplace laws ``r`` scales apart.

    >>> round(renyi_laplace(2, 1.0), 6)
    0.619124
    """
    check_order(alpha)
    require(0 <= r < math.inf, "r", "be finite and non-negative", r)
    a, both = alpha - 1, 2 * alpha - 1
    if alpha * r < 0.25:  # the first order cancels, so the series of the rest is summed
        power, total = alpha * r, 0.0
        for j in range(2, 16):
            power *= alpha * r / j
            total += power * ((a / alpha) ** (j - 1) + (-1) ** j)
        return math.log1p(a / both * total) / a
    if a * r > 1:
        return r + (math.log(alpha / both) + math.log1p(a / alpha * math.exp(-both * r))) / a
    return math.log1p((alpha * math.expm1(a * r) - a * _em(alpha * r)) / both) / a


def renyi_sampled_gaussian(alpha: int, q: float, sigma: float) -> float:
    r"""Poisson-sampled Gaussian, add or remove one, sensitivity 1, noise ``sigma``, rate ``q`` [MTZ19].

    $\ln\{1 + \sum_{k=2}^{\alpha}\binom{\alpha}{k}(1-q)^{\alpha-k}q^k(e^{k(k-1)/2\sigma^2}-1)\}/(\alpha-1)$:
    the binomial weights sum to 1, and taking that 1 out leaves positive terms only.

    >>> round(renyi_sampled_gaussian(8, 0.01, 1.0), 8), renyi_sampled_gaussian(8, 1.0, 2.0)
    (0.00089364, 1.0)
    """
    whole = 2 <= alpha <= LARGEST_SAMPLED_ORDER and alpha % 1 == 0
    require(whole, "alpha", f"be a whole number from 2 to {LARGEST_SAMPLED_ORDER}", alpha)
    require(0 <= q <= 1, "q", "lie in [0, 1]", q, "Is it a batch size?")
    require(0 < sigma < math.inf, "sigma", "be finite and positive", sigma)
    if q in (0.0, 1.0):
        return q * alpha / 2 / sigma / sigma
    k = np.arange(2, alpha + 1, dtype=np.float64)
    gammaln = scipy.special.gammaln
    log_weight = gammaln(alpha + 1) - gammaln(k + 1) - gammaln(alpha - k + 1) + scipy.special.xlog1py(alpha - k, -q)
    growth = k * (k - 1) / 2 / sigma / sigma
    with np.errstate(divide="ignore"):  # growth may underflow; its term is then zero
        log_excess = log_sum(log_weight + k * math.log(q) + growth + np.log(-np.expm1(-growth)))
    return _log1p_exp(log_excess) / (alpha - 1)


# What follows is for figures only and never certified.


def moments_rho(q: float, sigma: float) -> float:
    r"""$\rho = q^2/((1-q)\sigma^2)$: sampled SGD is claimed $(\alpha, \alpha\rho T)$-RDP [A16].

    Not a bound: true up to $O(q^3)$, and only for orders up to :func:`moments_order_limit`.
    """
    require(0 <= q < 1, "q", "lie in [0, 1)", q, "Is it a batch size?")
    require(0 < sigma < math.inf, "sigma", "be finite and positive", sigma)
    return q * q / (1 - q) / sigma / sigma


def moments_order_limit(q: float, sigma: float) -> float:
    r"""Return the largest order at which :func:`moments_rho` is claimed; 1 (none) unless $q < 1/(16\sigma)$.

    >>> moments_order_limit(0.04, 4.0), round(moments_order_limit(0.01, 4.0), 3)  # the slides plot the first
    (1.0, 52.502)
    """
    moments_rho(q, sigma)
    if q == 0:
        return math.inf
    return 1 + max(0.0, -sigma * sigma * math.log(q * sigma)) if q < 1 / (16 * sigma) else 1.0


def stopped_zeta(alpha: float, lipschitz: float, sigma: float, rounds: int) -> float:
    r"""Randomly stopped SGD [FMTT18]: $4\alpha L^2 H_T/(T\sigma^2)$ for $\sigma^2 \ge 2\alpha(\alpha-1)L^2$.

    ``inf`` at larger orders. $H_T$ is the harmonic number, where the slides print $\ln T$.
    """
    check_order(alpha)
    require(0 < lipschitz < math.inf, "lipschitz", "be finite and positive", lipschitz)
    require(0 < sigma < math.inf, "sigma", "be finite and positive", sigma)
    require(rounds >= 1 and rounds % 1 == 0, "rounds", "be a whole number, at least 1", rounds)
    ratio = (lipschitz / sigma) ** 2
    if not 2 * alpha * (alpha - 1) * ratio <= 1:
        return math.inf
    harmonic = float(scipy.special.digamma(rounds + 1)) + np.euler_gamma
    return 4 * alpha * ratio * harmonic / rounds


def iteration_kappa(lipschitz: float, sigma: float, contraction: float, later: int) -> float:
    r"""$\kappa = 2L^2M^{r+1}/(r\sigma^2)$, ``r = later`` rounds to follow; $2L^2/\sigma^2$ if none.

    [ADC20, Proposition 1], as printed: the exponent and ``r`` do not reduce to the known case at ``M = 1``.
    """
    require(0 < lipschitz < math.inf, "lipschitz", "be finite and positive", lipschitz)
    require(0 < sigma < math.inf, "sigma", "be finite and positive", sigma)
    require(0 <= contraction <= 1, "contraction", "lie in [0, 1]", contraction)
    require(later >= 0 and later % 1 == 0, "later", "be a whole number, at least 0", later)
    fade = contraction ** (later + 1) / later if later else 1.0
    return float(2 * (lipschitz / sigma) ** 2 * fade)


def iteration_delta(epsilon: float, kappa: float) -> float:
    r"""$e^{-(\varepsilon-\kappa)^2/(4\kappa)}$ for $\varepsilon > \kappa$, else 1 [ADC20, Proposition 1]."""
    check_epsilon(epsilon)
    require(0 <= kappa < math.inf, "kappa", "be finite and non-negative", kappa)
    if kappa == 0:
        return 0.0
    return math.exp(-((epsilon - kappa) ** 2) / (4 * kappa)) if epsilon > kappa else 1.0


# What an (alpha, zeta)-RDP guarantee means for a test: the greatest power at a level.
#
# A test turns the two outputs into coins. By data processing, the Renyi divergences of the coins, in both directions,
# are at most zeta; and any pair of coins within that is itself a mechanism with the guarantee, so the answer cannot be
# improved. Theory page: renyi-conversion.md.


def greatest_power(alpha: float, zeta: float, level: float) -> float:
    """Return the largest chance to detect the record, for a test with false-alarm probability ``level``; rounded up.

    >>> round(greatest_power(10.0, 0.5, 0.05), 4)
    0.1057
    """
    require(1 < alpha < math.inf, "alpha", "be finite and above 1", alpha)
    require(0 <= zeta < math.inf, "zeta", "be finite and non-negative", zeta)
    require(0 < level < 1, "level", "lie strictly between 0 and 1", level)
    low, high = level, 1.0
    if _within(alpha, zeta, 1.0, level):
        return 1.0
    for _ in range(200):
        middle = (low + high) / 2
        if not low < middle < high:
            break
        low, high = (middle, high) if _within(alpha, zeta, middle, level) else (low, middle)
    return min(1.0, high * (1 + 1e-9))


def _within(alpha: float, zeta: float, power: float, level: float) -> bool:
    """Return whether coins with these probabilities keep the guarantee in both directions."""
    return max(_divergence(alpha, power, level), _divergence(alpha, level, power)) <= zeta


def _divergence(alpha: float, p: float, q: float) -> float:
    r"""$\frac{1}{\alpha-1} \ln (p^\alpha q^{1-\alpha} + (1-p)^\alpha (1-q)^{1-\alpha})$."""
    terms = []
    for one, other in ((p, q), (1 - p, 1 - q)):
        if one > 0:
            if other <= 0:
                return math.inf
            terms.append(alpha * math.log(one) + (1 - alpha) * math.log(other))
    top = max(terms)
    return (top + math.log(math.fsum(math.exp(term - top) for term in terms))) / (alpha - 1)
