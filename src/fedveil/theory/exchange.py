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
from numpy.typing import NDArray
from scipy.fft import irfft, next_fast_len, rfft
from scipy.special import ndtr

from fedveil.theory.allocation import AllocationLaw, Summand, Summands, likely_window, wrapped
from fedveil.theory.loss import FiniteLaw, GaussianLaw, LossLaw, law_of_profile
from fedveil.values import Vector

_CELLS = 3000  # of the normal variable, for each summand
_FINE, _ROUGH = 6e-5, 8e-4  # the variance that rounding may add, relative; where many epsilons are asked for
_BELOW = 6.0  # deviations below which a summand counts as what it is there
_DEEPEST = 2.0**14  # grid steps below which a summand counts as that: more, and too little to be made up for
_STEP = 0.1  # from one epsilon to the next, in deviations, where a pass is taken into a composition
_BODY = 3.0  # deviations from where on these steps follow the fall of delta
_FALL = 0.5  # of its logarithm in one step
_GROWTH = 1.25  # of one step over the last, at most
_LEAST = 1e-12  # the delta at which they end
_WIDEST = 60.0  # epsilon beyond which they are not followed
_EXACT = 1e-4  # the relative width of a bracket on epsilon that is narrow enough
_COARSENINGS = 12
_LONGEST = 1 << 19  # points of the circle
_UNIT = 2.0**-52


class _TooLong(OverflowError):
    """A grid of this step would be ``times`` as long as it may be."""

    def __init__(self, words: str, times: float) -> None:
        super().__init__(words)
        self.times = times


def exchange_delta(summands: Summands, epsilon: float, tail: float = 1e-11, fine: float = _FINE) -> float:
    r"""Return an upper bound on $E(R - e^\epsilon R')_+$.

    ``tail``: how much of R may be given up, and is counted as lost; ``fine``: the variance that rounding may add.
    """
    if not 0 <= epsilon < 100:
        return 1.0
    gamma = math.exp(epsilon)
    number = sum(count for _, count in summands)
    spread = sum(count * _variance(part, gamma) for part, count in summands)
    step = math.sqrt(6 * fine * spread / number)
    for _ in range(_COARSENINGS):
        try:
            return min(1.0, _convolved(summands, gamma, step, tail))
        except _TooLong as error:  # doubled, and at once as often as is surely needed
            step *= 2.0 ** max(1, math.floor(math.log2(error.times)))
    return min(1.0, _convolved(summands, gamma, step, tail))


