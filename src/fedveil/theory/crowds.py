"""How many units may join a round by draws of their own, and how rarely more do."""

import math

_RARE = 100 * math.log(2)  # minus the logarithm of the chance that a round is joined by more than is allowed for


def most_joined(rate: float, units: int) -> int:
    """More units than join a round, but for a chance of 2**-100 (Bernstein)."""
    mean = rate * units
    return min(units, math.ceil(mean + _RARE / 3 + math.sqrt(_RARE**2 / 9 + 2 * mean * _RARE)) + 1)


def chance_of_more(most: int, rate: float, units: int, rounds: int) -> float:
    """A bound on the chance that some round is joined by more than ``most`` of so many units (Chernoff).

    >>> chance_of_more(10, 0.5, 10, 100), chance_of_more(5, 0.5, 10, 100), chance_of_more(60, 0.02, 1000, 50) < 1e-9
    (0.0, 1.0, True)
    """
    share = (most + 1) / max(units, 1)
    if share > 1:
        return 0.0
    if share <= rate:
        return 1.0
    rest = (1 - share) * math.log((1 - share) / (1 - rate)) if share < 1 else 0.0
    return min(1.0, rounds * math.exp(-units * (share * math.log(share / rate) + rest)) * (1 + 1e-6))


def seldom_more(chance: float, rate: float, units: int, rounds: int) -> int:
    """The least number that some round exceeds with at most this chance."""
    low, high = 0, units
    while high - low > 1:
        middle = (low + high) // 2
        rare = chance_of_more(middle, rate, units, rounds) <= chance
        low, high = (low, middle) if rare else (middle, high)
    return high
