"""Transport against what it must equal (one round, total variation) and never undercut (exact chains)."""

import math
from itertools import pairwise

import numpy as np
import pytest
from chains import adversaries, exact_pair
from scipy.optimize import linprog, minimize
from scipy.special import ndtr

from fedveil.core.values import Vector
from fedveil.theory.divergence import gaussian_delta
from fedveil.theory.numerics import smallest_epsilon
from fedveil.theory.transport import Shifts, Transport, bound, transport

EPSILONS = np.array([0.0, 0.05, 0.2, 1.0, 2.0])
LINE = np.linspace(0.0, 1.0, 8001)[1::2]  # midpoints: the best tests have corners


def repeated(rounds: int, c: float = 1.0, sigma: float = 1.0, diameter: float = 1.0) -> Transport:
    return transport([c] * rounds, [sigma] * rounds, diameter)


@pytest.fixture(scope="module")
def unit() -> Transport:
    """Six rounds of unit noise on a domain of diameter 1: 003 Fig. 2."""
    return repeated(6)


@pytest.mark.parametrize(("following", "block", "expected"), [(1, 1.361, 1.323), (4, 0.0588, 0.0510)])
def test_published_setting_of_projected_sgd(unit: Transport, following: int, block: float, expected: float) -> None:
    found = unit.epsilon(1e-5, gap=1.0, noise=1.0, following=following)
    assert found == pytest.approx(expected, rel=0.01)
    assert found < 0.98 * block


def test_published_setting_with_strong_convexity() -> None:
    found = repeated(1, 0.86, 0.7).epsilon(1e-5, gap=1.4, noise=0.7, following=1)
    assert found == pytest.approx(3.079, rel=2e-3)


def test_published_setting_with_random_stopping() -> None:
    """Places beyond the eighth from the end are no worse than the eighth: the rest is post-processing."""
    chain = transport([1.0] * 8, [0.25] * 8, diameter=1.0, cells=32)

    def log_delta(epsilon: float) -> float:
        places = [chain.delta(epsilon, gap=0.1, noise=0.25, following=r) for r in range(9)]
        return math.log((sum(places) + 91 * places[-1]) / 100)

    assert smallest_epsilon(log_delta, 1e-5, tolerance=1e-4) == pytest.approx(1.0374, rel=1e-3)


def one_round_by_search(c: float, sigma: float, gap: float, diameter: float, epsilon: float) -> float:
    """The best test after one more round: its probit is linear, clipped to an interval. From below."""
    x, slope, g = gap, c / sigma, math.exp(epsilon)
    y = LINE * (x + 18) - 9
    excess = (np.exp(-((y - x) ** 2) / 2) - g * np.exp(-y * y / 2)) / math.sqrt(2 * math.pi)
    excess *= (x + 18) / LINE.size

    def loss(at: Vector) -> float:
        return -float(ndtr(np.clip(at[0] + slope * y, at[1], at[1] + slope * diameter)) @ excess)

    starts = [np.array([a, a + slope * (x - b * diameter) / 2]) for a in (-4, -2, -1, 0) for b in (0, 1)]
    options = {"xatol": 1e-7, "fatol": 1e-14, "maxiter": 2000}
    return max(-minimize(loss, start, method="Nelder-Mead", options=options).fun for start in starts)


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0, 2.0])
@pytest.mark.parametrize(
    ("c", "sigma", "gap", "diameter"),
    [(1.0, 1.0, 1.0, 1.0), (0.8, 0.7, 2.0, 1.4), (1.1, 1.0, 1.0, 2.0), (1.0, 0.5, 1.5, 1.0)],
)
def test_one_round_is_exact(c: float, sigma: float, gap: float, diameter: float, epsilon: float) -> None:
    found = transport([c], [sigma], diameter).delta(epsilon, gap=gap, noise=1.0, following=1)
    truth = one_round_by_search(c, sigma, gap, diameter, epsilon)
    assert truth <= found * (1 + 1e-5)  # the search is accurate to about 2e-6
    assert found == pytest.approx(truth, rel=0.02, abs=1e-9)


def test_any_pairing_is_an_upper_bound(unit: Transport) -> None:
    """Random paths, not only good ones: the search may fail, the sum may not."""
    rng = np.random.default_rng(0)
    table = unit.tables[0]
    steps = np.diff(table.distance, prepend=0.0) * rng.beta(0.5, 0.5, (500, table.distance.size))
    for epsilon in (0.0, 0.3, 1.0):
        ask = Shifts(np.ones(500), np.full(500, epsilon), 1.0)
        truth = one_round_by_search(1.0, 1.0, 1.0, 1.0, epsilon)
        assert np.all(bound(table, ask, steps.cumsum(axis=1)) >= truth)


