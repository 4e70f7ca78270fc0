"""Conversions between (alpha, zeta)-RDP, zCDP, tCDP, mu-GDP and (epsilon, delta), with groups and repetition."""

import math
from dataclasses import dataclass
from typing import Protocol, final

from fedveil.accounting.loss_distribution import LossCurve, LossDistributionAccountant
from fedveil.core.errors import CannotCertify, require
from fedveil.privacy.mechanism import ApproximateDP
from fedveil.theory.concentrated import Concentrated, gaussian_epsilon, group_epsilon_delta
from fedveil.theory.divergence import log_gaussian_delta
from fedveil.theory.numerics import ROUNDING, check_delta, check_epsilon
from fedveil.theory.renyi import (
    closed_epsilon,
    greatest_power,
    largest_zeta,
    least_delta,
    least_epsilon,
    mironov_epsilon,
)

_EXACT = LossDistributionAccountant()


class Definition(Protocol):
    """A privacy promise that can be repeated, extended to groups, and converted to (epsilon, delta)."""

    def repeated(self, times: int, /) -> "Definition":
        """Return the promise after so many uses."""
        ...

    def grouped(self, size: int, /) -> "Definition":
        """Return the promise for groups of so many records."""
        ...

    def epsilon(self, delta: float, /) -> float:
        """Return the least epsilon at this delta."""
        ...

    def delta(self, epsilon: float, /) -> float:
        """Return the least delta at this epsilon."""
        ...


@final
@dataclass(frozen=True, slots=True)
class Renyi:
    """(alpha, zeta)-RDP at one order."""

    alpha: float
    zeta: float

    def repeated(self, times: int, /) -> "Renyi":
        """Multiply zeta by the number of uses, since divergences add."""
        return Renyi(self.alpha, self.zeta * times)

    def grouped(self, size: int, /) -> "Renyi":
        """Refuse: for groups, a single order is not enough."""
        if size > 1:
            raise CannotCertify(
                "groups need the whole curve: give zCDP, tCDP, GDP or (epsilon, delta) instead of one order"
            )
        return self

    def epsilon(self, delta: float, /) -> float:
        """Return the least epsilon by the lossless conversion."""
        return least_epsilon(self.alpha, self.zeta, delta)

    def delta(self, epsilon: float, /) -> float:
        """Return the least delta by the lossless conversion."""
        return least_delta(self.alpha, self.zeta, epsilon)

    def power(self, level: float) -> float:
        """Return the greatest power of a test at this level."""
        return greatest_power(self.alpha, self.zeta, level)

    def alternatives(self, delta: float) -> dict[str, float]:
        """Return the results of older conversions, for comparison."""
        return {
            "closed": closed_epsilon(self.alpha, self.zeta, delta),
            "mironov": mironov_epsilon(self.alpha, self.zeta, delta),
        }


@final
@dataclass(frozen=True, slots=True)
class Truncated:
    """zCDP, or tCDP if ``omega`` is finite."""

    rho: float
    omega: float = math.inf

    def __post_init__(self) -> None:
        Concentrated(self.rho, self.omega)  # only to check the values

    def repeated(self, times: int, /) -> "Truncated":
        """Multiply rho by the number of uses."""
        return Truncated(self.rho * times, self.omega)

    def grouped(self, size: int, /) -> "Truncated":
        """Multiply rho by the square of the size."""
        group = Concentrated(self.rho, self.omega).group(size)
        return Truncated(group.rho, group.omega)

    def epsilon(self, delta: float, /) -> float:
        """Return the least epsilon over all orders."""
        return Concentrated(self.rho, self.omega).epsilon(delta)

    def delta(self, epsilon: float, /) -> float:
        """Return the least delta over all orders."""
        return Concentrated(self.rho, self.omega).delta(epsilon)


@final
@dataclass(frozen=True, slots=True)
class GaussianPromise:
    """mu-GDP: exactly as private as one Gaussian mechanism."""

    mu: float

    def __post_init__(self) -> None:
        require(0 < self.mu < 1e6, "mu", "lie in (0, 1e6)", self.mu)

    def repeated(self, times: int, /) -> "GaussianPromise":
        """Multiply mu by the root of the number of uses."""
        return GaussianPromise(self.mu * math.sqrt(times))

    def grouped(self, size: int, /) -> "GaussianPromise":
        """Multiply mu by the size of the group."""
        return GaussianPromise(self.mu * size)

    def epsilon(self, delta: float, /) -> float:
        """Return the exact epsilon, rounded up."""
        return gaussian_epsilon(self.mu, delta)

    def delta(self, epsilon: float, /) -> float:
        """Return the exact delta, rounded up."""
        check_epsilon(epsilon)
        return min(1.0, math.exp(max(log_gaussian_delta(epsilon, self.mu) + ROUNDING, -700.0)))


