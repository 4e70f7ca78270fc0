r"""A privacy-loss law moved onto the grid ``h Z`` from above or from below, so that sums stay on it.

From above, the mass of each cell is split between its two ends such that $E_P[e^{-L}]$ (that is, Q) is kept: a
mean-preserving spread of the likelihood ratio, which dominates the law itself ("connect the dots", [DGKKM22]).
From below, the put function $u(k) = E_P[(k - e^{-L})_+]$ is lowered at the grid points until its chords lie
under it, then made convex again: what it belongs to is dominated. Both errors are of second order in ``h``.
Theory page: loss-distributions.md.

References:
    [DGKKM22] Doroshenko, Ghazi, Kamath, Kumar, Manurangsi. Connect the Dots. PoPETs 2022.
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy.optimize import isotonic_regression

from fedveil.core.values import Vector
from fedveil.theory.loss import LossLaw

_UNIT = 2.0**-52
_ERROR_UNITS = 4.0  # ulps allowed for a normal tail of size t: this much times 2 - ln(t); measured: below half
_LEVEL_UNITS = 64.0  # ulps allowed for the loss at which a threshold is taken, near zero
_MIDDLE = 0.16  # mass on either side of the bulk of a law
LONGEST = 1 << 19  # most grid points of all laws together: 4 MB


@dataclass(frozen=True, slots=True)
class LatticeLaw:
    """Probability ``mass[i]`` of loss ``(start + i) * step``, and ``infinite`` of an infinite loss.

    Rounded outward: from above the masses may add up to slightly more than one, from below to less.
    """

    step: float
    start: int
    mass: Vector
    infinite: float

    def losses(self) -> Vector:
        """Return the losses at the grid points."""
        return self.step * np.arange(self.start, self.start + self.mass.size, dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Sketch:
    """A law of a few atoms at arbitrary places, which dominates the law it was made from."""

    points: Vector
    mass: Vector
    infinite: float

    def losses(self) -> Vector:
        """Return the losses at the atoms."""
        return self.points


@dataclass(frozen=True, slots=True)
class Cells:
    """The mass of each cell between ``levels`` under P, and the share of it that belongs to the cell's upper end.

    ``doubt`` and ``rounding`` bound the errors of share and mass; ``under``, ``over``, ``infinite``: mass of P
    elsewhere.
    """

    levels: Vector
    mass: Vector
    share: Vector
    doubt: Vector
    rounding: Vector
    under: float
    over: float
    infinite: float


def grid_cells(law: LossLaw, step: float, tail: float) -> Cells:
    """Return the cells of the grid ``step * Z``, from below the loss's reach to above it."""
    low, high = law.reach(tail)
    first, last = math.floor(low / step) - 1, math.ceil(high / step) + 1
    if not last - first <= LONGEST:
        raise OverflowError("the law does not fit its grid")
    return _cells(law, step * np.arange(first, last + 1, dtype=np.float64))


def _cells(law: LossLaw, levels: Vector) -> Cells:
    with np.errstate(all="ignore"):
        tails = law.tails(levels)
        infinite = float(law.tails(np.array([np.inf])).p_above[0])
        p, p_rounding = _between(tails.p_above, tails.p_below)
        q, q_rounding = _between(tails.q_above, tails.q_below)
        ratio = q * np.exp(levels[:-1]) / p  # mean of e^{-L} in the cell over its value at the lower end
        width = -np.expm1(-np.diff(levels))
        share = np.clip((1 - ratio) / width, 0.0, 1.0)
        q_rounding *= ratio / q
        q_rounding += p_rounding / p * ratio + _UNIT * (_LEVEL_UNITS + 8 * np.abs(levels[:-1]))
        doubt = q_rounding / width
    unknown = ~(np.isfinite(doubt) & np.isfinite(share))
    share[unknown], doubt[unknown] = 0.0, 1.0
    infinite = infinite if infinite <= 1 else 1.0  # also if it is NaN
    under, over = float(tails.p_below[0]), max(float(tails.p_above[-1]) - infinite, 0.0)
    return Cells(levels, p, share, doubt, p_rounding, under, over, infinite)


def _between(above: Vector, below: Vector) -> tuple[Vector, Vector]:
    """Return the mass between neighbouring levels, from the smaller tail, and a bound on its rounding error."""
    use_lower, use_upper = below[1:] <= 0.5, above[:-1] <= 0.5
    upper, lower = above[:-1] - above[1:], below[1:] - below[:-1]
    middle = (1 - below[:-1]) - above[1:]
    mass = np.where(use_lower, lower, np.where(use_upper, upper, middle))
    scale = np.where(use_lower, below[1:], np.where(use_upper, above[:-1], 1.0))
    rounding = _ERROR_UNITS * _UNIT * scale * (2 - np.log(np.maximum(scale, 1e-300)))
    return np.maximum(mass, 0.0), rounding


