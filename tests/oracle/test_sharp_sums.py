"""A wrong side or allowance in sums of losses, position coupling or transport shows here, against plain formulas."""

import math
from dataclasses import replace

import numpy as np
import pytest
from mpmath import mp  # type: ignore[import-untyped]
from scipy.special import ndtr

from fedveil import account_for
from fedveil.accounting.loss_distribution import LossCurve, LossDistributionAccountant
from fedveil.core.values import Vector
from fedveil.privacy.mechanism import Repeat, SampledGaussian
from fedveil.theory.composition import delta_bracket, epsilon_bracket, epsilon_upper, worst_bracket, worst_upper
from fedveil.theory.concentrated import gaussian_epsilon, group_epsilon_delta
from fedveil.theory.convolution import Cells, LatticeLaw, Tilt, TiltedSum, convolve, from_above, lowered, raised
from fedveil.theory.divergence import log_theta
from fedveil.theory.loss import FiniteLaw, GaussianLaw, GroupLaw, SampledLaw, Tails, law_of_profile
from fedveil.theory.position import (
    Cuts,
    Program,
    Star,
    dual_bound,
    log_average,
    own_mu,
    pair_mu,
    program,
    secant_bounds,
)
from fedveil.theory.rounds import Rounds
from fedveil.theory.transport import Shifts, _cells, transport

HAIR = 1e-9  # the relative allowance of every certified closed form


# Sums of losses.


def test_cells_are_rounded_outward_from_above() -> None:
    cells = Cells(
        levels=np.array([0.0, 1.0]),
        mass=np.array([0.5]),
        share=np.array([0.25]),
        doubt=np.array([0.25]),
        rounding=np.array([0.125]),
        under=0.0625,
        over=0.03125,
        infinite=0.015625,
    )
    law = raised(cells, 1.0)
    np.testing.assert_allclose(law.mass, [0.25 + 0.0625, 0.25 + 0.125], rtol=1e-11)
    assert law.mass[0] > 0.3125
    assert law.infinite > 0.03125 + 0.015625


def test_a_cell_whose_split_is_unknown_counts_at_its_upper_end() -> None:
    law = FiniteLaw((0.0, 800.0), (0.9, 0.1), (0.9, 0.0))  # Q has underflowed
    grid = from_above(law, 3.0, 1e-12)
    assert float(grid.mass[grid.losses() >= 800.0].sum()) >= 0.1


class _Nonsense:
    """A law that is not a number anywhere."""

    def tails(self, levels: Vector, /) -> Tails:
        return Tails(*(np.full(levels.shape, math.nan) for _ in range(4)))

    def reach(self, mass: float, /) -> tuple[float, float]:
        return -1.0, 1.0


def test_a_law_of_nonsense_discloses_everything() -> None:
    assert epsilon_upper([(_Nonsense(), 1)], 1e-5) == math.inf


def test_from_below_no_cell_gains() -> None:
    """The put function of the lowered law lies under that of the law itself, share in doubt and all."""
    law = GaussianLaw(1.0)
    step, levels = 0.05, np.linspace(-2.0, 2.0, 81)
    tails = law.tails(levels)
    truth = tails.p_above - np.exp(levels) * tails.q_above
    base = from_above(law, step, 1e-12)
    edges = step * np.arange(base.start, base.start + base.mass.size)
    cut = law.tails(edges)
    p, q = cut.p_below[1:] - cut.p_below[:-1], cut.q_below[1:] - cut.q_below[:-1]
    share = np.clip((1 - q * np.exp(edges[:-1]) / np.maximum(p, 1e-300)) / -math.expm1(-step), 0.0, 1.0)
    doubtful = Cells(edges, p, share, np.full_like(p, 0.05), np.zeros_like(p), float(cut.p_below[0]), 0.0, 0.0)
    low = lowered(doubtful, step)
    excess = -np.expm1(np.minimum(levels[:, None] - low.losses()[None, :], 0.0))
    found = excess @ low.mass
    assert np.all(found <= truth + 1e-12)


