"""One law on a grid: between what dominates it and what it dominates; and each law against its own definition."""

import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import logsumexp, ndtr
from scipy.stats import binom

from fedveil.core.values import Vector
from fedveil.theory.convolution import LatticeLaw, from_above, grid_cells, lowered, sketch
from fedveil.theory.divergence import gaussian_delta
from fedveil.theory.loss import (
    FiniteLaw,
    FixedSizeLaw,
    GaussianLaw,
    GroupLaw,
    LaplaceLaw,
    LossLaw,
    SampledLaw,
    SwappedLaw,
)

TAIL = 1e-16
LAWS: list[LossLaw] = [
    GaussianLaw(1e-5),
    GaussianLaw(1.0),
    GaussianLaw(20.0),
    *(SampledLaw(mu, rate, removal) for mu in (0.3, 2.5) for rate in (1e-9, 0.01, 0.5) for removal in (True, False)),
    SampledLaw(6.0, 1 - 1e-9, removal=False),
    SampledLaw(6.0, 1.0, removal=False),
    SampledLaw(40.0, 1e-9),
    *(make(mu, rate) for make in (SwappedLaw, FixedSizeLaw) for mu in (0.3, 2.5, 40.0) for rate in (1e-5, 0.2, 1.0)),
    GroupLaw(1.0, 0.01, 5),
    GroupLaw(1.0, 0.3, 5, removal=False),
    GroupLaw(6.0, 1.0, 3, removal=False),
    LaplaceLaw(0.01),
    LaplaceLaw(10.0),
    FiniteLaw((-1.0, 1.0), (0.9 / (1 + math.e), 0.9 / (1 + 1 / math.e)), (0.9 / (1 + 1 / math.e), 0.9 / (1 + math.e))),
    FiniteLaw((0.0,), (1.0,), (1.0,)),
]


def from_below(law: LossLaw, step: float, tail: float) -> LatticeLaw:
    return lowered(grid_cells(law, step, tail), step)


def exact(law: LossLaw, levels: Vector) -> Vector:
    tails = law.tails(levels)
    return np.asarray(tails.p_above - np.exp(levels) * tails.q_above, dtype=np.float64)


def once(law: LatticeLaw, levels: Vector) -> Vector:
    gains = [-np.expm1(np.minimum(level - law.losses(), 0.0)) for level in levels]
    return np.array([law.infinite + float(law.mass @ gain) for gain in gains])


def twice(law: LatticeLaw, levels: Vector) -> Vector:
    losses, lost = law.losses(), 1 - (1 - law.infinite) ** 2
    sums, mass = np.add.outer(losses, losses).ravel(), np.multiply.outer(law.mass, law.mass).ravel()
    return np.array([lost + float(mass @ -np.expm1(np.minimum(level - sums, 0.0))) for level in levels])


@pytest.mark.parametrize("law", LAWS, ids=repr)
@pytest.mark.parametrize("points", [3, 7.3, 30, 333.3, 3000])
def test_the_grid_brackets_the_law_at_every_level(law: LossLaw, points: float) -> None:
    low, high = law.reach(TAIL)
    step = max(high - low, 1e-9) / points
    levels = np.linspace(low - 0.1 * (high - low), min(high, 600.0), 41)
    truth = exact(law, levels)
    assert np.all(once(from_below(law, step, TAIL), levels) <= truth + 1e-13)
    assert np.all(once(from_above(law, step, TAIL), levels) >= truth - 1e-13)


@pytest.mark.parametrize("law", LAWS[3:9] + LAWS[15:21] + [LaplaceLaw(1.0), GroupLaw(0.7, 0.1, 3)], ids=repr)
@pytest.mark.parametrize("points", [9, 60.7])
def test_rounding_commutes_with_composing(law: LossLaw, points: float) -> None:
    """A coarse sum lies outside a fine one on both sides."""
    low, high = law.reach(1e-12)
    levels = np.linspace(0.0, 1.2 * max(high, 1e-12), 7)
    coarse, fine = (high - low) / points, (high - low) / 311.3
    assert np.all(twice(from_below(law, coarse, 1e-12), levels) <= twice(from_above(law, fine, 1e-12), levels) + 1e-13)
    assert np.all(twice(from_above(law, coarse, 1e-12), levels) >= twice(from_below(law, fine, 1e-12), levels) - 1e-13)


@pytest.mark.parametrize("side", [from_above, from_below])
def test_errors_are_of_second_order(side: Callable[[LossLaw, float, float], LatticeLaw]) -> None:
    level, truth = np.array([0.5]), gaussian_delta(0.5, math.sqrt(2))
    laws = [side(GaussianLaw(1.0), step, TAIL) for step in (0.25, 0.125, 0.0625)]
    errors = [abs(float(twice(law, level)[0]) - truth) for law in laws]
    assert errors[0] / errors[1] > 3.2
    assert errors[1] / errors[2] > 3.2


@pytest.mark.parametrize("law", LAWS, ids=repr)
def test_a_sketch_dominates(law: LossLaw) -> None:
    low, high = law.reach(TAIL)
    drawn, levels = sketch(law, TAIL, 200), np.linspace(low, min(high, 600.0), 23)
    gains = np.array([drawn.infinite + float(drawn.mass @ -np.expm1(np.minimum(e - drawn.points, 0))) for e in levels])
    assert np.all(gains >= exact(law, levels) - 1e-13)


Density = Callable[[float], float]


