r"""Exact Gaussian chains in many dimensions: quadratic losses, no projection, so that both released laws are normal.

$W_k = A_k W_{k-1} + b_k + N_k$ on one data set, $A'_k, b'_k$ on the other. Equal matrices give equal covariances, and
one number $\mu$ describes everything. Curvature that differs between neighbours gives different covariances; then a
direction is chosen in which the two normals are compared exactly, which is a lower bound. Theory page: exact-laws.md,
section 6.

References:
    [AB62] Anderson, Bahadur. Classification into two multivariate normal distributions with different covariance
    matrices. Annals of Mathematical Statistics 33(2), 1962.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.linalg import eigh
from scipy.special import ndtr

from fedveil.core.errors import require
from fedveil.core.values import Vector
from fedveil.theory.divergence import gaussian_delta
from fedveil.theory.numerics import check_delta, check_epsilon, smallest_epsilon

_ROUNDING = 1e-11  # relative error of a difference of normal probabilities
_ALIKE = 1e-12  # relative difference up to which covariances count as equal
_MIXES = 21  # number of directions of [AB62] that are tried


@dataclass(frozen=True, slots=True, eq=False)
class AffineRound:
    """One round on both data sets: a matrix and an offset each, and the covariance of the noise."""

    matrices: tuple[Vector, Vector]
    offsets: tuple[Vector, Vector]
    covariance: Vector

    def __post_init__(self) -> None:
        size = self.covariance.shape[0]
        square = self.covariance.shape == (size, size) and bool(np.all(np.isfinite(self.covariance)))
        require(square, "AffineRound.covariance", "be a finite square matrix", self.covariance.shape)
        require(np.allclose(self.covariance, self.covariance.T), "AffineRound.covariance", "be symmetric", "otherwise")
        require(float(eigh(self.covariance, eigvals_only=True)[0]) > 0, "AffineRound.covariance", "be positive", "not")
        for matrix, offset in zip(self.matrices, self.offsets, strict=True):
            fits = matrix.shape == (size, size) and offset.shape == (size,)
            require(fits, "AffineRound", f"have matrices and offsets of size {size}", (matrix.shape, offset.shape))


@dataclass(frozen=True, slots=True, eq=False)
class NormalPair:
    """The two released laws, both normal."""

    means: tuple[Vector, Vector]
    covariances: tuple[Vector, Vector]

    @property
    def alike(self) -> bool:
        """True if the covariances agree, so that ``mu`` describes everything."""
        first, second = self.covariances
        return bool(np.max(np.abs(first - second)) <= _ALIKE * np.max(np.abs(first)))

    @property
    def mu(self) -> float:
        """Distance of the means, in deviations of the common covariance."""
        require(self.alike, "NormalPair.mu", "be asked for equal covariances", "different ones", "Use delta_lower.")
        gap = self.means[0] - self.means[1]
        return math.sqrt(max(0.0, float(gap @ np.linalg.solve(self.covariances[0], gap))))

    def delta_lower(self, epsilon: float) -> float:
        """Return a lower bound on delta.

        It is exact (to 1e-10) if the covariances agree; otherwise it is what the best direction tried reaches, both
        ways.
        """
        check_epsilon(epsilon)
        if self.alike:
            return gaussian_delta(epsilon, self.mu) * (1 - 1e-9)
        return max(_along(self, direction, epsilon) for direction in _directions(self))

    def epsilon_lower(self, delta: float) -> float:
        """Return a lower bound: no smaller epsilon is true at this delta."""
        check_delta(delta)

        def log_delta(epsilon: float) -> float:
            return math.log(max(self.delta_lower(epsilon), 1e-300))

        return smallest_epsilon(log_delta, delta, tolerance=1e-9) * (1 - 2e-9)


def gaussian_chain(rounds: Sequence[AffineRound], start: Vector) -> NormalPair:
    """Return the released laws after all rounds, from the same start.

    >>> one = np.eye(1); step = (np.zeros(1), np.ones(1))
    >>> quiet = AffineRound((one, one), (np.zeros(1), np.zeros(1)), one)
    >>> gaussian_chain([AffineRound((one, one), step, one), quiet, quiet, quiet], np.zeros(1)).mu  # 1 / sqrt(4)
    0.5
    """
    require(len(rounds) >= 1, "rounds", "name at least one", len(rounds))
    size = rounds[0].covariance.shape[0]
    require(start.shape == (size,), "start", f"have {size} entries", start.shape)
    means, covariances = [start, start], [np.zeros((size, size)), np.zeros((size, size))]
    for step in rounds:
        for side in (0, 1):
            matrix = step.matrices[side]
            means[side] = matrix @ means[side] + step.offsets[side]
            covariances[side] = matrix @ covariances[side] @ matrix.T + step.covariance
    return NormalPair((means[0], means[1]), (covariances[0], covariances[1]))


def normal_delta(epsilon: float, gap: float, ratio: float) -> float:
    r"""Return $E_\varepsilon(N(gap, ratio^2)\,\|\,N(0, 1))$ from below, exact up to rounding.

    The log-ratio of the densities is a quadratic in z: it exceeds epsilon outside two points (ratio above 1), between
    two points (below 1), or beyond one point (equal).

    >>> round(normal_delta(1.0, 1.0, 1.0), 9)
    0.126936738
    >>> round(normal_delta(0.0, 0.0, 2.0), 6)
    0.322675
    """
    check_epsilon(epsilon)
    require(0 < ratio < math.inf and math.isfinite(gap), "ratio", "be finite and positive, gap finite", (gap, ratio))
    a, b = (1 - ratio**-2) / 2, gap * ratio**-2
    c = -gap * gap * ratio**-2 / 2 - math.log(ratio) - epsilon
    total = 0.0
    for left, right in _where(a, b, c):
        p, q = _between((left - gap) / ratio, (right - gap) / ratio), _between(left, right)
        cost = math.exp(min(epsilon, 700.0)) * q
        total += p - cost - _ROUNDING * (p + cost)
    return min(1.0, max(0.0, total))


def _where(a: float, b: float, c: float) -> list[tuple[float, float]]:
    """Return the intervals on which a z^2 + b z + c >= 0."""
    if a == 0:
        if b == 0:
            return []
        return [(-c / b, math.inf)] if b > 0 else [(-math.inf, -c / b)]
    square = b * b - 4 * a * c
    if square < 0:
        return []  # for a > 0 this can only be a rounding error
    q = -(b + math.copysign(math.sqrt(square), b)) / 2
    low, high = sorted((q / a, c / q)) if q else (0.0, 0.0)
    return [(-math.inf, low), (high, math.inf)] if a > 0 else [(low, high)]


def _between(left: float, right: float) -> float:
    """Return the standard normal mass of an interval, computed from the nearer tail."""
    return float(ndtr(-left) - ndtr(-right)) if left > 0 else float(ndtr(right) - ndtr(left))


def _directions(pair: NormalPair) -> list[Vector]:
    """Return linear statistics worth trying: those of [AB62], and those in which the variances differ most."""
    (m1, m2), (s1, s2) = pair.means, pair.covariances
    found = [np.linalg.solve(t * s1 + (1 - t) * s2, m1 - m2) for t in np.linspace(0.0, 1.0, _MIXES)]
    vectors = eigh(s1, s2)[1]
    return [v for v in (*found, vectors[:, 0], vectors[:, -1]) if float(np.linalg.norm(v)) > 0]


def _along(pair: NormalPair, u: Vector, epsilon: float) -> float:
    """Return the larger divergence of both directions for the statistic u.w; any statistic gives a lower bound."""
    (m1, m2), (s1, s2) = (
        tuple(float(u @ m) for m in pair.means),
        tuple(math.sqrt(u @ s @ u) for s in pair.covariances),
    )
    there = normal_delta(epsilon, (m1 - m2) / s2, s1 / s2)
    return max(there, normal_delta(epsilon, (m2 - m1) / s1, s2 / s1))
