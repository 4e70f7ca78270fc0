r"""Privacy losses on a grid, rounded outward, and their convolution.

Tilting each law by $e^{\lambda L}$ centres the sum at the epsilon that is asked for, so rounding errors and
wrap-around are relative to the answer, however small delta is. Theory page: loss-distributions.md.

References:
    [GLW21] Gopi, Lee, Wutschitz. Numerical Composition of Differential Privacy. NeurIPS 2021.
    [DGKKM22] Doroshenko, Ghazi, Kamath, Kumar, Manurangsi. Connect the Dots. PoPETs 2022.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import scipy
from numpy.typing import NDArray

from fedveil.core.values import Vector
from fedveil.theory.loss import LossLaw

# A privacy-loss law moved onto the grid ``h Z`` from above or from below, so that sums stay on it.
#
# From above, the mass of each cell is split between its two ends such that $E_P[e^{-L}]$ (that is, Q) is kept: a
# mean-preserving spread of the likelihood ratio, which dominates the law itself ("connect the dots", [DGKKM22]).
# From below, the put function $u(k) = E_P[(k - e^{-L})_+]$ is lowered at the grid points until its chords lie
# under it, then made convex again: what it belongs to is dominated. Both errors are of second order in ``h``.
# Theory page: loss-distributions.md.

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
    fitted = scipy.optimize.isotonic_regression(slopes[::-1], weights=width[::-1]).x[::-1]
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


_TRANSFORM_UNITS = 4.0  # ulps allowed for each level of a Fourier transform, and for each use of a law
_MARGIN = 1e-10  # relative error of delta from the recursions and logarithms of the answer itself
LARGEST_WINDOW = 3 << 19
_TABLE = 1 << 18  # most numbers of laws that are tilted together


class Atomic(Protocol):
    """A law of finitely many losses: a lattice law or a sketch."""

    @property
    def mass(self) -> Vector:
        """The probability of each loss."""
        ...

    def losses(self) -> Vector:
        """Return the losses of the law."""
        ...


Parts = Sequence[tuple[LatticeLaw, int]]  # laws on one grid, each with its number of uses
Counted = Sequence[tuple[Atomic, int]]


class Opened(NamedTuple):
    """A law prepared for evaluation at several tilts."""

    log_mass: Vector
    losses: Vector
    times: int

    def tilted(self, tilt: float) -> tuple[Vector, float]:
        """Return masses times exp(tilt * loss), scaled to sum to one, and the logarithm of the scale."""
        with np.errstate(under="ignore", invalid="ignore"):
            exponent = self.log_mass + tilt * self.losses
            top = float(np.max(exponent))
            weights = np.exp(exponent - top)
        norm = float(weights.sum())
        return weights / norm, top + math.log(norm) if norm > 0 else -math.inf


class Laws(NamedTuple):
    """Laws prepared for evaluation; ``rows``: log masses and losses of all, where they have equally many of them."""

    each: tuple[Opened, ...]
    rows: tuple[Vector, Vector] | None

    def scales(self, tilt: float) -> Sequence[float]:
        """Return the logarithm of each law's scale at this tilt."""
        if self.rows is None:
            return [law.tilted(tilt)[1] for law in self.each]
        log_mass, losses = self.rows
        with np.errstate(under="ignore", invalid="ignore"):
            exponent = log_mass + tilt * losses
            tops = exponent.max(axis=1)
            norms = np.exp(exponent - tops[:, None]).sum(axis=1)
        result = zip(tops.tolist(), norms.tolist(), strict=True)
        return [top + math.log(norm) if norm > 0 else -math.inf for top, norm in result]


def opened(parts: Counted) -> Laws:
    """Return each law with the logarithms that every tilt needs."""
    with np.errstate(divide="ignore"):
        each = tuple(Opened(np.log(law.mass), law.losses(), times) for law, times in parts)
    alike = len(each) > 1 and len({law.losses.size for law in each}) == 1 and each[0].losses.size * len(each) <= _TABLE
    rows = (np.stack([law.log_mass for law in each]), np.stack([law.losses for law in each])) if alike else None
    return Laws(each, rows)


def log_moment(laws: Laws, tilt: float) -> float:
    """Return the cumulant generating function of the finite part of the sum, at ``tilt``."""
    return sum(law.times * scale for law, scale in zip(laws.each, laws.scales(tilt), strict=True))


def variance(laws: Laws, tilt: float) -> float:
    """Return the variance of the tilted sum."""
    total = 0.0
    for law in laws.each:
        weights, _ = law.tilted(tilt)
        total += law.times * float(weights @ (law.losses - float(weights @ law.losses)) ** 2)
    return total


def log_peak(tilt: float) -> float:
    r"""$\ln \max_{y>0} e^{-\lambda y}(1 - e^{-y})$, the largest weight of a tilted loss in delta."""
    return tilt * math.log(tilt / (1 + tilt)) - math.log1p(tilt) if tilt > 0 else 0.0


