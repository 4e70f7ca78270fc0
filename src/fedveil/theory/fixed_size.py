r"""Batches of fixed size without replacement when one record's contribution is zeroed: its own dominating pair.

Given all but one of the batch, the last is the victim (with probability q, its share) or some further record. So with
unit noise the pair is $(1-q) N(b) + q N(v)$ against $(1-q) N(b) + q N(0)$ with $|b|, |v| \le \mu$. Where the victim's
presence is to be shown the worst further record points away from it, where its absence is, along with it. Theory
page: dominating-pairs.md.
"""

from dataclasses import dataclass
from typing import final

import numpy as np
from scipy.special import ndtr, ndtri

from fedveil.core.checks import require
from fedveil.core.values import Vector
from fedveil.theory.loss import SampledLaw, Tails


@final
@dataclass(frozen=True, slots=True)
class AwayLaw:
    r"""$(1-q) N(0) + q N(2\mu)$ against $(1-q) N(0) + q N(\mu)$: all further records point away from the victim.

    The loss falls a little below zero before it grows, so a level below zero is passed twice.
    """

    mu: float
    rate: float

    def __post_init__(self) -> None:
        require(0 < self.mu < 1e6, "AwayLaw.mu", "lie in (0, 1e6)", self.mu)
        require(0 < self.rate < 1, "AwayLaw.rate", "lie in (0, 1)", self.rate)

    def tails(self, levels: Vector, /) -> Tails:
        """Return the tails.

        A quadratic equation gives both thresholds, and between them the loss is at most the level.
        """
        mu, q = self.mu, self.rate
        with np.errstate(over="ignore", under="ignore", invalid="ignore", divide="ignore"):
            inside = 4 * np.exp(-mu * mu - levels) * ((1 - q) / q) * -np.expm1(-levels)
            crossed = inside >= -1
            root = 1 + np.sqrt(np.maximum(1 + inside, 0.0))
            high = (levels + np.log(root / 2)) / mu + 1.5 * mu
            low = (levels + np.log(np.maximum(-inside / (2 * root), 0.0))) / mu + 1.5 * mu
        low = np.where(crossed & (levels < 0), low, -np.inf)
        high = np.where(levels == np.inf, np.inf, np.where(crossed, high, -np.inf))
        return Tails(*self._outside(low, high, 2 * mu), *self._outside(low, high, mu))

    def reach(self, mass: float, /) -> tuple[float, float]:
        """Return a lower bound on the least loss, and the loss at a quantile."""
        end = 2 * self.mu - float(ndtri(mass))
        one, two = SampledLaw(2 * self.mu, self.rate), SampledLaw(self.mu, self.rate)
        return -two.loss(1.5 * self.mu), one.loss(end) - two.loss(end)

    def _outside(self, low: Vector, high: Vector, mean: float) -> tuple[Vector, Vector]:
        """Return the mass outside and inside the interval, of the mixture that has this mean."""
        above, below = np.zeros_like(high), np.zeros_like(high)
        for weight, at in ((1 - self.rate, 0.0), (self.rate, mean)):
            above += weight * (ndtr(at - high) + ndtr(low - at))
            below += weight * np.maximum(ndtr(high - at) - ndtr(low - at), 0.0)
        return above, below


@final
@dataclass(frozen=True, slots=True)
class ZeroedBatchLaw:
    r"""Losses above zero from $(1-q) N(0) + q N(2\mu)$ against $(1-q) N(0) + q N(\mu)$, below from N(0) and a mixture.

    ``removal``: P has the victim's contribution; otherwise the mirror image. The data that attain the two halves
    differ, so ``under`` is the law of one data set: all further records along with the victim, or all away from it.
    """

    mu: float
    rate: float
    removal: bool = True

    def __post_init__(self) -> None:
        require(0 < self.mu < 1e6, "ZeroedBatchLaw.mu", "lie in (0, 1e6)", self.mu)
        require(0 < self.rate < 1, "ZeroedBatchLaw.rate", "lie in (0, 1)", self.rate)

    @property
    def under_slack(self) -> float:
        """Zero: the law from below is exact."""
        return 0.0

    @property
    def under(self) -> "AwayLaw | SampledLaw":
        """The law of data whose further records all point away from the victim, or all along with it."""
        return AwayLaw(self.mu, self.rate) if self.removal else SampledLaw(self.mu, self.rate)

    def tails(self, levels: Vector, /) -> Tails:
        """Return the tails of the two halves, joined at level zero, where both have the same total variation."""
        if self.removal:
            upper = AwayLaw(self.mu, self.rate).tails(np.maximum(levels, 0.0))
            lower = SampledLaw(self.mu, self.rate, removal=False).tails(np.minimum(levels, 0.0))
        else:
            upper = SampledLaw(self.mu, self.rate).tails(np.maximum(levels, 0.0))
            p_above, p_below, q_above, q_below = AwayLaw(self.mu, self.rate).tails(np.maximum(-levels, 0.0))
            lower = Tails(q_below, q_above, p_below, p_above)
        return Tails(*(np.where(levels >= 0, high, low) for high, low in zip(upper, lower, strict=True)))

    def reach(self, mass: float, /) -> tuple[float, float]:
        """Return the outer end of either half."""
        z = -float(ndtri(mass))
        one, two = SampledLaw(2 * self.mu, self.rate), SampledLaw(self.mu, self.rate)
        if self.removal:
            low = SampledLaw(self.mu, self.rate, removal=False).reach(mass)[0]
            return min(low, 0.0), max(one.loss(2 * self.mu + z) - two.loss(2 * self.mu + z), 0.0)
        return min(two.loss(self.mu + z) - one.loss(self.mu + z), 0.0), max(two.reach(mass)[1], 0.0)
