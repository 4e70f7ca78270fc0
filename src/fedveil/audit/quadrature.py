r"""Gauss-Legendre panels for one state of a Gaussian chain, with a proved bound on their error.

Between two rounds the density is $f(w) = \int \varphi_\sigma(w - z)\,d\nu(z)$, and the chance of any later event is
$g(w) = \int \varphi_{\sigma'}(y - \psi(w))\,\bar g(y)\,dy$ with $0 \le \bar g \le 1$. Where $\psi$ is linear both are
entire functions, bounded on the Bernstein ellipse of a panel; so the error of the integral of $fg$ is known in advance,
for every event at once. Theory page: exact-laws.md, section 2.
"""

import math
from dataclasses import dataclass

import numpy as np

from fedveil.audit.chain import Step
from fedveil.core.checks import require
from fedveil.core.values import Vector

NODES = 28  # nodes of a panel
MOST_POINTS = 4000  # most points of a state; a round costs their square
_TARGET = 1e-26  # error of a panel, over the mass of its width in noise deviations
_X, _W = np.polynomial.legendre.leggauss(NODES)


@dataclass(frozen=True, slots=True, eq=False)
class Panels:
    """Both ends and the nodes; weights (0 at the ends, which hold atoms); ``error``: for any event and unit mass."""

    points: Vector
    weights: Vector
    error: float


def panel_error(squeeze: float) -> float:
    r"""Return the error of a panel of half-width $h$ over $h \sup f \sup g$.

    ``squeeze``: $h^2(\sigma^{-2} + c^2\sigma'^{-2})$. The error is $8\rho^{-2n} e^{squeeze\,b^2/2}/(1 - 1/\rho)$,
    $b = (\rho - 1/\rho)/2$, for any $\rho > 1$; the best of a few, or 4.
    """
    rho = np.geomspace(1.1, 200.0, 160)
    b = (rho - 1 / rho) / 2
    logs = math.log(8) - 2 * NODES * np.log(rho) + squeeze * b * b / 2 - np.log1p(-1 / rho)
    return min(4.0, math.exp(min(float(np.min(logs)), 2.0)))


def _widest() -> float:
    """Return the largest squeeze whose error is below the target."""
    low, high = 0.0, 100.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if panel_error(middle) <= _TARGET else (low, middle)
    return low


_SQUEEZE = _widest()


def panels(noise: float, coming: Step) -> Panels:
    """Return the panels of a state that a round of this ``noise`` made and the round ``coming`` will use."""
    knots, slopes = coming.line.knots, coming.line.slopes
    bounds, errors = [knots[0]], []
    for left, right, slope in zip(knots[:-1], knots[1:], slopes, strict=True):
        rate = noise**-2 + (float(slope) / coming.noise) ** 2
        count = max(1, math.ceil((right - left) / 2 * math.sqrt(rate / _SQUEEZE)))
        many = f"{count * NODES} points for a piece {right - left:.3g} wide"
        require(
            count * NODES <= MOST_POINTS, "panels", f"take at most {MOST_POINTS} points", many, "The noise is tiny."
        )
        half = (right - left) / (2 * count)
        bounds.extend(np.linspace(left, right, count + 1)[1:].tolist())
        errors.append(count * half * panel_error(half * half * rate) / (math.sqrt(2 * math.pi) * noise))
    size = (len(bounds) - 1) * NODES
    require(size <= MOST_POINTS, "panels", f"take at most {MOST_POINTS} points", size, "The noise is tiny.")
    edges = np.array(bounds)
    half_widths = np.diff(edges)[:, None] / 2
    points = (edges[:-1, None] + half_widths * (1 + _X)).ravel()
    weights = np.concatenate([[0.0], (half_widths * _W).ravel(), [0.0]])
    return Panels(np.concatenate([edges[:1], points, edges[-1:]]), weights, math.fsum(errors))