def sketch(law: LossLaw, tail: float, points: int) -> Sketch:
    """Return a dominating law of ``points`` atoms, dense in the bulk and sparse in the tails.

    It serves for moments, not for sums.
    """
    low, high = law.reach(tail)
    left, right = law.reach(_MIDDLE)
    width = max(high - low, 1e-12)
    middle, scale = min(max((left + right) / 2, low), high), max(right - left, 1e-9 * width)
    ends = math.asinh((low - middle) / scale) - 1e-3, math.asinh((high - middle) / scale) + 1e-3
    levels = middle + scale * np.sinh(np.linspace(*ends, points))
    cells = _cells(law, levels)
    return Sketch(levels, _split(cells), _lost(cells))


def from_above(law: LossLaw, step: float, tail: float) -> LatticeLaw:
    """Return a law on the grid that dominates ``law``: every delta from it is an upper bound."""
    return raised(grid_cells(law, step, tail), step)


def raised(cells: Cells, step: float) -> LatticeLaw:
    """Return the law from above, with the mass of each cell at its two ends."""
    return LatticeLaw(step, round(cells.levels[0] / step), _split(cells), _lost(cells))


def _lost(cells: Cells) -> float:
    return min((cells.over + cells.infinite) * (1 + 1e-12), 1.0)


def _split(cells: Cells) -> Vector:
    upper = cells.mass * np.minimum(cells.share + cells.doubt, 1.0)
    mass = np.append(cells.mass - upper, 0.0)
    mass[1:] += upper + cells.rounding
    mass[0] += cells.under * (1 + 1e-12)
    return np.asarray(mass, dtype=np.float64)


def lowered(cells: Cells, step: float) -> LatticeLaw:
    """Return the law from below, whose put function is the largest convex one under the lowered grid values."""
    start = round(cells.levels[0] / step)
    share = np.maximum(cells.share - cells.doubt, 0.0)
    infinite = max(cells.infinite * (1 - 1e-12) - 1e-15, 0.0)
    # Scale k = e^{-L} by its largest value so that nothing overflows; only products mass * width matter.
    usable = int(np.searchsorted(cells.levels, cells.levels[0] + 650.0))  # beyond, k is as good as zero
    k = np.exp(cells.levels[0] - cells.levels[: usable + 1])
    width = k[:-1] * -math.expm1(-step)
    mass, share = cells.mass[: width.size], share[: width.size]
    beyond = cells.over + float(cells.mass[width.size :].sum())
    above = beyond + np.append(np.cumsum(mass[::-1])[::-1], 0.0)  # P(L > level), finite losses only
    slope = above[1:] + share * mass  # of the chord of u over each cell
    slopes = slope - _shifts(mass, share, width, slope, cells.under)
    # From the top loss downward k grows, and the slopes of a convex function grow with it.
    fitted = isotonic_regression(slopes[::-1], weights=width[::-1]).x[::-1]
    fitted = np.minimum.accumulate(np.clip(fitted, 0.0, 1.0))
    law = np.append(-np.diff(fitted), fitted[-1]) - 2 * _ERROR_UNITS * _UNIT * fitted - cells.rounding[: width.size]
    law = np.maximum(law, 0.0)
    if not float(law.sum()) > 0:
        return _point(cells, step, infinite)
    return LatticeLaw(step, start + 1, law, infinite)


def _shifts(mass: Vector, share: Vector, width: Vector, slope: Vector, under: float) -> Vector:
    """Return by how much lowering the put function turns each chord; the whole slope if the grid is too coarse."""
    room = share * (1 - share) * mass * width  # chord minus the two end tangents
    gap = np.maximum(np.append(0.0, room), np.append(room, 0.0))
    put = np.append(np.cumsum((slope * width)[::-1])[::-1], 0.0)  # u at the grid points
    below = under + np.append(0.0, np.cumsum(mass)[:-1])
    call = np.append(0.0, np.cumsum((below + (1 - share) * mass) * width))  # u minus its asymptote
    # At either end u is lowered to its asymptote, from the grid point on that still clears the gap: there the
    # chord of the last cell lies under u, and further out the chords are the asymptote itself.
    left = int(np.max(np.flatnonzero(call < gap), initial=-1)) + 1
    right = int(np.min(np.flatnonzero(put < gap), initial=gap.size)) - 1
    if right <= left or call[left] > put[left] or put[right] > call[right]:
        return slope  # the asymptotes cross before the law has any effect
    gap[: left + 1] = call[: left + 1]
    gap[right:] = put[right:]
    return np.asarray((gap[:-1] - gap[1:]) / width, dtype=np.float64)


def _point(cells: Cells, step: float, infinite: float) -> LatticeLaw:
    """Return all finite losses at one point, which by Jensen is the least that any law with these masses can reveal."""
    finite = max(1 - cells.infinite, 0.0)
    level = math.floor(math.log(finite) / step) if finite > 0 else 0
    return LatticeLaw(step, level, np.array([finite * (1 - 1e-12)]), infinite)
