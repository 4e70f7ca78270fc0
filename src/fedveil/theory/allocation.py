r"""Independent draws: the law of $R = \sum_j X_j$, a sum of independent lognormals, from above and from below.

A record that picks one round of a pass gives the likelihood ratio $R = \sum_t p_t e^{\mu_t \zeta - \mu_t^2/2}$, in
which the rounds of one part share their $\zeta$ and parts are independent. $E(R - \gamma)_+$ and $E(1 - \gamma R)_+$
are both expectations of convex functions, so each summand is moved onto a grid by a spread that keeps its mean (from
above), or its put function is lowered (from below), and the summands are convolved by one Fourier transform. Theory
page: sampled-shift.md.
"""

import math
from bisect import bisect_left
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple, final

import numpy as np
import scipy
from numpy.typing import NDArray

from fedveil.core.errors import require
from fedveil.core.recent import Recent
from fedveil.core.values import Vector
from fedveil.theory.loss import Tails

Summand = tuple[tuple[float, float], ...]  # (shift, probability) of the rounds of one part; few different shifts
Summands = tuple[tuple[Summand, int], ...]  # each with the number of equal parts

LARGEST_GRID = 1 << 21
_CELLS = 8000  # cells of the normal variable, for each summand
_FINE = 6e-5  # relative variance that rounding may add
_COARSENINGS = 8
_UNIT = 2.0**-52


class Grid(NamedTuple):
    """The law of R under the null run: ``mass[i]`` at ``step * (start + i)``.

    ``lost``: of E[R], beyond the grid; ``slack``: a bound on what rounding and wrap-around move, times the largest R.
    """

    step: float
    start: int
    mass: Vector
    lost: float
    slack: float

    def points(self) -> Vector:
        """Return the values of R."""
        return self.step * np.arange(self.start, self.start + self.mass.size, dtype=np.float64)


@final
@dataclass(frozen=True, slots=True)
class AllocationLaw:
    """The loss of one pass: ``present`` is R against the null run, ``null`` the other direction.

    ``side`` above: a law that dominates it, with everything uncertain counted as an infinite loss. ``side`` below:
    one that it dominates, up to ``slack`` of delta. ``tail``: how much of the record's own mass may be given up as
    infinite loss.
    """

    summands: Summands
    way: Literal["present", "null"] = "present"
    side: Literal["above", "below"] = "above"
    tail: float = 1e-11

    def __post_init__(self) -> None:
        total = math.fsum(count * p for part, count in self.summands for _, p in part)
        require(abs(total - 1) <= 1e-9, "AllocationLaw.summands", "have probabilities that add up to 1", total)
        fine = all(0 < mu < 1e3 and p > 0 for part, _ in self.summands for mu, p in part)
        require(fine, "AllocationLaw.summands", "have shifts in (0, 1000)", self.summands[:1])

    @property
    def under_slack(self) -> float:
        """The delta by which the law from below may promise too much."""
        return _grid(self.summands, "below", self.tail).slack

    @property
    def under(self) -> "AllocationLaw":
        """The law from below."""
        return AllocationLaw(self.summands, self.way, "below", self.tail)

    def tails(self, levels: Vector, /) -> Tails:
        """Return sums over the grid on either side of each level."""
        result = _cumulated(self)
        at = np.searchsorted(result.losses, levels, side="right")
        return Tails(result.p_above[at], result.p_below[at], result.q_above[at], result.q_below[at])

    def reach(self, mass: float, /) -> tuple[float, float]:
        """Return the first and the last loss that matters."""
        result = _cumulated(self)
        first = int(np.searchsorted(result.p_below[1:], mass))
        above, rest = result.p_above, result.p_above[-1]
        last = bisect_left(range(above.size - 1), -mass, key=lambda i: -float(above[i + 1] - rest))
        top = result.losses.size - 1
        return float(result.losses[min(first, top)]), float(result.losses[min(last, top)])


class _Cumulated(NamedTuple):
    """Losses in rising order; entry i of a tail: with i losses below."""

    losses: Vector
    p_above: Vector
    p_below: Vector
    q_above: Vector
    q_below: Vector


@Recent
def _cumulated(law: AllocationLaw) -> _Cumulated:
    grid = _grid(law.summands, law.side, law.tail)
    sums, spare = _ordered(law.summands, law.side, law.tail)
    if law.way == "present":
        infinite, unseen = grid.lost + grid.slack, spare
    else:  # the same sums, with the roles of the two runs exchanged and the losses reversed
        infinite, unseen = spare + grid.slack, grid.lost
        losses, p_above, p_below, q_above, q_below = (values[::-1] for values in sums)
        sums = _Cumulated(-losses, q_below, q_above, p_below, p_above)
    if law.side == "below":
        infinite, unseen = (0.0 if law.way == "present" else spare), 0.0
    return sums._replace(p_above=sums.p_above + infinite, q_below=sums.q_below + unseen)


