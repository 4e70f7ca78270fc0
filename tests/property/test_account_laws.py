"""Laws of the front door: calibrate then account, monotonicity, composition, groups; hidden never costs more."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedveil import (
    ApproximateDP,
    BadValue,
    CannotCertify,
    Compose,
    Gaussian,
    Laplace,
    LastIterate,
    Mechanism,
    Repeat,
    SampledGaussian,
    account_for,
    calibrate,
    shuffled,
)
from fedveil.theory.loss import law_of_profile
from oracle.tradeoff import GaussianTradeOff, delta_of
from oracle.tradeoff_ops import subsample

RUN = LastIterate(
    rounds=8, batch=4, order="secret", step_size=0.5, lipschitz=1.0, smoothness=1.0, diameter=2.0, noise_std=1.0
)
KINDS: dict[str, Mechanism] = {
    "gaussian": Gaussian(noise_multiplier=1.0),
    "gaussian, replace": Gaussian(noise_multiplier=1.0, neighbours="replace-one"),
    "laplace": Repeat(of=Laplace(noise_multiplier=1.0), times=3),
    "poisson": Repeat(of=SampledGaussian(sampling="poisson", rate=0.02, noise_multiplier=1.0), times=200),
    "fixed size": Repeat(
        of=SampledGaussian(sampling="fixed-size", rate=0.02, noise_multiplier=1.0, neighbours="replace-one"), times=50
    ),
    "shuffled": shuffled(rate=0.1, rounds=25, noise_multiplier=1.0, neighbours="zero-out"),
    "hidden, secret": RUN,
    "hidden, public": replace(RUN, order="public", batch=1),
    "hidden, stopped": replace(RUN, order="public", batch=1, stopping="random"),
    "hidden, laplace": replace(RUN, batch=1, noise="laplace"),
    "hidden, decaying": replace(RUN, step_size=tuple(0.5 / (k + 1) for k in range(8))),
    "composition": Compose(
        parts=(Gaussian(noise_multiplier=2.0), SampledGaussian(sampling="poisson", rate=0.1, noise_multiplier=1.0))
    ),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("target", [0.3, 2.0])
def test_calibrate_then_account_meets_the_target_and_wastes_little(kind: str, target: float) -> None:
    factor, found = calibrate(KINDS[kind], epsilon=target, delta=1e-6)
    assert 0 < factor < math.inf
    epsilon = account_for(found, delta=1e-6).epsilon
    assert epsilon <= target
    assert epsilon >= 0.995 * target


def test_a_hidden_run_is_calibrated_inside_a_composition() -> None:
    small = replace(RUN, rounds=3, order="public", diameter=None)
    target = Compose(parts=(small, Gaussian(noise_multiplier=3.0)))
    _, found = calibrate(target, epsilon=1.0, delta=1e-5, tolerance=1e-3)
    assert 0.98 <= account_for(found, delta=1e-5).epsilon <= 1.0


def test_what_no_noise_can_meet_is_refused() -> None:
    fixed = Compose(parts=(ApproximateDP(epsilon=2.0), Gaussian(noise_multiplier=1.0)))
    with pytest.raises(CannotCertify, match="no amount of noise"):
        calibrate(fixed, epsilon=1.0, delta=1e-5)


runs = st.builds(
    LastIterate,
    rounds=st.integers(2, 12),
    passes=st.integers(1, 3),
    batch=st.integers(1, 5),
    order=st.sampled_from(["public", "secret"]),
    step_size=st.floats(0.05, 1.5),
    lipschitz=st.floats(0.2, 2.0),
    smoothness=st.one_of(st.none(), st.just(1.0)),
    diameter=st.one_of(st.none(), st.floats(0.3, 5.0)),
    noise_std=st.floats(0.5, 5.0),
    neighbours=st.sampled_from(["replace-one", "zero-out"]),
)


@settings(max_examples=25, deadline=None)
@given(run=runs, epsilon=st.floats(0.05, 3.0))
def test_hidden_never_costs_more_than_seen_and_noise_helps(run: LastIterate, epsilon: float) -> None:
    answer = account_for(run, epsilon=epsilon)
    seen = answer["unhidden"].delta
    assert seen is not None
    assert answer.delta <= seen
    more = account_for(replace(run, noise_std=1.2 * float(run.noise_std)), epsilon=epsilon)  # type: ignore[arg-type]
    assert more.delta <= answer.delta * (1 + 1e-3)  # two solutions of one program agree to 1e-3
    assert account_for(replace(run, order="public"), epsilon=epsilon).delta >= answer.delta * (1 - 1e-6)


@settings(max_examples=15, deadline=None)
@given(noises=st.lists(st.floats(0.5, 20.0), min_size=1, max_size=30))
def test_heterogeneous_gaussian_rounds_are_one_gaussian(noises: list[float]) -> None:
    parts = tuple(Gaussian(noise_multiplier=noise) for noise in noises)
    mu = math.sqrt(math.fsum(1 / noise**2 for noise in noises))
    assert account_for(Compose(parts=parts), delta=1e-5).epsilon == pytest.approx(
        account_for(Gaussian(noise_multiplier=1 / mu), delta=1e-5).epsilon, rel=1e-7
    )


def test_two_hidden_runs_cost_more_than_one_and_less_than_twice() -> None:
    run = replace(RUN, rounds=3, order="public", diameter=None)
    one = account_for(run, delta=1e-5).epsilon
    two = account_for(Repeat(of=run, times=2), delta=1e-5).epsilon
    assert one < two < 2 * one
    # Without projection the run is mu-GDP at its worst place, so two of them are sqrt(2) mu.
    mu = 2 * 1.0 / math.sqrt(4) / 1.0
    exact = account_for(Gaussian(noise_multiplier=1 / (mu * math.sqrt(2))), delta=1e-5).epsilon
    assert exact <= two <= 1.01 * exact


def test_fixed_size_batches_are_the_subsampled_trade_off_function() -> None:
    """One round, two ways: the glued privacy-loss law, and the convexified trade-off function C_p."""
    once = SampledGaussian(sampling="fixed-size", rate=0.1, noise_multiplier=1.0, neighbours="replace-one")
    curve = subsample(GaussianTradeOff(2.0), 0.1)
    for epsilon in (0.0, 0.2, 1.0, 2.0):
        other = float(np.max(delta_of(curve, epsilon)))
        assert account_for(once, epsilon=epsilon).delta == pytest.approx(other, rel=5e-3)


def test_zeroing_out_under_fixed_size_batches_costs_less_than_replacement_and_more_than_poisson() -> None:
    parts = [
        SampledGaussian(sampling="fixed-size", rate=0.1, noise_multiplier=1.0, neighbours=n)  # type: ignore[arg-type]
        for n in ("zero-out", "replace-one")
    ]
    first, second = (account_for(part, delta=1e-5) for part in parts)
    poisson = SampledGaussian(sampling="poisson", rate=0.1, noise_multiplier=1.0, neighbours="zero-out")
    assert account_for(poisson, delta=1e-5).epsilon < first.epsilon < 0.6 * second.epsilon
    assert first["loss-distribution"].epsilon_lower > 0.95 * first.epsilon


@pytest.mark.parametrize(
    ("rate", "rounds", "passes"), [(0.1, 10, 1), (0.1, 11, 2), (0.3, 4, 2), (1.0, 7, 7), (0.01, 500, 5)]
)
def test_shuffled_passes_are_one_gaussian_each(rate: float, rounds: int, passes: int) -> None:
    value = account_for(shuffled(rate=rate, rounds=rounds, noise_multiplier=2.0, neighbours="replace-one"), delta=1e-5)
    exact = account_for(Gaussian(noise_multiplier=1 / math.sqrt(passes)), delta=1e-5)
    assert value.epsilon == pytest.approx(exact.epsilon, rel=1e-9)


@settings(max_examples=8, deadline=None)
@given(size=st.integers(2, 5), noise=st.floats(1.0, 10.0))
def test_a_group_of_a_gaussian_is_exact_and_the_general_rule_is_above(size: int, noise: float) -> None:
    answer = account_for(Gaussian(noise_multiplier=noise), delta=1e-5, group=size)
    exact = account_for(Gaussian(noise_multiplier=noise / size), delta=1e-5).epsilon
    assert answer.epsilon == pytest.approx(exact, rel=1e-6)
    general = answer["renyi"].epsilon
    assert general is not None
    assert general >= exact


def test_a_sampled_group_lies_between_one_record_and_the_general_rule() -> None:
    once = SampledGaussian(sampling="poisson", rate=0.02, noise_multiplier=1.0)
    work = Repeat(of=once, times=100)
    single, group = account_for(work, delta=1e-5).epsilon, account_for(work, delta=1e-5, group=3)
    swapped = account_for(Repeat(of=replace(once, neighbours="replace-one"), times=100), delta=1e-5, group=3)
    general, least = group["renyi"].epsilon, swapped["loss-distribution"].epsilon_lower
    assert general is not None
    assert least is not None
    assert single < group.epsilon < general
    assert group.epsilon < 0.995 * swapped.epsilon < least <= swapped.epsilon  # a group that is exchanged is exact


@settings(max_examples=40, deadline=None)
@given(mu=st.floats(0.1, 3.0), points=st.integers(5, 40))
def test_the_law_of_a_profile_keeps_the_profile(mu: float, points: int) -> None:
    epsilons = np.linspace(0.0, 6 * mu + mu * mu, points)
    deltas = delta_of(GaussianTradeOff(mu), epsilons)
    law = law_of_profile(epsilons, deltas)
    p, loss = np.array(law.p), np.array(law.losses)
    infinite = 1 - p.sum()
    for epsilon, delta in zip(epsilons, deltas, strict=True):
        kept = float(np.sum(p * np.maximum(0.0, -np.expm1(epsilon - loss))) + infinite)
        assert kept >= delta * (1 - 1e-9) - 1e-15
        assert kept <= delta * 1.0001 + 1e-6


@pytest.mark.parametrize("bad", [math.nan, math.inf, 0.0, -1.0])
def test_noise_that_is_none_is_refused_at_birth(bad: float) -> None:
    for build in (
        lambda: Gaussian(noise_multiplier=bad),
        lambda: Laplace(noise_multiplier=bad),
        lambda: SampledGaussian(sampling="poisson", rate=0.1, noise_multiplier=bad),
        lambda: replace(RUN, noise_std=bad),
        lambda: replace(RUN, noise_std=(1.0,) * 7 + (bad,)),
    ):
        with pytest.raises(BadValue, match="must be"):
            build()


@pytest.mark.parametrize(
    "change",
    [
        {"rounds": 0},
        {"step_size": math.nan},
        {"step_size": (0.1, 0.2)},
        {"lipschitz": -1.0},
        {"smoothness": math.inf},
        {"strong_convexity": 2.0},
        {"convex": False, "strong_convexity": 0.5},
        {"diameter": math.nan},
        {"place": 3},
        {"records": 31},
        {"noise": "laplace"},
        {"order": "hidden"},
        {"neighbours": "add-one"},
        {"batch": (1, 2)},
        {"passes": 0},
    ],
)
def test_senseless_runs_are_refused_at_birth(change: dict[str, object]) -> None:
    with pytest.raises(BadValue):
        replace(RUN, **change)  # type: ignore[arg-type]


def test_exactly_one_question_is_asked() -> None:
    with pytest.raises(BadValue, match="exactly one of delta and epsilon"):
        account_for(RUN)
    with pytest.raises(BadValue, match="exactly one of delta and epsilon"):
        account_for(RUN, delta=1e-5, epsilon=1.0)
