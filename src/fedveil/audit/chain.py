r"""A noisy chain on an interval, on two data sets: $W_k = \mathrm{clip}(\psi_k(W_{k-1}) + N_k, lo, hi)$.

Every $\psi_k$ is piecewise linear. That includes every loss whose gradient is piecewise linear (linear, quadratic,
Huber, clamp, absolute value up to a steep piece), and it makes the laws exact: see exact-laws.md.
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedveil.core.checks import require
from fedveil.core.values import Vector

Noise = Literal["gaussian", "laplace"]


@dataclass(frozen=True, slots=True)
class Line:
    """A continuous function on [knots[0], knots[-1]], linear between the knots.

    >>> Line((-1.0, 0.0, 2.0), (1.0, 0.0, 1.0)).slopes.tolist()
    [-1.0, 0.5]
    """

    knots: tuple[float, ...]
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        rising = len(self.knots) >= 2 and bool(np.all(np.diff(self.knots) > 0))
        require(rising, "Line.knots", "increase, and be at least two", self.knots)
        finite = len(self.values) == len(self.knots) and bool(np.all(np.isfinite(self.values)))
        require(finite, "Line.values", "be finite, one for each knot", self.values)

    def __call__(self, w: Vector) -> Vector:
        """Return the values at ``w``."""
        return np.asarray(np.interp(w, self.knots, self.values), dtype=np.float64)

    @property
    def slopes(self) -> Vector:
        """The slope of each piece."""
        return np.asarray(np.diff(self.values) / np.diff(self.knots), dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Step:
    """One round: the map, and the standard deviation of the noise (for Laplace noise, its scale)."""

    line: Line
    noise: float

    def __post_init__(self) -> None:
        require(0 < self.noise < math.inf, "Step.noise", "be finite and positive", self.noise)


Chain = tuple[Step, ...]
Mixture = tuple[tuple[float, Chain], ...]  # chains with their weights, for a secret place or a random stop


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """Two neighbouring data sets: a mixture of chains for each, started at the same point of the same interval.

    Without ``projected``, the interval only bounds where the law is followed, and the chance of leaving it is charged.
    Without ``clipped_last``, the last state is seen as it was before its projection; a chain in many dimensions can
    come arbitrarily near to that (exact-laws.md, section 5).
    """

    lo: float
    hi: float
    start: float
    first: Mixture
    second: Mixture
    noise: Noise = "gaussian"
    projected: bool = True
    clipped_last: bool = True
    label: str = ""

    def __post_init__(self) -> None:
        require(-math.inf < self.lo < self.hi < math.inf, "Instance.lo", "be finite and below hi", (self.lo, self.hi))
        require(self.lo <= self.start <= self.hi, "Instance.start", "lie between lo and hi", self.start)
        require(self.noise in ("gaussian", "laplace"), "Instance.noise", "be gaussian or laplace", self.noise)
        for name, mixture in (("first", self.first), ("second", self.second)):
            total = math.fsum(weight for weight, _ in mixture)
            positive = all(weight > 0 for weight, _ in mixture)
            require(positive and abs(total - 1) < 1e-12, f"Instance.{name}", "have positive weights of sum 1", total)
            spans = {(step.line.knots[0], step.line.knots[-1]) for _, chain in mixture for step in chain}
            require(spans == {(self.lo, self.hi)}, f"Instance.{name}", "have maps on the whole of [lo, hi]", spans)
            require(
                all(chain for _, chain in mixture), f"Instance.{name}", "have chains of at least one round", mixture
            )

        ends = {chain[-1].noise for _, chain in (*self.first, *self.second)}
        alike = self.clipped_last or (len(ends) == 1 and self.noise == "gaussian")
        hint = "Only then is it a limit of many dimensions."
        require(alike, "Instance.clipped_last", "be true unless all chains end in one Gaussian noise", False, hint)


def single(chain: Chain) -> Mixture:
    """Return a mixture that consists of one chain."""
    return ((1.0, chain),)
