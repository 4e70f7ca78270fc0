"""Safe numerics: limits on epsilon and delta, and an inverse that never stops on the unsafe side."""

import math
from collections.abc import Callable

import numpy as np

from fedveil.core.errors import require
from fedveil.core.values import Vector

Point = tuple[float, float]  # (place, value)

SMALLEST_DELTA = 1e-30  # a request below this is refused as meaningless
REPORTED_DELTA = 1e-12  # a computed delta below this is reported as this, because rounding errors dominate
LEAST = -690.0  # the logarithm of a delta that is as good as zero
LARGEST_EPSILON = 1e6  # a guarantee beyond this is called infinite
ROUNDING = 1e-9  # relative slack that covers float64 rounding of every certified closed form


def check_delta(delta: float) -> None:
    """Refuse a delta at which a guarantee has no meaning."""
    hint = f"Usual choices are 1e-5 to 1e-9; the least that is answered is {SMALLEST_DELTA:g}."
    require(SMALLEST_DELTA <= delta < 1, "delta", "lie strictly between 0 and 1", delta, hint)


def check_epsilon(epsilon: float) -> None:
    """Refuse an epsilon that is not a privacy parameter."""
    require(0 <= epsilon < math.inf, "epsilon", "be finite and non-negative", epsilon)


def smallest_epsilon(
    log_delta_of: Callable[[float], float], delta: float, guess: float = 1.0, tolerance: float = 1e-9
) -> float:
    """Return the least epsilon with ``log_delta_of(epsilon) <= log(delta)``, from above; ``inf`` beyond reach.

    ``log_delta_of`` should not increase. Every value returned satisfies the inequality as evaluated, so an
    upper bound on delta gives an upper bound on epsilon even where it wobbles. NaN counts as "not satisfied".
    The answer is within ``tolerance`` of the least, relatively (absolutely below 0.001).

    >>> round(smallest_epsilon(lambda e: -e, 1e-5), 6)  # delta = exp(-epsilon)
    11.512925
    """
    require(0 < delta < 1, "delta", "lie strictly between 0 and 1", delta)
    target = math.log(delta)

    def excess(epsilon: float) -> float:
        """Return a value that is positive if the inequality fails. The root makes Gaussian curves nearly linear."""
        value = log_delta_of(epsilon)
        if value <= target:
            return math.sqrt(-target) - math.sqrt(-value)
        missing = math.sqrt(-target) - math.sqrt(max(-value, 0.0))
        return math.inf if math.isnan(value) else max(missing, 1e-300)

    low, low_excess = 0.0, excess(0.0)
    if low_excess <= 0:
        return 0.0
    high = min(guess, LARGEST_EPSILON) if guess >= 1e-6 else 1.0
    high_excess = excess(high)
    while high_excess > 0:
        if high >= LARGEST_EPSILON:
            return math.inf
        step = high - low
        fall = (low_excess - high_excess) / step
        ahead = high_excess / fall if fall > 0 and math.isfinite(fall) else math.inf
        low, low_excess = high, high_excess
        high = min(high + min(max(1.1 * ahead, step / 2, 0.1 * high), 15 * high), LARGEST_EPSILON)
        high_excess = excess(high)
    return _shrink(excess, (low, low_excess), (high, high_excess), tolerance)


def _shrink(excess: Callable[[float], float], low: Point, high: Point, tolerance: float) -> float:
    """Close a bracket by inverse quadratic steps where they can be trusted, else by halving; return the upper end.

    After Chandrupatla, Advances in Engineering Software 28 (1997). No step comes nearer to an end than half the
    tolerance, so that the bracket closes from both sides.
    """
    steep = low[1] - high[1]
    middle = low[0] + (high[0] - low[0]) * (low[1] / steep if math.isfinite(steep) else 0.5)
    for _ in range(200):
        least = tolerance * max(high[0], 1e-3)
        if not high[0] - low[0] > least:
            break
        middle = min(max(middle, low[0] + least / 2), high[0] - least / 2)
        new = middle, excess(middle)
        if new[1] > 0:
            guess, low = _inverse_quadratic(new, high, low), new
        else:
            guess, high = _inverse_quadratic(new, low, high), new
        wide = 0 < 4 * low[0] < high[0]
        halved = math.sqrt(low[0] * high[0]) if wide else (low[0] + high[0]) / 2
        middle = guess if low[0] <= guess <= high[0] else halved
    return high[0]


def _inverse_quadratic(new: Point, other: Point, old: Point) -> float:
    """Estimate the root between ``new`` and ``other`` by a parabola through all three points; NaN in doubt."""
    (a, fa), (b, fb), (c, fc) = new, other, old
    if not (math.isfinite(fa) and math.isfinite(fb) and math.isfinite(fc)) or fa in (fb, fc) or fb == fc:
        return math.nan
    xi, phi = (a - b) / (c - b), (fa - fb) / (fc - fb)
    if not (phi * phi < xi and (1 - phi) ** 2 < 1 - xi):
        return math.nan
    return a + (b - a) * fa / (fb - fa) * fc / (fb - fc) + (c - a) * fa / (fc - fa) * fb / (fc - fb)


def log_sum(logs: Vector) -> float:
    """Return the log of the sum of exponentials; ``-inf`` for an empty sum."""
    if logs.size == 0:
        return -math.inf
    top = float(np.max(logs))
    if not math.isfinite(top):
        return top
    return top + math.log(float(np.sum(np.exp(logs - top))))