@dataclass(frozen=True, slots=True)
class TiltedSum:
    r"""The law of a sum of losses, tilted: loss ``(start + i) * step`` has $e^{K - \lambda L}$ times ``mass[i]``.

    ``slack``: tilted probability that is unaccounted for (wrap-around and rounding); ``infinite``: mass at infinity.
    """

    tilt: float
    log_moment: float
    step: float
    start: int
    mass: Vector
    slack: float
    infinite: float

    def epsilon(self, delta: float, *, upper: bool) -> float:
        """Return the least epsilon of this sum at ``delta``, rounded up (or down).

        ``inf`` if it is outside the window.
        """
        if not delta > self.infinite:
            return math.inf
        sign = 1.0 if upper else -1.0
        with np.errstate(divide="ignore"):
            inside = self._tail_weights() + sign * self.slack * math.exp(log_peak(self.tilt))
            log_delta = np.log(np.maximum(inside, 0.0)) + self.log_moment - self.tilt * self._losses()
        log_target = math.log(delta - self.infinite) - sign * self._doubt()
        # From above, take the first grid point that is good enough; from below, the last that is not.
        good = log_delta <= log_target
        if upper:
            index = int(np.argmax(good)) if good.any() else good.size
            if index == good.size:
                return math.inf
        else:
            index = good.size - int(np.argmin(good[::-1])) if not good.all() else 0
            if index == good.size:
                return max(0.0, self.step * (self.start + index - 1))
        if index == 0:
            return max(0.0, self.step * self.start) if upper else 0.0
        # From below, the value at the right end may be negative: a chord to zero there would prove too much.
        fall = 1 - math.exp(-self.tilt * self.step) * float(inside[index] / inside[index - 1])
        return max(0.0, self._within(index, float(log_delta[index - 1]) - log_target, fall))

    def log_delta(self, epsilon: float, *, upper: bool) -> float:
        """Return the logarithm of delta at ``epsilon``, rounded up (or down)."""
        sign = 1.0 if upper else -1.0
        excess = np.maximum(self._losses() - epsilon, 0.0)
        with np.errstate(under="ignore"):
            weights = np.exp(-self.tilt * excess) * -np.expm1(-excess)
        total = float(self.mass @ weights) + sign * self.slack * math.exp(log_peak(self.tilt))
        if math.isnan(total):
            return 0.0 if upper else -math.inf
        log_finite = self.log_moment - self.tilt * epsilon + sign * self._doubt()
        log_finite += math.log(total) if total > 0 else -math.inf
        log_infinite = math.log(self.infinite) if self.infinite > 0 else -math.inf
        return float(np.logaddexp(log_finite, log_infinite))

    def _doubt(self) -> float:
        """Return the rounding error of the logarithm of delta: of its exponent, and of the sums."""
        widest = self.step * max(abs(self.start), abs(self.start + self.mass.size))
        return _MARGIN + 16 * _UNIT * (abs(self.log_moment) + self.tilt * widest)

    def _losses(self) -> Vector:
        return self.step * np.arange(self.start, self.start + self.mass.size, dtype=np.float64)

    def _tail_weights(self) -> Vector:
        r"""$c_j = \sum_{s \ge j} \tilde p_s e^{-\lambda (s-j)h} (1 - e^{-(s-j)h})$ by two positive recursions."""
        decay, both = math.exp(-self.tilt * self.step), math.exp(-(self.tilt + 1) * self.step)
        above = decaying_sums(self.mass[::-1], decay)
        source = np.append(0.0, above[:-1]) * (decay * -math.expm1(-self.step))
        return decaying_sums(source, both)[::-1]

    def _within(self, index: int, missed: float, fall: float) -> float:
        """Return the offset between two grid points, where delta is linear in exp(epsilon), that makes up for
        ``missed``.
        """
        part = min(max(-math.expm1(-missed) / fall, 0.0), 1.0) if fall > 0 else 1.0
        return self.step * (self.start + index - 1) + math.log1p(part * math.expm1(self.step))


class Tilt(NamedTuple):
    """How a sum is evaluated: the tilt, how much may fall outside the window, and the shifts that bound both tails."""

    tilt: float
    log_outside: float
    below: float
    above: float


def choose_window(laws: Laws, tilt: float, log_outside: float) -> Tilt:
    """Return the shifts of Chernoff's bound that give the shortest window; any positive shift is valid."""
    here = log_moment(laws, tilt)
    gaussian = math.log(math.sqrt(-2 * log_outside / max(variance(laws, tilt), 1e-300)))  # heavy tails need less

    def reach(shift: float) -> float:
        distance = (log_moment(laws, tilt + shift) - here - log_outside) / abs(shift)
        return distance if not math.isnan(distance) else math.inf

    below, _ = minimum(lambda log_shift: reach(-math.exp(log_shift)), gaussian - 12, gaussian + 2)
    above, _ = minimum(lambda log_shift: reach(math.exp(log_shift)), gaussian - 12, gaussian + 2)
    return Tilt(tilt, log_outside, math.exp(below), math.exp(above))


