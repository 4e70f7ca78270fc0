"""The law of the last iterate of a chain with Gaussian noise: atoms at both ends, quadrature between, cells at the end.

Theory page: exact-laws.md, section 2. The quadrature error is proved; the rounding allowance is set by hand.
"""

import math

import numpy as np
from scipy.special import ndtr

from fedveil.audit.cells import CellLaw, add
from fedveil.audit.chain import Chain, Mixture, Step
from fedveil.audit.quadrature import Panels, panels
from fedveil.core.values import Vector

_ROUNDING = 2e-12  # relative error of a round: positive terms only, exponents below 1500, sums of a few thousand
_TAIL = 2e-13  # relative error of a cell's mass, times deviations over its width: a difference of two tails
_STRIDE = 8  # edges between which the posterior mean is only bounded
_ROOT = math.sqrt(2 * math.pi)


class GaussianLaws:
    """Laws of chains on one interval from one start; kernels and common beginnings are cached."""

    def __init__(self, start: float, edges: Vector, projected: bool, merged: bool) -> None:
        self._start, self._edges, self._projected, self._merged = start, edges, projected, merged
        self._panels: dict[tuple[float, Step], Panels] = {}
        self._kernels: dict[tuple[float, Step, Step], Vector] = {}
        self._states: dict[tuple[int, ...], tuple[Vector, float]] = {}
        self._numbers: dict[Step, int] = {}

    def law(self, mixture: Mixture) -> CellLaw:
        """Return the law after the last round.

        Chains that end alike are added up before the last round, which is the expensive one.
        """
        ends: dict[tuple[float | None, Step], tuple[Vector, float, int]] = {}
        for weight, chain in mixture:
            masses, error = self._before_last(chain)
            key = (chain[-2].noise if len(chain) > 1 else None, chain[-1])
            sofar, doubt, longest = ends.get(key, (np.zeros_like(masses), 0.0, 0))
            ends[key] = sofar + weight * masses, doubt + weight * error, max(longest, len(chain))
        return add([self._released(key, *end) for key, end in ends.items()])

    def _released(self, key: tuple[float | None, Step], masses: Vector, error: float, rounds: int) -> CellLaw:
        noise, last = key
        points = np.array([self._start]) if noise is None else self._grid(noise, last).points
        centres, square = last.line(points), last.noise**2
        width = float(np.min(np.diff(self._edges))) / last.noise
        cells = _release(self._edges, centres, last.noise, masses)
        least, most = _posterior(self._edges, centres, last.noise, masses)
        return CellLaw(
            edges=self._edges,
            masses=cells,
            factor=1 + _ROUNDING * (rounds + 1) + _TAIL * max(1.0, 1 / width),
            error=error,
            beyond=float(cells[0] + cells[-1]) if self._merged else 0.0,
            low=(least - self._edges[1:]) / square,
            high=(most - self._edges[:-1]) / square,
        )

    def _grid(self, noise: float, coming: Step) -> Panels:
        if (noise, coming) not in self._panels:
            self._panels[noise, coming] = panels(noise, coming)
        return self._panels[noise, coming]

    def _before_last(self, chain: Chain) -> tuple[Vector, float]:
        """Return the masses at the points of the state before the last round, and the error for any later event."""
        name = tuple(self._numbers.setdefault(step, len(self._numbers)) for step in chain)
        known = next((k for k in range(len(chain) - 1, 0, -1) if name[: k + 1] in self._states), 0)
        masses, error = self._states[name[: known + 1]] if known else (np.ones(1), 0.0)
        for number in range(known, len(chain) - 1):
            step, coming = chain[number], chain[number + 1]
            grid = self._grid(step.noise, coming)
            total = float(masses.sum()) * (1 + 1e-9)
            masses = self._kernel(chain, number) @ masses
            error += grid.error * total
            if not self._projected:  # an unprojected chain agrees with this one until it first leaves the interval
                error += float(masses[0] + masses[-1])
        self._states[name] = masses, error
        return masses, error

    def _kernel(self, chain: Chain, number: int) -> Vector:
        step, target = chain[number], self._grid(chain[number].noise, chain[number + 1])
        if number == 0:
            return _scatter(step.line(np.array([self._start])), step.noise, target)
        key = (chain[number - 1].noise, step, chain[number + 1])
        if key not in self._kernels:
            sources = self._grid(chain[number - 1].noise, step).points
            self._kernels[key] = _scatter(step.line(sources), step.noise, target)
        return self._kernels[key]


def _scatter(centres: Vector, noise: float, target: Panels) -> Vector:
    """Return the masses at the target's points that come from unit masses at the centres, one column per centre."""
    offsets = (target.points[:, None] - centres) / noise
    out = np.exp(-offsets * offsets / 2) * (target.weights / (_ROOT * noise))[:, None]
    out[0], out[-1] = ndtr(offsets[0]), ndtr(-offsets[-1])
    return np.asarray(out, dtype=np.float64)


def _release(edges: Vector, centres: Vector, noise: float, masses: Vector) -> Vector:
    """Return the masses of the ends and of the cells.

    They are differences of the nearer tails, so that small cells keep their digits.
    """
    offsets = (edges[:, None] - centres) / noise
    tail = ndtr(-np.abs(offsets))
    signed = np.where(offsets < 0, tail, -tail)
    inside = np.diff(signed, axis=0) + ((offsets[:-1] < 0) & (offsets[1:] >= 0))
    between = np.maximum(inside @ masses, 0.0)
    ends = ndtr(offsets[0]) @ masses, ndtr(-offsets[-1]) @ masses
    return np.concatenate([[ends[0]], between, [ends[1]]])


def _posterior(edges: Vector, centres: Vector, noise: float, masses: Vector) -> tuple[Vector, Vector]:
    """Return bounds, for each cell, on the mean of the noise's centre given the outcome.

    The slope of the log-density at y is (that mean - y) / noise**2. The mean does not decrease with y, so its values at
    a few edges bound it between them.
    """
    at = np.unique(np.append(np.arange(0, edges.size, _STRIDE), edges.size - 1))
    floor, span = float(centres.min()), float(np.ptp(centres))
    weights = np.exp(-(((edges[at][:, None] - centres) / noise) ** 2) / 2)
    total, moment = weights @ masses, weights @ (masses * (centres - floor))
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = moment / total
    known = total > 1e-290  # elsewhere the exponentials have underflowed, and only the ends are known
    least = np.where(known, mean * (1 - 1e-9), 0.0)
    most = np.where(known, np.minimum(mean * (1 + 1e-9), span), span)
    here = np.searchsorted(at, np.arange(edges.size - 1), side="right") - 1
    return floor + least[here], floor + most[here + 1]
