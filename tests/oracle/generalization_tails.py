r"""Tails that are known by their cumulants, and bounds sample by sample: against these the closed forms are checked.

References:
    [BDP22] Barnes, Dytso, Poor. Improved Information Theoretic Generalization Bounds for Distributed and
        Federated Learning. ISIT 2022.
    [BZV20] Bu, Zou, Veeravalli. Tightening Mutual Information-Based Bounds on Generalization Error. 2020.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

from fedveil.core.errors import require
from fedveil.theory.generalization import SubGaussian, Tail, mean_node_gap, sample_bound  # noqa: F401  for the examples

_GOLDEN = (math.sqrt(5) - 1) / 2


@final
@dataclass(frozen=True, slots=True)
class Cumulant:
    r"""$\ln E e^{-\lambda(\ell - E\ell)} \le \psi(\lambda)$ for $0 \le \lambda < b$.

    ``psi`` is convex with $\psi(0) = \psi'(0) = 0$, and should not round below its true value near 0:
    use ``log1p`` and ``expm1``.

    >>> round(Cumulant(lambda lam: lam * lam / 2).inverse(0.5), 9)
    1.0
    """

    psi: Callable[[float], float]
    b: float = math.inf

    def __post_init__(self) -> None:
        require(self.b > 0, "Cumulant.b", "be positive", self.b)

    def inverse(self, y: float, /) -> float:
        r"""$\inf_\lambda (y + \psi(\lambda))/\lambda$, from above."""
        return inverse_conjugate(self.psi, y, self.b)


def inverse_conjugate(psi: Callable[[float], float], y: float, b: float = math.inf) -> float:
    r"""$\psi^{*-1}(y) = \inf_{0<\lambda<b} (y + \psi(\lambda))/\lambda$ [BZV20], from above.

    Every $\lambda$ gives a valid bound, so stopping anywhere is safe. The ratio has one valley: a logarithmic
    grid finds it, golden sections narrow it. NaN and overflow count as infinite.

    >>> round(inverse_conjugate(lambda lam: lam * lam / (2 * (1 - lam)), 0.5, b=1.0), 9)  # sqrt(2 y) + y
    1.5
    """
    require(y >= 0, "y", "be non-negative", y)
    require(b > 0, "b", "be positive", b)
    if y == math.inf:
        return math.inf

    def ratio(t: float) -> float:
        lam = math.exp(t) if b == math.inf else b / (1 + math.exp(-t))
        if not 0 < lam < b:
            return math.inf
        try:
            value = float(psi(lam))
        except OverflowError:
            return math.inf
        if math.isnan(value):
            return math.inf
        require(value >= -1e-9, "psi", "be non-negative", value, "It bounds a centred cumulant.")
        return (y + max(value, 0.0)) / lam

    grid = [2.0 * k for k in range(-150, 151)]
    values = [ratio(t) for t in grid]
    least = min(values)
    if not 0 < least < math.inf:
        return least
    middle = grid[values.index(least)]
    return min(least, _golden_section(ratio, middle - 2.0, middle + 2.0))


def _golden_section(of: Callable[[float], float], low: float, high: float) -> float:
    """The least value met while closing in on the minimum of a function with one valley."""
    left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    at_left, at_right = of(left), of(right)
    least = min(at_left, at_right)
    for _ in range(45):  # 4 * 0.618**45 < 2e-9, and the value is flat there
        if at_left < at_right:
            high, right, at_right = right, left, at_left
            left = high - _GOLDEN * (high - low)
            at_left = of(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + _GOLDEN * (high - low)
            at_right = of(right)
        least = min(least, at_left, at_right)
    return least


def federated_sample_bound(tail: Tail, informations: Sequence[Sequence[float]]) -> float:
    r"""$\frac1{nK^2} \sum_{k,i} \psi^{*-1}(I(W_k; Z_{i,k}))$ for a location loss $D_F(w, z)$; one row a node.

    Also for $D_F(\langle x, w\rangle, y)$ if the ``x`` are fixed (new labels at the old points). With random
    ``x`` it is false, although it is quoted so: the theory page has a counterexample.

    >>> federated_sample_bound(SubGaussian(1.0), [[0.5, 0.5], [0.125, 0.125]])
    0.375
    """
    require(len(informations) >= 1, "informations", "name at least one node", informations)
    sizes = {len(row) for row in informations}
    require(len(sizes) == 1, "informations", "have the same number of samples at each node", sizes)
    return mean_node_gap([sample_bound(tail, row) for row in informations]) / len(informations)


def printed_private_information(epsilon: float) -> float:
    r"""$\min(\varepsilon, (e-1)\varepsilon^2)$ [BDP22]: valid; up to 14 times :func:`private_information`.

    >>> printed_private_information(0.1), printed_private_information(2.0)
    (0.017182818..., 2.0)
    """
    require(0 <= epsilon < math.inf, "epsilon", "be finite and non-negative", epsilon)
    return min(epsilon, (math.e - 1) * epsilon * epsilon)