def minimum(objective: Callable[[float], float], low: float, high: float) -> tuple[float, float]:
    """Minimise by golden sections; every point is a valid bound, so the minimum need not be exact."""
    ratio = (math.sqrt(5) - 1) / 2
    left, right = high - ratio * (high - low), low + ratio * (high - low)
    at_left, at_right = objective(left), objective(right)
    for _ in range(20):
        if at_left <= at_right:
            high, right, at_right = right, left, at_left
            left = high - ratio * (high - low)
            at_left = objective(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + ratio * (high - low)
            at_right = objective(right)
    return (left, at_left) if at_left <= at_right else (right, at_right)


def convolve(parts: Parts, view: Tilt) -> TiltedSum:
    """Return the law of the sum of all losses, with each law used as often as its count says."""
    step = parts[0][0].step
    laws = opened(parts)
    moment = log_moment(laws, view.tilt)
    first, last = _window(parts, laws, view, moment)
    size = scipy.fft.next_fast_len(max(last - first + 1, 16), real=True)
    spectrum: NDArray[np.complex128] = np.ones(size // 2 + 1, dtype=np.complex128)
    rounds, log_finite = 0, 0.0
    for (law, times), law_open in zip(parts, laws.each, strict=True):
        part = scipy.fft.rfft(_wrapped(law_open.tilted(view.tilt)[0], law.start, size))
        spectrum *= _power(part, times)
        rounds += times
        log_finite += times * (math.log1p(-law.infinite) if law.infinite < 1 else -math.inf)
    mass = scipy.fft.irfft(spectrum, size, overwrite_x=True)
    del spectrum
    mass = np.roll(np.maximum(mass, 0.0, out=mass), -(first % size))
    # An error e in each transform becomes rounds * e in their product, in mean square. In the sum of |errors| it
    # is multiplied by the root below, which is one for a flat law and sqrt(size) for a single atom.
    peaked = math.sqrt(max(size * float(mass @ mass), 1.0))
    rounding = _TRANSFORM_UNITS * _UNIT * math.log2(size) * (rounds + 1) * peaked
    slack = 2 * math.exp(view.log_outside) + math.expm1(min(rounding, 700.0))
    if not (math.isfinite(moment) and math.isfinite(slack) and np.isfinite(mass[0])):
        raise OverflowError("the sum of losses is beyond floating point")
    return TiltedSum(view.tilt, moment, step, first, mass, slack, -math.expm1(log_finite))


def _power(values: NDArray[np.complex128], times: int) -> NDArray[np.complex128]:
    """Return the elementwise power; entries far below the rounding error of the largest are left out."""
    if times == 1:
        return values
    kept = np.abs(values) > math.exp(-60.0 / times)
    powers = np.zeros_like(values)
    powers[kept] = values[kept] ** times
    return powers


def _wrapped(weights: Vector, start: int, size: int) -> Vector:
    """Return a law wrapped onto a circle of ``size`` points."""
    circle = np.zeros(size)
    for begin in range(0, weights.size, size):
        piece = weights[begin : begin + size]
        circle[: piece.size] += piece
    return np.roll(circle, start % size)


def _window(parts: Parts, laws: Laws, view: Tilt, here: float) -> tuple[int, int]:
    """Return the grid range outside which the tilted sum has at most ``2 exp(log_outside)``, by Chernoff's bound."""
    step = parts[0][0].step
    ends = []
    for sign, shift in ((-1, view.below), (1, view.above)):
        support = sum(times * (law.start if sign < 0 else law.start + law.mass.size - 1) for law, times in parts)
        reach = (log_moment(laws, view.tilt + sign * shift) - here - view.log_outside) / shift / step
        ends.append(sign * min(reach if not math.isnan(reach) else math.inf, float(sign * support)))
    if not ends[1] - ends[0] <= LARGEST_WINDOW - 4:
        raise OverflowError("the sum of losses does not fit its window")
    return math.floor(ends[0]) - 1, math.ceil(ends[1]) + 1


def decaying_sums(values: Vector, decay: float) -> Vector:
    """Return ``out[i] = values[i] + decay * out[i - 1]``, for non-negative values and ``0 <= decay <= 1``.

    It is computed as running sums of rescaled blocks, so that nothing overflows; all terms are positive and nothing
    cancels.
    """
    if decay <= 0.0:
        return values.copy()
    block = max(1, min(values.size, int(300.0 / max(-math.log(decay), 1e-300))))
    if block < 32:  # what lies further back than this has decayed to nothing
        kernel = decay ** np.arange(min(values.size, 400))
        return np.convolve(values, kernel)[: values.size]
    powers = np.exp(math.log(decay) * np.arange(block))
    out, carry = np.empty_like(values), 0.0
    for start in range(0, values.size, block):
        part = values[start : start + block]
        scale = powers[: part.size]
        out[start : start + block] = scale * (np.cumsum(part / scale) + decay * carry)
        carry = float(out[start + part.size - 1])
    return out
