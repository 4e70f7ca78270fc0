r"""Hockey-stick divergences $E_\varepsilon(P\|Q) = \sup_A [P(A) - e^\varepsilon Q(A)]$, in log space.

``p``, ``q``: probability vectors; ``r``: distance of two means over the noise. Theory page: hockey-stick.md.

References:
    [BW18] Balle, Wang. Improving the Gaussian Mechanism for Differential Privacy. ICML 2018.
    [ADC20] Asoodeh, Diaz, Calmon. Privacy Amplification of Iterative Algorithms via Contraction Coefficients.
"""

import math

import numpy as np
import scipy
from numpy.typing import ArrayLike

from fedveil.core.errors import require
from fedveil.core.values import Vector
from fedveil.theory.numerics import check_epsilon

_LOG_ROOT_TAU = 0.5 * math.log(2 * math.pi)
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(4)
_NARROW = 0.25  # below this r the difference of the two Mills ratios is computed by quadrature


def hockey_stick(p: Vector, q: Vector, epsilon: float) -> float:
    r"""$\sum_i \max(p_i - e^\varepsilon q_i, 0)$ for finite distributions.

    >>> hockey_stick(np.array([0.5, 0.5]), np.array([0.25, 0.75]), math.log(1.5))
    0.125
    """
    check_epsilon(epsilon)
    require(p.shape == q.shape, "q", f"have the shape of p, {p.shape}", q.shape)
    for name, law in (("p", p), ("q", q)):
        total = abs(float(law.sum()) - 1) < 1e-9
        require(total and np.all(law >= 0), name, "be a probability vector", law.tolist())
    with np.errstate(over="ignore", invalid="ignore"):
        cost = np.where(q > 0, math.exp(min(epsilon, 709.0)) * q, 0.0)
    return min(1.0, float(np.maximum(p - cost, 0.0).sum()))


def gaussian_delta(epsilon: float, r: float) -> float:
    r"""$\theta_\varepsilon(r) = \Phi(r/2-\varepsilon/r) - e^\varepsilon\Phi(-r/2-\varepsilon/r)$ [BW18].

    Relative error below 1e-10 wherever the result is above 1e-300; 0 at ``r = 0``.

    >>> gaussian_delta(epsilon=1.0, r=1.0), gaussian_delta(epsilon=30.0, r=1.0)
    (0.12693673750664..., 4.70932631...e-193)
    """
    return math.exp(log_gaussian_delta(epsilon, r))


def log_gaussian_delta(epsilon: float, r: float) -> float:
    r"""$\ln \theta_\varepsilon(r)$; ``-inf`` at ``r = 0``.

    >>> log_gaussian_delta(epsilon=1000.0, r=1.0)
    -499514.859...
    """
    check_epsilon(epsilon)
    require(0 <= r < math.inf, "r", "be finite and non-negative", r)
    return float(log_theta(epsilon, r))


def log_theta(epsilon: ArrayLike, r: ArrayLike) -> Vector:
    r"""Return $\ln\theta_\varepsilon(r)$ element by element; 0 (delta = 1) for invalid arguments.

    With $a = r/2 - \varepsilon/r$, $b = -r/2 - \varepsilon/r$: $e^\varepsilon\varphi(b) = \varphi(a)$, hence $\theta =
    \varphi(a) [m(a) - m(b)]$ with the Mills ratio $m = \Phi/\varphi$: no small number is the difference of two large
    ones. For small ``r`` the difference is $\int_b^a m'$, by Gauss-Legendre.
    """
    e, x = np.broadcast_arrays(np.asarray(epsilon, dtype=np.float64), np.asarray(r, dtype=np.float64))
    out = np.full(e.shape, -np.inf)
    sound = (e >= 0) & (x >= 0) & (x < math.inf)
    out[~sound] = 0.0  # in doubt, the trivial bound: delta = 1
    usual = sound & (x > 0) & (e < math.inf)
    wide = usual & (x >= _NARROW)
    narrow = usual & (x < _NARROW)
    with np.errstate(over="ignore", under="ignore", divide="ignore", invalid="ignore"):
        if wide.any():
            out[wide] = _log_theta_wide(e[wide], x[wide])
        if narrow.any():
            out[narrow] = _log_theta_narrow(e[narrow], x[narrow])
    return np.asarray(np.where(np.isnan(out), 0.0, np.minimum(out, 0.0)), dtype=np.float64)


def _log_theta_wide(e: Vector, x: Vector) -> Vector:
    a, b = x / 2 - e / x, -x / 2 - e / x
    log_a = scipy.special.log_ndtr(a)
    share = np.minimum(e + scipy.special.log_ndtr(b) - log_a, 0.0)  # log of the second term over the first
    # Far in the tail the logs are huge and their difference loses all digits: use the Mills ratios instead.
    mills = scipy.special.erfcx(-b / math.sqrt(2)) / scipy.special.erfcx(-np.minimum(a, 0.0) / math.sqrt(2))
    share = np.where(a < -1.0, np.log(mills), share)
    result: Vector = log_a + np.log(-np.expm1(share))
    return result


def _log_theta_narrow(e: Vector, x: Vector) -> Vector:
    a = x / 2 - e / x
    points = (-e / x)[..., None] + (x / 2)[..., None] * _NODES  # the interval [b, a]
    slope = (_WEIGHTS * _mills_slope(points)).sum(axis=-1) / 2
    result: Vector = -a * a / 2 - _LOG_ROOT_TAU + np.log(x) + np.log(slope)
    return result


def _mills_slope(x: Vector) -> Vector:
    r"""Return $m'(x) = 1 + x\,m(x)$ for the Mills ratio $m$; by its asymptotic series where that cancels."""
    near = np.maximum(x, -25.0)
    direct = 1 + near * math.sqrt(math.pi / 2) * scipy.special.erfcx(-near / math.sqrt(2))
    y = 1 / np.maximum(x * x, 1.0)
    series = y * (1 - 3 * y * (1 - 5 * y * (1 - 7 * y * (1 - 9 * y * (1 - 11 * y)))))
    return np.asarray(np.where(x < -25.0, series, direct), dtype=np.float64)


def laplace_delta(epsilon: float, r: float) -> float:
    r"""$\max(0, 1 - e^{(\varepsilon - r)/2})$ for Laplace laws ``r`` scales apart [ADC20, Lemma 1].

    >>> laplace_delta(epsilon=1.0, r=1.0), laplace_delta(epsilon=0.0, r=2.0)
    (0.0, 0.6321205588285577)
    """
    check_epsilon(epsilon)
    require(0 <= r < math.inf, "r", "be finite and non-negative", r)
    return float(np.exp(log_laplace(epsilon, r)))


def log_laplace(epsilon: ArrayLike, r: ArrayLike) -> Vector:
    """Return the logarithm of :func:`laplace_delta`, element by element; 0 for invalid arguments."""
    e, x = np.broadcast_arrays(np.asarray(epsilon, dtype=np.float64), np.asarray(r, dtype=np.float64))
    with np.errstate(divide="ignore", invalid="ignore"):
        out = np.log(-np.expm1(np.minimum((e - x) / 2, 0.0)))
    sound = (e >= 0) & (x >= 0) & (x < math.inf)
    return np.asarray(np.where(sound, out, 0.0), dtype=np.float64)