SUM = TiltedSum(
    tilt=1.0, log_moment=0.25, step=0.5, start=0, mass=np.array([0.5, 0.25, 0.25]), slack=0.0625, infinite=0.01
)


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 0.5, 0.9])
def test_a_tilted_sum_with_what_it_may_have_lost(epsilon: float) -> None:
    excess = np.maximum(np.array([0.0, 0.5, 1.0]) - epsilon, 0.0)
    inside = float(SUM.mass @ (np.exp(-excess) * -np.expm1(-excess)))
    for sign, upper in ((1, True), (-1, False)):
        lost = sign * 0.0625 / 4  # the most that tilt 1 leaves of a loss: max e^-y (1 - e^-y) = 1/4
        exact = math.log(0.01 + max(inside + lost, 0.0) * math.exp(0.25 - epsilon))
        found = SUM.log_delta(epsilon, upper=upper)
        assert found == pytest.approx(exact, abs=1e-9)
        assert sign * (found - exact) > 1e-13


@pytest.mark.parametrize("delta", [0.05, 0.1, 0.15, 0.2])
def test_a_tilted_sum_is_inverted_on_the_safe_side(delta: float) -> None:
    above, below = (SUM.epsilon(delta, upper=upper) for upper in (True, False))
    assert SUM.log_delta(above, upper=True) <= math.log(delta) + 1e-13
    assert above == 0 or SUM.log_delta(above, upper=True) >= math.log(delta) - 0.02  # a chord, where delta is convex
    assert below <= above
    assert SUM.log_delta(below, upper=False) >= math.log(delta) - 1e-13 or below == 0


def test_a_sum_admits_what_falls_outside_its_window_and_what_rounding_hides() -> None:
    law = LatticeLaw(0.5, -1, np.array([0.25, 0.5, 0.24]), 0.01)
    outside = math.log(1e-3)
    total = convolve([(law, 3)], Tilt(0.5, outside, 1.0, 1.0))
    assert total.slack >= 2e-3 + 1e-15
    assert total.infinite == pytest.approx(1 - 0.99**3, rel=1e-12)


def test_disclosures_add_up_over_the_uses() -> None:
    rare = FiniteLaw((0.0,), (1 - 1e-6,), (1 - 1e-6,))  # a full disclosure once in a million
    assert epsilon_upper([(rare, 1000)], 1e-4) == math.inf
    assert delta_bracket([(rare, 1000)], 1.0).upper >= -math.expm1(1000 * math.log1p(-1e-6)) * (1 - 1e-9)


def test_the_worse_direction_counts_whichever_comes_first() -> None:
    removal, addition = ([(SampledLaw(1.0, 0.05, removal=way), 50)] for way in (True, False))
    mild: list[tuple[GaussianLaw, int]] = [(GaussianLaw(0.5), 1)]
    bad: list[tuple[GaussianLaw, int]] = [(GaussianLaw(1.0), 1)]
    exact = gaussian_epsilon(1.0, 1e-5) * (1 - 1e-8)
    for pair in ((mild, bad), (bad, mild)):
        assert worst_upper(pair, 1e-5) >= exact
        assert worst_bracket(pair, 1e-5).upper >= exact
    lower = max(epsilon_bracket(way, 1e-5).lower for way in (removal, addition))
    poisson = Repeat(of=SampledGaussian(sampling="poisson", rate=0.05, noise_multiplier=1.0), times=50)
    assert account_for(poisson, delta=1e-5).epsilon >= lower > 0


def test_a_curve_is_as_bad_as_its_worse_direction() -> None:
    accountant = LossDistributionAccountant()
    mild, bad = (((GaussianLaw(mu), 1),) for mu in (0.25, 0.5))
    for curve in (LossCurve(0.0, mild, bad), LossCurve(0.0, bad, mild)):
        for times in (1, 4):
            exact = gaussian_epsilon(0.5 * math.sqrt(times), 1e-5) * (1 - 1e-8)
            often = accountant.repeat(curve, times)
            assert accountant.epsilon(often, 1e-5) >= exact
            assert accountant.bracket(often, 1e-5).upper >= exact
            assert accountant.delta(often, exact) >= 1e-5 * (1 - 1e-6)
            together = accountant.compose(curve, accountant.repeat(curve, 3))
            assert accountant.epsilon(together, 1e-5) >= gaussian_epsilon(1.0, 1e-5) * (1 - 1e-8)


