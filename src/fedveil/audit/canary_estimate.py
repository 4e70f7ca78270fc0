"""An estimate of epsilon from the cosines of canary clients with the model. Normal laws are fitted; nothing is proved.

Reference:
    [A23] Andrew, Kairouz, Oh, Oprea, McMahan, Suriyakumar. One-shot Empirical Privacy Estimation for Federated
    Learning. 2023. Canaries with random directions; cosines with and without them are assumed to be normal.
"""

import math

import numpy as np
from scipy.special import ndtr

from fedveil.audit.finding import Finding
from fedveil.core.errors import require
from fedveil.core.values import Vector
from fedveil.privacy.guarantee import Adversary, finite_or_none

_LARGEST = 700.0


def cosines(seen: Vector, directions: Vector) -> Vector:
    """Return the largest cosine of each direction (a row) with anything seen.

    ``seen``: one model, or a row for the change in every round.

    >>> cosines(np.array([3.0, 4.0]), np.array([[1.0, 0.0], [0.0, 2.0]])).tolist()
    [0.6, 0.8]
    """
    rows = np.atleast_2d(seen)
    lengths = np.linalg.norm(rows, axis=1)[:, None] * np.linalg.norm(directions, axis=1)[None, :]
    products = np.divide(rows @ directions.T, lengths, out=np.zeros_like(lengths), where=lengths > 0)
    return np.asarray(products.max(axis=0))


def normal_delta(epsilon: float, first: tuple[float, float], second: tuple[float, float]) -> float:
    """Return the hockey-stick divergence of two normal laws on the line, each a mean and a standard deviation.

    The density of the first exceeds e**epsilon times the second's where a quadratic is positive: between its roots, or
    outside of them.
    """
    (m, s), (n, t) = first, second
    a = 1 / (2 * t * t) - 1 / (2 * s * s)
    b = m / (s * s) - n / (t * t)
    c = n * n / (2 * t * t) - m * m / (2 * s * s) + math.log(t / s) - epsilon
    pieces = _positive(a, b, c)
    mass = [
        sum(float(ndtr((high - mean) / width) - ndtr((low - mean) / width)) for low, high in pieces)
        for mean, width in (first, second)
    ]
    return max(0.0, mass[0] - math.exp(min(epsilon, _LARGEST)) * mass[1])


def _positive(a: float, b: float, c: float) -> list[tuple[float, float]]:
    """Return the intervals on which a x**2 + b x + c is positive."""
    if abs(a) <= 1e-14 * max(abs(b), 1e-300):
        if b == 0:
            return [(-math.inf, math.inf)] if c > 0 else []
        return [(-c / b, math.inf)] if b > 0 else [(-math.inf, -c / b)]
    inside = b * b - 4 * a * c
    if inside <= 0:
        return [(-math.inf, math.inf)] if a > 0 else []
    stable = -(b + math.copysign(math.sqrt(inside), b)) / 2
    low, high = sorted((stable / a, c / stable))
    return [(-math.inf, low), (high, math.inf)] if a > 0 else [(low, high)]


def normal_epsilon(first: tuple[float, float], second: tuple[float, float], delta: float) -> float:
    """Return the epsilon at ``delta`` of telling the two laws apart, in the worse of the two directions."""
    require(0 < delta < 1, "delta", "lie strictly between 0 and 1", delta)

    def worst(epsilon: float) -> float:
        return max(normal_delta(epsilon, first, second), normal_delta(epsilon, second, first))

    low, high = 0.0, 1.0
    if worst(low) <= delta:
        return 0.0
    while worst(high) > delta:
        if high > _LARGEST / 2:
            return math.inf
        low, high = high, 2 * high
    while high - low > 1e-9 * max(1.0, high):
        middle = (low + high) / 2
        low, high = (middle, high) if worst(middle) > delta else (low, middle)
    return high


def estimate(
    inside: Vector,
    outside: Vector,
    *,
    adversary: Adversary,
    certified: float | None,
    delta: float,
    alarm: float = 0.05,
) -> Finding:
    """Return epsilon as if both groups of cosines were normal.

    ``inside`` took part, ``outside`` are fresh directions that did not. It proves nothing, because the laws need not be
    normal and the fit has errors, so it is never a verdict. One spread is fitted to both groups. With one spread each,
    as in [A23] (``own_spreads`` in the details), an error of a few percent in one of them decides the far tails, and so
    epsilon at a small delta, if canaries are few.
    """
    for name, given in (("inside", inside), ("outside", outside)):
        require(given.ndim == 1 and given.size >= 10, name, "be at least 10 cosines", given.shape)
        require(np.isfinite(given).all() and given.std() > 0, name, "be finite and not all equal", "something else")
    fits = [(float(group.mean()), float(group.std(ddof=1))) for group in (inside, outside)]
    apart = normal_epsilon(fits[0], fits[1], delta)
    spread = math.sqrt(float(((inside - fits[0][0]) ** 2).sum() + ((outside - fits[1][0]) ** 2).sum()))
    spread /= math.sqrt(inside.size + outside.size - 2)
    result = normal_epsilon((fits[0][0], spread), (fits[1][0], spread), delta)
    text = f"{inside.size} canary clients: an estimate of {result:.3g} at delta {delta:g}, as if cosines were normal"
    return Finding(
        attack="canary estimate",
        adversary=adversary,
        kind="estimate",
        certified=certified,
        measured=result,
        delta=delta,
        alarm=alarm,
        verdict="not-judged",
        evidence=f"{text}. It proves nothing.",
        details={
            "inside": fits[0],
            "outside": fits[1],
            "canaries": int(inside.size),
            "fresh": int(outside.size),
            "own_spreads": finite_or_none(apart),
        },
    )
