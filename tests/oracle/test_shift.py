"""The optimal shift against closed forms, exact Gaussian chains, and a quadratic program solved by force."""

import math
import time

import chains
import numpy as np
import pytest
from scipy.optimize import minimize

from fedveil.core.values import Vector
from fedveil.theory.rounds import Rounds
from fedveil.theory.shift import shift_mu, unhidden_mu, uses_mu

INF = math.inf


def make(noise: Vector, lipschitz: Vector, gap: Vector | None = None, diameter: float = INF) -> Rounds:
    gap = np.ones_like(noise) if gap is None else gap
    return Rounds(noise, gap, gap, lipschitz, np.full(noise.size, INF), diameter)


def even(total: int, c: float, sigma: float = 1.0, diameter: float = INF) -> Rounds:
    return make(np.full(total, sigma), np.full(total, c), diameter=diameter)


def one_use(total: int, place: int, gap: float = 1.0) -> Vector:
    leaks = np.zeros(total)
    leaks[place] = gap
    return leaks


def exactly(slopes: Vector, gaps: Vector, sigmas: Vector) -> float:
    return chains.gaussian_pair(slopes.tolist(), gaps.tolist(), sigmas.tolist())


def least_energy(noise: Vector, lipschitz: Vector, leaks: Vector) -> float:
    """mu by a general solver: close a_k <= what is open, leave nothing open; no hull, no clock."""
    total = noise.size

    def still_open(closed: Vector) -> Vector:
        out, z = np.empty(total), 0.0
        for k in range(total):
            z = lipschitz[k] * z + leaks[k] - closed[k]
            out[k] = z
        return out

    constraints = (
        {"type": "ineq", "fun": lambda a: still_open(a)[:-1]},
        {"type": "eq", "fun": lambda a: still_open(a)[-1]},
    )
    found = minimize(  # type: ignore[call-overload]
        lambda a: np.sum((a / noise) ** 2),
        leaks,
        jac=lambda a: 2 * a / noise**2,
        bounds=[(0, None)] * total,
        constraints=constraints if total > 1 else constraints[1:],
        options={"ftol": 1e-14, "maxiter": 1000},
    )
    return math.sqrt(found.fun)


@pytest.mark.parametrize("total", [1, 2, 7, 60])
@pytest.mark.parametrize("c", [0.1, 0.5, 0.9, 0.999])
def test_every_round_leaks(c: float, total: int) -> None:
    s, sigma = 0.7, 1.3
    expected = s / sigma * math.sqrt((1 + c) / (1 - c) * (1 - c**total) / (1 + c**total))
    found = shift_mu(even(total, c, sigma), np.full(total, s))
    assert found == pytest.approx(expected, rel=1e-12)
    exact = chains.gaussian_pair([c] * total, [s] * total, [sigma] * total)
    assert found == pytest.approx(exact, rel=1e-12)  # quadratic losses reach it


@pytest.mark.parametrize("later", [0, 1, 5, 200])
@pytest.mark.parametrize("c", [0.3, 0.95, 1.0, 1.1])
def test_one_use(c: float, later: int) -> None:
    s, sigma, before = 2.0, 0.9, 4
    expected = s / sigma * c**later / math.sqrt(sum(c ** (2 * j) for j in range(later + 1)))
    total = before + 1 + later
    assert shift_mu(even(total, c, sigma), one_use(total, before, s)) == pytest.approx(expected, rel=1e-12)
    if c == 1.0:
        assert expected == pytest.approx(s / sigma / math.sqrt(later + 1))


@pytest.mark.parametrize(("batches", "passes"), [(2, 1), (2, 9), (3, 5), (10, 3), (25, 8)])
@pytest.mark.parametrize("c", [0.5, 0.9, 0.99])
def test_cyclic_passes_last_batch(c: float, batches: int, passes: int) -> None:
    """From two batches on; one batch is "every round leaks", where the taut string has no last corner."""
    around = c ** (batches * (passes - 1))
    grown = c ** (2 * batches - 2) * (1 - c * c) / (1 - c**batches) ** 2 * (1 - around) / (1 + around)
    leaks = np.tile(one_use(batches, batches - 1), passes)
    found = shift_mu(even(batches * passes, c), leaks)
    assert found == pytest.approx(math.sqrt(1 + grown), rel=1e-12)


@pytest.mark.parametrize("seed", range(40))
def test_never_below_an_exact_gaussian_chain(seed: int) -> None:
    rng = np.random.default_rng(seed)
    total = int(rng.integers(1, 12))
    noise, c = rng.uniform(0.2, 2, total), rng.uniform(0, 1.3, total)
    leaks = rng.uniform(0, 2, total) * (rng.random(total) < 0.6)
    found = shift_mu(make(noise, c), leaks)
    signs = rng.choice([-1, 1], (30, total))
    truths = [exactly(c, leaks, noise), *(exactly(c * sign, leaks * sign[::-1], noise) for sign in signs)]
    assert max(truths) <= found * (1 + 1e-12)
    assert found <= math.sqrt(np.sum((leaks / noise) ** 2)) * (1 + 1e-12)  # hiding never hurts