@lru_cache(maxsize=2)
def _ordered(summands: Summands, side: str, tail: float) -> tuple[_Cumulated, float]:
    """Return the sums over the grid in the order of R, and the mass without any ratio. Both directions start here."""
    grid = _grid(summands, side, tail)
    points, mass = grid.points(), grid.mass
    kept = (mass > 0) & (points > 0)
    spare = float(mass[(mass > 0) & (points <= 0)].sum())
    points, mass = points[kept], mass[kept]
    return _Cumulated(np.log(points), *_both(points * mass), *_both(mass)), spare


def _both(mass: Vector) -> tuple[Vector, Vector]:
    """Return running sums from either end, with more digits than the masses have."""
    long = mass.astype(np.longdouble)
    above, below = np.zeros(mass.size + 1), np.zeros(mass.size + 1)
    above[:-1] = np.cumsum(long[::-1])[::-1]
    below[1:] = np.cumsum(long)
    return above, below


@Recent
def _grid(summands: Summands, side: str, tail: float) -> Grid:
    """Return all summands on one grid, convolved; coarser where the fine one would be too long."""
    number = sum(count for _, count in summands)
    spread = sum(count * _variance(part) for part, count in summands)
    step = math.sqrt(6 * _FINE * spread / number)
    for _ in range(_COARSENINGS):
        try:
            return _convolved(summands, side, tail, step)
        except OverflowError:
            step *= 2
    return _convolved(summands, side, tail, step)


