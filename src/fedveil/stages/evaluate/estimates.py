"""Shares and areas from noisy counts, with 95% intervals that hold the noise as well as the choice of records.

A count is a number of records plus noise of a known deviation. Over draws of records it varies like a Poisson number,
so its variance is its own size plus the noise's. Intervals follow Fieller's idea: a ratio r is kept if the difference
``numerator - r * denominator``, whose variance is known, is within 1.96 deviations of 0. That holds too where the
denominator is hardly told from 0; then everything is kept. Page: docs/theory/evaluation.md.

References:
    [F54] Fieller. Some Problems in Interval Estimation. Journal of the Royal Statistical Society B 16(2), 1954.
"""

import math
from dataclasses import dataclass

import numpy as np

from fedveil.core.values import Vector
from fedveil.models.intervals import Interval, Z

_TRIED = 1001  # areas that are tried


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Counts:
    """Noisy counts and the deviation of the noise on each."""

    values: Vector
    deviation: float

    @property
    def variances(self) -> Vector:
        """Of each count over draws of the records and of the noise; at least one record's."""
        return np.asarray(np.maximum(self.values, 1.0) + self.deviation**2)

    def ratio(self, top: Vector, bottom: Vector, low: float, high: float) -> tuple[float | None, Interval]:
        """Return (top . counts) / (bottom . counts) and its interval within [low, high]; None if nothing is known."""
        a, b = float(top @ self.values), float(bottom @ self.values)
        v = self.variances
        square = b * b - Z * Z * float(v @ (bottom * bottom))
        value = min(max(a / b, low), high) if b > 0 else None
        if not (square > 0 and b > 0):  # the denominator may be 0: anything is possible
            return value, (low, high)
        half = a * b - Z * Z * float(v @ (top * bottom))
        rest = a * a - Z * Z * float(v @ (top * top))
        root = math.sqrt(max(half * half - square * rest, 0.0))
        found = (half - root) / square, (half + root) / square
        return value, (min(max(found[0], low), high), min(max(found[1], low), high))

    def area(self) -> tuple[float | None, Interval]:
        """Return the area under the ROC curve and its interval; the first half of the counts is of the other class.

        Pairs within a part may be ranked either way, and the interval has room for both.
        """
        others, ours = self.values[: self.values.size // 2], self.values[self.values.size // 2 :]
        noises = self.variances
        loose, tight = noises[: others.size], noises[others.size :]
        size = others.size
        below = np.tri(size, k=-1)  # [b, c]: part b lies above part c
        pairs = float(ours.sum() * others.sum())
        value = None
        if ours.sum() > 0 and others.sum() > 0:
            value = min(max(float(ours @ (below + 0.5 * np.eye(size)) @ others) / pairs, 0.0), 1.0)
        low = _kept(below, ours, others, tight, loose)[0]
        high = _kept(below + np.eye(size), ours, others, tight, loose)[1]
        return value, (low, high)


def _kept(kernel: Vector, ours: Vector, others: Vector, tight: Vector, loose: Vector) -> Interval:
    """Return the areas A for which the sum of ``kernel - A`` over all pairs is within 1.96 deviations of 0."""
    tried = np.linspace(0.0, 1.0, _TRIED)
    across, along = kernel @ others, ours @ kernel  # what each part of ours is worth, and each of the others'
    found = ours @ across - tried * ours.sum() * others.sum()
    one = (across[None, :] - tried[:, None] * others.sum()) ** 2 @ tight
    two = (along[None, :] - tried[:, None] * ours.sum()) ** 2 @ loose
    # sum over pairs of parts of (kernel - A)**2 times both noises; the kernel is 0 or 1
    hits, all_pairs = float(tight @ kernel @ loose), float(tight.sum() * loose.sum())
    both = hits * (1 - 2 * tried) + tried**2 * all_pairs
    sure = float(min(ours.sum(), others.sum())) > 0
    kept = tried[found**2 <= Z * Z * (one + two + both)] if sure else tried
    if not kept.size:  # between two areas that were tried
        kept = tried[[int(np.argmin(np.abs(found)))]]
    step = 1.0 / (_TRIED - 1)
    return max(0.0, float(kept.min()) - step), min(1.0, float(kept.max()) + step)
