r"""The truth that fedveil's bounds are held against: exact laws of small noisy iterations on a line.

The chain is $W_k = \mathrm{clip}(\psi_k(W_{k-1}) + \sigma_k N_k, lo, hi)$ on two neighbouring data sets.
Nothing of fedveil is imported: these numbers share no code with what they judge.

How a law is held. After every round but the last it is an atom at each end (the projection) and a density at
Gauss-Legendre nodes of panels that break at every kink of every map. A round is then the integral
$\int pdf((y - \psi(w))/\sigma)/\sigma\, d\mu(w)$. For Gaussian noise the integrand is analytic on each panel
and the error falls geometrically (about 1e-13 on the coarse grid); for Laplace noise the kernel has a kink
and the error falls like the square of the panel. The last round gives masses: of cells and of the two atoms.

Why the answer is a lower one. Merging outcomes into cells is post-processing of the released state, so it can
only lower $E_\varepsilon$; that part is rigorous. (Merging *between* rounds would be another chain: the next
map would see the rounded state. That is why the state is held as a density.) The quadrature is not one-sided:
every value is computed on two grids, the second with halved panels, and ``lower`` takes off twice their
difference, and ``FLOOR`` for rounding.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, product

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

Vector = NDArray[np.float64]
Batches = tuple[tuple[int, ...], ...]  # how many records of each kind are in each batch
Map = Callable[[Vector], Vector]  # one round's psi; corners, if it has any, in an attribute ``kinks``

CELLS = 1024  # of the released state; their loss is of the order of (width / sigma)**2
NODES = 12  # Gauss-Legendre nodes in a panel
PANEL = {"gaussian": 1.5, "laplace": 0.25}  # the widest panel of the coarse grid, in units of the least sigma
MOST = 6000  # points of a grid; a kernel has their square
FLOOR = 1e-12  # rounding of sums of about a thousand masses
_X, _W = np.polynomial.legendre.leggauss(NODES)


@dataclass(frozen=True, slots=True)
class Loss:
    """A convex loss by its gradient: slope ``lam``, and ``lam + extra`` within ``reach`` of ``centre``.

    Linear: ``Loss(offset=g)``. Quadratic: ``Loss(lam=h, offset=-h * minimiser)``.
    Huber: ``Loss(extra=beta, reach=bound / beta, centre=minimiser)``.

    >>> Loss(extra=2.0, reach=0.5).gradient(np.array([-3.0, 0.25, 3.0])).tolist()
    [-1.0, 0.5, 1.0]
    """

    offset: float = 0.0
    lam: float = 0.0
    extra: float = 0.0
    centre: float = 0.0
    reach: float = 0.0

    def gradient(self, w: Vector) -> Vector:
        steep = self.extra * np.clip(w - self.centre, -self.reach, self.reach)
        return np.asarray(self.offset + self.lam * w + steep, dtype=np.float64)

    @property
    def kinks(self) -> tuple[float, ...]:
        return (self.centre - self.reach, self.centre + self.reach) if self.extra else ()


@dataclass(frozen=True, slots=True)
class Step:
    """w - eta * (sum of the gradients) / divisor; a record that is absent leaves the divisor alone."""

    losses: tuple[Loss, ...]
    eta: float
    divisor: float = 1.0

    def __call__(self, w: Vector) -> Vector:
        total = sum((loss.gradient(w) for loss in self.losses), np.zeros_like(w))
        return np.asarray(w - self.eta / self.divisor * total, dtype=np.float64)

    @property
    def kinks(self) -> tuple[float, ...]:
        return tuple(sorted({kink for loss in self.losses for kink in loss.kinks}))


@dataclass(frozen=True, slots=True)
class Broken:
    """A piecewise linear map through ``(kinks, values)``: any Lipschitz map, for adversaries."""

    kinks: tuple[float, ...]
    values: tuple[float, ...]

    def __call__(self, w: Vector) -> Vector:
        return np.asarray(np.interp(w, self.kinks, self.values), dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Deltas:
    """Hockey-stick divergences at ``epsilons`` in both directions, and the doubling difference."""

    epsilons: Vector
    forward: Vector
    backward: Vector
    error: Vector

    @property
    def lower(self) -> Vector:
        """What the supremum over both directions reaches for sure, as far as the grids agree."""
        best = np.maximum(self.forward, self.backward)
        return np.asarray(np.maximum(best - 2 * self.error - FLOOR, 0.0), dtype=np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """Two chains and the constants that an accountant may know about them.

    The maps must be linear between their kinks for the constants to be exact, as ``Step`` and ``Broken`` are.
    """

    rounds: tuple[tuple[Map, Map], ...]
    sigmas: tuple[float, ...]
    lo: float
    hi: float
    start: float
    noise: str = "gaussian"
    carry: float = math.inf  # eta L: how far a map may carry a point; infinite if not a bounded gradient step
    label: str = ""

    @property
    def diameter(self) -> float:
        return self.hi - self.lo

    @property
    def gaps(self) -> tuple[float, ...]:
        """s_k: the largest distance of the two maps on the domain."""
        spots = ((p, q, _knots((p, q), self.lo, self.hi)) for p, q in self.rounds)
        return tuple(float(np.max(np.abs(p(w) - q(w)))) for p, q, w in spots)

    @property
    def contractions(self) -> tuple[float, ...]:
        """c_k: the larger Lipschitz constant of the two maps on the domain."""
        spots = ((pair, _knots(pair, self.lo, self.hi)) for pair in self.rounds)
        return tuple(float(max(np.max(np.abs(np.diff(f(w)) / np.diff(w))) for f in pair)) for pair, w in spots)


def _knots(maps: Sequence[Map], lo: float, hi: float) -> Vector:
    inner = [kink for psi in maps for kink in getattr(psi, "kinks", ()) if lo < kink < hi]
    return np.unique(np.array([lo, *inner, hi]))


@dataclass(frozen=True, slots=True)
class Grid:
    """Where laws are held: points (both ends and the nodes), their weights, and the cells of the release."""

    points: Vector
    weights: Vector
    edges: Vector
    noise: str
    _cache: dict[tuple[Map, float], Vector] = field(default_factory=dict, repr=False, compare=False)

    def scatter(self, psi: Map, sigma: float, sources: Vector) -> Vector:
        """Masses at the points that unit masses at the sources send out; one column a source."""
        offsets = (self.points[:, None] - psi(sources)) / sigma
        out = self.weights[:, None] * _pdf(offsets, self.noise) / sigma
        out[0], out[-1] = _cdf(offsets[0], self.noise), _cdf(-offsets[-1], self.noise)
        return np.asarray(out, dtype=np.float64)

    def kernel(self, psi: Map, sigma: float) -> Vector:
        """The scatter of the points themselves, remembered: arrangements share their rounds."""
        if (psi, sigma) not in self._cache:
            self._cache[psi, sigma] = self.scatter(psi, sigma, self.points)
        return self._cache[psi, sigma]

    def release(self, psi: Map, sigma: float, sources: Vector, masses: Vector) -> Vector:
        """The last round: the masses of the atom at lo, of the cells, and of the atom at hi."""
        offsets = (self.edges[:, None] - psi(sources)[None, :]) / sigma
        below = _cdf(offsets, self.noise) @ masses
        top = _cdf(-offsets[-1], self.noise) @ masses
        return np.concatenate([below[:1], np.maximum(np.diff(below), 0.0), [top]])

    def last(self, maps: Sequence[Map], sigmas: Sequence[float], start: float) -> tuple[Vector, Vector]:
        """Support and masses of the state before the last round."""
        support, masses = np.array([start]), np.ones(1)
        for number, (psi, sigma) in enumerate(zip(maps[:-1], sigmas[:-1], strict=True)):
            matrix = self.kernel(psi, sigma) if number else self.scatter(psi, sigma, support)
            support, masses = self.points, matrix @ masses
        return support, masses

    def law(self, maps: Sequence[Map], sigmas: Sequence[float], start: float) -> Vector:
        """The released law of one chain."""
        return self.release(maps[-1], sigmas[-1], *self.last(maps, sigmas, start))


def _pdf(x: Vector, noise: str) -> Vector:
    out = np.exp(-x * x / 2) / math.sqrt(2 * math.pi) if noise == "gaussian" else np.exp(-np.abs(x)) / 2
    return np.asarray(out, dtype=np.float64)


def _cdf(x: Vector, noise: str) -> Vector:
    half = np.exp(-np.abs(x)) / 2
    return np.asarray(ndtr(x) if noise == "gaussian" else np.where(x < 0, half, 1 - half), dtype=np.float64)


def make_grid(maps: Sequence[Map], least: float, lo: float, hi: float, noise: str, halvings: int = 0) -> Grid:
    """Panels no wider than ``PANEL`` of the least noise, broken at every kink, halved ``halvings`` times."""
    ends = list(pairwise(_knots(maps, lo, hi)))
    counts = [2**halvings * max(1, math.ceil((b - a) / (PANEL[noise] * least))) for a, b in ends]
    pieces = [np.linspace(a, b, count + 1)[:-1] for (a, b), count in zip(ends, counts, strict=True)]
    bounds = np.concatenate([*pieces, [hi]])
    if bounds.size * NODES > MOST:
        raise ValueError(f"{lo} to {hi} at noise {least} takes {bounds.size * NODES} points: more than {MOST}")
    half = np.diff(bounds)[:, None] / 2
    points = (bounds[:-1, None] + half * (1 + _X)).ravel()
    weights = np.concatenate([[0.0], (half * _W).ravel(), [0.0]])
    return Grid(np.concatenate([[lo], points, [hi]]), weights, np.linspace(lo, hi, CELLS + 1), noise)


def hockey_sticks(p: Vector, q: Vector, epsilons: Vector) -> Vector:
    """Sum of the positive parts of p - e**epsilon q, for each epsilon."""
    return np.asarray(np.maximum(p - np.exp(epsilons)[:, None] * q, 0.0).sum(axis=1), dtype=np.float64)


def theta(epsilons: Vector, mu: float) -> Vector:
    """The hockey stick of two unit normals mu > 0 apart, straight from its definition."""
    return np.asarray(ndtr(mu / 2 - epsilons / mu) - np.exp(epsilons) * ndtr(-mu / 2 - epsilons / mu))


def exact_laws(instance: Instance, halvings: int = 1) -> tuple[Vector, Vector]:
    """The released laws of the two chains: atom at lo, ``CELLS`` equal cells, atom at hi."""
    bounds = (min(instance.sigmas), instance.lo, instance.hi, instance.noise)
    grid = make_grid([psi for pair in instance.rounds for psi in pair], *bounds, halvings)
    first, second = zip(*instance.rounds, strict=True)
    run = instance.sigmas, instance.start
    return grid.law(first, *run), grid.law(second, *run)


def exact_pair(instance: Instance, epsilons: Vector) -> Deltas:
    """The two exact laws of the last iterate, compared."""
    return compare(lambda halvings: exact_laws(instance, halvings), epsilons)


def compare(laws: Callable[[int], tuple[Vector, Vector]], epsilons: Vector) -> Deltas:
    """Hockey sticks of ``laws(halvings)`` on the finer grid; the error is the difference from the coarser."""
    (p, q), (coarse_p, coarse_q) = laws(1), laws(0)
    there, back = hockey_sticks(p, q, epsilons), hockey_sticks(q, p, epsilons)
    moved = np.abs(there - hockey_sticks(coarse_p, coarse_q, epsilons))
    moved = np.maximum(moved, np.abs(back - hockey_sticks(coarse_q, coarse_p, epsilons)))
    return Deltas(epsilons, there, back, moved)


def gaussian_pair(slopes: Sequence[float], gaps: Sequence[float], sigmas: Sequence[float]) -> float:
    """mu of two chains slope_k w + offset_k without projection, offsets ``gap`` (signed) apart on a line."""
    distance = variance = 0.0
    for slope, gap, sigma in zip(slopes, gaps, sigmas, strict=True):
        distance, variance = slope * distance + gap, slope * slope * variance + sigma * sigma
    return abs(distance) / math.sqrt(variance)


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """A uniformly random secret partition into batches, gone through ``passes`` times in the same order.

    ``sizes``: of the batches in order; records beyond their sum are left over, unused. ``other`` replaces the
    victim on the neighbouring data set; ``Loss()`` zeroes it out. ``etas``, ``sigmas``: one for each round.
    """

    victim: Loss
    other: Loss
    others: tuple[Loss, ...]
    sizes: tuple[int, ...]
    etas: tuple[float, ...]
    sigmas: tuple[float, ...]
    lo: float
    hi: float
    start: float
    passes: int = 1


def arrangements(counts: tuple[int, ...], sizes: tuple[int, ...]) -> Iterator[tuple[float, Batches]]:
    """All ways to fill the batches from kinds of alike records: (number of ways, kinds in each batch)."""
    if not sizes:
        yield 1.0, ()
        return
    for taken in product(*(range(count + 1) for count in counts)):
        if sum(taken) == sizes[0]:
            ways = math.prod(math.comb(count, take) for count, take in zip(counts, taken, strict=True))
            left = tuple(count - take for count, take in zip(counts, taken, strict=True))
            for more, rest in arrangements(left, sizes[1:]):
                yield ways * more, (taken, *rest)


def random_partition_pair(case: Partition, epsilons: Vector) -> Deltas:
    """The exact mixtures over all arrangements on the two data sets, compared."""
    kinds = tuple(dict.fromkeys(case.others))
    counts = (1, *(case.others.count(kind) for kind in kinds))
    ways = list(arrangements(counts, case.sizes))
    total = sum(weight for weight, _ in ways)

    def steps(victim: Loss, batches: Batches) -> list[Step]:
        pool = (victim, *kinds)
        filled = [sum(((loss,) * n for loss, n in zip(pool, b, strict=True)), ()) for b in batches]
        rounds = zip(filled * case.passes, case.etas, case.sizes * case.passes, strict=True)
        return [Step(losses, eta, size) for losses, eta, size in rounds]

    def laws(halvings: int) -> tuple[Vector, Vector]:
        probe = Step((case.victim, case.other, *kinds), 1.0)
        grid = make_grid([probe], min(case.sigmas), case.lo, case.hi, "gaussian", halvings)
        p, q = (_mixture(grid, case, [(w, steps(v, b)) for w, b in ways]) for v in (case.victim, case.other))
        return p / total, q / total

    return compare(laws, epsilons)


def _mixture(grid: Grid, case: Partition, weighted: list[tuple[float, list[Step]]]) -> Vector:
    """Chains that end in the same round are added up before it: the last round is the dear one."""
    before: dict[Step, list[Vector]] = {}
    support = np.array([case.start])
    for weight, maps in weighted:
        support, masses = grid.last(maps, case.sigmas, case.start)
        before.setdefault(maps[-1], []).append(weight * masses)
    parts = [grid.release(psi, case.sigmas[-1], support, np.sum(m, axis=0)) for psi, m in before.items()]
    return np.asarray(np.sum(parts, axis=0), dtype=np.float64)


_LINE, _BACK = ((-1.0, 1.0), (-1.0, 1.0)), ((-1.0, 1.0), (1.0, -1.0))
_STEEP_INSIDE = ((-1.0, -0.5, 0.5, 1.0), (-0.5, -0.5, 0.5, 0.5))
_STEEP_OUTSIDE = ((-1.0, -0.25, 0.25, 1.0), (-0.75, 0.0, 0.0, 0.75))
_VALLEY, _RAMP = ((-1.0, 0.0, 1.0), (1.0, 0.0, 1.0)), ((-1.0, 0.0, 1.0), (0.0, 0.0, 1.0))
_SHAPES = (  # knots and values of a 1-Lipschitz map, drift, start: all in units of half the domain
    *((_LINE, drift, start) for drift, start in ((0.0, 0.0), (0.0, 1.0), (0.3, 0.0), (0.3, -1.0), (-0.3, 1.0))),
    *((_BACK, drift, start) for drift, start in ((0.0, 0.0), (0.3, 1.0))),
    *((_STEEP_INSIDE, 0.0, 0.0), (_STEEP_OUTSIDE, 0.0, 0.0), (_VALLEY, -0.5, 1.0), (_RAMP, 0.0, 0.5)),
)


def adversaries(
    gaps: Sequence[float], sigmas: Sequence[float], contractions: Sequence[float], diameter: float
) -> tuple[Instance, ...]:
    """Chains on [-diameter/2, diameter/2] with exactly these constants s_k, sigma_k, c_k, meant to leak.

    Straight maps of slope c or -c, pushed the same way in every leaking round, with or without a drift, from
    the middle or an end; and maps that are steep only in places.
    """
    half = diameter / 2

    def build(knots: tuple[float, ...], values: tuple[float, ...], drift: float, start: float) -> Instance:
        def at(c: float, shift: float) -> Broken:
            return Broken(tuple(half * x for x in knots), tuple(half * (c * y + drift) + shift for y in values))

        rounds = tuple((at(c, s / 2), at(c, -s / 2)) for s, c in zip(gaps, contractions, strict=True))
        label, start = f"{knots} to {values}, drift {drift}, start {start}", start * half
        return Instance(rounds=rounds, sigmas=tuple(sigmas), lo=-half, hi=half, start=start, label=label)

    return tuple(build(*shape, drift, start) for shape, drift, start in _SHAPES)


def random_instances(seed: int, count: int = 200, noise: str = "gaussian") -> tuple[Instance, ...]:
    """Frozen random chains of projected noisy gradient descent, T <= 8, one to three uses of the victim."""
    rng = np.random.default_rng(seed)
    return tuple(_random_instance(rng, noise) for _ in range(count))


def _random_instance(rng: np.random.Generator, noise: str) -> Instance:
    def log_uniform(low: float, high: float) -> float:
        return float(math.exp(rng.uniform(math.log(low), math.log(high))))

    eta, bound, total = log_uniform(0.05, 1.0), log_uniform(0.3, 3.0), int(rng.integers(1, 9))
    base = 2 * eta * bound / log_uniform(0.3, 4.0)
    sigmas = tuple(base * log_uniform(0.6, 1.6) for _ in range(total))
    half = base * log_uniform(0.5, 12.0) / 2
    lam = float(rng.choice([0.0, rng.uniform(0, 1)])) * min(bound / half, 2 / eta) / 2
    beta = lam + float(rng.uniform(0, 1)) * max(2 / eta - lam, 0.0)
    room = bound - lam * half  # |gradient| <= bound on the domain is left to the offset and the steep part

    def record() -> Loss:
        kind = rng.integers(3)
        if kind == 0 or beta <= lam:
            return Loss(offset=float(rng.choice([-1, 0, 1])) * room, lam=lam)
        reach = room / (beta - lam) * (1.0 if kind == 1 else float(rng.uniform(0.1, 1)))
        return Loss(lam=lam, extra=beta - lam, reach=reach, centre=float(rng.uniform(-half, half)))

    used = set(rng.choice(total, size=min(total, int(rng.choice([1, 1, 2, 3]))), replace=False).tolist())
    sign = float(rng.choice([-1, 1]))
    victim = Loss(offset=sign * room, lam=lam), Loss(offset=-sign * room, lam=lam)
    if rng.random() < 0.3:
        victim = victim[0], record()
    pairs = [victim if k in used else (record(),) * 2 for k in range(total)]
    label = f"eta {eta:.3g}, L {bound:.3g}, lam {lam:.3g}, beta {beta:.3g}, used {sorted(used)} of {total}"
    ends = {"lo": -half, "hi": half, "start": float(rng.choice([-half, 0.0, half])), "carry": eta * bound}
    rounds = tuple((Step((p,), eta), Step((q,), eta)) for p, q in pairs)
    return Instance(rounds=rounds, sigmas=sigmas, noise=noise, label=label, **ends)