def _convolved(summands: Summands, gamma: float, step: float, tail: float) -> float:
    number = sum(count for _, count in summands)
    pieces, offset, lost = [], 0, 0.0
    for part, count in summands:
        share = min(tail / (number * sum(p for _, p in part)), 1e-4)
        mass, first, gone = _split(part, gamma, step, share)
        pieces.append((mass, count))
        offset, lost = offset + first * count, lost + gone * count
    log_outside = min(-32.0, math.log(tail) - 7) - math.log1p(step * abs(offset))
    low, high = likely_window(pieces, log_outside)
    size = next_fast_len(max(high - low + 1, 64), real=True)
    if size > _LONGEST:
        raise _TooLong("the difference of likelihood ratios does not fit its grid", size / _LONGEST)
    spectrum: NDArray[np.complex128] = np.ones(size // 2 + 1, dtype=np.complex128)
    for mass, count in pieces:
        spectrum *= _power(rfft(wrapped(mass, size)), count)
    total = np.roll(np.maximum(irfft(spectrum, size), 0.0), -(low % size))
    # Sums of products, not inner products: the library's threads would cost more than they save, and round worse.
    squares = float(np.sum(total * total))
    rounding = 4 * _UNIT * math.log2(size) * (number + 1) * math.sqrt(max(size * squares, 1.0))
    largest = max(step * (low + size - 1 + offset), 0.0)
    outside = 2 * math.exp(log_outside) * step * (low + size)  # what lies above the circle, and by how much
    first = min(max(-offset - low, 0), size)  # from where on the difference is positive
    values = step * np.arange(low + first + offset, low + size + offset, dtype=np.float64)
    positive = float(np.sum(total[first:] * values)) * (1 + 1e-12)
    return positive + lost + outside + math.expm1(rounding) * largest


def _power(base: NDArray[np.complex128], count: int) -> NDArray[np.complex128]:
    """Return a whole power by squaring: much faster than by logarithms, and rounded no more than ``count`` times."""
    if count == 1:
        return base
    half = _power(base, count // 2)
    square = half * half
    return square * base if count % 2 else square


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


def _split(part: Summand, gamma: float, step: float, tail: float) -> tuple[Vector, int, float]:
    """Move each cell of the normal variable to two grid points around its values, keeping its mean.

    Returns the masses, the first grid point, and what is lost of R. Below the first coordinate the summand counts as
    what it is there, and never as less than the deepest point, which is more; above the last its R is lost and the
    rest counts as nothing, which is more.
    """
    cells = _cells(part, tail)
    values = np.maximum((cells.ahead - gamma * cells.back) / step, -_DEEPEST)
    if not values[-1] < 4 * _LONGEST:
        raise _TooLong("a likelihood ratio is too large for its grid", float(values[-1]) / (4 * _LONGEST))
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
    out[int(high[0])] += float(ndtr(cells.edges[0]))
    out[-first] += float(ndtr(-last))
    gone = sum(p * float(ndtr(mu - last)) for mu, p in part) * (1 + 1e-9)
    return np.asarray(out, dtype=np.float64), first, gone


def _between(z: Vector, shift: float) -> Vector:
    """Probability of a shifted normal variable between neighbouring coordinates, from the nearer tail."""
    below, above = ndtr(z - shift), ndtr(shift - z)
    return np.where(z[:-1] > shift, above[:-1] - above[1:], below[1:] - below[:-1])


def exchange_epsilon(summands: Summands, delta: float, upper: float, tail: float = 1e-11) -> float:
    """Return the least epsilon up to ``upper``, to a ten-thousandth, where the bound is at most ``delta``.

    Else infinite. A rough grid says where to look; only the fine one decides.
    """

    def excess(epsilon: float, fine: float) -> float:
        return math.log(max(exchange_delta(summands, epsilon, tail, fine), 1e-300) / delta)

    fine, rough = partial(excess, fine=_FINE), partial(excess, fine=_ROUGH)
    guess = _root(rough, (0.0, rough(0.0)), (upper, rough(upper)))
    low, high = (0.0, 1.0), (upper, -1.0)  # the ends are looked at only if nothing nearer is found
    for share in (1e-3, 1e-2):
        low, high = ((at, fine(at)) for at in (guess * (1 - 2 * share), min(guess * (1 + share), upper)))
        if high[1] <= 0 < low[1]:
            return _root(fine, low, high)
    return _root(fine, (0.0, fine(0.0)), (upper, fine(upper)))


def _root(excess: Callable[[float], float], low: tuple[float, float], high: tuple[float, float]) -> float:
    """Return where a falling function is found to be at most 0, to a ten-thousandth; 0 or infinite at the ends."""
    if low[1] <= 0:
        return low[0]
    if not high[1] <= 0:
        return math.inf
    for turn in range(60):
        width = high[0] - low[0]
        if width <= _EXACT * high[0]:
            break
        share = 0.5
        if turn % 4 != 3:
            # the logarithm falls about as the square of epsilon from the start, and as a line between near points
            share = low[1] / (low[1] - high[1])
            share = math.sqrt(share) if low[0] == 0 else share
        aim = width * share + 0.4 * _EXACT * high[0]  # slightly beyond, so that both ends close in
        middle = low[0] + min(max(aim, 0.02 * width), width - 0.4 * _EXACT * high[0])
        value = excess(middle)
        if value <= 0:
            high = (middle, value)
        else:
            low = (middle, value)
    return high[0]


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
    deviation = max(1e-6, math.sqrt(sum(count * _variance(part, 1.0) for part, count in law.summands)))
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
