r"""The exact delta(epsilon) of an instance, as an interval: no accountant may ever be below its lower end.

Lower end: the best event among unions of cells, with all known errors counted against it. Upper end: cells in which the
density ratio may cross $e^\varepsilon$ are counted with the largest possible crossing.
Theory page: exact-laws.md.
"""

import math
from dataclasses import dataclass

import numpy as np

from fedveil.audit.cells import CellLaw
from fedveil.audit.chain import Instance
from fedveil.audit.gaussian_law import GaussianLaws
from fedveil.audit.laplace_law import LaplaceLaws
from fedveil.core.checks import require
from fedveil.core.values import Vector
from fedveil.theory.numerics import smallest_epsilon

FINE = 256  # cells per noise deviation in an answer; a search uses fewer
COARSE = 24
_DEVIATIONS = 9.0  # beyond the images of the last round; what lies farther is merged into the end cells
_FEWEST, _MOST = 64, 6000  # number of cells of an answer, Gaussian noise
_LAPLACE = 65536  # number of cells for Laplace noise; they also hold the states, and more cells narrow the interval


@dataclass(frozen=True, slots=True, eq=False)
class Exact:
    """Bounds on delta, the larger of the two directions, at each epsilon."""

    epsilons: Vector
    lower: Vector
    upper: Vector

    def __post_init__(self) -> None:
        right = bool(np.all((self.lower >= 0) & (self.lower <= self.upper) & (self.upper <= 1)))
        require(right, "Exact", "have 0 <= lower <= upper <= 1", (self.lower.tolist(), self.upper.tolist()))


@dataclass(frozen=True, slots=True, eq=False)
class Released:
    """The two laws of an instance on common cells, from which all numbers about it are computed."""

    first: CellLaw
    second: CellLaw

    @property
    def _both_ways(self) -> tuple[tuple[CellLaw, CellLaw], tuple[CellLaw, CellLaw]]:
        return (self.first, self.second), (self.second, self.first)

    def delta_lower(self, epsilon: float) -> float:
        """Return a delta that some event certainly reaches."""
        return max(max(0.0, float(np.max(_gain(p, q, epsilon)))) for p, q in self._both_ways)

    def delta_upper(self, epsilon: float) -> float:
        """Return a delta that no event exceeds."""
        return min(1.0, max(_most(p, q, epsilon) for p, q in self._both_ways))

    def epsilon_lower(self, delta: float) -> float:
        """Return a lower bound: no (epsilon, delta) with a smaller epsilon can be true; 0 if nothing can be said.

        For an event A, delta >= P(A) - e^epsilon Q(A) means epsilon >= ln((P(A) - delta)/Q(A)).
        """
        return max(_epsilon(p, q, delta) for p, q in self._both_ways)

    def epsilon_upper(self, delta: float) -> float:
        """Return an epsilon that is true of this instance at this delta."""

        def log_delta(epsilon: float) -> float:
            return math.log(max(self.delta_upper(epsilon), 1e-300))

        return smallest_epsilon(log_delta, delta, guess=max(self.epsilon_lower(delta), 1e-6), tolerance=1e-7)


def released(instance: Instance, resolution: int = FINE) -> Released:
    """Return both laws; ``resolution`` is the number of cells in a deviation of the last noise."""
    require(resolution >= 1, "resolution", "be at least 1", resolution)
    edges = _edges(instance, resolution)
    laws: GaussianLaws | LaplaceLaws
    if instance.noise == "gaussian":
        merged = not (instance.projected and instance.clipped_last)
        laws = GaussianLaws(instance.start, edges, instance.projected, merged)
    else:
        laws = LaplaceLaws(instance.start, edges, instance.projected)
    return Released(laws.law(instance.first), laws.law(instance.second))


def _edges(instance: Instance, resolution: int) -> Vector:
    """Return the cells of the release.

    Of the interval, or of everything reachable if the last state is not projected.
    """
    lasts = {chain[-1] for _, chain in (*instance.first, *instance.second)}
    least, lo, hi = min(step.noise for step in lasts), instance.lo, instance.hi
    if not instance.clipped_last:
        lo = min(min(step.line.values) - _DEVIATIONS * step.noise for step in lasts)
        hi = max(max(step.line.values) + _DEVIATIONS * step.noise for step in lasts)
    share = resolution / FINE
    few, many = (_FEWEST, _MOST) if instance.noise == "gaussian" else (_LAPLACE, _LAPLACE)
    count = min(max((hi - lo) / least * resolution, share * few), share * many)
    return np.linspace(lo, hi, max(16, int(count)) + 1)


def exact(instance: Instance, epsilons: Vector, resolution: int = FINE) -> Exact:
    """Return the exact delta at each epsilon, as an interval."""
    require(bool(np.all(epsilons >= 0)), "epsilons", "be non-negative", epsilons)
    pair = released(instance, resolution)
    lower = np.array([pair.delta_lower(float(epsilon)) for epsilon in epsilons])
    upper = np.array([pair.delta_upper(float(epsilon)) for epsilon in epsilons])
    return Exact(epsilons, lower, np.maximum(lower, upper))


def _prefixes(p: CellLaw, q: CellLaw) -> tuple[Vector, Vector]:
    """Return certain lower and upper bounds on the two masses of the likeliest events, best cells first."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(p.masses > 0, p.masses / q.masses, -1.0)
    order = np.argsort(-ratio, kind="stable")
    sure = np.cumsum(p.masses[order]) / p.factor - p.error
    cost = np.cumsum(q.masses[order]) * q.factor + q.error
    return sure, cost


def _gain(p: CellLaw, q: CellLaw, epsilon: float) -> Vector:
    sure, cost = _prefixes(p, q)
    with np.errstate(over="ignore"):
        return np.asarray(sure - np.exp(np.minimum(epsilon, 700.0)) * cost, dtype=np.float64)


def _epsilon(p: CellLaw, q: CellLaw, delta: float) -> float:
    sure, cost = _prefixes(p, q)
    able = (sure > delta) & (cost > 0)
    if not bool(able.any()):
        return 0.0
    return max(0.0, float(np.max(np.log((sure[able] - delta) / cost[able]))))


def _most(p: CellLaw, q: CellLaw, epsilon: float) -> float:
    """Return an upper bound on delta.

    Within a cell the ratio stays within exp(swing) of its mean, so a cell matters only if the ratio may cross there.
    """
    swing = np.maximum(p.high - q.low, q.high - p.low) * np.diff(p.edges)
    stretch = np.exp(np.minimum(np.concatenate([[0.0], swing, [0.0]]), 50.0)) * (p.factor * q.factor)
    gamma = math.exp(min(epsilon, 700.0))
    cost, above = gamma * q.masses, p.masses
    crossing = (above * stretch > cost) & (above < cost * stretch)
    parts = np.where(crossing, np.minimum(stretch * above - cost, above), above - cost)
    chosen = parts > 0
    total = float(parts[chosen].sum())
    rounding = (p.factor - 1) * float(above[chosen].sum()) + (q.factor - 1) * float(cost[chosen].sum())
    return total + rounding + p.error + p.beyond + gamma * (q.error + q.beyond)