@pytest.mark.parametrize("epsilon", [0.05, 0.3])
@pytest.mark.parametrize(
    ("sampling", "neighbours", "move"),
    [("fixed-size", "replace-one", 2.0), ("poisson", "zero-out", 1.0), ("poisson", "replace-one", 1.0)],
)
def test_one_sampled_sum_tells_at_least_what_one_mixture_does(
    sampling: str, neighbours: str, move: float, epsilon: float
) -> None:
    """A mixture against its own first part: q theta at the epsilon raised to ln(1 + (e^eps - 1)/q)."""
    rate, noise = 0.2, 1.5
    sampled = SampledGaussian(sampling=sampling, rate=rate, noise_multiplier=noise, neighbours=neighbours)  # type: ignore[arg-type]
    exact = rate * math.exp(float(log_theta(math.log1p(math.expm1(epsilon) / rate), move / noise)))
    found = account_for(sampled, epsilon=epsilon).delta
    assert found >= exact
    if move == 2.0 or neighbours == "zero-out":
        assert found <= 1.01 * exact


@pytest.mark.parametrize("removal", [True, False])
def test_a_sampled_group_is_charged_in_both_directions(removal: bool) -> None:
    sampled = SampledGaussian(sampling="poisson", rate=0.3, noise_multiplier=2.0)
    for epsilon in (0.1, 0.8):
        lower = delta_bracket([(GroupLaw(0.5, 0.3, 3, removal=removal), 1)], epsilon).lower
        assert account_for(sampled, epsilon=epsilon, group=3).delta >= lower


def test_the_epsilon_of_a_group_is_never_rounded_below() -> None:
    for epsilon in np.random.default_rng(0).uniform(0.0, 3.0, 2000).tolist():
        for size in (3, 7, 11):
            assert group_epsilon_delta(epsilon, 0.0, size)[0] / size >= epsilon


@pytest.mark.parametrize("mu", [0.3, 1.0, 3.0])
def test_a_profile_becomes_a_law_that_allows_it(mu: float) -> None:
    """Points of a Gaussian profile, one of them too high: the law's own profile is nowhere below the Gaussian."""
    epsilons = np.linspace(0.0, 3 * mu, 7)
    deltas = np.exp(log_theta(epsilons, mu))
    deltas[3] *= 1.5
    law = law_of_profile(epsilons, deltas)
    losses, p = np.array(law.losses), np.array(law.p)
    for epsilon in np.linspace(0.0, 4 * mu, 33):
        told = float(p @ np.maximum(-np.expm1(epsilon - losses), 0.0)) + max(0.0, 1 - float(p.sum()))
        assert told >= math.exp(float(log_theta(epsilon, mu))) - 1e-12


# Places nobody knows.


def test_secants_know_of_the_errors() -> None:
    z, v, e = np.array([0.0, 0.5, 1.0]), np.array([0.0, 1.0, 0.0]), np.array([0.125, 0.125, 0.125])
    cells = secant_bounds(z, v, e)
    assert np.all(cells >= 1.125)
    assert np.all(secant_bounds(z, v, np.zeros(3)) == [2.0, 2.0])  # prolonged chords
    line = np.arange(4.0)
    assert secant_bounds(line, line, np.full(4, 0.5))[1] >= 2.5


def test_a_test_that_needs_a_tiny_hub_is_not_overlooked() -> None:
    """The hub's probability may be below every point searched, and the test still be worth nearly 1."""
    lonely = Star(np.array([1.0]), np.array([60.0]), np.array([0.0]), np.array([60.0]))
    assert lonely.log_delta(720.0) >= -1e-6


def test_a_dual_bound_pays_for_what_its_prices_miss() -> None:
    cuts = Cuts(np.array([0]), np.array([1]), np.array([1.0]), np.array([0.25]))
    gain = np.array([1.0, -1.0])
    assert dual_bound(gain, cuts, np.array([0.0])) >= 1.0
    assert dual_bound(-gain, cuts, np.array([-1.0])) >= 1.0  # reached at (0, 1)
    assert dual_bound(gain, cuts, np.array([0.5])) >= 0.125 + 0.5
    assert 0.25 * (1 + 0.9 * HAIR) <= dual_bound(gain, cuts, np.array([1.0])) <= 0.25 * (1 + 2 * HAIR)
    free = Cuts(np.array([0]), np.array([1]), np.array([1.0]), np.array([0.0]))
    assert dual_bound(gain, free, np.array([1.0])) > 0  # the prices' own rounding


