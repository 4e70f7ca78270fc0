"""Exact accountant for Gaussian mechanisms: the curve is one number, mu."""

import math
from dataclasses import dataclass
from typing import final

from fedveil.core.errors import CannotCertify
from fedveil.privacy.mechanism import Gaussian, Primitive, ShuffledGaussian
from fedveil.theory.divergence import log_gaussian_delta
from fedveil.theory.numerics import ROUNDING, check_delta, check_epsilon, smallest_epsilon


@final
@dataclass(frozen=True, slots=True)
class GaussianAccountant:
    """mu adds in quadrature.

    >>> accountant = GaussianAccountant()
    >>> round(accountant.epsilon(accountant.repeat(0.1, 100), 1e-5), 6)
    4.377178
    """

    def primitive(self, mechanism: Primitive, /) -> float:
        """Return sensitivity over noise."""
        if not isinstance(mechanism, Gaussian | ShuffledGaussian):
            raise CannotCertify(f"{type(mechanism).__name__} is not a Gaussian mechanism")
        return mechanism.mu

    def compose(self, first: float, second: float, /) -> float:
        """Return the root of the sum of squares."""
        return math.hypot(first, second)

    def repeat(self, once: float, times: int, /) -> float:
        """Return mu times the root of the count."""
        return once * math.sqrt(times)

    def epsilon(self, curve: float, delta: float, /) -> float:
        """Return the inverse of the exact delta, rounded up."""
        check_delta(delta)
        guess = curve * (curve / 2 + math.sqrt(-2 * math.log(delta)))
        return smallest_epsilon(lambda e: log_gaussian_delta(e, curve) + ROUNDING, delta, max(guess, 1e-12))

    def delta(self, curve: float, epsilon: float, /) -> float:
        """Return the exact delta, rounded up."""
        check_epsilon(epsilon)
        return min(1.0, math.exp(log_gaussian_delta(epsilon, curve) + ROUNDING))
