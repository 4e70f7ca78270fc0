"""How many units join a round by draws of their own, but for a chance that is never seen."""

import math

_RARE = 100 * math.log(2)  # minus the logarithm of the chance that a round is joined by more than is allowed for


def most_joined(rate: float, units: int) -> int:
    """More units than join a round, but for a chance of 2**-100 (Bernstein)."""
    mean = rate * units
    return min(units, math.ceil(mean + _RARE / 3 + math.sqrt(_RARE**2 / 9 + 2 * mean * _RARE)) + 1)