def one_round_by_linear_program(epsilon: float, points: int = 41) -> float:
    """All tests on a grid, tangents of every pairwise constraint, unit noise, gap and diameter."""
    y = np.linspace(-4.5, 5.5, points)
    edges = np.concatenate([[-np.inf], (y[1:] + y[:-1]) / 2, [np.inf]])
    objective = np.diff(ndtr(edges - 1)) - math.exp(epsilon) * np.diff(ndtr(edges))
    rows, limits = [], []
    for i in range(points):
        for j in range(i):
            far = min(float(y[i] - y[j]), 1.0)
            for log_slope in np.linspace(0, 5 * far, 30):
                row = np.zeros(points)
                row[i], row[j] = 1.0, -math.exp(log_slope)
                rows.append(row)
                limits.append(gaussian_delta(float(log_slope), far))
    result = linprog(-objective, A_ub=np.array(rows), b_ub=np.array(limits), bounds=(0, 1), method="highs")
    return -float(result.fun)


@pytest.mark.parametrize("epsilon", [0.2, 0.8])
def test_one_round_is_the_linear_program(unit: Transport, epsilon: float) -> None:
    found = unit.delta(epsilon, gap=1.0, noise=1.0, following=1)
    assert found == pytest.approx(one_round_by_linear_program(epsilon), rel=0.03)


def total_variation(contractions: list[float], noises: list[float], diameter: float, gap: float, noise: float) -> float:
    """The exact recursion at epsilon 0: mirror images are paired."""
    grid = np.linspace(0, diameter, 401)
    values = np.ones_like(grid)
    y = LINE * 12
    rounds = [(1.0, noise), *zip(contractions, noises, strict=True)]
    for number, (c, sigma) in enumerate(reversed(rounds)):
        x = (np.array([gap]) if number == len(noises) else grid)[:, None] * c / sigma
        density = (np.exp(-((y - x / 2) ** 2) / 2) - np.exp(-((y + x / 2) ** 2) / 2)) / math.sqrt(2 * math.pi)
        after = np.interp(np.minimum(2 * y * sigma, diameter), grid, values) if number else np.ones_like(y)
        values = density @ after * 12 / LINE.size
    return float(values[0])


@pytest.mark.parametrize("following", range(7))
def test_at_epsilon_zero_it_is_the_recursion(unit: Transport, following: int) -> None:
    expected = total_variation([1.0] * following, [1.0] * following, 1.0, 1.0, 1.0)
    found = unit.delta(0.0, gap=1.0, noise=1.0, following=following)
    assert expected * (1 - 1e-5) <= found <= expected * 1.002


def test_at_epsilon_zero_it_is_the_recursion_for_changing_rounds() -> None:
    contractions, noises = [0.7, 1.0, 0.9, 1.1], [1.0, 0.6, 1.5, 0.8]
    chain = transport(contractions, noises, diameter=1.7)
    for following in range(5):
        last = slice(4 - following, 4)
        expected = total_variation(contractions[last], noises[last], 1.7, 0.9, 1.2)
        found = chain.delta(0.0, gap=0.9, noise=1.2, following=following)
        assert expected * (1 - 1e-5) <= found <= expected * 1.005