@final
@dataclass(frozen=True, slots=True)
class Approximate:
    """The promise (epsilon, delta) itself."""

    at_epsilon: float
    at_delta: float

    def __post_init__(self) -> None:
        require(0 <= self.at_epsilon < 1e6, "epsilon", "lie in [0, 1e6)", self.at_epsilon)
        require(0 <= self.at_delta <= 1, "delta", "lie in [0, 1]", self.at_delta, "At 1 nothing is promised.")

    def repeated(self, times: int, /) -> "Approximate | RepeatedApproximate":
        """Return the exact composition of this many uses."""
        return self if times == 1 else RepeatedApproximate(self, times)

    def grouped(self, size: int, /) -> "Approximate":
        """Return (g eps, delta (e^{g eps} - 1)/(e^eps - 1))."""
        if self.at_delta == 1:
            return Approximate(self.at_epsilon * size, 1.0)
        epsilon, delta = group_epsilon_delta(self.at_epsilon, self.at_delta, size)
        return Approximate(epsilon, min(delta, 1.0))

    def epsilon(self, delta: float, /) -> float:
        """Return its own epsilon if this delta allows it, otherwise infinity."""
        check_delta(delta)
        return self.at_epsilon if delta >= self.at_delta else math.inf

    def delta(self, epsilon: float, /) -> float:
        """Return the delta of the worst mechanism that keeps the promise; a smaller epsilon has a larger delta."""
        check_epsilon(epsilon)
        if epsilon >= self.at_epsilon:
            return self.at_delta
        extra = -math.expm1(epsilon - self.at_epsilon) / (1 + math.exp(-self.at_epsilon))
        return min(1.0, self.at_delta + (1 - self.at_delta) * extra * (1 + ROUNDING))

    def budget(self, alpha: float) -> float:
        """Return the largest zeta such that every (alpha, zeta)-RDP mechanism keeps this promise."""
        return largest_zeta(alpha, self.at_epsilon, self.at_delta)


@final
@dataclass(frozen=True, slots=True)
class RepeatedApproximate:
    """(epsilon, delta), ``times`` times: composed exactly, as the worst mechanism that keeps the promise.

    >>> round(RepeatedApproximate(Approximate(0.1, 1e-8), 100).epsilon(1e-5), 3)
    4.33
    """

    once: Approximate
    times: int

    def __post_init__(self) -> None:
        require(self.times >= 1, "times", "be at least 1", self.times)

    @property
    def at_epsilon(self) -> float:
        """Epsilon by basic composition: epsilons add."""
        return self.once.at_epsilon * self.times

    @property
    def at_delta(self) -> float:
        """Delta by basic composition: deltas add."""
        return min(self.once.at_delta * self.times, 1.0)

    def repeated(self, times: int, /) -> "RepeatedApproximate":
        """Multiply the number of uses."""
        return RepeatedApproximate(self.once, self.times * times)

    def grouped(self, size: int, /) -> "RepeatedApproximate":
        """Return every use for the group, then composed."""
        return RepeatedApproximate(self.once.grouped(size), self.times)

    def epsilon(self, delta: float, /) -> float:
        """Return the smaller epsilon of exact and basic composition."""
        check_delta(delta)
        basic = self.at_epsilon if delta >= self.at_delta else math.inf
        return min(basic, _EXACT.epsilon(self._curve(), delta)) if self.once.at_delta < 1 else basic

    def delta(self, epsilon: float, /) -> float:
        """Return the smaller delta of exact and basic composition."""
        check_epsilon(epsilon)
        basic = self.at_delta if epsilon >= self.at_epsilon else 1.0
        return min(basic, _EXACT.delta(self._curve(), epsilon)) if self.once.at_delta < 1 else basic

    def budget(self, alpha: float) -> float:
        """Return the largest zeta such that every (alpha, zeta)-RDP mechanism keeps what basic composition promises."""
        return Approximate(self.at_epsilon, self.at_delta).budget(alpha)

    def _curve(self) -> LossCurve:
        once = ApproximateDP(epsilon=self.once.at_epsilon, delta=self.once.at_delta)
        return _EXACT.repeat(_EXACT.primitive(once), self.times)
