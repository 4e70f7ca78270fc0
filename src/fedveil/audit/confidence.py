"""The binomial law, and what counts of successes prove about their probability, and so about epsilon.

Limits for a fixed number of trials are those of Clopper and Pearson (1934). Limits that hold at all times together, for
whoever looks again and again, come from a mixture: with x hits in n trials of rate p, the ratio of the chance of just
these outcomes under a random rate of law Beta(1/2, 1/2) to that under p is a martingale of mean 1, so it ever exceeds
1/alarm with chance at most alarm (Ville's inequality; Robbins, Statistical Methods Related to the Law of the Iterated
Logarithm, 1970). Theory page: distinguishing-game.md.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq
from scipy.special import betaincinv, betaln

from fedveil.core.errors import require
from fedveil.core.values import Vector


def least_rate(hits: int, trials: int, alarm: float, *, always: bool = False) -> float:
    """Return a lower confidence limit of a rate, wrong with chance at most ``alarm``; ``always``: at any time.

    >>> round(least_rate(50, 100, 0.025), 4), least_rate(0, 100, 0.025)
    (0.3983, 0.0)
    >>> round(least_rate(50, 100, 0.025, always=True), 4)
    0.329
    """
    _check(hits, trials, alarm)
    if hits == 0:
        return 0.0
    if not always:
        return float(betaincinv(hits, trials - hits + 1, alarm)) * (1 - 1e-12)
    seen = float(betaln(hits + 0.5, trials - hits + 0.5) - betaln(0.5, 0.5))

    def excess(rate: float) -> float:
        likelihood = hits * math.log(rate) + (trials - hits) * (math.log1p(-rate) if rate < 1 else 0.0)
        return seen - likelihood + math.log(alarm)

    top = hits / trials
    if excess(top) >= 0:  # cannot be: the mixture is at most the largest likelihood
        return 0.0
    return float(brentq(excess, 1e-300, top, xtol=1e-14 * top)) * (1 - 1e-9)


def most_rate(hits: int, trials: int, alarm: float, *, always: bool = False) -> float:
    """Return an upper confidence limit of a rate, wrong with chance at most ``alarm``; ``always``: at any time.

    >>> round(most_rate(50, 100, 0.025), 4), most_rate(100, 100, 0.025)
    (0.6017, 1.0)
    """
    _check(hits, trials, alarm)
    if always:
        return min(1.0, 1 - least_rate(trials - hits, trials, alarm, always=True) + 1e-12)
    return 1.0 if hits == trials else min(1.0, float(betaincinv(hits + 1, trials - hits, 1 - alarm)) * (1 + 1e-12))


def least_epsilon(hits: int, errors: int, trials: int, delta: float, alarm: float, *, always: bool = True) -> float:
    """Return a lower bound on every epsilon that holds at ``delta``, wrong with chance at most ``alarm``.

    ``hits``: trials with the event on the first data set, ``errors``: on the second; each uses half of the alarm.

    >>> [round(least_epsilon(900, 100, 1000, 1e-5, 1e-6, always=choice), 3) for choice in (False, True)]
    [1.708, 1.609]
    """
    low = least_rate(hits, trials, alarm / 2, always=always)
    high = most_rate(errors, trials, alarm / 2, always=always)
    return max(0.0, math.log((low - delta) / high)) if low > delta else 0.0


def _check(hits: int, trials: int, alarm: float) -> None:
    require(trials >= 1, "trials", "be at least 1", trials)
    require(0 <= hits <= trials, "hits", f"lie between 0 and {trials}", hits)
    require(0 < alarm < 1, "alarm", "lie strictly between 0 and 1", alarm)


def at_most(count: ArrayLike, trials: ArrayLike, share: ArrayLike) -> Vector:
    """Return the chance of so many or fewer.

    >>> [round(float(law(1, 2, 0.5)), 12) for law in (at_most, at_least, exactly)]
    [0.75, 0.75, 0.5]
    """
    return np.asarray(_law().cdf(count, trials, share), dtype=np.float64)


def at_least(count: ArrayLike, trials: ArrayLike, share: ArrayLike) -> Vector:
    """Return the chance of so many or more."""
    return np.asarray(_law().sf(np.asarray(count) - 1, trials, share), dtype=np.float64)


def exactly(count: ArrayLike, trials: ArrayLike, share: ArrayLike) -> Vector:
    """Return the chance of just so many."""
    return np.asarray(_law().pmf(count, trials, share), dtype=np.float64)


def _law() -> Any:
    from scipy.stats import binom  # loaded when it is first used: few commands need it, and it takes long

    return binom