def _convolved(summands: Summands, side: str, tail: float, step: float) -> Grid:
    number = sum(count for _, count in summands)
    rounded = _split if side == "above" else _lowered
    pieces = [(rounded(part, step, _share(part, number, tail)), count) for part, count in summands]
    log_outside = min(-32.0, math.log(tail) - 7)
    low, high = likely_window([(mass, count) for (mass, _), count in pieces], log_outside)
    size = scipy.fft.next_fast_len(max(high - low + 1, 64), real=True)
    if size > LARGEST_GRID:
        raise OverflowError("the sum of likelihood ratios does not fit its grid")
    spectrum: NDArray[np.complex128] = np.ones(size // 2 + 1, dtype=np.complex128)
    for (mass, _), count in pieces:
        spectrum *= scipy.fft.rfft(wrapped(mass, size)) ** count
    total = np.roll(np.maximum(scipy.fft.irfft(spectrum, size), 0.0), -(low % size))
    peaked = math.sqrt(max(size * float(total @ total), 1.0))
    rounding = 4 * _UNIT * math.log2(size) * (number + 1) * peaked
    largest = max(1.0, step * (low + size))
    slack = (2 * math.exp(log_outside) + math.expm1(rounding)) * largest
    lost = min(1.0, sum(count * gone for (_, gone), count in pieces))
    return Grid(step, low, total, lost, slack)


def _share(part: Summand, number: int, tail: float) -> float:
    """Return how much of this part may be given up, relative to its own probability: an equal share for each part."""
    return min(tail / (number * sum(p for _, p in part)), 1e-4)


def _variance(part: Summand) -> float:
    """Return the variance of the part's likelihood ratio, limited, because more comes from rare, large ratios."""
    return sum(p * q * math.expm1(min(m * n, 6.0)) for m, p in part for n, q in part)


def _values(part: Summand, z: Vector) -> Vector:
    with np.errstate(under="ignore", over="ignore"):  # an infinite ratio fits no grid, and is refused there
        return np.asarray(sum(p * np.exp(mu * z - mu * mu / 2) for mu, p in part), dtype=np.float64)


def _ends(part: Summand, tail: float) -> tuple[float, float]:
    """Return normal coordinates beyond which a summand is negligible, or is given up."""
    top = max(mu for mu, _ in part)
    return float(scipy.special.ndtri(min(tail, 1e-12))) - 1.0, top - float(scipy.special.ndtri(tail))


def _masses(part: Summand, z: Vector) -> tuple[Vector, Vector]:
    """Return probability and mean part of the ratio between neighbouring coordinates (increasing)."""

    def between(shift: float) -> Vector:
        moved = z - shift
        above, below = scipy.special.ndtr(-moved), scipy.special.ndtr(moved)
        return np.where(moved[:-1] > 0, above[:-1] - above[1:], below[1:] - below[:-1])

    mean = sum(p * between(mu) for mu, p in part)
    return between(0.0), np.asarray(mean, dtype=np.float64)


@lru_cache(maxsize=128)
def _cells(part: Summand, tail: float) -> tuple[Vector, Vector, Vector, float]:
    """Return probability, mean part and end values of the cells of the normal variable, and the last coordinate.

    None of them depends on the grid's step, so a second try with a coarser grid finds them here.
    """
    first, last = _ends(part, tail)
    z = np.append(-np.inf, np.linspace(first, last, _CELLS))
    return *_masses(part, z), np.append(0.0, _values(part, z[1:])), last


def _split(part: Summand, step: float, tail: float) -> tuple[Vector, float]:
    """Return a part from above: each cell of the normal variable goes to two grid points, keeping its mean."""
    probability, mean, values, last = _cells(part, tail)
    if not values[-1] / step < 4 * LARGEST_GRID:
        raise OverflowError("a likelihood ratio is too large for its grid")
    low = np.floor(values[:-1] / step * (1 - 1e-13)).astype(np.int64)
    high = np.maximum(np.ceil(values[1:] / step * (1 + 1e-13)).astype(np.int64), low + 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        place = np.where(probability > 0, mean / probability / step, low)
    share = np.clip((place - low) / (high - low), 0.0, 1.0)
    size = int(high[-1]) + 1
    out = np.zeros(size)
    out += np.bincount(low, weights=probability * (1 - share), minlength=size)
    out += np.bincount(high, weights=probability * share, minlength=size)
    out[0] += float(scipy.special.ndtr(-last))  # given up: as if it were no ratio at all, and its mean is lost
    gone = sum(p * float(scipy.special.ndtr(mu - last)) for mu, p in part)
    return out, gone * (1 + 1e-9)


def _lowered(part: Summand, step: float, tail: float) -> tuple[Vector, float]:
    """Return a part of one shift from below: the largest convex put function under the lowered one (see lattice.py)."""
    require(len(part) == 1, "A law from below", "have one shift in each part", len(part))
    ((mu, p),) = part
    _, last = _ends(part, tail)
    largest = float(_values(part, np.array([last]))[0]) / step
    count = math.floor(min(largest, 1e15))
    if not largest <= LARGEST_GRID:
        raise OverflowError("a likelihood ratio is too large for its grid")
    with np.errstate(divide="ignore"):
        z = (np.log(step * np.arange(count + 1) / p) + mu * mu / 2) / mu
    probability, mean = _masses(part, z)
    with np.errstate(divide="ignore", invalid="ignore"):
        place = np.where(probability > 1e-300, mean / probability / step - np.arange(count), 0.5)
    share = np.clip(place, 0.0, 1.0)
    below = np.append(0.0, np.cumsum(probability)[:-1])
    slope = below + (1 - share) * probability
    put = np.append(0.0, np.cumsum(slope)) * step
    total = float(probability.sum())
    above = np.append(np.cumsum((total - slope)[::-1])[::-1], 0.0) * step  # the put less its right asymptote
    room = share * (1 - share) * probability * step
    gap = np.maximum(np.append(0.0, room), np.append(room, 0.0))
    left = int(np.max(np.flatnonzero(put < gap), initial=-1)) + 1
    right = int(np.min(np.flatnonzero(above < gap), initial=gap.size)) - 1
    if right <= left:
        raise OverflowError("the grid is too coarse to see a summand from below")
    gap[: left + 1], gap[right:] = put[: left + 1], above[right:]
    fitted = scipy.optimize.isotonic_regression(slope - np.diff(gap) / step).x
    fitted = np.clip(np.maximum.accumulate(fitted), 0.0, total)
    return np.diff(np.concatenate([[0.0], fitted, [total]])) * (1 - 1e-13), 0.0


def likely_window(pieces: list[tuple[Vector, int]], log_outside: float) -> tuple[int, int]:
    """Grid range outside which the sum has at most ``exp(log_outside)`` on either side, by Chernoff."""
    sparse = [(np.flatnonzero(mass), mass[mass > 0], count) for mass, count in pieces]
    means = [float(mass @ at) for at, mass, _ in sparse]
    spread = sum(n * (float(mass @ at**2.0) - m * m) for (at, mass, n), m in zip(sparse, means, strict=True))
    mean = sum(n * m for (_, _, n), m in zip(sparse, means, strict=True))
    low, high = 0.0, float(sum(count * int(at[-1]) for at, _, count in sparse))
    largest = max(int(at[-1]) for at, _, _ in sparse)
    wide = math.sqrt(max(spread, 1.0))
    for tilt in np.geomspace(0.3, 30.0, 8) / wide:
        low = max(low, -(_log_moment(sparse, -tilt) - log_outside) / tilt)
    for tilt in np.geomspace(min(0.3 / wide, 3.0 / largest), 30.0 / wide, 14):
        high = min(high, (_log_moment(sparse, tilt) - log_outside) / tilt)
    return math.floor(min(low, mean)) - 1, math.ceil(max(high, mean)) + 1


def _log_moment(pieces: list[tuple[NDArray[np.intp], Vector, int]], tilt: float) -> float:
    total = 0.0
    for at, mass, count in pieces:
        top = tilt * float(at[-1] if tilt > 0 else at[0])
        with np.errstate(under="ignore"):
            total += count * (top + math.log(max(float(mass @ np.exp(tilt * at - top)), 1e-300)))
    return total


def wrapped(mass: Vector, size: int) -> Vector:
    """Masses on a circle of ``size`` points: what lies beyond comes round again."""
    circle = np.zeros(size)
    for begin in range(0, mass.size, size):
        piece = mass[begin : begin + size]
        circle[: piece.size] += piece
    return circle


def sparing_tail(summands: Summands) -> float:
    """Return how much of a pass may be given up as infinite loss; less if the ratio's tail is light."""
    return 1e-13 if max(mu for part, _ in summands for mu, _ in part) <= 1.2 else 1e-9
