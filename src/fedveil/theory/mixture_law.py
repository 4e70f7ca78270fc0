r"""Privacy-loss laws of mixtures of shifted Gaussians along one line: $\sum_i w_i N(m_i, 1)$, all $m_i \ge 0$.

``present``: the mixture against N(0, 1); ``null``: N(0, 1) against the mixture; ``exchange``: the mixture against its
mirror image. In each the likelihood ratio grows along the line (for ``null``: along its mirror image), because every
$e^{m_i x}$ does. Theory page: sampled-shift.md.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, final

import numpy as np
import scipy

from fedveil.core.errors import require
from fedveil.core.values import Vector
from fedveil.theory.loss import Tails

Way = Literal["present", "null", "exchange"]

_KNOTS = 400
_STEPS = 60
_EXACT = 4e-16  # error of the loss at a threshold, relative to one plus its size


@final
@dataclass(frozen=True, slots=True)
class MixtureLaw:
    """Means (increasing, none negative) and their weights, which add up to one."""

    means: tuple[float, ...]
    weights: tuple[float, ...]
    way: Way = "present"

    def __post_init__(self) -> None:
        means, weights = np.asarray(self.means), np.asarray(self.weights)
        sizes = means.shape == weights.shape and means.size >= 1
        require(sizes, "MixtureLaw", "have one weight for each mean", (means.shape, weights.shape))
        rising = bool(means[0] >= 0 and np.all(np.diff(means) > 0) and means[-1] < 1e6)
        require(rising, "MixtureLaw.means", "increase from at least 0 to at most 1e6", self.means[:4])
        require(means[-1] > 0, "MixtureLaw.means", "not all be zero", self.means)
        whole = bool(np.all(weights > 0) and abs(math.fsum(self.weights) - 1) <= 1e-13)
        require(whole, "MixtureLaw.weights", "be positive and add up to 1", self.weights[:4])
        require(self.way in ("present", "null", "exchange"), "MixtureLaw.way", "be a known way", self.way)

    def tails(self, levels: Vector, /) -> Tails:
        """Return the tails; the loss is above a level where the coordinate is above its threshold."""
        if self.way == "null":
            x = -self._thresholds(-levels)
            return Tails(scipy.special.ndtr(-x), scipy.special.ndtr(x), *self._masses(-x)[::-1])
        x = self._thresholds(levels)
        other = self._masses(-x)[::-1] if self.way == "exchange" else (scipy.special.ndtr(-x), scipy.special.ndtr(x))
        return Tails(*self._masses(x), *other)

    def reach(self, mass: float, /) -> tuple[float, float]:
        """Return the losses at quantiles of the coordinate."""
        z = -float(scipy.special.ndtri(mass / 2))
        weights = np.asarray(self.weights)
        most = float(np.asarray(self.means)[np.cumsum(weights[::-1])[::-1] > mass / 2][-1])
        ends = self._loss(np.array([-z, z, most + z]))[0]
        if self.way == "null":
            return -float(ends[1]), -float(ends[0])
        return float(ends[0]), float(ends[2])

    def _masses(self, x: Vector) -> tuple[Vector, Vector]:
        """Return the masses above and below each coordinate, under the mixture."""
        above, below = np.zeros_like(x), np.zeros_like(x)
        for weight, mean in zip(self.weights, self.means, strict=True):
            above += weight * scipy.special.ndtr(mean - x)
            below += weight * scipy.special.ndtr(x - mean)
        return above, below

    def _loss(self, x: Vector) -> tuple[Vector, Vector]:
        """Return the logarithm of the likelihood ratio (of ``present`` or ``exchange``) and its slope."""
        value, slope = _log_ratio(self.means, self.weights, x)
        if self.way != "exchange":
            return value, slope
        back, down = _log_ratio(self.means, self.weights, -x)
        return value - back, slope + down

    def _thresholds(self, levels: Vector) -> Vector:
        """Return where the loss equals each level; minus infinity if every loss is above it."""
        floor = -math.inf
        if self.way != "exchange" and self.means[0] == 0:
            floor = math.log(self.weights[0])
        out = np.where(levels == np.inf, np.inf, -np.inf)
        inner = np.isfinite(levels) & (levels > floor + _EXACT)
        if inner.any():
            out[inner] = self._solve(levels[inner])
        return np.asarray(out, dtype=np.float64)

    def _solve(self, levels: Vector) -> Vector:
        low, high = -1.0, 1.0 + self.means[-1]
        while self._loss(np.array([high]))[0][0] < levels.max() and high < 1e12:
            high *= 2
        while self._loss(np.array([low]))[0][0] > levels.min() and low > -1e9 / self.means[-1]:
            low *= 2
        knots = np.linspace(low, high, _KNOTS)
        values, _ = self._loss(knots)
        values = np.maximum.accumulate(values)
        at = np.clip(np.searchsorted(values, levels) - 1, 0, _KNOTS - 2)
        left, right = knots[at], knots[at + 1]
        with np.errstate(divide="ignore", invalid="ignore"):
            share = (levels - values[at]) / (values[at + 1] - values[at])
        x = left + (right - left) * np.clip(np.nan_to_num(share, nan=0.5), 0.0, 1.0)
        return self._newton(levels, x, left, right)

    def _newton(self, levels: Vector, x: Vector, left: Vector, right: Vector) -> Vector:
        """Run Newton's method inside a shrinking bracket; a step that leaves the bracket is replaced by its middle."""
        todo = np.arange(levels.size)
        for _ in range(_STEPS):
            value, slope = self._loss(x[todo])
            missing = value - levels[todo]
            over = missing > 0
            right[todo] = np.where(over, x[todo], right[todo])
            left[todo] = np.where(over, left[todo], x[todo])
            far = np.abs(missing) > _EXACT * (1 + np.abs(levels[todo]))
            if not far.any():
                break
            todo, missing, slope = todo[far], missing[far], slope[far]
            with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
                step = x[todo] - missing / slope
            inside = (step > left[todo]) & (step < right[todo])
            after = np.where(inside, step, (left[todo] + right[todo]) / 2)
            stuck = after == x[todo]
            x[todo] = after
            todo = todo[~stuck]
            if todo.size == 0:
                break
        return x


@lru_cache(maxsize=512)
def _lines(means: tuple[float, ...], weights: tuple[float, ...]) -> tuple[Vector, Vector]:
    slopes = np.asarray(means)
    return slopes, np.log(np.asarray(weights)) - slopes**2 / 2


def _log_ratio(means: tuple[float, ...], weights: tuple[float, ...], x: Vector) -> tuple[Vector, Vector]:
    r"""$\ln \sum_i w_i e^{m_i x - m_i^2/2}$ and its slope, the mean of the $m_i$ under these terms."""
    slopes, offsets = _lines(means, weights)
    with np.errstate(under="ignore"):
        top = np.full_like(x, -np.inf)
        for slope, offset in zip(slopes, offsets, strict=True):
            np.maximum(top, slope * x + offset, out=top)
        total, slant = np.zeros_like(x), np.zeros_like(x)
        for slope, offset in zip(slopes, offsets, strict=True):
            part = np.exp(slope * x + offset - top)
            total += part
            slant += slope * part
    return top + np.log(total), slant / total