def test_the_worse_direction_of_a_star_and_of_a_program_counts() -> None:
    weight, none = np.array([0.5, 0.5]), np.array([0.0, 0.5])
    bad = Star(weight, np.array([0.0, 3.0]), np.array([2.0, 3.0]), np.array([2.0, 2.0]))
    mild = Star(weight, none, np.array([2.0, 0.5]), np.array([2.0, 2.0]), bad)
    assert mild.log_delta(0.5) >= bad.log_delta(0.5) > replace(mild, back=None).log_delta(0.5) + 1e-3
    ties = np.array([[0.0, 0.2, 2.0, 3.0], [0.2, 0.0, 0.5, 2.0], [2.0, 0.5, 0.0, 3.0], [3.0, 2.0, 3.0, 0.0]])
    tied = Program(weight, ties, (weight, np.array([2.0, 2.0])))
    ways = [tied.one_way(0.5), tied.flipped().one_way(0.5)]
    assert abs(ways[0] - ways[1]) > 1e-3
    average = log_average(weight, 0.5, np.array([2.0, 2.0]))
    for either in (tied, tied.flipped()):
        assert either.log_delta(0.5) >= min(max(ways), average) - 1e-3


@pytest.mark.parametrize("ratio", [0.5, 1.0])
def test_a_group_of_places_is_tied_as_loosely_as_its_loosest_members(ratio: float) -> None:
    count = 24
    ones = np.ones(count)
    swap = 1.0 / (1 + (np.arange(count) * 7) % 5)
    rounds = Rounds(ones, ratio * swap, swap, ones, np.full(count, math.inf), math.inf)
    places = np.arange(count)[:, None]
    found = program(rounds, places, ones / count, most=4)
    ends = np.rint(np.cumsum(found.weight) * count).astype(int)
    members = np.split(np.arange(count), ends[:-1])
    half = len(members)
    assert half <= 4
    gaps = (rounds.swap, rounds.gap)
    for row in range(2 * half):
        for column in range(2 * half):
            (a, i), (b, j) = divmod(row, half), divmod(column, half)
            if i != j:
                pairs = pair_mu(rounds, places, members[i], members[j], gaps[a], gaps[b])
                assert found.ties[row, column] >= float(pairs.max()) * (1 - 1e-12)
            elif a != b:
                assert found.ties[row, column] >= float(own_mu(rounds, places)[members[i]].max())


def test_a_profile_that_falls_too_fast_is_not_scaled_away() -> None:
    epsilons, deltas = np.array([0.0, 0.1, 1.0]), np.array([0.9, 0.01, 0.001])
    law = law_of_profile(epsilons, deltas)
    losses, p = np.array(law.losses), np.array(law.p)
    told = [float(p @ np.maximum(-np.expm1(e - losses), 0.0)) + max(0.0, 1 - float(p.sum())) for e in epsilons]
    assert np.all(np.array(told) >= deltas * (1 - 1e-9))


# Transport.


@pytest.mark.parametrize("epsilon", [0.0, 1.0, 4.0])
def test_transport_with_nothing_to_follow_is_one_gaussian_and_a_hair(epsilon: float) -> None:
    exact = math.exp(float(log_theta(epsilon, 0.5)))
    found = transport([], [], diameter=1.0).delta(epsilon, gap=1.0, noise=2.0, following=0)
    assert exact * (1 + 0.9 * HAIR) <= found <= exact * (1 + 2 * HAIR)


def test_transport_of_tiny_gaps_is_not_lost_in_rounding() -> None:
    """At epsilon 0 and one round after, the exact value is linear in a tiny gap; masses there are all cancellation."""
    chain = transport([1.0], [1.0], diameter=1.0)
    y, width = np.linspace(0.0, 12.0, 240_001, retstep=True)
    after = 2 * ndtr(np.minimum(2 * y, 1.0) / 2) - 1
    per_gap = float(np.sum(y * np.exp(-y * y / 2) * after)) * width / math.sqrt(2 * math.pi)
    for gap in np.geomspace(1e-16, 1e-6, 61):
        found = chain.delta(0.0, gap=float(gap), noise=1.0, following=1)
        assert found >= per_gap * float(gap) * (1 - 1e-7)