def hockey(p: Density, q: Density, epsilon: float, ends: tuple[float, float]) -> float:
    """By quadrature, over pieces short enough for the kink not to matter."""
    edges = np.linspace(*ends, 81)
    pieces = pairwise(edges)
    return float(
        sum(
            quad(lambda x: max(p(x) - math.exp(epsilon) * q(x), 0.0), a, b, epsabs=1e-13, limit=200)[0]
            for a, b in pieces
        )
    )


def mixture(weights: list[float], means: list[float]) -> Density:
    return lambda x: sum(
        w * math.exp(-((x - m) ** 2) / 2) / math.sqrt(2 * math.pi) for w, m in zip(weights, means, strict=True)
    )


MU, RATE = 1.3, 0.15
COUNTS = list(range(5))
GROUP = [float(binom.pmf(j, 4, RATE)) for j in COUNTS]
PAIRS: list[tuple[LossLaw, Density, Density]] = [
    (SampledLaw(MU, RATE), mixture([1 - RATE, RATE], [0, MU]), mixture([1], [0])),
    (SampledLaw(MU, RATE, removal=False), mixture([1], [0]), mixture([1 - RATE, RATE], [0, MU])),
    (SwappedLaw(MU, RATE), mixture([1 - RATE, RATE], [0, MU]), mixture([1 - RATE, RATE], [0, -MU])),
    (FixedSizeLaw(MU, RATE), mixture([1 - RATE, RATE], [0, MU]), mixture([1], [0])),
    (GroupLaw(MU, RATE, 4), mixture(GROUP, [MU * j for j in COUNTS]), mixture([1], [0])),
    (GroupLaw(MU, RATE, 4, removal=False), mixture([1], [0]), mixture(GROUP, [MU * j for j in COUNTS])),
]


@pytest.mark.parametrize(("law", "p", "q"), PAIRS, ids=[repr(law) for law, _, _ in PAIRS])
@pytest.mark.parametrize("epsilon", [0.0, 0.05, 0.3, 1.0])
def test_a_law_is_its_pair(law: LossLaw, p: Density, q: Density, epsilon: float) -> None:
    assert exact(law, np.array([epsilon]))[0] == pytest.approx(hockey(p, q, epsilon, (-10.0, 15.0)), abs=1e-10)


@pytest.mark.parametrize("epsilon", [0.01, 0.1, 0.5])
def test_fixed_size_batches_are_glued_from_both_directions(epsilon: float) -> None:
    """Below level zero the pair is N(0) against the mixture; the atom at zero makes both masses add up to one."""
    law = FixedSizeLaw(MU, RATE)
    truth = hockey(mixture([1], [0]), mixture([1 - RATE, RATE], [0, MU]), -epsilon, (-10.0, 12.0))
    assert exact(law, np.array([-epsilon]))[0] == pytest.approx(truth, abs=1e-10)
    near = law.tails(np.array([-1e-12, 0.0]))
    for above, below in ((near.p_above, near.p_below), (near.q_above, near.q_below)):
        assert above + below == pytest.approx([1.0, 1.0])
        assert below[1] - below[0] > 0.1  # the atom, under P and under Q


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("rate", [0.1, 0.6])
def test_swapping_along_a_line_is_the_worst(seed: int, rate: float) -> None:
    """Any two points of the ball span a plane; there the divergence is a double integral."""
    rng = np.random.default_rng(seed)
    x, other = (MU * math.sqrt(rng.random()) * v / np.linalg.norm(v) for v in rng.normal(size=(2, 2)))
    axis = np.linspace(-9.0, 9.0, 721)
    grid = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1)

    def density(mean: Vector) -> Vector:
        return np.asarray(np.exp(-((grid - mean) ** 2).sum(axis=-1) / 2) / (2 * math.pi), dtype=np.float64)

    common = (1 - rate) * density(np.zeros(2))
    p, q = common + rate * density(x), common + rate * density(other)
    for epsilon in (0.0, 0.1, 0.4, 1.0):
        truth = float(np.maximum(p - math.exp(epsilon) * q, 0.0).sum()) * (axis[1] - axis[0]) ** 2
        assert truth <= exact(SwappedLaw(MU, rate), np.array([epsilon]))[0] + 1e-6


def test_a_group_of_one_is_a_record() -> None:
    levels = np.linspace(-3.0, 5.0, 50)
    for removal in (True, False):
        for one, same in zip(
            GroupLaw(MU, RATE, 1, removal).tails(levels), SampledLaw(MU, RATE, removal).tails(levels), strict=True
        ):
            assert one == pytest.approx(same, rel=1e-9, abs=1e-14)


def test_a_large_group_moves_rare_counts_up() -> None:
    counts = np.arange(201)
    weights, levels = binom.pmf(counts, 200, 0.01), np.array([0.5, 2.0, 6.0])
    x = np.linspace(-5.0, 25.0, 3001)
    ratio = logsumexp(np.outer(x, 0.5 * counts) - (0.5 * counts) ** 2 / 2 + binom.logpmf(counts, 200, 0.01), axis=1)
    thresholds = np.interp(levels, ratio, x)
    tails = GroupLaw(0.5, 0.01, 200).tails(levels)
    assert tails.p_above == pytest.approx([float(weights @ ndtr(0.5 * counts - t)) for t in thresholds], rel=1e-3)
    assert tails.q_above == pytest.approx(ndtr(-thresholds), rel=1e-3)
