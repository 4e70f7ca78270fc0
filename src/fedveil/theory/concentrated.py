r"""Concentrated privacy: Renyi divergence at most linear in the order; and its neighbour, mu-GDP.

$(\rho, \omega)$-tCDP: $D_\alpha \le \rho\alpha$ for $1 < \alpha \le \omega$; zCDP is $\omega = \infty$.
Theory page: concentrated.md.

References:
    [BS16] Bun, Steinke. Concentrated Differential Privacy: Simplifications, Extensions, and Lower Bounds.
        TCC 2016.
    [BDRS18] Bun, Dwork, Rothblum, Steinke. Composable and Versatile Privacy via Truncated CDP. STOC 2018.
    [DRS22] Dong, Roth, Su. Gaussian Differential Privacy. J. R. Stat. Soc. B 84(1), 2022.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import numpy as np

from fedveil.core.errors import CannotCertify, require
from fedveil.theory.divergence import log_theta
from fedveil.theory.numerics import ROUNDING, check_delta, check_epsilon, smallest_epsilon
from fedveil.theory.renyi import check_order, least_delta, least_epsilon

_ORDERS = (1 + 1e-4, 1e7)


@final
@dataclass(frozen=True, slots=True)
class Concentrated:
    r"""$D_\alpha \le \rho\alpha$ for $1 < \alpha \le \omega$, both ways; zCDP unless ``omega`` is given.

    >>> round(Concentrated(0.5).epsilon(1e-5), 4)  # the Gaussian with mu = 1: 4.3772 exactly
    4.7284
    """

    rho: float
    omega: float = math.inf

    def __post_init__(self) -> None:
        require(0 <= self.rho < math.inf, "Concentrated.rho", "be finite and non-negative", self.rho)
        require(self.omega > 1, "Concentrated.omega", "be above 1", self.omega, "No order would be bounded.")

    def zeta(self, alpha: float) -> float:
        """Return the bound at one order; ``inf`` beyond omega."""
        check_order(alpha)
        return self.rho * alpha if alpha <= self.omega else math.inf

    def epsilon(self, delta: float) -> float:
        """Return the least epsilon over all orders, from above."""
        return epsilon_of_curve(self.zeta, delta, self._orders())

    def delta(self, epsilon: float) -> float:
        """Return the least delta over all orders, from above."""
        return delta_of_curve(self.zeta, epsilon, self._orders())

    def group(self, size: int) -> "Concentrated":
        """Return the promise for ``size`` people together: rho times size squared, omega over size.

        >>> Concentrated(0.5, omega=8.0).group(3)
        Concentrated(rho=4.5, omega=2.666...)
        """
        check_size(size)
        if not self.omega / size > 1:
            raise CannotCertify(
                f"A group of {size} needs omega above {size}, got {self.omega!r}: no order is left. "
                "Ask for smaller groups, or use a mechanism with a larger omega."
            )
        omega = self.omega / size
        return Concentrated(self.rho * size**2, omega if omega * size <= self.omega else math.nextafter(omega, 0.0))

    def _orders(self) -> tuple[float, float]:
        first, last = _ORDERS
        return min(first, self.omega), min(last, self.omega)


def epsilon_of_curve(zeta_of: Callable[[float], float], delta: float, between: tuple[float, float] = _ORDERS) -> float:
    """Return the least epsilon of an RDP curve over the orders in ``between``, from above; ``inf`` promises nothing.

    >>> round(epsilon_of_curve(lambda alpha: alpha / 2, 1e-5), 4)
    4.7284
    """
    check_delta(delta)
    return _over_curve(zeta_of, lambda alpha, zeta: least_epsilon(alpha, zeta, delta), between)


def delta_of_curve(zeta_of: Callable[[float], float], epsilon: float, between: tuple[float, float] = _ORDERS) -> float:
    """Return the least delta of an RDP curve over the orders in ``between``, from above.

    >>> delta_of_curve(lambda alpha: alpha / 2, 4.7285)
    9.99...e-06
    """
    check_epsilon(epsilon)
    return _over_curve(zeta_of, lambda alpha, zeta: least_delta(alpha, zeta, epsilon), between)


def _over_curve(
    zeta_of: Callable[[float], float],
    convert: Callable[[float, float], float],
    between: tuple[float, float],
) -> float:
    """Scan log(alpha - 1), then narrow in on the best; every order tried is valid, so every stop is safe."""
    first, last = between
    require(1 < first <= last < math.inf, "between", "be two finite orders above 1, ascending", between)

    def at(position: float) -> float:
        alpha = min(max(1 + math.exp(position), first), last)
        return convert(alpha, zeta_of(alpha) * (1 + ROUNDING))

    grid = np.linspace(math.log(first - 1), math.log(last - 1), 45).tolist()
    values = [at(position) for position in grid]
    best = min(values)
    place = values.index(best)
    low, high = grid[max(place - 1, 0)], grid[min(place + 1, len(grid) - 1)]
    for _ in range(28):
        left, right = low + 0.45 * (high - low), high - 0.45 * (high - low)
        at_left, at_right = at(left), at(right)
        best = min(best, at_left, at_right)
        low, high = (low, right) if at_left < at_right else (left, high)
    return best


def check_mu(mu: float) -> None:
    """Refuse a mu that is not a distance between Gaussians."""
    hint = "It is sensitivity over noise."
    require(0 <= mu < math.inf, "mu", "be finite and non-negative", mu, hint)


def check_size(size: int) -> None:
    """Refuse a size that is not a number of people."""
    require(size >= 1 and size % 1 == 0, "size", "be a whole number, at least 1", size)


def gaussian_epsilon(mu: float, delta: float) -> float:
    r"""Return the epsilon of $\mu$-GDP at delta: exact, and rounded up [DRS22].

    >>> round(gaussian_epsilon(1.0, 1e-5), 4), gaussian_epsilon(0.0, 1e-5)
    (4.3772, 0.0)
    """
    check_mu(mu)
    check_delta(delta)
    if mu == 0:
        return 0.0
    guess = mu * mu / 2 + mu * math.sqrt(-2 * math.log(delta))
    return smallest_epsilon(lambda epsilon: float(log_theta(epsilon, mu)) + ROUNDING, delta, guess)


def group_epsilon_delta(epsilon: float, delta: float, size: int) -> tuple[float, float]:
    r"""$(g\varepsilon, \delta(e^{g\varepsilon}-1)/(e^\varepsilon-1))$ for ``g = size`` people, rounded up.

    >>> epsilon, delta = group_epsilon_delta(1.0, 1e-6, 2)
    >>> epsilon, round(delta * 1e6, 5), group_epsilon_delta(400.0, 1e-6, 3)
    (2.0, 3.71828, (1200.0, 1.0))
    """
    check_epsilon(epsilon)
    require(0 <= delta <= 1, "delta", "lie in [0, 1]", delta)
    check_size(size)
    total = epsilon * size
    total = total if total / size >= epsilon else math.nextafter(total, math.inf)
    if size == 1 or delta == 0:
        return total, delta
    # The sum of e^(j epsilon), j < size, as a ratio; both ends are safe in log space.
    growth = math.log(size)
    if epsilon > 0:
        ratio = -math.expm1(-total) / -math.expm1(-epsilon)
        growth = (total - epsilon) + math.log(ratio)
    log_delta = min(0.0, math.log(delta) + growth + ROUNDING * (1 + growth))
    return total, max(math.exp(log_delta), delta)
