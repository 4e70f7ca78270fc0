"""A wrong factor, side or allowance in a certified number shows here, each against a plain formula."""

import math
from dataclasses import replace

import numpy as np
import pytest
from mpmath import mp  # type: ignore[import-untyped]
from scipy.special import ndtr

from fedveil import LastIterate, account_for
from fedveil.account.hidden import checkpoints, hidden_run, rounds_of, shift_mus, unhidden_mus
from fedveil.account.last_iterate import evaluators
from fedveil.account.loss_distribution import LossCurve, LossDistributionAccountant
from fedveil.account.places import place_curve
from fedveil.mechanism import ApproximateDP, Gaussian, Laplace, Mechanism, Repeat, SampledGaussian
from fedveil.theory.composition import delta_bracket, epsilon_bracket, epsilon_upper, worst_bracket, worst_upper
from fedveil.theory.concentrated import gaussian_epsilon, group_epsilon_delta
from fedveil.theory.convolution import Tilt, TiltedSum, convolve
from fedveil.theory.coupling import Shifts, _cells
from fedveil.theory.divergence import log_theta
from fedveil.theory.lattice import Cells, LatticeLaw, from_above, lowered, raised
from fedveil.theory.loss import FiniteLaw, GaussianLaw, GroupLaw, LaplaceLaw, SampledLaw, Tails, law_of_profile
from fedveil.theory.numerics import Vector
from fedveil.theory.position import Star, log_average, own_mu, pair_mu, secant_bounds
from fedveil.theory.position_program import Cuts, Program, dual_bound, program
from fedveil.theory.renyi import delta_over_orders, epsilon_over_orders, least_delta, least_epsilon
from fedveil.theory.rounds import Rounds
from fedveil.theory.shift import uses_mu
from fedveil.theory.transport import transport

HAIR = 1e-9  # the relative allowance of every certified closed form


def log_delta(run: LastIterate, name: str, epsilon: float) -> float:
    bound = next(e.log_delta for e in evaluators(run) if e.name == name)
    assert bound is not None
    return bound(epsilon)


# What a run is to the theory.


@pytest.mark.parametrize(("neighbours", "sensitivity"), [("replace-one", 2.0), ("zero-out", 1.0)])
def test_rounds_are_the_formulas(neighbours: str, sensitivity: float) -> None:
    step, batch, noise = np.array([0.5, 0.25, 2.0]), np.array([1, 4, 9]), np.array([2.0, 3.0, 5.0])
    run = LastIterate(
        rounds=3,
        passes=2,
        batch=(1, 4, 9),
        step_size=(0.5, 0.25, 2.0),
        noise_std=(2.0, 3.0, 5.0),
        lipschitz=3.0,
        smoothness=1.5,
        strong_convexity=0.5,
        diameter=7.0,
        neighbours=neighbours,  # type: ignore[arg-type]
    )
    rounds = rounds_of(run)
    np.testing.assert_allclose(rounds.gap, np.tile(sensitivity * 3.0 * step / batch, 2), rtol=1e-14)
    np.testing.assert_allclose(rounds.swap, np.tile(2 * 3.0 * step / batch, 2), rtol=1e-14)
    np.testing.assert_allclose(rounds.noise, np.tile(step * noise / np.sqrt(batch), 2), rtol=1e-14)
    np.testing.assert_allclose(rounds.image, np.tile(7.0 + 2 * step * 3.0, 2), rtol=1e-14)
    np.testing.assert_allclose(rounds.lipschitz, np.tile([0.75, 0.875, 2.0], 2), rtol=1e-14)
    expanding = replace(run, convex=False, strong_convexity=0.0)
    np.testing.assert_allclose(rounds_of(expanding).lipschitz, np.tile(1 + 1.5 * step, 2), rtol=1e-14)
    np.testing.assert_array_equal(hidden_run(run).last_use, [3, 4, 5])


def linear_run(rounds: int, changing: bool, order: str, stopping: str) -> LastIterate:
    """Steps that neither shrink nor stretch, no projection: what each place leaks is known exactly."""
    steps = tuple(float(v) for v in 1.0 / (1 + (np.arange(rounds) * 7) % 11)) if changing else 1.0
    return LastIterate(
        rounds=rounds,
        step_size=steps,
        lipschitz=1.0,
        smoothness=0.0,
        noise_std=2.0,
        order=order,  # type: ignore[arg-type]
        stopping=stopping,  # type: ignore[arg-type]
    )


