r"""The law of the last iterate of a chain with Laplace noise, on fine cells, with a proved factor around every event.

A round maps the point $w$ to a density whose logarithm changes by at most $c\,|w - w'|/b$ when $w$ does. So placing a
cell's mass at its middle changes the chance of any later event by a factor within $e^{\pm c\,width/(2b)}$.
Theory page: exact-laws.md, section 3.
"""

import math

import numpy as np

from fedveil.audit.cells import CellLaw, add
from fedveil.audit.chain import Chain, Mixture
from fedveil.core.checks import require
from fedveil.core.values import Vector

_ROUNDING = 1e-11  # relative error of a round: positive terms only
_WIDEST = 600.0  # largest width of the interval and the images, in scales, so that exponentials are finite


class LaplaceLaws:
    """Laws of chains on one interval from one start; the cells of the states are those of the release."""

    def __init__(self, start: float, edges: Vector, projected: bool) -> None:
        self._start, self._edges, self._projected = start, edges, projected
        middles = (edges[1:] + edges[:-1]) / 2
        self._points = np.concatenate([edges[:1], middles, edges[-1:]])

    def law(self, mixture: Mixture) -> CellLaw:
        """Return the law after the last rounds."""
        return add([self._law(weight, chain) for weight, chain in mixture])

    def _law(self, weight: float, chain: Chain) -> CellLaw:
        points, masses, spread, error = np.array([self._start]), np.full(1, weight), 0.0, 0.0
        half = float(np.max(np.diff(self._edges))) / 2
        for number, step in enumerate(chain):
            if number > 0:
                spread += float(np.max(np.abs(step.line.slopes))) * half / step.noise
            masses = _round(self._edges, step.line(points), step.noise, masses)
            points = self._points
            if not self._projected and number < len(chain) - 1:
                error += float(masses[0] + masses[-1])
        flat = np.full(self._edges.size - 1, 1 / chain[-1].noise)  # no log-density is steeper than this
        return CellLaw(
            edges=self._edges,
            masses=masses,
            factor=math.exp(spread) * (1 + _ROUNDING * (len(chain) + 1)),
            error=error,
            beyond=0.0 if self._projected else float(masses[0] + masses[-1]),
            low=-flat,
            high=flat,
        )


def _round(edges: Vector, centres: Vector, scale: float, masses: Vector) -> Vector:
    """Return the masses of the ends and cells, from sources to the left, to the right and inside."""
    order = np.argsort(centres, kind="stable")
    z, m = (centres[order] - edges[0]) / scale, masses[order]
    y = (edges - edges[0]) / scale
    reach = max(float(y[-1]), float(z[-1])) - min(0.0, float(z[0]))
    require(reach <= _WIDEST, "the interval", f"be at most {_WIDEST:g} Laplace scales wide", reach)
    below, above = np.searchsorted(z, y, side="left"), np.searchsorted(z, y, side="right")
    ahead = np.append(0.0, np.cumsum(m * np.exp(z)))
    back = np.append(np.cumsum((m * np.exp(-z))[::-1])[::-1], 0.0)
    left = np.exp(-y) * ahead[below]  # from sources strictly left of each edge, discounted to it
    right = np.exp(y) * back[below]  # from sources at the edge or right of it
    thin = -np.expm1(-np.diff(y)) / 2
    cells = left[:-1] * thin + right[1:] * thin + _inside(y, z, m)
    under, beyond = slice(0, above[0]), slice(below[-1], None)  # sources at an end or outside
    low = float(m[under].sum()) - _outer(z[under], m[under], 0.0) + float(back[above[0]]) / 2
    high = float(m[beyond].sum()) - _outer(z[beyond], m[beyond], float(y[-1])) + float(left[-1]) / 2
    return np.concatenate([[low], cells, [high]])


def _inside(y: Vector, z: Vector, m: Vector) -> Vector:
    """Return what sources within a cell (left edge included) leave there: 1 - (e^-(z-y0) + e^-(y1-z))/2."""
    cell = np.searchsorted(y, z, side="right") - 1
    here = (cell >= 0) & (cell < y.size - 1)
    cell, z, m = cell[here], z[here], m[here]
    kept = -(np.expm1(y[cell] - z) + np.expm1(z - y[cell + 1])) / 2
    return np.asarray(np.bincount(cell, weights=m * kept, minlength=y.size - 1), dtype=np.float64)


def _outer(z: Vector, m: Vector, edge: float) -> float:
    """Return what sources beyond an end send back inside: half of e^-distance."""
    return float((m * np.exp(-np.abs(z - edge))).sum()) / 2
