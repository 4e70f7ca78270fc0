r"""An exchange under independent draws: $E(R - \gamma R')_+$ for the two likelihood ratios of a pass, from above.

$R = \sum_t p_t e^{\mu_t \zeta - \mu_t^2/2}$ and $R' = \sum_t p_t e^{-\mu_t \zeta - \mu_t^2/2}$ share their normal
variables, so for one $\gamma$ the difference $R - \gamma R'$ is a sum of independent variables, one for each part,
each rising in its $\zeta$. Of such a sum a convex function is wanted: each summand is moved onto a grid by a spread
that keeps its mean, and one Fourier transform convolves them. Theory page: sampled-shift.md.
"""

import math
from collections.abc import Callable
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from fedveil.core.values import Vector
from fedveil.theory.allocation import AllocationLaw, Summand, Summands, wrapped
from fedveil.theory.convolution import minimum
from fedveil.theory.loss import FiniteLaw, GaussianLaw, LossLaw, law_of_profile

_CELLS = 3000  # of the normal variable, for each summand
_FINE, _ROUGH = 6e-5, 8e-4  # the variance that rounding may add, relative; where many epsilons are asked for
_BELOW = 6.0  # deviations below which a summand counts as what it is there
_DEEPEST = 2.0**14  # grid steps below which a summand counts as that: more, and too little to be made up for
_STEP = 0.08  # from one epsilon to the next, in deviations, where a pass is taken into a composition
_BODY = 3.0  # deviations from where on these steps follow the fall of delta
_FALL = 0.4  # of its logarithm in one step
_GROWTH = 1.25  # of one step over the last, at most
_LEAST = 1e-12  # the delta at which they end
_WIDEST = 60.0  # epsilon beyond which they are not followed
_NEAR, _EXACT = 2e-2, 1e-4  # relative widths of a bracket on epsilon: on the rough grid, and in the end
_TRIES = 6  # on the fine grid, from where the rough one points to
_COARSENINGS = 12
_LONGEST, _SHORT = 1 << 19, 1 << 16  # points of the circle; where only a place to look at is wanted
_UNIT = 2.0**-52
_SLACK = 0.01  # of delta that roundings may be before the sum is tilted
_OUTSIDE = -32.0  # logarithm of what may lie outside the circle of a tilted sum

_ATOMS = 250  # points of a summand that are told apart when the window of a sum is sought

_Atoms = tuple[NDArray[np.intp], Vector, int]  # places in rising order, their masses, and the number of such summands
_Place = tuple[float, float]  # an epsilon, and by how much the logarithm of delta exceeds what it should be


class _TooLong(OverflowError):
    """A grid of this step would be ``times`` as long as it may be."""

    def __init__(self, words: str, times: float) -> None:
        super().__init__(words)
        self.times = times


def exchange_delta(
    summands: Summands, epsilon: float, tail: float = 1e-11, fine: float = _FINE, longest: int = _LONGEST
) -> float:
    r"""Return an upper bound on $E(R - e^\epsilon R')_+$.

    ``tail``: how much of R may be given up, and is counted as lost; ``fine``: the variance that rounding may add;
    ``longest``: points of the grid, which is made coarser if it would have more.
    """
    return _evaluated(summands, epsilon, tail, fine, longest)[0]


def exchange_coarsening(summands: Summands, epsilon: float, tail: float = 1e-11) -> float:
    """Return how many times coarser than wanted the grid is on which delta is found at this epsilon."""
    return _evaluated(summands, epsilon, tail, _FINE, _LONGEST)[1]


@lru_cache(maxsize=64)
def _evaluated(summands: Summands, epsilon: float, tail: float, fine: float, longest: int) -> tuple[float, float]:
    """Return the bound, and how many times coarser than wanted its grid is."""
    if not 0 <= epsilon < 100:
        return 1.0, math.inf
    gamma = math.exp(epsilon)
    number = sum(count for _, count in summands)
    spread = sum(count * _variance(part, gamma) for part, count in summands)
    step, coarser = math.sqrt(6 * fine * spread / number), 1.0
    for _ in range(_COARSENINGS):
        try:
            return min(1.0, _convolved(summands, gamma, step * coarser, tail, longest)), coarser
        except _TooLong as error:  # doubled, and at once as often as is surely needed
            coarser *= 2.0 ** max(1, math.ceil(math.log2(error.times)))
    return min(1.0, _convolved(summands, gamma, step * coarser, tail, longest)), coarser