def exact_mean(run: LastIterate, epsilon: float) -> float:
    """Place t seen after round k: mu = gap_t / (noise of the rounds t..k). The mean, or the worst public place."""
    rounds = rounds_of(run)
    clock = np.append(0.0, np.cumsum(rounds.noise**2))
    place, end = np.arange(run.rounds)[:, None], np.arange(1, run.rounds + 1)[None, :]
    span = np.where(end > place, clock[end] - clock[place], np.inf)
    delta = np.exp(log_theta(epsilon, rounds.gap[:, None] / np.sqrt(span)))
    each = delta.mean(axis=1) if run.stopping == "random" else delta[:, -1]
    return float(each.mean() if run.order == "secret" else each.max())


@pytest.mark.parametrize("epsilon", [0.0, 0.4])
@pytest.mark.parametrize("stopping", ["end", "random"])
@pytest.mark.parametrize("order", ["public", "secret"])
@pytest.mark.parametrize(("rounds", "changing"), [(5, False), (300, False), (5, True), (48, True), (160, True)])
def test_merging_and_thinning_charge_the_worst(
    rounds: int, changing: bool, order: str, stopping: str, epsilon: float
) -> None:
    run = linear_run(rounds, changing, order, stopping)
    exact = math.log(exact_mean(run, epsilon))
    found = log_delta(run, "block", epsilon)
    assert found >= exact + 0.9 * HAIR
    if rounds <= 48:
        assert found <= exact + 2 * HAIR  # nothing is merged
    if stopping == "end":
        assert log_delta(run, "shift", epsilon) >= exact + 0.9 * HAIR


def test_thousands_of_places_are_charged_at_the_largest_of_their_neighbours() -> None:
    run = linear_run(6000, changing=True, order="secret", stopping="end")
    mus = shift_mus(run)
    assert np.unique(mus).size > 4096
    exact = math.log(float(np.mean(np.exp(log_theta(0.1, mus)))))
    assert exact <= log_delta(run, "shift", 0.1) <= exact + 0.03


def test_places_that_transport_does_not_follow_are_charged_in_full() -> None:
    """Loud and quiet rounds in turn, so that neighbours may not stand for each other; the last ten are quiet."""
    rounds = 2300
    steps = np.where(np.arange(rounds) % 2 == 0, 1.0, 0.01)
    steps[-10:] = 1e-4
    run = LastIterate(
        rounds=rounds,
        step_size=tuple(steps.tolist()),
        noise_std=tuple((2 / steps).tolist()),
        lipschitz=1.0,
        smoothness=0.0,
        diameter=8.0,
        order="secret",
    )
    far = float(np.mean(np.exp(log_theta(0.0, shift_mus(run)))[:-9])) * (rounds - 9) / rounds
    assert math.log(far) <= log_delta(run, "transport", 0.0) <= math.log(far) + 0.3


def test_groups_of_places_lose_no_stop_and_no_loud_place() -> None:
    """Loud places only where places are merged; what falls between a use and the next checkpoint is charged in full."""
    rounds = 200
    noise = np.where(np.arange(rounds) % 3 == 0, 2.0, 40.0)
    noise[100:] = 40.0
    run = replace(linear_run(rounds, changing=True, order="secret", stopping="random"), noise_std=tuple(noise.tolist()))
    table = checkpoints(run)
    assert table.mu.shape[0] < rounds
    assert float(table.fresh_mu.max()) >= float(unhidden_mus(run).max())
    seen = float(np.mean((rounds - np.arange(rounds)) / rounds))  # how often a stop comes after the use
    assert float(table.share.sum() + table.fresh.sum()) >= seen * (1 - 1e-12)
    for epsilon in (0.0, 0.4):
        assert log_delta(run, "block", epsilon) >= math.log(exact_mean(run, epsilon))


