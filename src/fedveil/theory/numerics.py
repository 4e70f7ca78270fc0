"""Numbers on the safe side: array types, and an inverse that never stops short."""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fedveil.checks import require

Vector = NDArray[np.float64]

SMALLEST_DELTA = 1e-30  # below this a request is refused: nothing real is meant by it
REPORTED_DELTA = 1e-12  # a computed delta below this is reported as this: rounding noise dominates
LARGEST_EPSILON = 1e6  # beyond this a guarantee is called infinite
ROUNDING = 1e-9  # relative slack that covers float64 rounding of every certified closed form


def check_delta(delta: float) -> None:
    """Refuse a delta at which no guarantee is meant."""
    hint = f"Usual choices are 1e-5 to 1e-9; the least that is answered is {SMALLEST_DELTA:g}."
    require(SMALLEST_DELTA <= delta < 1, "delta", "lie strictly between 0 and 1", delta, hint)


def check_epsilon(epsilon: float) -> None:
    """Refuse an epsilon that is no privacy parameter."""
    require(0 <= epsilon < math.inf, "epsilon", "be finite and non-negative", epsilon)


def smallest_epsilon(
    log_delta_of: Callable[[float], float], delta: float, guess: float = 1.0, tolerance: float = 1e-9
) -> float:
    """The least epsilon with ``log_delta_of(epsilon) <= log(delta)``, from above; ``inf`` beyond reach.

    ``log_delta_of`` should not increase. Every value returned satisfies the inequality as evaluated, so an
    upper bound on delta gives an upper bound on epsilon even where it wobbles. NaN counts as "not satisfied".

    >>> round(smallest_epsilon(lambda e: -e, 1e-5), 6)  # delta = exp(-epsilon)
    11.512925
    """
    target = math.log(delta)

    def gap(epsilon: float) -> float:
        value = log_delta_of(epsilon) - target
        return math.inf if math.isnan(value) else value

    low, low_gap = 0.0, gap(0.0)
    if low_gap <= 0:
        return 0.0
    high = min(max(guess, 1e-6), LARGEST_EPSILON)
    high_gap = gap(high)
    while high_gap > 0:
        if high >= LARGEST_EPSILON:
            return math.inf
        low, low_gap, high = high, high_gap, min(2 * high, LARGEST_EPSILON)
        high_gap = gap(high)
    return _shrink(gap, (low, low_gap), (high, high_gap), tolerance)


def _shrink(
    gap: Callable[[float], float], lower: tuple[float, float], upper: tuple[float, float], tolerance: float
) -> float:
    """Regula falsi (Illinois), with a bisection whenever it stalls; returns the upper end."""
    (low, low_gap), (high, high_gap) = lower, upper
    for turn in range(200):
        width = high - low
        if not width > tolerance * high:
            break
        chord = low_gap / (low_gap - high_gap) if math.isfinite(low_gap) and math.isfinite(high_gap) else 0.5
        share = min(max(chord, 0.01), 0.99) if turn % 3 else 0.5 if turn else min(max(chord, 0.01), 0.99)
        # Lean to the far side by a hair so that the bracket closes from both ends.
        middle = low + width * share
        value = gap(middle)
        if value > 0:
            low, low_gap, high_gap = middle, value, high_gap / 2
        else:
            high, high_gap, low_gap = middle, value, low_gap / 2
    return high


def log_sum(logs: Vector) -> float:
    """log of the sum of exponentials; ``-inf`` for an empty sum."""
    if logs.size == 0:
        return -math.inf
    top = float(np.max(logs))
    if not math.isfinite(top):
        return top
    return top + math.log(float(np.sum(np.exp(logs - top))))
