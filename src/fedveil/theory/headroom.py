"""Check, in exact arithmetic, that a sum of whole numbers with its noise fits into 64 bits."""

import math
from fractions import Fraction
from typing import Final

from fedveil.checks import require

MODULUS: Final = 2**64
DEVIATIONS: Final = 12  # the chance that a normal variable goes beyond is below 4e-33


def widest(clients: int, bound: int, noise: float) -> int:
    """Return the largest absolute value of a coordinate of the sum: ``clients`` bounds plus twelve deviations of noise.

    ``bound``: on the absolute value of each client's coordinate before noise, in steps of the grid; ``noise``: the
    standard deviation of all noise in the sum, in steps. Rounded up.
    """
    require(clients >= 1, "clients", "be at least 1", clients)
    require(bound >= 0, "bound", "be non-negative", bound)
    require(0 <= noise < math.inf, "noise", "be finite and non-negative", noise)
    return clients * bound + math.ceil(DEVIATIONS * Fraction(noise))


def require_headroom(clients: int, bound: int, noise: float, modulus: int = MODULUS) -> None:
    """Refuse a sum that could wrap around: read as signed, it must stay strictly within half the modulus.

    >>> require_headroom(clients=1000, bound=2**40, noise=2.0**45)
    >>> require_headroom(clients=1000, bound=2**54, noise=0.0)
    Traceback (most recent call last):
    fedveil.errors.BadValue: The sum of 1000 clients must stay below 2**63.0 in steps of the grid, got ...
    """
    most, half = widest(clients, bound, noise), modulus // 2
    name, way_out = f"The sum of {clients} clients", "Take a coarser grid, a smaller bound or less noise."
    require(most < half, name, f"stay below 2**{math.log2(half)} in steps of the grid", most, way_out)