@pytest.mark.parametrize("epsilon", [0.0, 0.5])
def test_transport_averages_the_places_each_with_its_own_rounds_to_follow(epsilon: float) -> None:
    run = LastIterate(
        rounds=4,
        step_size=(0.5, 0.4, 0.3, 0.2),
        lipschitz=1.0,
        smoothness=1.0,
        strong_convexity=0.5,
        noise_std=(2.0, 3.0, 4.0, 6.0),
        diameter=1.0,
        order="secret",
    )
    rounds = rounds_of(run)
    chain = transport(rounds.lipschitz[1:].tolist(), rounds.noise[1:].tolist(), 1.0)
    each = [
        chain.delta(epsilon, gap=float(rounds.gap[t]), noise=float(rounds.noise[t]), following=3 - t) for t in range(4)
    ]
    assert log_delta(run, "transport", epsilon) == pytest.approx(math.log(sum(each) / 4) + HAIR, abs=2e-10)


def test_bounds_for_one_use_withdraw_from_several_passes() -> None:
    """Counted as one use they would be too small; a place that leaves rounds to follow, and a secret one."""
    for run, more in ((replace(RUN, place=2), set()), (replace(RUN, order="secret"), {"position"})):
        once, twice = (
            {e.name for e in evaluators(replace(run, passes=passes)) if e.log_delta is not None} for passes in (1, 2)
        )
        assert {"linear-contraction", "nonlinear-contraction", "transport"} <= once
        assert twice == {"unhidden", "shift", "block"} | more


@pytest.mark.parametrize("lipschitz", [1.0, 0.5, 1e-150])
def test_a_use_after_the_release_still_counts(lipschitz: float) -> None:
    ones = np.ones(6)
    rounds = Rounds(2 * ones, ones, ones, lipschitz * ones, np.full(6, math.inf), math.inf)
    uses, ends = np.array([[1, 4]]), np.array([3])
    assert float(uses_mu(rounds, uses, np.ones((1, 2)), ends)[0]) >= 0.5
    assert float(uses_mu(rounds, uses[:, 1:], np.ones((1, 1)), ends)[0]) == pytest.approx(0.5)


def test_random_stops_of_one_round_contraction_count_every_stop() -> None:
    """The papers' product written out: place t, stop k, one coefficient for each round between."""
    run = LastIterate(
        rounds=6, step_size=0.5, lipschitz=1.0, smoothness=0.0, noise_std=2.0, diameter=1.0, stopping="random"
    )
    epsilon = 0.3
    first, step = (math.exp(float(log_theta(epsilon, r))) for r in (1.0, 1.0))  # gap 1 and diameter 1 over noise 1
    stops = [[first * step ** (k - t) for k in range(t, 6)] for t in range(6)]
    public, secret = sum(stops[0]) / 6, sum(map(sum, stops)) / 36
    for order, place, exact in (("public", None, public), ("secret", None, secret), ("public", 4, sum(stops[3]) / 6)):
        asked = replace(run, order=order, place=place)  # type: ignore[arg-type]
        assert log_delta(asked, "linear-contraction", epsilon) == pytest.approx(math.log(exact) + HAIR, abs=2e-10)
        assert log_delta(asked, "nonlinear-contraction", epsilon) <= math.log(exact)


def test_laplace_passes_are_charged_at_the_least_noise() -> None:
    run = LastIterate(
        rounds=2, passes=2, step_size=1.0, lipschitz=1.0, smoothness=0.0, noise="laplace", noise_std=(1.0, 6.0)
    )
    truth = delta_bracket([(LaplaceLaw(2.0), 2)], 1.0)
    assert math.exp(log_delta(run, "unhidden", 1.0)) >= truth.lower > 0.5


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 3.0])
@pytest.mark.parametrize("order", ["public", "secret"])
@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
def test_closed_forms_carry_their_allowance(noise: str, order: str, epsilon: float) -> None:
    """One round, one place: every bound is the divergence of one use, and a hair more."""
    run = LastIterate(
        rounds=1,
        step_size=0.5,
        lipschitz=1.0,
        smoothness=0.5,
        noise_std=0.4,
        diameter=1.0,
        noise=noise,  # type: ignore[arg-type]
        order=order,  # type: ignore[arg-type]
    )
    ratio = 5.0
    plain = float(log_theta(epsilon, ratio)) if noise == "gaussian" else math.log(-math.expm1((epsilon - ratio) / 2))
    names = [e.name for e in evaluators(run) if e.log_delta is not None and e.status == "certified"]
    assert set(names) >= {"unhidden", "linear-contraction", "nonlinear-contraction"}
    for name in names:
        assert plain + 0.5 * HAIR <= log_delta(run, name, epsilon) <= plain + 4 * HAIR


