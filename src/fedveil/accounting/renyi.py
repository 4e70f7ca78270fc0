"""Renyi accountant: a certified bound and an oracle for the others; the curve is zeta at fixed whole orders."""

from dataclasses import dataclass
from typing import final

import numpy as np

from fedveil.core.errors import CannotCertify
from fedveil.core.values import Vector
from fedveil.privacy.mechanism import Gaussian, Laplace, Primitive, SampledGaussian, ShuffledGaussian
from fedveil.theory.numerics import check_delta, check_epsilon
from fedveil.theory.renyi import (
    delta_over_orders,
    epsilon_over_orders,
    renyi_gaussian,
    renyi_laplace,
    renyi_sampled_gaussian,
)

_ORDERS = (*range(2, 33), *range(34, 65, 2), 72, 80, 96, 112, 128, 160, 192, 256, 384, 512, 1024)


@final
@dataclass(frozen=True, slots=True)
class RenyiAccountant:
    """Divergences add; the lossless conversion gives epsilon at the best order."""

    def primitive(self, mechanism: Primitive, /) -> Vector:
        """Return zeta at each order; refuse mechanisms without a closed form here."""
        match mechanism:
            case Gaussian() | ShuffledGaussian():
                return np.array([renyi_gaussian(order, mechanism.mu) for order in _ORDERS])
            case Laplace():
                return np.array([renyi_laplace(order, mechanism.r) for order in _ORDERS])
            case SampledGaussian(sampling="poisson", neighbours="zero-out"):
                noise = mechanism.noise_multiplier
                return np.array([renyi_sampled_gaussian(order, mechanism.rate, noise) for order in _ORDERS])
            case _:
                raise CannotCertify("no closed Renyi divergence is used for this mechanism and these neighbours")

    def compose(self, first: Vector, second: Vector, /) -> Vector:
        """Add the curves, order by order."""
        return first + second

    def repeat(self, once: Vector, times: int, /) -> Vector:
        """Multiply the curve by the count, order by order."""
        return once * times

    def epsilon(self, curve: Vector, delta: float, /) -> float:
        """Return the least epsilon over the orders."""
        check_delta(delta)
        return epsilon_over_orders(np.array(_ORDERS, dtype=np.float64), curve, delta)[0]

    def delta(self, curve: Vector, epsilon: float, /) -> float:
        """Return the least delta over the orders."""
        check_epsilon(epsilon)
        return delta_over_orders(np.array(_ORDERS, dtype=np.float64), curve, epsilon)[0]
