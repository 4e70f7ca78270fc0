r"""Markov kernels, and what survives one: linear and nonlinear contraction of $E_\varepsilon$.

``a``: the divergence before the kernel; ``eta``: the contraction coefficient. Theory page: contraction.md.

References:
    Asoodeh and Calmon 2020, Theorem 1; Asoodeh, Diaz and Calmon 2020, Theorem 2:
        $\eta_\varepsilon(K) = \sup_{y_1, y_2} E_\varepsilon(K(y_1)\|K(y_2))$.
    Asoodeh and Calmon 2020, Lemma 2 (Gaussian noise); Asoodeh, Diaz and Calmon 2020, Lemma 1 (Laplace noise).
"""

import math
from dataclasses import dataclass
from typing import final

import numpy as np

from fedveil.core.errors import require
from fedveil.core.values import Vector
from fedveil.theory.blocks import raised_epsilon
from fedveil.theory.divergence import log_laplace, log_theta
from fedveil.theory.numerics import check_epsilon

_SUM = 1e-9  # how far the sum of a row may be from 1


@final
@dataclass(frozen=True, slots=True, eq=False)
class FiniteKernel:
    """A row-stochastic matrix: ``rows[y]`` is the law of the output given the input ``y``.

    >>> FiniteKernel(np.array([[0.75, 0.25], [0.25, 0.75]])).push(np.array([1.0, 0.0]))
    array([0.75, 0.25])
    """

    rows: Vector

    def __post_init__(self) -> None:
        rows = np.array(self.rows, dtype=np.float64)
        shaped = rows.ndim == 2 and rows.size > 0
        require(shaped, "FiniteKernel.rows", "be a matrix, one row for each input", rows.shape)
        hint = "Divide each row by its sum."
        rule = "be non-negative with rows summing to 1"
        summed = np.all(rows >= 0) and np.all(np.abs(rows.sum(axis=1) - 1) < _SUM)
        require(summed, "FiniteKernel.rows", rule, rows.tolist(), hint)
        rows.setflags(write=False)
        object.__setattr__(self, "rows", rows)

    def push(self, p: Vector) -> Vector:
        """Return the law of the output when the input has law ``p``."""
        p = np.asarray(p, dtype=np.float64)
        inputs = self.rows.shape[0]
        require(p.shape == (inputs,), "p", f"be a vector of length {inputs}, one mass an input", p.shape)
        law = np.all(p >= 0) and abs(float(p.sum()) - 1) < _SUM
        require(law, "p", "be a probability vector", p.tolist(), "Divide it by its sum.")
        return np.asarray(p @ self.rows, dtype=np.float64)

    def then(self, other: "FiniteKernel") -> "FiniteKernel":
        """Return this kernel followed by ``other``."""
        fits = self.rows.shape[1] == other.rows.shape[0]
        rule = f"take {self.rows.shape[1]} inputs, the outputs of the kernel before it"
        require(fits, "other", rule, other.rows.shape[0])
        return FiniteKernel(self.rows @ other.rows)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class GaussianKernel:
    """``y -> y + N(0, noise**2 I)`` on a set of this diameter, in any dimension; anything may follow.

    What follows (a projection, say) is data processing: it never raises the contraction coefficient.
    """

    noise: float
    diameter: float

    def __post_init__(self) -> None:
        _check_noise("GaussianKernel", "noise", self.noise, self.diameter)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LaplaceKernel:
    """``y -> y + Laplace(scale)`` on an interval of this length: one dimension; anything may follow."""

    scale: float
    diameter: float

    def __post_init__(self) -> None:
        _check_noise("LaplaceKernel", "scale", self.scale, self.diameter)


Kernel = FiniteKernel | GaussianKernel | LaplaceKernel


def _check_noise(owner: str, name: str, noise: float, diameter: float) -> None:
    require(0 < noise < math.inf, f"{owner}.{name}", "be finite and positive", noise)
    hint = "Infinity means: no bounded set, hence no contraction."
    require(0 <= diameter <= math.inf, f"{owner}.diameter", "be non-negative", diameter, hint)


def contraction(kernel: Kernel, epsilon: float) -> float:
    r"""$\eta_\varepsilon(K)$, the least factor in
    $E_\varepsilon(\mu K\|\nu K) \le \eta_\varepsilon(K) E_\varepsilon(\mu\|\nu)$.

    >>> contraction(FiniteKernel(np.array([[0.75, 0.25], [0.25, 0.75]])), epsilon=0.0)
    0.5
    >>> contraction(LaplaceKernel(scale=1.0, diameter=2.0), epsilon=0.0)
    0.6321205588285577
    """
    return math.exp(log_contraction(kernel, epsilon))


def log_contraction(kernel: Kernel, epsilon: float) -> float:
    """Return the logarithm of :func:`contraction`, finite long after the coefficient underflows.

    >>> log_contraction(GaussianKernel(noise=1.0, diameter=1.0), epsilon=1000.0)
    -499514.859...
    """
    check_epsilon(epsilon)
    match kernel:
        case FiniteKernel(rows=rows):
            return _log_largest_pair(rows, epsilon)
        case GaussianKernel(noise=noise, diameter=diameter):
            return float(log_theta(epsilon, diameter / noise))
        case LaplaceKernel(scale=scale, diameter=diameter):
            return float(log_laplace(epsilon, diameter / scale))


def _log_largest_pair(rows: Vector, epsilon: float) -> float:
    with np.errstate(divide="ignore", over="ignore"):
        cost = np.exp(epsilon + np.log(rows))  # infinite after overflow: such an output never counts
        worst = max(float(np.maximum(row - cost, 0.0).sum(axis=1).max()) for row in rows)
    return math.log(min(worst, 1.0)) if worst > 0 else -math.inf


def nonlinear_contraction(kernel: Kernel, epsilon: float, before: float) -> float:
    r"""$a\,\eta_{\tilde\varepsilon}(K)$, $\tilde\varepsilon = \ln(1 + (e^\varepsilon-1)/a)$, ``a = before``.

    Promises: at most ``contraction(kernel, epsilon) * before``; non-decreasing in ``before``, so an upper
    bound on the divergence may be inserted; approached by input laws, so no function of ``before`` is better.

    >>> kernel = GaussianKernel(noise=1.0, diameter=1.0)
    >>> nonlinear_contraction(kernel, 1.0, 0.1), 0.1 * contraction(kernel, 1.0)
    (0.00020712..., 0.01269367...)
    """
    require(0 <= before <= 1, "before", "lie between 0 and 1", before, "It is a divergence E_epsilon.")
    log_before = math.log(before) if before > 0 else -math.inf
    return math.exp(log_nonlinear_contraction(kernel, epsilon, log_before))


def log_nonlinear_contraction(kernel: Kernel, epsilon: float, log_before: float) -> float:
    """Return the logarithm of :func:`nonlinear_contraction`, from the logarithm of the divergence before."""
    check_epsilon(epsilon)
    require(log_before <= 0, "log_before", "be at most 0", log_before, "It is the logarithm of a divergence.")
    if log_before == -math.inf:
        return -math.inf
    return log_before + log_contraction(kernel, float(raised_epsilon(epsilon, log_before)))
