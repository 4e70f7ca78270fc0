"""Bound on the rounding error of a computed batch gradient (docs/theory/losses.md, "Rounding")."""

import math

from fedveil.checks import require

UNIT = 2.0**-53  # largest relative error of one rounded operation
SLACK = 48  # roundings per record that do not grow with the sizes: exponentials, scaling, weights, the division


def rounding_bound(
    *, rows: int, features: int, lipschitz: float, smoothness: float | None, radius: float, outputs: int = 1
) -> float:
    """Return an upper bound on |computed average - exact average| of clipped gradients, in the Euclidean norm.

    ``rows``: how many are summed, in any order and in any number of parts, with weights whose absolute values add up to
    at most the divisor. ``lipschitz``, ``smoothness``: of the clipped data part. ``radius``: bounds the norm of the
    parameters; infinite gives infinity. If the smoothness is unknown (None) no privacy bound uses it, so a record's
    gradient may be any function of the parameters: it is defined as the computed one, and only the sum has an error
    (docs/torch.md).

    >>> rounding_bound(rows=1000, features=100, lipschitz=1.0, smoothness=0.25, radius=10.0) < 2e-13
    True
    """
    for name, count in (("rows", rows), ("features", features), ("outputs", outputs)):
        require(1 <= count <= 2**40, name, "lie between 1 and 2**40", count)
    for name, value in (("lipschitz", lipschitz), ("smoothness", smoothness)):
        if value is not None:
            require(1e-15 <= value <= 1e15, name, "lie in [1e-15, 1e15]", value)
    require(radius >= 0, "radius", "be non-negative", radius)
    sums = lipschitz * _growth(rows + features + outputs + SLACK)
    scores = 0.0 if smoothness is None else smoothness * radius * _growth(features + 2 + math.isqrt(outputs))
    return (sums + scores) * (1 + 8 * UNIT)  # this expression is rounded too


def _growth(roundings: int) -> float:
    """Return gamma_n = n u / (1 - n u), which bounds |product - 1| for n factors 1 + delta with |delta| <= u."""
    share = roundings * UNIT
    return share / (1 - share)  # sizes are limited above, so share is below 1/1000
