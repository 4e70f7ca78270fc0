r"""Tails of binomial counts: how many units join a round by draws of their own.

$P(X \ge k) \le e^{-n D(k/n\|p)}$ (Chernoff), $D(a\|p) = p\,h(d/p) + (1-p)\,h(-d/(1-p))$ with $d = a - p$ and
$h(u) = (1+u)\ln(1+u) - u$, in which nothing cancels; and $P(X \ge k) \le P(X = k)/(1-r)$, where
$r = (n-k)p/((k+1)(1-p))$ bounds the ratio of neighbouring terms and, by Stirling's formula,
$P(X = k) \le \sqrt{n/(2\pi k(n-k))}\, e^{-n D(k/n\|p)}$. Theory page: sampled-shift.md.
"""

import math
from fractions import Fraction
from functools import lru_cache

from fedveil.core.errors import require

_UP = 1 + 1e-9  # more than all roundings of the factors
_DOWN = 1 - 1e-10  # the same for the exponent


def binomial_tail(trials: int, rate: float, least: int) -> float:
    """Return an upper bound on the chance of ``least`` or more successes among ``trials``, each of probability
    ``rate``.

    >>> binomial_tail(4, 0.5, 5), binomial_tail(4, 0.5, 4), round(binomial_tail(100, 0.01, 10), 10)
    (0.0, 0.0625000..., 7.7e-08)
    """
    require(trials >= 0, "trials", "be at least 0", trials)
    require(0 < rate <= 1, "rate", "lie in (0, 1]", rate)
    if least > trials:
        return 0.0
    share, exact = Fraction(least, max(trials, 1)), Fraction(rate)
    if least <= 0 or share <= exact:
        return 1.0
    above = float(share - exact)
    distance = rate * _growth(above / rate) + (1 - rate) * _growth(-above / (1 - rate))
    chernoff = math.exp(-trials * distance * _DOWN)
    if least == trials:
        return min(1.0, chernoff * _UP)
    ratio = float((trials - least) * exact / ((least + 1) * (1 - exact)))  # below 1, since the share exceeds the rate
    height = math.sqrt(trials / (2 * math.pi * least * (trials - least)))
    sharper = height / (1 - ratio) if ratio < 1 - 1e-6 else 1.0
    return min(1.0, chernoff * min(1.0, sharper) * _UP)


def _growth(u: float) -> float:
    """``(1 + u) ln(1 + u) - u`` for u > -1, or a little less; 1 at u = -1."""
    if u <= -1:
        return 1.0
    if abs(u) >= 0.01:
        return max(0.0, (1 + u) * math.log1p(u) - u)
    return u * u * (0.5 - u / 6 + u * u / 12 - max(u, 0.0) ** 3 / 20)  # the series, cut where it is too small


@lru_cache(maxsize=1024)
def largest_usual(trials: int, rate: float, chance: float) -> int:
    """Return the smallest number that is exceeded with at most this ``chance``, as :func:`binomial_tail` knows it."""
    require(0 < chance < 1, "chance", "lie strictly between 0 and 1", chance)
    low, high = math.floor(rate * trials), trials  # the bound at low + 1 may be 1; at high it is 0
    if binomial_tail(trials, rate, low + 1) <= chance:
        return low
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if binomial_tail(trials, rate, middle + 1) <= chance else (middle, high)
    return high


# How many units join a round by draws of their own, but for a chance that is never seen.

_RARE = 100 * math.log(2)  # minus the logarithm of the chance that a round is joined by more than is allowed for


def most_joined(rate: float, units: int) -> int:
    """More units than join a round, but for a chance of 2**-100 (Bernstein)."""
    mean = rate * units
    return min(units, math.ceil(mean + _RARE / 3 + math.sqrt(_RARE**2 / 9 + 2 * mean * _RARE)) + 1)