def _convolved(summands: Summands, gamma: float, step: float, tail: float, longest: int) -> float:
    number = sum(count for _, count in summands)
    pieces, offset, lost = [], 0, 0.0
    for part, count in summands:
        share = min(tail / (number * sum(p for _, p in part)), 1e-4)
        mass, first, gone = _split(part, gamma, step, share, longest)
        pieces.append((mass, count))
        offset, lost = offset + first * count, lost + gone * count
    log_outside = min(-32.0, math.log(tail) - 7) - math.log1p(step * abs(offset))
    low, high = quick_window(pieces, log_outside)
    size = scipy.fft.next_fast_len(max(high - low + 1, 64), real=True)
    if size > longest:
        raise _TooLong("the difference of likelihood ratios does not fit its grid", size / longest)
    spectrum: NDArray[np.complex128] = np.ones(size // 2 + 1, dtype=np.complex128)
    for mass, count in pieces:
        spectrum *= _power(scipy.fft.rfft(wrapped(mass, size)), count)
    total = np.roll(np.maximum(scipy.fft.irfft(spectrum, size), 0.0), -(low % size))
    # Sums of products, not inner products: the library's threads would cost more than they save, and round worse.
    squares = float(np.sum(total * total))
    rounding = 4 * _UNIT * math.log2(size) * (number + 1) * math.sqrt(max(size * squares, 1.0))
    largest = max(step * (low + size - 1 + offset), 0.0)
    outside = 2 * math.exp(log_outside) * step * (low + size)  # what lies above the circle, and by how much
    first = min(max(-offset - low, 0), size)  # from where on the difference is positive
    values = step * np.arange(low + first + offset, low + size + offset, dtype=np.float64)
    positive = float(np.sum(total[first:] * values)) * (1 + 1e-12)
    slack = outside + math.expm1(rounding) * largest
    if slack > _SLACK * positive:  # delta is so small that roundings count: make them relative
        return min(positive + slack, _tilted(pieces, offset, step, longest)) + lost
    return positive + lost + slack


def _tilted(pieces: list[tuple[Vector, int]], offset: int, step: float, longest: int) -> float:
    r"""Return the mean of the positive part with roundings relative to it: $E X_+ = e^K \tilde E[e^{-\theta X} X_+]$.

    The sum is tilted to where it is positive. What is rounded or lies outside the circle has weight $x e^{-\theta x}$,
    at most $1/(e \theta)$. Infinite if no tilt helps.
    """
    sparse = [(np.flatnonzero(mass > 0), np.log(mass[mass > 0]), count) for mass, count in pieces]

    def log_moment(theta: float) -> float:
        return theta * offset + sum(n * float(np.logaddexp.reduce(logs + theta * at)) for at, logs, n in sparse)

    most = 60.0 / max(int(at[-1]) for at, _, _ in sparse)
    theta, log_scale = minimum(log_moment, 0.0, most)
    if not theta > 0:
        return math.inf
    tilted = []
    for (mass, count), (at, logs, _) in zip(pieces, sparse, strict=True):
        weights = np.exp(logs + theta * at - float(np.logaddexp.reduce(logs + theta * at)))
        moved = np.zeros_like(mass)
        moved[at] = weights
        tilted.append((moved, count))
    low, high = quick_window(tilted, _OUTSIDE)
    size = scipy.fft.next_fast_len(max(high - low + 1, 64), real=True)
    if size > longest:
        return math.inf
    spectrum: NDArray[np.complex128] = np.ones(size // 2 + 1, dtype=np.complex128)
    for moved, count in tilted:
        spectrum *= _power(scipy.fft.rfft(wrapped(moved, size)), count)
    total = np.roll(np.maximum(scipy.fft.irfft(spectrum, size), 0.0), -(low % size))
    number = sum(count for _, count in pieces)
    rounding = 4 * _UNIT * math.log2(size) * (number + 1) * math.sqrt(max(size * float(np.sum(total * total)), 1.0))
    values = np.maximum(np.arange(low + offset, low + offset + size, dtype=np.float64), 0.0)
    inside = float(np.sum(total * values * np.exp(-theta * values)))
    slack = (2 * math.exp(_OUTSIDE) + math.expm1(rounding)) / (math.e * theta)
    return step * math.exp(min(log_scale, 0.0)) * (inside + slack) * (1 + 1e-9)


def _power(base: NDArray[np.complex128], count: int) -> NDArray[np.complex128]:
    """Return a whole power by squaring: much faster than by logarithms, and rounded no more than ``count`` times."""
    if count == 1:
        return base
    half = _power(base, count // 2)
    square = half * half
    return square * base if count % 2 else square


def _deviation(summands: Summands) -> float:
    """Of the difference at epsilon 0."""
    return max(1e-6, math.sqrt(sum(count * _variance(part, 1.0) for part, count in summands)))


def _variance(part: Summand, gamma: float) -> float:
    """Of a summand where R and gamma R' are about equal, within reason: there the positive part begins."""
    return 4 * gamma * sum(p * q * math.expm1(min(m * n, 1.0)) for m, p in part for n, q in part)


class _Cells(NamedTuple):
    """A summand over cells of its normal variable: both ratios at the edges, and probability and means between."""

    edges: Vector
    ahead: Vector
    back: Vector
    probability: Vector
    mean_ahead: Vector
    mean_back: Vector


@lru_cache(maxsize=128)
def _cells(part: Summand, tail: float) -> _Cells:
    top = max(mu for mu, _ in part)
    z = np.linspace(-_BELOW - top, top + math.sqrt(-2 * math.log(tail)), _CELLS)

    def ratio(sign: float) -> Vector:
        with np.errstate(under="ignore"):
            return np.asarray(sum(p * np.exp(sign * mu * z - mu * mu / 2) for mu, p in part), dtype=np.float64)

    means = [np.asarray(sum(p * _between(z, sign * mu) for mu, p in part), dtype=np.float64) for sign in (1.0, -1.0)]
    return _Cells(z, ratio(1.0), ratio(-1.0), _between(z, 0.0), *means)


def _split(part: Summand, gamma: float, step: float, tail: float, longest: int) -> tuple[Vector, int, float]:
    """Move each cell of the normal variable to two grid points around its values, keeping its mean.

    Returns the masses, the first grid point, and what is lost of R. Below the first coordinate the summand counts as
    what it is there, and never as less than the deepest point, which is more; above the last its R is lost and the
    rest counts as nothing, which is more.
    """
    cells = _cells(part, tail)
    values = np.maximum((cells.ahead - gamma * cells.back) / step, -_DEEPEST)
    if not values[-1] < 4 * longest:
        raise _TooLong("a likelihood ratio is too large for its grid", float(values[-1]) / (4 * longest))
    slack = 1e-12 * np.minimum((cells.ahead + gamma * cells.back) / step, _DEEPEST + np.abs(values))  # of roundings
    first = min(math.floor(float(values[0] - slack[0])), 0)
    low = np.floor(values[:-1] - slack[:-1]).astype(np.int64) - first
    high = np.maximum(np.ceil(values[1:] + slack[1:]).astype(np.int64) - first, low + 1)
    mean = cells.mean_ahead - gamma * cells.mean_back
    with np.errstate(divide="ignore", invalid="ignore"):
        place = np.where(cells.probability > 1e-300, mean / cells.probability / step - first, high)
    share = np.clip((place - low) / (high - low), 0.0, 1.0)
    size = max(int(high[-1]), -first) + 1
    out = np.bincount(low, weights=cells.probability * (1 - share), minlength=size)
    out += np.bincount(high, weights=cells.probability * share, minlength=size)
    last = float(cells.edges[-1])
    out[int(high[0])] += float(scipy.special.ndtr(cells.edges[0]))
    out[-first] += float(scipy.special.ndtr(-last))
    gone = sum(p * float(scipy.special.ndtr(mu - last)) for mu, p in part) * (1 + 1e-9)
    return np.asarray(out, dtype=np.float64), first, gone


def _between(z: Vector, shift: float) -> Vector:
    """Probability of a shifted normal variable between neighbouring coordinates, from the nearer tail."""
    below, above = scipy.special.ndtr(z - shift), scipy.special.ndtr(shift - z)
    return np.where(z[:-1] > shift, above[:-1] - above[1:], below[1:] - below[:-1])


def exchange_epsilon(summands: Summands, delta: float, upper: float, tail: float = 1e-11) -> float:
    """Return the least epsilon up to ``upper``, to about a ten-thousandth, where the bound is at most ``delta``.

    Else infinite. A rough grid says where to look; only the fine one decides.
    """

    def excess(epsilon: float, spread: float, longest: int) -> float:
        return math.log(max(exchange_delta(summands, epsilon, tail, spread, longest), 1e-300) / delta)

    fine = partial(excess, spread=_FINE, longest=_LONGEST)
    rough = partial(excess, spread=_ROUGH, longest=_SHORT)
    end = min(4 * _deviation(summands), upper)
    while end < upper and rough(end) > 0:
        end = min(2 * end, upper)
    (low, above), (high, below) = _bracketed(rough, (0.0, rough(0.0)), (end, rough(end)), _NEAR)
    if 0 < low < high and above > 0 >= below:
        slope = (below - above) / (high - low)
        at = low - above / slope
        for _ in range(_TRIES):
            value = fine(at)
            if slope * at * _EXACT <= value <= 0:
                return at
            at += 0.3 * _EXACT * at - value / slope
            if not 0 < at <= upper:
                break
    (_, above), (high, below) = _bracketed(fine, (0.0, fine(0.0)), (upper, fine(upper)), _EXACT)
    return 0.0 if above <= 0 else high if below <= 0 else math.inf


def _bracketed(excess: Callable[[float], float], low: _Place, high: _Place, narrow: float) -> tuple[_Place, _Place]:
    """Narrow a bracket around where a falling function passes 0; if it does not between these ends, return them."""
    if not low[1] > 0 >= high[1]:
        return low, high
    (left, above), (right, below) = low, high  # values of an end that stays are halved: both ends close in
    last = math.nan
    for turn in range(60):
        width = right - left
        if width <= narrow * right:
            break
        # the logarithm falls about as the square of epsilon from the start, and as a line between near points
        share = above / (above - below)
        share = 0.5 if turn % 6 == 5 else math.sqrt(share) if left == 0 else share
        room = 0.4 * narrow * right
        middle = left + min(max(width * share, room), width - room)
        value = excess(middle)
        if value <= 0:
            above = above / 2 if last <= 0 else above
            right, below, high = middle, value, (middle, value)
        else:
            below = below / 2 if last > 0 else below
            left, above, low = middle, value, (middle, value)
        last = value
    return low, high


def exchange_law(law: LossLaw) -> LossLaw:
    """From the law of a pass without and with the record to that of an exchange; the pair is its own mirror image."""
    if isinstance(law, GaussianLaw):
        return GaussianLaw(2 * law.mu)
    if not isinstance(law, AllocationLaw):
        raise TypeError("a pass of independent draws was expected")
    return _profiled(law)


@lru_cache(maxsize=32)
def _profiled(law: AllocationLaw) -> FiniteLaw:
    """Return the law that the bound allows at many epsilons: evenly spaced at first, then as delta falls."""
    deviation = _deviation(law.summands)
    delta = partial(exchange_delta, law.summands, tail=law.tail, fine=_ROUGH)
    least, step = max(_LEAST, 4 * law.tail), _STEP * deviation
    epsilons, deltas = [0.0], [delta(0.0)]
    while epsilons[-1] < _WIDEST and (len(epsilons) < 2 or deltas[-1] > least):
        epsilons.append(min(epsilons[-1] + step, _WIDEST))
        deltas.append(delta(epsilons[-1]))
        if epsilons[-1] > _BODY * deviation:
            fall = math.log(max(deltas[-2], 1e-300) / max(deltas[-1], 1e-300)) / (epsilons[-1] - epsilons[-2])
            step = min(_GROWTH * step, max(_FALL / max(fall, 1e-9), 0.5 * _STEP * deviation))
    return law_of_profile(np.array(epsilons), np.array(deltas))


def quick_window(pieces: list[tuple[Vector, int]], log_outside: float) -> tuple[int, int]:
    """Return a grid range outside which the sum has at most ``exp(log_outside)`` on either side, by Chernoff.

    The same bound as :func:`~fedveil.theory.allocation.likely_window`, which tells every grid point apart; here
    neighbouring points are put together first, each time where they count for more, so it is valid and hardly wider.
    ``pieces``: the masses of a summand at the grid points 0, 1, ..., and the number of summands that are like it.
    """
    sparse = [(np.flatnonzero(mass > 0), mass[mass > 0], count) for mass, count in pieces]
    left: list[_Atoms] = []
    right: list[_Atoms] = []
    mean, spread = 0.0, 0.0
    for at, mass, count in sparse:
        first = np.unique(np.linspace(0, at.size, min(at.size, _ATOMS), endpoint=False, dtype=np.intp))
        together = np.add.reduceat(mass, first)
        left.append((at[first], together, count))
        right.append((at[np.append(first[1:], at.size) - 1], together, count))
        centre = float(np.sum(mass * at))
        mean, spread = mean + count * centre, spread + count * (float(np.sum(mass * at * at)) - centre * centre)
    largest, wide = max(int(at[-1]) for at, _, _ in sparse), math.sqrt(max(spread, 1.0))
    falling = np.geomspace(0.3, 30.0, 8) / wide
    rising = np.geomspace(min(0.3 / wide, 3.0 / max(largest, 1)), 30.0 / wide, 14)
    low = max(0.0, float(np.max(-(_log_moments(left, -falling) - log_outside) / falling)))
    most = float(sum(count * int(at[-1]) for at, _, count in sparse))
    high = min(most, float(np.min((_log_moments(right, rising) - log_outside) / rising)))
    return math.floor(min(low, mean)) - 1, math.ceil(max(high, mean)) + 1


def _log_moments(pieces: list[_Atoms], tilts: Vector) -> Vector:
    """Return the logarithm of the sum's exponential moment at each tilt; all tilts have one sign."""
    total = np.zeros_like(tilts)
    for at, mass, count in pieces:
        top = tilts * float(at[-1] if tilts[0] > 0 else at[0])
        with np.errstate(under="ignore"):
            moments = np.sum(mass * np.exp(np.multiply.outer(tilts, at) - top[:, None]), axis=1)
        total += count * (top + np.log(np.maximum(moments, 1e-300)))
    return total