@pytest.mark.parametrize("seed", range(30))
def test_no_chain_leaks_more(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rounds, diameter = int(rng.integers(1, 6)), float(np.exp(rng.uniform(-0.7, 1.8)))
    contractions = [float(c) for c in rng.choice([1.0, rng.uniform(0.4, 1.2)]) * np.ones(rounds)]
    noises = [float(sigma) for sigma in np.exp(rng.uniform(-0.7, 0.7, rounds))]
    noise, gap = float(np.exp(rng.uniform(-0.7, 0.7))), float(np.exp(rng.uniform(-1.0, 1.0)))
    chain = transport(contractions, noises, diameter)
    bounds = [chain.delta(float(e), gap=gap, noise=noise, following=rounds) for e in EPSILONS]
    gaps = [gap] + [0.0] * rounds
    for chains in adversaries(gaps, [noise, *noises], [1.0, *contractions], diameter):
        assert np.all(exact_pair(chains, EPSILONS).lower <= bounds), chains.label


def test_it_grows_with_gap_diameter_and_contraction_and_falls_with_epsilon_and_rounds(
    unit: Transport,
) -> None:
    def grows(values: list[float]) -> bool:
        return all(a <= b * (1 + 1e-6) for a, b in pairwise(values))

    def wide(c: float, diameter: float) -> float:
        chain = transport([c] * 3, [1.0] * 3, diameter, cells=32)
        return chain.delta(0.1, gap=1.0, noise=1.0, following=3)

    assert grows([unit.delta(0.1, gap=s, noise=1.0, following=3) for s in (0.0, 1e-6, 0.1, 0.5, 1.0, 5.0, 50.0)])
    assert grows([wide(1.0, d) for d in (0.3, 0.6, 1.0, 2.0, 4.0, 1e3, 1e6, math.inf)])
    assert grows([wide(c, 1.0) for c in (0.0, 0.3, 0.7, 0.9, 1.0, 1.3)])
    assert grows([unit.delta(e, gap=1.0, noise=1.0, following=2) for e in (9.0, 1.0, 0.5, 0.1, 1e-3, 0.0)])
    assert grows([unit.delta(0.05, gap=1.0, noise=1.0, following=r) for r in range(6, -1, -1)])


def test_more_cells_are_tighter_and_change_little(unit: Transport) -> None:
    fine = transport([1.0] * 3, [1.0] * 3, 1.0, cells=64).delta(0.1, gap=1.0, noise=1.0, following=3)
    coarse = transport([1.0] * 3, [1.0] * 3, 1.0, cells=12).delta(0.1, gap=1.0, noise=1.0, following=3)
    usual = unit.delta(0.1, gap=1.0, noise=1.0, following=3)
    assert usual * 0.95 < fine <= usual <= coarse


def test_without_projection_it_is_gaussian() -> None:
    chain = transport([0.5, 1.0], [2.0, 1.0], math.inf)
    mu = 0.5 * 3.0 / math.sqrt(0.5**2 * 1.0**2 + 2.0**2 + 1.0**2)
    found = chain.delta(0.7, gap=3.0, noise=1.0, following=2)
    assert found == pytest.approx(gaussian_delta(0.7, mu), rel=1e-8)


@pytest.mark.parametrize("epsilon", [0.0, 1e-300, 1e-6, 150.0, 1e5])
@pytest.mark.parametrize("gap", [0.0, 1e-300, 1e-9, 30.0, 1e9])
@pytest.mark.parametrize("diameter", [1e-9, 20.0, 5e3])
def test_extremes_stay_probabilities(epsilon: float, gap: float, diameter: float) -> None:
    chain = transport([1.0, 0.0, 1.2], [1.0, 1e-3, 2.0], diameter, cells=16)
    for following in range(4):
        assert 0 <= chain.delta(epsilon, gap=gap, noise=1.0, following=following) <= 1


@pytest.mark.parametrize("bad", [math.nan, -1.0, math.inf])
def test_senseless_values_are_refused(unit: Transport, bad: float) -> None:
    with pytest.raises(ValueError, match="contractions must"):
        transport([bad], [1.0], 1.0)
    with pytest.raises(ValueError, match="noises must"):
        transport([1.0], [bad], 1.0)
    with pytest.raises(ValueError, match="gap must"):
        unit.delta(1.0, gap=bad, noise=1.0, following=1)
    with pytest.raises(ValueError, match="noise must"):
        unit.delta(1.0, gap=1.0, noise=bad, following=1)
    with pytest.raises(ValueError, match="epsilon must"):
        unit.delta(bad, gap=1.0, noise=1.0, following=1)
    with pytest.raises(ValueError, match="delta must"):
        unit.epsilon(bad, gap=1.0, noise=1.0, following=1)


def test_senseless_shapes_are_refused(unit: Transport) -> None:
    with pytest.raises(ValueError, match="noises must be as many"):
        transport([1.0], [1.0, 1.0], 1.0)
    for diameter in (0.0, -1.0, math.nan):
        with pytest.raises(ValueError, match="diameter must"):
            transport([1.0], [1.0], diameter)
    with pytest.raises(ValueError, match="cells must"):
        transport([1.0], [1.0], 1.0, cells=2)
    for following in (-1, 7, 1.5, math.nan):
        with pytest.raises(ValueError, match="following must"):
            unit.delta(1.0, gap=1.0, noise=1.0, following=following)  # type: ignore[arg-type]
