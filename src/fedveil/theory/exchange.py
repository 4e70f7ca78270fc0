r"""An exchange under independent draws: $E(R - \gamma R')_+$ for the two likelihood ratios of a pass, from above.

$R = \sum_t p_t e^{\mu_t \zeta - \mu_t^2/2}$ and $R' = \sum_t p_t e^{-\mu_t \zeta - \mu_t^2/2}$ share their normal
variables, so for one $\gamma$ the difference $R - \gamma R'$ is a sum of independent variables, one for each part,
each rising in its $\zeta$. Of such a sum a convex function is wanted: each summand is moved onto a grid by a spread
that keeps its mean, and one Fourier transform convolves them. Theory page: sampled-shift.md.
"""

import math
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
_POINTS = 120  # epsilons at which a pass is taken into a composition
_LEAST = 1e-12  # the delta at which they end
_WIDEST = 60.0  # epsilon beyond which they are not followed
_COARSENINGS = 12
_LONGEST = 1 << 19  # points of the circle
_UNIT = 2.0**-52


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
        except OverflowError:
            step *= 2
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
        raise OverflowError("the difference of likelihood ratios does not fit its grid")
    spectrum: NDArray[np.complex128] = np.ones(size // 2 + 1, dtype=np.complex128)
    for mass, count in pieces:
        spectrum *= rfft(wrapped(mass, size)) ** count
    total = np.roll(np.maximum(irfft(spectrum, size), 0.0), -(low % size))
    values = step * (np.arange(low, low + size, dtype=np.float64) + offset)
    rounding = 4 * _UNIT * math.log2(size) * (number + 1) * math.sqrt(max(size * float(total @ total), 1.0))
    largest = max(float(values[-1]), 0.0)
    outside = 2 * math.exp(log_outside) * step * (low + size)  # what lies above the circle, and by how much
    return float(total @ np.maximum(values, 0.0)) * (1 + 1e-12) + lost + outside + math.expm1(rounding) * largest


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
        raise OverflowError("a likelihood ratio is too large for its grid")
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

    Else infinite.
    """

    def excess(epsilon: float) -> float:
        return math.log(max(exchange_delta(summands, epsilon, tail), 1e-300) / delta)

    low, high, below, above = 0.0, upper, excess(0.0), excess(upper)
    if below <= 0:
        return 0.0
    if not above <= 0:
        return math.inf
    for turn in range(40):
        if high - low <= 1e-4 * high:
            break
        root = math.sqrt(below / (below - above))  # the logarithm falls about as the square of epsilon
        middle = low + (high - low) * (min(max(root + 1e-4, 0.02), 0.999) if turn % 3 != 2 else 0.5)
        value = excess(middle)
        if value <= 0:
            high, above = middle, value
        else:
            low, below = middle, value
    return high


def exchange_law(law: LossLaw) -> LossLaw:
    """From the law of a pass without and with the record to that of an exchange; the pair is its own mirror image."""
    if isinstance(law, GaussianLaw):
        return GaussianLaw(2 * law.mu)
    if not isinstance(law, AllocationLaw):
        raise TypeError("a pass of independent draws was expected")
    return _profiled(law)


@lru_cache(maxsize=32)
def _profiled(law: AllocationLaw) -> FiniteLaw:
    """Return the law that the bound allows at many epsilons."""
    top = max(1e-6, math.sqrt(sum(count * _variance(part, 1.0) for part, count in law.summands)))
    delta = partial(exchange_delta, law.summands, tail=law.tail, fine=_ROUGH)
    while top < _WIDEST and delta(top) > max(_LEAST, 4 * law.tail):
        top *= 1.4
    epsilons = np.linspace(0.0, top, _POINTS)
    return law_of_profile(epsilons, np.array([delta(float(e)) for e in epsilons]))
