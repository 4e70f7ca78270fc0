"""What counts of successes prove about their probability, and so about epsilon: Clopper and Pearson's limits."""

import math

from scipy.special import betaincinv

from fedveil.core.checks import require


def least_rate(hits: int, trials: int, alarm: float) -> float:
    """Return a lower confidence limit of a rate, wrong with chance at most ``alarm`` (Clopper and Pearson 1934).

    >>> round(least_rate(50, 100, 0.025), 4), least_rate(0, 100, 0.025)
    (0.3983, 0.0)
    """
    _check(hits, trials, alarm)
    return 0.0 if hits == 0 else float(betaincinv(hits, trials - hits + 1, alarm)) * (1 - 1e-12)


def most_rate(hits: int, trials: int, alarm: float) -> float:
    """Return an upper confidence limit of a rate, wrong with chance at most ``alarm``.

    >>> round(most_rate(50, 100, 0.025), 4), most_rate(100, 100, 0.025)
    (0.6017, 1.0)
    """
    _check(hits, trials, alarm)
    return 1.0 if hits == trials else min(1.0, float(betaincinv(hits + 1, trials - hits, 1 - alarm)) * (1 + 1e-12))


def least_epsilon(hits: int, errors: int, trials: int, delta: float, alarm: float) -> float:
    """Return a lower bound on every epsilon that holds at ``delta``, wrong with chance at most ``alarm``.

    ``hits``: trials with the event on the first data set, ``errors``: on the second; each uses half of the alarm.

    >>> round(least_epsilon(900, 100, 1000, 1e-5, 1e-6), 3)
    1.708
    """
    low, high = least_rate(hits, trials, alarm / 2), most_rate(errors, trials, alarm / 2)
    return max(0.0, math.log((low - delta) / high)) if low > delta else 0.0


def _check(hits: int, trials: int, alarm: float) -> None:
    require(trials >= 1, "trials", "be at least 1", trials)
    require(0 <= hits <= trials, "hits", f"lie between 0 and {trials}", hits)
    require(0 < alarm < 1, "alarm", "lie strictly between 0 and 1", alarm)