@pytest.mark.parametrize("place", [0, 3, 6])
def test_one_use_is_exact_for_any_schedule(place: int) -> None:
    rng = np.random.default_rng(place)
    noise, c, leaks = rng.uniform(0.2, 2, 7), rng.uniform(0.1, 1.3, 7), one_use(7, place)
    exact = exactly(c[place:], leaks[place:], noise[place:])  # from a state that is known
    assert shift_mu(make(noise, c), leaks) == pytest.approx(exact, rel=1e-12)


@pytest.mark.parametrize("seed", range(25))
def test_hull_solves_the_quadratic_program(seed: int) -> None:
    rng = np.random.default_rng(100 + seed)
    total = int(rng.integers(1, 8))
    noise, c = rng.uniform(0.5, 2, total), rng.uniform(0.3, 1.2, total)
    leaks = rng.uniform(0, 1, total) * (rng.random(total) < 0.7)
    assert shift_mu(make(noise, c), leaks) == pytest.approx(least_energy(noise, c, leaks), rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("count", [1, 3, 12, 13, 20])
def test_many_small_hulls_are_the_one_hull(count: int) -> None:
    rng = np.random.default_rng(count)
    total, rows = 24, 20
    noise, c = rng.uniform(0.2, 2, total), rng.uniform(0.4, 1.2, total)
    uses = np.sort(np.stack([rng.choice(total, count, replace=False) for _ in range(rows)]), axis=-1)
    gaps = rng.uniform(0, 2, (rows, count))
    for diameter in (INF, 1.5):
        rounds = make(noise, c, diameter=diameter)
        ends = np.array(total)
        found = uses_mu(rounds, uses, gaps, ends)
        leaks = np.zeros((rows, total))
        np.put_along_axis(leaks, uses, gaps, axis=-1)
        single = np.array([shift_mu(rounds, row) for row in leaks])
        assert np.all(found >= single * (1 - 1e-12))
        if diameter == INF:
            np.testing.assert_allclose(found, single, rtol=1e-12)


def test_an_early_release_is_a_shorter_run() -> None:
    rng = np.random.default_rng(5)
    rounds = make(rng.uniform(0.5, 2, 9), rng.uniform(0.5, 1.2, 9), diameter=2.0)
    uses, ends = np.array([1, 3]), np.arange(5, 10)
    found = uses_mu(rounds, uses, np.ones(2), ends)
    alone = [float(uses_mu(rounds.until(int(e)), uses, np.ones(2), np.array(e))) for e in ends]
    np.testing.assert_allclose(found, alone, rtol=1e-12)


def test_two_uses_in_one_round_add_up() -> None:
    rounds = even(6, 0.9)
    twice = uses_mu(rounds, np.array([2, 2]), np.ones(2), np.array(6))
    assert float(twice) == pytest.approx(shift_mu(rounds, one_use(6, 2, 2.0)), rel=1e-12)


class TestBoundedDomain:
    """After any round the two states are some two points of the domain."""

    def test_forgetting_before_the_last_round(self) -> None:
        rounds = even(3, 0.5, diameter=1.0)
        assert shift_mu(rounds, one_use(3, 2, 9.0)) == pytest.approx(9.0)  # its own gap cannot be forgotten
        assert shift_mu(rounds, one_use(3, 1, 9.0)) == pytest.approx(0.5)
        assert shift_mu(rounds, one_use(3, 0, 9.0)) == pytest.approx(0.25 / math.sqrt(1.25))

    def test_the_next_use_comes_on_top(self) -> None:
        rounds = even(2, 1.0, diameter=1.0)
        assert shift_mu(rounds, np.array([9.0, 2.0])) == pytest.approx(3.0)

    def test_a_bounded_step_needs_no_lipschitz_constant(self) -> None:
        one = np.ones(3)
        rounds = Rounds(one, one, one, np.full(3, INF), np.full(3, 1.6), 1.0)
        assert shift_mu(rounds, one_use(3, 0, 9.0)) == pytest.approx(1.6)
        assert shift_mu(rounds, np.array([9.0, 0.0, 1.0])) == pytest.approx(math.hypot(1.6, 1.0))

    @pytest.mark.parametrize("seed", range(20))
    def test_never_above_the_unbounded(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        noise, c = rng.uniform(0.2, 2, 9), rng.uniform(0.3, 1.3, 9)
        leaks = rng.uniform(0, 4, 9) * (rng.random(9) < 0.5)
        free, bounded = shift_mu(make(noise, c), leaks), shift_mu(make(noise, c, diameter=1.0), leaks)
        assert bounded <= free * (1 + 1e-12)


class TestFarFromOne:
    """Products of constants run over many orders of magnitude; nothing small may be lost in a difference."""

    @pytest.mark.parametrize("c", [0.3, 0.9, 1.0, 1.05, 1.2])
    def test_spans_keep_their_digits(self, c: float) -> None:
        total = 800
        rounds = even(total, c)
        for start in range(0, total, 37):
            later = total - 1 - start
            shrunk = min(1.0, c) ** later
            exact = shrunk / math.sqrt(math.fsum(min(c, 1 / c) ** (2 * j) for j in range(later + 1)))
            found = float(uses_mu(rounds, np.array([start]), np.ones(1), np.array(total)))
            if exact > 1e-110:
                assert found == pytest.approx(exact, rel=1e-11)

    def test_a_constant_above_one_counts_in_full_after_a_deep_product(self) -> None:
        c = np.array([1.0, 1e100, 1e-150, 1.0, 1.0])
        for leaks in (np.array([1.0, 0, 0, 0, 0]), np.array([1.0, 1.0, 0, 0, 1.0])):
            found = shift_mu(make(np.ones(5), c), leaks)
            assert found >= exactly(c, leaks, np.ones(5)) * (1 - 1e-12)
        factor = make(np.ones(5), c).factor
        assert np.all(factor[:-1] >= c[1:] * factor[1:] * (1 - 1e-12))

    def test_an_early_release_of_a_deep_run(self) -> None:
        rounds = even(3000, 0.5, diameter=50.0)
        assert rounds.deep
        found = uses_mu(rounds, np.array([90]), np.ones(1), np.array([100, 3000]))
        assert found[0] == pytest.approx(0.5**9 / math.sqrt(sum(0.25**j for j in range(10))), rel=1e-12)
        assert found[1] < 1e-100

    def test_a_run_that_only_its_end_makes_possible_to_follow(self) -> None:
        c = np.array([0.0, 0.0, 1e60, 1e60, 0.0, 0.0, 0.0])
        rounds = make(np.array([1.0, 1.0, 1.0, 2.0, 1.0, 1.0, 1.0]), c)
        assert rounds.contracts
        assert not rounds.until(4).contracts
        found = uses_mu(rounds, np.array([2, 3]), np.ones(2), np.array(4))
        assert float(found) == pytest.approx(math.sqrt(1.25), rel=1e-12)

    def test_a_forgetful_map(self) -> None:
        c = np.array([1.0, 0.0, 1.0])
        assert shift_mu(make(np.ones(3), c), one_use(3, 0)) < 1e-100
        assert shift_mu(make(np.ones(3), c), np.array([1.0, 1.0, 0])) == pytest.approx(1 / math.sqrt(2))

    def test_a_million_rounds(self) -> None:
        total, began = 10**6, time.perf_counter()
        rounds = even(total, 1 - 1e-5, diameter=50.0)
        leaks = np.zeros(total)
        leaks[::1000] = 1.0
        assert 0 < shift_mu(rounds, leaks) < 1
        places = np.arange(0, total, 10)[:, None]
        assert uses_mu(rounds, places, np.ones(1), np.array(total)).shape == (total // 10,)
        flat = shift_mu(even(total, 1.0), one_use(total, 0))
        assert flat == pytest.approx(1e-3, rel=1e-9)
        assert time.perf_counter() - began < 200  # a hang, not a speed test


def test_unhidden_is_quadrature() -> None:
    rounds = make(np.array([1.0, 2.0, 4.0]), np.ones(3), gap=np.array([3.0, 8.0, 0.0]))
    assert unhidden_mu(rounds, np.array([[0, 1], [2, 2]])).tolist() == [5.0, 0.0]


def test_very_many_uses_on_a_bounded_domain_are_cut_to_the_last_few() -> None:
    """Beyond 400 uses only the last dozen are followed from arbitrary points: above the optimum, and close."""
    count = 1000
    ones = np.ones(count)
    rounds = Rounds(ones, ones, ones, ones, 3 * ones, 1.0)
    uses = np.arange(0, count, 2)
    leaks = np.zeros(count)
    leaks[uses] = 0.1
    exact = shift_mu(rounds, leaks)
    found = float(uses_mu(rounds, uses, leaks[uses], np.array(count)))
    assert exact * (1 - 1e-12) <= found <= 1.02 * exact


def test_a_use_at_the_very_end_is_charged_in_full() -> None:
    """No noise comes after it, so nothing is hidden: a bound that saw no width to close it in would be zero."""
    rounds = even(6, 1.0, sigma=2.0)
    for uses in (np.array([4]), np.array([1, 4])):
        found = float(uses_mu(rounds, uses, np.ones(uses.size), np.array(4)))
        assert found == pytest.approx(float(unhidden_mu(rounds, uses)))
