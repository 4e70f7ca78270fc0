r"""Sums of independent privacy losses on a common grid: one tilt, one Fourier transform, both tails bounded.

Tilting each law by $e^{\lambda L}$ centres the sum at the epsilon that is asked for, so rounding errors and
wrap-around are relative to the answer, however small delta is. Theory page: loss-distributions.md.

References:
    [GLW21] Gopi, Lee, Wutschitz. Numerical Composition of Differential Privacy. NeurIPS 2021.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.fft import irfft, next_fast_len, rfft

from fedveil.core.values import Vector
from fedveil.theory.lattice import LatticeLaw

_UNIT = 2.0**-52
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
        found = zip(tops.tolist(), norms.tolist(), strict=True)
        return [top + math.log(norm) if norm > 0 else -math.inf for top, norm in found]


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
    size = next_fast_len(max(last - first + 1, 16), real=True)
    spectrum: NDArray[np.complex128] = np.ones(size // 2 + 1, dtype=np.complex128)
    rounds, log_finite = 0, 0.0
    for (law, times), law_open in zip(parts, laws.each, strict=True):
        part = rfft(_wrapped(law_open.tilted(view.tilt)[0], law.start, size))
        spectrum *= _power(part, times)
        rounds += times
        log_finite += times * (math.log1p(-law.infinite) if law.infinite < 1 else -math.inf)
    mass = irfft(spectrum, size, overwrite_x=True)
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
