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

from fedveil.checks import require
from fedveil.theory.loss import SampledLaw, Tails
from fedveil.theory.numerics import Vector


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
        """The law from below is exact."""
        return 0.0

    @property
    def under(self) -> SampledLaw:
        """Of a data set whose other records all point along with the victim."""
        return SampledLaw(self.mu, self.rate, removal=not self.removal)

    def tails(self, levels: Vector, /) -> Tails:
        """The two halves, glued at level zero, where both have the same total variation."""
        if self.removal:
            upper = self._away(np.maximum(levels, 0.0))
            lower = SampledLaw(self.mu, self.rate, removal=False).tails(np.minimum(levels, 0.0))
        else:
            upper = SampledLaw(self.mu, self.rate).tails(np.maximum(levels, 0.0))
            p_above, p_below, q_above, q_below = self._away(np.maximum(-levels, 0.0))
            lower = Tails(q_below, q_above, p_below, p_above)
        return Tails(*(np.where(levels >= 0, high, low) for high, low in zip(upper, lower, strict=True)))

    def reach(self, mass: float, /) -> tuple[float, float]:
        """The outer end of either half."""
        z = -float(ndtri(mass))
        one, two = SampledLaw(2 * self.mu, self.rate), SampledLaw(self.mu, self.rate)
        if self.removal:
            low = SampledLaw(self.mu, self.rate, removal=False).reach(mass)[0]
            return min(low, 0.0), max(one.loss(2 * self.mu + z) - two.loss(2 * self.mu + z), 0.0)
        return min(two.loss(self.mu + z) - one.loss(self.mu + z), 0.0), max(two.reach(mass)[1], 0.0)

    def _away(self, levels: Vector) -> Tails:
        """Levels of at least zero: a quadratic equation gives the threshold, above which the ratio grows."""
        mu, q = self.mu, self.rate
        with np.errstate(under="ignore", invalid="ignore"):
            inside = 4 * np.exp(-mu * mu - levels) * ((1 - q) / q) * -np.expm1(-levels)
            root = 1 + np.sqrt(1 + inside)
            x = (levels + np.log1p(inside / (2 * root))) / mu + 1.5 * mu
        x = np.where(np.isinf(levels), np.inf, x)
        rest, share = 1 - q, q
        p_above, p_below = rest * ndtr(-x) + share * ndtr(2 * mu - x), rest * ndtr(x) + share * ndtr(x - 2 * mu)
        q_above, q_below = rest * ndtr(-x) + share * ndtr(mu - x), rest * ndtr(x) + share * ndtr(x - mu)
        return Tails(p_above, p_below, q_above, q_below)
