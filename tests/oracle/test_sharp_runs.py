"""A wrong factor, side or allowance in a hidden run or at the front door shows here, each against a plain formula."""

import math
from dataclasses import replace

import numpy as np
import pytest

from fedveil import LastIterate, account_for
from fedveil.accounting.hidden import checkpoints, hidden_run, rounds_of, shift_mus, unhidden_mus
from fedveil.accounting.last_iterate import evaluators
from fedveil.accounting.places import place_curve
from fedveil.privacy.mechanism import ApproximateDP, Gaussian, Laplace, Mechanism, Repeat, SampledGaussian
from fedveil.theory.composition import delta_bracket
from fedveil.theory.concentrated import gaussian_epsilon
from fedveil.theory.divergence import log_theta
from fedveil.theory.loss import LaplaceLaw
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
