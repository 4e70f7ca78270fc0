r"""The exact privacy loss of a small noisy chain, by quadrature.

Lower end: the best event among unions of cells, with all known errors counted against it. Upper end: cells in which the
density ratio may cross $e^\varepsilon$ are counted with the largest possible crossing.
Theory page: exact-laws.md.
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.special import ndtr

from fedveil.core.errors import require
from fedveil.core.values import Vector
from fedveil.theory.numerics import smallest_epsilon

# A released law as masses of cells, with bounds on their errors; the common form of all exact laws.


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class CellLaw:
    """Masses of the atom at lo, of the cells between ``edges``, and of the atom at hi.

    For every event A that is a union of them, the truth lies between ``A / factor - error`` and ``A * factor + error``.
    ``beyond``: the mass that a law without projection may have outside, merged into the ends here. ``low`` and
    ``high``: bounds on the slope of the log-density within each cell, of the law as computed.
    """

    edges: Vector
    masses: Vector
    factor: float
    error: float
    beyond: float
    low: Vector
    high: Vector


def add(laws: list[CellLaw]) -> CellLaw:
    """Return the sum of weighted laws on the same cells; errors add up, and factors and slopes are the worst of any."""
    return CellLaw(
        edges=laws[0].edges,
        masses=np.asarray(np.sum([law.masses for law in laws], axis=0), dtype=np.float64),
        factor=max(law.factor for law in laws),
        error=sum(law.error for law in laws),
        beyond=sum(law.beyond for law in laws),
        low=np.asarray(np.min([law.low for law in laws], axis=0), dtype=np.float64),
        high=np.asarray(np.max([law.high for law in laws], axis=0), dtype=np.float64),
    )


# A noisy chain on an interval, on two data sets: $W_k = \mathrm{clip}(\psi_k(W_{k-1}) + N_k, lo, hi)$.
#
# Every $\psi_k$ is piecewise linear. That includes every loss whose gradient is piecewise linear (linear, quadratic,
# Huber, clamp, absolute value up to a steep piece), and it makes the laws exact: see exact-laws.md.

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


# The law of the last iterate of a chain with Laplace noise, on fine cells, with a proved factor around every event.
#
# A round maps the point $w$ to a density whose logarithm changes by at most $c\,|w - w'|/b$ when $w$ does. So placing a
# cell's mass at its middle changes the chance of any later event by a factor within $e^{\pm c\,width/(2b)}$.
# Theory page: exact-laws.md, section 3.

_LAPLACE_ROUNDING = 1e-11  # relative error of a round: positive terms only
_WIDEST = 600.0  # largest width of the interval and the images, in scales, so that exponentials are finite


class LaplaceLaws:
    """Laws of chains on one interval from one start; the cells of the states are those of the release."""

    def __init__(self, start: float, edges: Vector, projected: bool) -> None:
        self._start, self._edges, self._projected = start, edges, projected
        middles = (edges[1:] + edges[:-1]) / 2
        self._points = np.concatenate([edges[:1], middles, edges[-1:]])

    def law(self, mixture: Mixture) -> CellLaw:
        """Return the law after the last rounds."""
        return add([self._law(weight, chain) for weight, chain in mixture])

    def _law(self, weight: float, chain: Chain) -> CellLaw:
        points, masses, spread, error = np.array([self._start]), np.full(1, weight), 0.0, 0.0
        half = float(np.max(np.diff(self._edges))) / 2
        for number, step in enumerate(chain):
            if number > 0:
                spread += float(np.max(np.abs(step.line.slopes))) * half / step.noise
            masses = _round(self._edges, step.line(points), step.noise, masses)
            points = self._points
            if not self._projected and number < len(chain) - 1:
                error += float(masses[0] + masses[-1])
        flat = np.full(self._edges.size - 1, 1 / chain[-1].noise)  # no log-density is steeper than this
        return CellLaw(
            edges=self._edges,
            masses=masses,
            factor=math.exp(spread) * (1 + _LAPLACE_ROUNDING * (len(chain) + 1)),
            error=error,
            beyond=0.0 if self._projected else float(masses[0] + masses[-1]),
            low=-flat,
            high=flat,
        )


def _round(edges: Vector, centres: Vector, scale: float, masses: Vector) -> Vector:
    """Return the masses of the ends and cells, from sources to the left, to the right and inside."""
    order = np.argsort(centres, kind="stable")
    z, m = (centres[order] - edges[0]) / scale, masses[order]
    y = (edges - edges[0]) / scale
    reach = max(float(y[-1]), float(z[-1])) - min(0.0, float(z[0]))
    require(reach <= _WIDEST, "the interval", f"be at most {_WIDEST:g} Laplace scales wide", reach)
    below, above = np.searchsorted(z, y, side="left"), np.searchsorted(z, y, side="right")
    ahead = np.append(0.0, np.cumsum(m * np.exp(z)))
    back = np.append(np.cumsum((m * np.exp(-z))[::-1])[::-1], 0.0)
    left = np.exp(-y) * ahead[below]  # from sources strictly left of each edge, discounted to it
    right = np.exp(y) * back[below]  # from sources at the edge or right of it
    thin = -np.expm1(-np.diff(y)) / 2
    cells = left[:-1] * thin + right[1:] * thin + _inside(y, z, m)
    under, beyond = slice(0, above[0]), slice(below[-1], None)  # sources at an end or outside
    low = float(m[under].sum()) - _outer(z[under], m[under], 0.0) + float(back[above[0]]) / 2
    high = float(m[beyond].sum()) - _outer(z[beyond], m[beyond], float(y[-1])) + float(left[-1]) / 2
    return np.concatenate([[low], cells, [high]])


def _inside(y: Vector, z: Vector, m: Vector) -> Vector:
    """Return what sources within a cell (left edge included) leave there: 1 - (e^-(z-y0) + e^-(y1-z))/2."""
    cell = np.searchsorted(y, z, side="right") - 1
    here = (cell >= 0) & (cell < y.size - 1)
    cell, z, m = cell[here], z[here], m[here]
    kept = -(np.expm1(y[cell] - z) + np.expm1(z - y[cell + 1])) / 2
    return np.asarray(np.bincount(cell, weights=m * kept, minlength=y.size - 1), dtype=np.float64)


def _outer(z: Vector, m: Vector, edge: float) -> float:
    """Return what sources beyond an end send back inside: half of e^-distance."""
    return float((m * np.exp(-np.abs(z - edge))).sum()) / 2


# Gauss-Legendre panels for one state of a Gaussian chain, with a proved bound on their error.
#
# Between two rounds the density is $f(w) = \int \varphi_\sigma(w - z)\,d\nu(z)$, and the chance of any later event is
# $g(w) = \int \varphi_{\sigma'}(y - \psi(w))\,\bar g(y)\,dy$ with $0 \le \bar g \le 1$. Where $\psi$ is linear both are
# entire functions, bounded on the Bernstein ellipse of a panel; so the error of the integral of $fg$ is known in
# advance, for every event at once. Theory page: exact-laws.md, section 2.

NODES = 28  # nodes of a panel
MOST_POINTS = 4000  # most points of a state; a round costs their square
_TARGET = 1e-26  # error of a panel, over the mass of its width in noise deviations
_X, _W = np.polynomial.legendre.leggauss(NODES)


@dataclass(frozen=True, slots=True, eq=False)
class Panels:
    """Both ends and the nodes; weights (0 at the ends, which hold atoms); ``error``: for any event and unit mass."""

    points: Vector
    weights: Vector
    error: float


def panel_error(squeeze: float) -> float:
    r"""Return the error of a panel of half-width $h$ over $h \sup f \sup g$.

    ``squeeze``: $h^2(\sigma^{-2} + c^2\sigma'^{-2})$. The error is $8\rho^{-2n} e^{squeeze\,b^2/2}/(1 - 1/\rho)$,
    $b = (\rho - 1/\rho)/2$, for any $\rho > 1$; the best of a few, or 4.
    """
    rho = np.geomspace(1.1, 200.0, 160)
    b = (rho - 1 / rho) / 2
    logs = math.log(8) - 2 * NODES * np.log(rho) + squeeze * b * b / 2 - np.log1p(-1 / rho)
    return min(4.0, math.exp(min(float(np.min(logs)), 2.0)))


def _widest() -> float:
    """Return the largest squeeze whose error is below the target."""
    low, high = 0.0, 100.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if panel_error(middle) <= _TARGET else (low, middle)
    return low


_SQUEEZE = _widest()


def panels(noise: float, coming: Step) -> Panels:
    """Return the panels of a state that a round of this ``noise`` made and the round ``coming`` will use."""
    knots, slopes = coming.line.knots, coming.line.slopes
    bounds, errors = [knots[0]], []
    for left, right, slope in zip(knots[:-1], knots[1:], slopes, strict=True):
        rate = noise**-2 + (float(slope) / coming.noise) ** 2
        count = max(1, math.ceil((right - left) / 2 * math.sqrt(rate / _SQUEEZE)))
        many = f"{count * NODES} points for a piece {right - left:.3g} wide"
        require(
            count * NODES <= MOST_POINTS, "panels", f"take at most {MOST_POINTS} points", many, "The noise is tiny."
        )
        half = (right - left) / (2 * count)
        bounds.extend(np.linspace(left, right, count + 1)[1:].tolist())
        errors.append(count * half * panel_error(half * half * rate) / (math.sqrt(2 * math.pi) * noise))
    size = (len(bounds) - 1) * NODES
    require(size <= MOST_POINTS, "panels", f"take at most {MOST_POINTS} points", size, "The noise is tiny.")
    edges = np.array(bounds)
    half_widths = np.diff(edges)[:, None] / 2
    points = (edges[:-1, None] + half_widths * (1 + _X)).ravel()
    weights = np.concatenate([[0.0], (half_widths * _W).ravel(), [0.0]])
    return Panels(np.concatenate([edges[:1], points, edges[-1:]]), weights, math.fsum(errors))


# The law of the last iterate of a chain with Gaussian noise: atoms at both ends, quadrature between, cells at the end.
#
# Theory page: exact-laws.md, section 2. The quadrature error is proved; the rounding allowance is set by hand.

_ROUNDING = 2e-12  # relative error of a round: positive terms only, exponents below 1500, sums of a few thousand
_TAIL = 2e-13  # relative error of a cell's mass, times deviations over its width: a difference of two tails
_STRIDE = 8  # edges between which the posterior mean is only bounded
_ROOT = math.sqrt(2 * math.pi)


class GaussianLaws:
    """Laws of chains on one interval from one start; kernels and common beginnings are cached."""

    def __init__(self, start: float, edges: Vector, projected: bool, merged: bool) -> None:
        self._start, self._edges, self._projected, self._merged = start, edges, projected, merged
        self._panels: dict[tuple[float, Step], Panels] = {}
        self._kernels: dict[tuple[float, Step, Step], Vector] = {}
        self._states: dict[tuple[int, ...], tuple[Vector, float]] = {}
        self._numbers: dict[Step, int] = {}

    def law(self, mixture: Mixture) -> CellLaw:
        """Return the law after the last round.

        Chains that end alike are added up before the last round, which is the expensive one.
        """
        ends: dict[tuple[float | None, Step], tuple[Vector, float, int]] = {}
        for weight, chain in mixture:
            masses, error = self._before_last(chain)
            key = (chain[-2].noise if len(chain) > 1 else None, chain[-1])
            sofar, doubt, longest = ends.get(key, (np.zeros_like(masses), 0.0, 0))
            ends[key] = sofar + weight * masses, doubt + weight * error, max(longest, len(chain))
        return add([self._released(key, *end) for key, end in ends.items()])

    def _released(self, key: tuple[float | None, Step], masses: Vector, error: float, rounds: int) -> CellLaw:
        noise, last = key
        points = np.array([self._start]) if noise is None else self._grid(noise, last).points
        centres, square = last.line(points), last.noise**2
        width = float(np.min(np.diff(self._edges))) / last.noise
        cells = _release(self._edges, centres, last.noise, masses)
        least, most = _posterior(self._edges, centres, last.noise, masses)
        return CellLaw(
            edges=self._edges,
            masses=cells,
            factor=1 + _ROUNDING * (rounds + 1) + _TAIL * max(1.0, 1 / width),
            error=error,
            beyond=float(cells[0] + cells[-1]) if self._merged else 0.0,
            low=(least - self._edges[1:]) / square,
            high=(most - self._edges[:-1]) / square,
        )

    def _grid(self, noise: float, coming: Step) -> Panels:
        if (noise, coming) not in self._panels:
            self._panels[noise, coming] = panels(noise, coming)
        return self._panels[noise, coming]

    def _before_last(self, chain: Chain) -> tuple[Vector, float]:
        """Return the masses at the points of the state before the last round, and the error for any later event."""
        name = tuple(self._numbers.setdefault(step, len(self._numbers)) for step in chain)
        known = next((k for k in range(len(chain) - 1, 0, -1) if name[: k + 1] in self._states), 0)
        masses, error = self._states[name[: known + 1]] if known else (np.ones(1), 0.0)
        for number in range(known, len(chain) - 1):
            step, coming = chain[number], chain[number + 1]
            grid = self._grid(step.noise, coming)
            total = float(masses.sum()) * (1 + 1e-9)
            masses = self._kernel(chain, number) @ masses
            error += grid.error * total
            if not self._projected:  # an unprojected chain agrees with this one until it first leaves the interval
                error += float(masses[0] + masses[-1])
        self._states[name] = masses, error
        return masses, error

    def _kernel(self, chain: Chain, number: int) -> Vector:
        step, target = chain[number], self._grid(chain[number].noise, chain[number + 1])
        if number == 0:
            return _scatter(step.line(np.array([self._start])), step.noise, target)
        key = (chain[number - 1].noise, step, chain[number + 1])
        if key not in self._kernels:
            sources = self._grid(chain[number - 1].noise, step).points
            self._kernels[key] = _scatter(step.line(sources), step.noise, target)
        return self._kernels[key]


def _scatter(centres: Vector, noise: float, target: Panels) -> Vector:
    """Return the masses at the target's points that come from unit masses at the centres, one column per centre."""
    offsets = (target.points[:, None] - centres) / noise
    out = np.exp(-offsets * offsets / 2) * (target.weights / (_ROOT * noise))[:, None]
    out[0], out[-1] = ndtr(offsets[0]), ndtr(-offsets[-1])
    return np.asarray(out, dtype=np.float64)


def _release(edges: Vector, centres: Vector, noise: float, masses: Vector) -> Vector:
    """Return the masses of the ends and of the cells.

    They are differences of the nearer tails, so that small cells keep their digits.
    """
    offsets = (edges[:, None] - centres) / noise
    tail = ndtr(-np.abs(offsets))
    signed = np.where(offsets < 0, tail, -tail)
    inside = np.diff(signed, axis=0) + ((offsets[:-1] < 0) & (offsets[1:] >= 0))
    between = np.maximum(inside @ masses, 0.0)
    ends = ndtr(offsets[0]) @ masses, ndtr(-offsets[-1]) @ masses
    return np.concatenate([[ends[0]], between, [ends[1]]])


def _posterior(edges: Vector, centres: Vector, noise: float, masses: Vector) -> tuple[Vector, Vector]:
    """Return bounds, for each cell, on the mean of the noise's centre given the outcome.

    The slope of the log-density at y is (that mean - y) / noise**2. The mean does not decrease with y, so its values at
    a few edges bound it between them.
    """
    at = np.unique(np.append(np.arange(0, edges.size, _STRIDE), edges.size - 1))
    floor, span = float(centres.min()), float(np.ptp(centres))
    weights = np.exp(-(((edges[at][:, None] - centres) / noise) ** 2) / 2)
    total, moment = weights @ masses, weights @ (masses * (centres - floor))
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = moment / total
    known = total > 1e-290  # elsewhere the exponentials have underflowed, and only the ends are known
    least = np.where(known, mean * (1 - 1e-9), 0.0)
    most = np.where(known, np.minimum(mean * (1 + 1e-9), span), span)
    here = np.searchsorted(at, np.arange(edges.size - 1), side="right") - 1
    return floor + least[here], floor + most[here + 1]


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