@pytest.mark.parametrize("mu", [0.01, 0.3, 1.0, 4.0])
def test_the_inverse_of_a_gaussian_leaves_room_for_rounding(mu: float) -> None:
    for delta in np.geomspace(1e-12, 1e-2, 41):
        assert float(log_theta(gaussian_epsilon(mu, float(delta)), mu)) <= math.log(delta) - HAIR * (1 - 1e-6)


def test_divergences_are_raised_before_they_are_converted() -> None:
    for alpha, zeta in ((2.0, 0.1), (16.0, 3.0), (256.0, 40.0)):
        more = zeta * (1 + 0.9 * HAIR)
        assert epsilon_over_orders([alpha], [zeta], 1e-5)[0] >= least_epsilon(alpha, more, 1e-5)
        assert delta_over_orders([alpha], [zeta], zeta)[0] >= least_delta(alpha, more, zeta)
    assert least_epsilon(256.0, 40.0 * (1 + 0.9 * HAIR), 1e-5) > least_epsilon(256.0, 40.0, 1e-5)


# The front door.


RUN = LastIterate(rounds=4, step_size=0.5, lipschitz=1.0, smoothness=0.5, noise_std=20.0, diameter=1.0)


@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize(
    "mechanism",
    [
        RUN,
        replace(RUN, order="secret"),
        Gaussian(noise_multiplier=20.0),
        SampledGaussian(sampling="poisson", rate=0.01, noise_multiplier=20.0),
        SampledGaussian(sampling="fixed-size", rate=0.01, noise_multiplier=20.0),
    ],
    ids=["hidden", "secret", "gaussian", "poisson", "fixed-size"],
)
def test_no_bound_reports_less_than_the_floor(mechanism: Mechanism, group: int) -> None:
    answer = account_for(mechanism, epsilon=8.0, group=group)
    told = [bound.delta for bound in answer.bounds if bound.delta is not None]
    assert told
    assert min(told) == 1e-12
    assert answer.delta == 1e-12


def test_a_repeated_hidden_run_is_not_one_run() -> None:
    once, often = (account_for(m, delta=1e-5).epsilon for m in (RUN, Repeat(of=RUN, times=9)))
    assert 2 * once < often < 9 * once


def test_groups_of_released_sums_are_charged_as_groups() -> None:
    """Sums move three times as far; a group that is not known exactly is charged by the general rule."""
    gaussian = account_for(Gaussian(noise_multiplier=6.0), delta=1e-6, group=3)
    assert gaussian.epsilon == pytest.approx(gaussian_epsilon(0.5, 1e-6), rel=1e-3)
    for bound in gaussian.bounds:
        if bound.status == "certified" and bound.epsilon is not None:
            assert bound.epsilon >= gaussian_epsilon(0.5, 1e-6) * (1 - 1e-9)
    laplace = account_for(Laplace(noise_multiplier=6.0), epsilon=0.25, group=3)
    assert -math.expm1((0.25 - 0.5) / 2) <= laplace.delta <= -math.expm1((0.25 - 0.5) / 2) * 1.01
    known = account_for(ApproximateDP(epsilon=0.5, delta=1e-6), epsilon=1.5, group=3)
    growth = math.expm1(1.5) / math.expm1(0.5)
    assert 1e-6 * growth <= known.delta <= 1.01e-6 * growth


def test_the_worst_place_is_the_last() -> None:
    curve = place_curve(RUN, delta=1e-5, most=3)
    assert (curve.places[0], curve.places[-1]) == (1, RUN.rounds)
    assert curve.worst == curve.epsilons[-1] == max(curve.epsilons)
    assert curve.worst >= gaussian_epsilon(0.1, 1e-5) * (1 - 1e-6)  # nothing follows: 2 L / noise


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