@pytest.mark.parametrize("diameter", [2.0, 4.0, 8.0])
def test_a_coarse_table_pays_for_its_bends(diameter: float) -> None:
    """Eight cells, up to three rounds after: not below the recursion that is exact at epsilon 0."""
    chain = transport([1.0] * 3, [1.0] * 3, diameter, cells=8)
    y, width = np.linspace(0.0, 14.0, 7001, retstep=True)
    apart = np.linspace(0.0, diameter, 201)

    def back(shifts: Vector, after: Vector) -> Vector:
        mass = np.exp(-((y - shifts[:, None] / 2) ** 2) / 2) - np.exp(-((y + shifts[:, None] / 2) ** 2) / 2)
        seen = np.interp(np.minimum(2 * y, diameter), apart, after)
        return np.asarray(mass @ seen * width / math.sqrt(2 * math.pi))

    after = 2 * ndtr(apart / 2) - 1
    gaps = np.array([1.0, 4.0])
    for following in (1, 2, 3):
        for gap, exact in zip(gaps, back(gaps, after), strict=True):
            assert chain.delta(0.0, gap=float(gap), noise=1.0, following=following) >= float(exact) * (1 - 1e-4)
        after = back(apart, after)


@pytest.mark.parametrize(("x", "tilt"), [(1e-9, 0.0), (1e-5, 0.0), (1e-7, 2.0), (0.3, 0.7), (2.0, 1.5)])
def test_masses_of_a_pairing_are_rounded_outward(x: float, tilt: float) -> None:
    """Eight cells against thirty digits: more above the pivot, less below it, and farther apart than the truth."""
    distance = np.linspace(0.5, 4.0, 8)
    path = distance * np.linspace(0.3, 0.6, 8)
    cells = _cells(distance, Shifts(np.array([x]), np.array([tilt]), 1.0), path[None, :])
    with mp.workdps(30):
        shift, pivot = mp.mpf(x), mp.mpf(tilt) + mp.mpf(x) / 2
        g = mp.exp(mp.mpf(tilt) * shift)

        def density(t: mp.mpf) -> mp.mpf:
            return mp.npdf(t - shift) - g * mp.npdf(t)

        def mass(a: mp.mpf, b: mp.mpf) -> mp.mpf:
            return mp.ncdf(b - shift) - mp.ncdf(a - shift) - g * (mp.ncdf(b) - mp.ncdf(a))

        v = [mp.mpf(0), *(mp.mpf(float(value)) for value in path)]
        u = [mp.mpf(float(d)) - here for d, here in zip([0.0, *distance], v, strict=True)]
        for j in range(8):
            above = mass(pivot + v[j], pivot + v[j + 1])
            below = -mass(pivot - u[j + 1], pivot - u[j])
            assert above <= mp.mpf(float(cells.above[0, j]))
            assert mp.mpf(float(cells.below[0, j])) <= below
            far = mp.quad(lambda t: t * density(pivot + t), [v[j], v[j + 1]]) / above
            near = -mp.quad(lambda t: t * density(pivot - t), [u[j], u[j + 1]]) / below
            low, high = v[j] + u[j], v[j + 1] + u[j + 1]
            assert (far + near - low) / (high - low) <= mp.mpf(float(cells.share[0, j]))
        rest = mp.ncdf(shift - pivot - v[-1]) - g * mp.ncdf(-pivot - v[-1])
        spare = g * mp.ncdf(pivot - u[-1]) - mp.ncdf(pivot - shift - u[-1])
        assert rest <= mp.mpf(float(cells.above_left[0]))
        assert mp.mpf(float(cells.below_left[0])) <= spare


def test_a_lower_epsilon_is_proved_even_where_the_slack_swallows_the_tail() -> None:
    total = TiltedSum(1.0, 0.25, 0.5, 0, np.array([0.5, 0.25, 0.25]), 0.0625, 0.01)
    for delta in (0.015, 0.02, 0.05, 0.1, 0.2):
        low = total.epsilon(delta, upper=False)
        assert low == 0 or math.exp(total.log_delta(low, upper=False)) >= delta * (1 - 1e-9)
