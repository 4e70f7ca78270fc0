r"""Gaussian noise sent through $a \cdot \mathrm{arsinh}(\cdot / a)$, in one dimension: its privacy loss, exactly.

van Dijk and Nguyen (2023), section 5.2, propose it for its thin tails. Theory page: arsinh-noise.md.
"""

import math
from dataclasses import dataclass
from typing import final

import numpy as np
import scipy

from fedveil.core.errors import require
from fedveil.core.values import Vector
from fedveil.theory.loss import Tails
from fedveil.theory.numerics import smallest_epsilon

LARGEST_SHIFT = 100.0
_HALVINGS = 70


@final
@dataclass(frozen=True, slots=True)
class ArsinhLaw:
    r"""The loss between $X + \Delta$ and $X$, with $X = a\,\mathrm{arsinh}(N/a)$ and $N$ normal of deviation $\sigma$.

    ``ratio`` is $a/\sigma \ge 1$, so that the density is log-concave; ``shift`` is $\Delta/a$. The coordinate ``t`` is
    $(x - \Delta/2)/a$: there the loss is odd and grows.
    """

    ratio: float
    shift: float

    def __post_init__(self) -> None:
        require(1 <= self.ratio < 1e12, "ArsinhLaw.ratio", "lie in [1, 1e12)", self.ratio)
        require(0 < self.shift <= LARGEST_SHIFT, "ArsinhLaw.shift", "lie in (0, 100]", self.shift)

    def loss(self, t: Vector) -> Vector:
        r"""Return $\frac{k^2}{2}\sinh d\,\sinh 2t - 2\,\mathrm{artanh}(\tanh t \tanh\frac d2)$."""
        with np.errstate(over="ignore"):
            result = self._steepness * np.sinh(2 * t) - 2 * np.arctanh(np.tanh(t) * np.tanh(self.shift / 2))
        return np.asarray(result, dtype=np.float64)

    @property
    def _steepness(self) -> float:
        return float(0.5 * self.ratio**2 * np.sinh(self.shift))

    def tails(self, levels: Vector, /) -> Tails:
        """Return the tails at the coordinate where the loss reaches each level."""
        half, k = self.shift / 2, self.ratio
        t = self._coordinate(np.asarray(levels, dtype=np.float64))
        with np.errstate(over="ignore"):
            present, absent = k * np.sinh(t - half), k * np.sinh(t + half)
        ndtr = scipy.special.ndtr
        return Tails(ndtr(-present), ndtr(present), ndtr(-absent), ndtr(absent))

    def _coordinate(self, levels: Vector) -> Vector:
        """Invert the loss by halving; its second term lies between 0 and the shift, which gives the first bracket."""
        size = np.minimum(np.abs(levels), 1e300)
        low = np.arcsinh(size / self._steepness) / 2
        high = np.arcsinh((size + self.shift) / self._steepness) / 2 * (1 + 1e-15)
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            enough = self.loss(middle) >= size
            low, high = np.where(enough, low, middle), np.where(enough, middle, high)
        return np.asarray(np.copysign(np.where(np.isinf(levels), np.inf, high), levels), dtype=np.float64)

    def reach(self, mass: float, /) -> tuple[float, float]:
        """Return the losses at the quantiles of the shifted noise."""
        z = -float(scipy.special.ndtri(mass))
        ends = self.shift / 2 + np.arcsinh(np.array([-z, z]) / self.ratio)
        low, high = self.loss(ends).tolist()
        return low, high

    def log_delta(self, epsilon: float) -> float:
        """Return the logarithm of the hockey-stick divergence of one use, rounded up."""
        result = self.tails(np.array([epsilon]))
        p, q = float(result.p_above[0]), float(result.q_above[0])
        lost = q * math.exp(min(epsilon, 700.0))
        return math.log(max(p - lost, 0.0) + 1e-12 * p + 1e-300)  # for rounding: the two may nearly cancel

    def epsilon(self, delta: float) -> float:
        """Return the least epsilon of one use at this delta, on the safe side."""
        return smallest_epsilon(self.log_delta, delta)
