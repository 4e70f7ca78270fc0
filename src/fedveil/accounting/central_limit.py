"""The central-limit approximation of DP-SGD: for comparison, never certified. The curve is one number, mu."""

import math
from dataclasses import dataclass
from typing import final

from fedveil.core.errors import CannotCertify
from fedveil.privacy.mechanism import Gaussian, Primitive, SampledGaussian, ShuffledGaussian
from fedveil.theory.central_limit import central_limit
from fedveil.theory.concentrated import gaussian_epsilon
from fedveil.theory.divergence import log_gaussian_delta
from fedveil.theory.numerics import check_delta, check_epsilon


@final
@dataclass(frozen=True, slots=True)
class CentralLimitAccountant:
    """mu adds in quadrature, as if every round were Gaussian."""

    def primitive(self, mechanism: Primitive, /) -> float:
        """Return mu of the limit for one round."""
        match mechanism:
            case Gaussian() | ShuffledGaussian():
                return mechanism.mu
            case SampledGaussian(sampling="poisson", neighbours="zero-out"):
                return central_limit(mechanism.noise_multiplier, mechanism.rate, 1)
            case _:
                raise CannotCertify("the central limit is stated for Poisson sampling and zero-out neighbours")

    def compose(self, first: float, second: float, /) -> float:
        """Return the root of the sum of squares."""
        return math.hypot(first, second)

    def repeat(self, once: float, times: int, /) -> float:
        """Return mu times the root of the count."""
        return once * math.sqrt(times)

    def epsilon(self, curve: float, delta: float, /) -> float:
        """Return the epsilon of the limiting Gaussian."""
        check_delta(delta)
        return gaussian_epsilon(curve, delta)

    def delta(self, curve: float, epsilon: float, /) -> float:
        """Return the delta of the limiting Gaussian."""
        check_epsilon(epsilon)
        return math.exp(log_gaussian_delta(epsilon, curve))
