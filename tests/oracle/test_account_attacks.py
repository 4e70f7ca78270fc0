"""Runs that look harmless to the account layer and are not: exact laws against every certified number."""

import math
from dataclasses import replace

import numpy as np
import pytest
from chains import Loss, Partition, Vector, gaussian_pair, hockey_sticks, random_partition_pair, theta
from scipy.special import ndtr

from fedveil import (
    ApproximateDP,
    BadValue,
    Compose,
    Gaussian,
    LastIterate,
    Repeat,
    SampledGaussian,
    account_for,
    place_curve,
)
from fedveil.accounting.hidden import rounds_of
from fedveil.accounting.last_iterate import evaluators

EPSILONS = np.array([0.0, 0.1, 0.5, 1.0, 2.0])


def assert_above(run: LastIterate, truth: Vector) -> None:
    for bound in evaluators(run):
        if bound.log_delta is not None and bound.status == "certified":
            for epsilon, exact in zip(EPSILONS, truth, strict=True):
                claimed = math.exp(min(bound.log_delta(float(epsilon)), 0.0))
                assert claimed >= exact * (1 - 1e-9) - 1e-11, (bound.name, epsilon, claimed, exact)


def stopped_mixture(run: LastIterate) -> Vector:
    """Linear losses, a secret place and a secret stop: mixtures of Gaussians, in cells (which can only lower it)."""
    rounds = rounds_of(run)
    batch = np.array(run.batch, dtype=np.float64)
    edges = np.linspace(-60.0, 60.0, 24001)
    first, second = np.zeros(edges.size - 1), np.zeros(edges.size - 1)
    for stop in range(1, run.rounds + 1):
        spread = math.sqrt(float(np.sum(rounds.noise[:stop] ** 2)))
        for place, weight in enumerate(batch / batch.sum()):
            shift = float(rounds.gap[place]) / 2 if place < stop else 0.0
            first += weight / run.rounds * np.diff(ndtr((edges - shift) / spread))
            second += weight / run.rounds * np.diff(ndtr((edges + shift) / spread))
    return hockey_sticks(first, second, EPSILONS)


def test_rounds_of_one_kind_may_hold_unequal_batches() -> None:
    """Gap, noise and Lipschitz constant agree in all rounds, yet nearly everybody sits in the first."""
    run = LastIterate(
        rounds=3,
        batch=(100, 1, 1),
        order="secret",
        stopping="random",
        step_size=(100.0, 1.0, 1.0),
        lipschitz=1.0,
        smoothness=0.0,
        diameter=1e4,
        noise_std=(0.1, 1.0, 1.0),
    )
    assert np.ptp(rounds_of(run).noise) == 0 == np.ptp(rounds_of(run).gap)
    assert_above(run, stopped_mixture(run))
    last = replace(run, batch=(1, 1, 100), step_size=(1.0, 1.0, 100.0), noise_std=(1.0, 1.0, 0.1))
    assert_above(last, stopped_mixture(last))


@pytest.mark.parametrize("stopping", ["end", "random"])
def test_rounds_of_one_kind_may_reach_unequally_far(stopping: str) -> None:
    """Not smooth: only the step decides how far two points can be carried apart. A hair's change must not matter."""
    run = LastIterate(
        rounds=3,
        batch=(1, 1, 16),
        order="secret",
        stopping=stopping,  # type: ignore[arg-type]
        step_size=(1.0, 1.0, 16.0),
        lipschitz=1.0,
        diameter=0.1,
        noise_std=(4.0, 4.0, 1.0),
    )
    hair = replace(run, step_size=(1.0, 1.0, 16.0 * (1 + 1e-12)))
    assert account_for(run, epsilon=0.5).delta == pytest.approx(account_for(hair, epsilon=0.5).delta, rel=1e-6)


def long_run(seed: int, stopping: str) -> LastIterate:
    """Longer than anything that is followed exactly, so that places and checkpoints are merged."""
    rng = np.random.default_rng(seed)
    rounds, passes = int(rng.integers(60, 400)), 1 if stopping == "random" else int(rng.integers(1, 20))
    changing = bool(rng.random() < 0.7)
    lists = [tuple(rng.uniform(low, high, rounds).tolist()) for low, high in ((0.01, 0.2), (0.5, 3.0))]
    return LastIterate(
        rounds=rounds,
        passes=passes,
        batch=tuple(int(b) for b in rng.integers(1, 9, rounds)) if changing else 3,
        place=int(rng.choice([1, rounds // 2, rounds - 30, rounds - 1, rounds])),
        stopping=stopping,  # type: ignore[arg-type]
        step_size=lists[0] if changing else 0.1,
        lipschitz=1.0,
        smoothness=1.0,
        strong_convexity=1.0 if rng.random() < 0.5 else 0.0,
        noise_std=lists[1] if changing else 2.0,
        diameter=1e3,
        neighbours=str(rng.choice(["replace-one", "zero-out"])),  # type: ignore[arg-type]
    )


def exact_thetas(run: LastIterate) -> list[Vector]:
    """After every round: quadratics or linear losses, far from the border of the domain."""
    rounds = rounds_of(run)
    uses = np.arange(rounds.count) % run.rounds == (run.place or 1) - 1
    gaps = np.where(uses, rounds.gap, 0.0)
    slopes = rounds.lipschitz if run.strong_convexity else np.ones(rounds.count)
    ends = range(1, rounds.count + 1) if run.stopping == "random" else [rounds.count]
    mus = [gaussian_pair(slopes[:end], gaps[:end], rounds.noise[:end]) for end in ends]
    return [theta(EPSILONS, mu) if mu > 0 else np.zeros(EPSILONS.size) for mu in mus]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("stopping", ["end", "random"])
def test_long_runs_are_above_exact_gaussian_chains(seed: int, stopping: str) -> None:
    run = long_run(seed, stopping)
    exact = np.mean(exact_thetas(run), axis=0)
    assert_above(run, exact)
    assert_above(replace(run, place=None), exact)  # the worst place is no better than this one


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("stopping", ["end", "random"])
def test_merged_places_cost_at_least_their_mean(seed: int, stopping: str) -> None:
    """Averaging bounds are above the mean of the exact thetas over places; only position coupling may be below it."""
    rng = np.random.default_rng(seed)
    steps, noises = (tuple(rng.uniform(low, high, 120).tolist()) for low, high in ((0.01, 0.2), (0.5, 3.0)))
    batch = tuple(int(b) for b in rng.integers(1, 9, 120))
    run = LastIterate(
        rounds=120,
        batch=batch,
        stopping=stopping,  # type: ignore[arg-type]
        step_size=steps,
        lipschitz=1.0,
        smoothness=1.0,
        strong_convexity=float(seed % 2),
        noise_std=noises,
        diameter=1e3,
        neighbours="zero-out",
    )
    means = [np.mean(exact_thetas(replace(run, place=place)), axis=0) for place in range(1, 121)]
    weights = np.array(batch) / sum(batch)
    secret = replace(run, order="secret")
    for bound in evaluators(secret):
        if bound.log_delta is not None and bound.status == "certified" and bound.name != "position":
            for epsilon, exact in zip(EPSILONS, weights @ np.array(means), strict=True):
                assert math.exp(min(bound.log_delta(float(epsilon)), 0.0)) >= exact * (1 - 1e-9), bound.name


@pytest.mark.parametrize("seed", range(8))
def test_unequal_secret_batches_are_above_the_exact_mixture(seed: int) -> None:
    """Batch lists, noise and step lists, records left over, zeroed or replaced, one or two passes."""
    rng = np.random.default_rng(900 + seed)
    sizes = tuple(int(size) for size in rng.integers(1, 4, int(rng.integers(2, 4))))
    passes, spare, zero = int(rng.integers(1, 3)), int(rng.integers(0, 3)), bool(seed % 2)
    total = len(sizes) * passes
    etas, noises = (tuple(rng.uniform(low, high, total).tolist()) for low, high in ((0.2, 0.9), (0.8, 2.5)))
    half = float(rng.choice([0.4, 1.5]))
    run = LastIterate(
        rounds=len(sizes),
        passes=passes,
        batch=sizes,
        records=sum(sizes) + spare,
        order="secret",
        step_size=etas,
        lipschitz=1.0,
        smoothness=0.5,
        diameter=2 * half,
        noise_std=noises,
        neighbours="zero-out" if zero else "replace-one",
    )
    kinds = (Loss(offset=1.0), Loss(offset=-1.0))
    others = tuple(kinds[int(kind)] for kind in rng.integers(0, 2, sum(sizes) + spare - 1))
    case = Partition(
        victim=Loss(offset=1.0),
        other=Loss() if zero else Loss(offset=-1.0),
        others=others,
        sizes=sizes,
        etas=etas,
        sigmas=tuple(rounds_of(run).noise.tolist()),
        lo=-half,
        hi=half,
        start=0.0,
        passes=passes,
    )
    assert_above(run, random_partition_pair(case, EPSILONS).lower)


@pytest.mark.parametrize("times", [1, 7, 100])
def test_hidden_runs_compose_no_better_than_gaussians(times: int) -> None:
    """One round, no projection: a hidden run is exactly one Gaussian mechanism."""
    run = LastIterate(rounds=1, step_size=0.5, lipschitz=1.0, smoothness=0.5, noise_std=20.0)
    exact = Repeat(of=Gaussian(noise_multiplier=20.0, neighbours="replace-one"), times=times)
    claimed = account_for(Compose(parts=(Repeat(of=run, times=times), exact)), delta=1e-6).epsilon
    truth = account_for(Repeat(of=exact, times=2), delta=1e-6).epsilon
    assert truth * (1 - 1e-7) <= claimed <= truth * 1.2


def test_parts_with_different_neighbours_are_charged_for_an_exchange() -> None:
    mixed = Compose(
        parts=(
            Gaussian(noise_multiplier=2.0),
            SampledGaussian(sampling="poisson", rate=0.1, noise_multiplier=1.0, neighbours="replace-one"),
        )
    )
    alike = replace(mixed, parts=(replace(mixed.parts[0], neighbours="replace-one"), mixed.parts[1]))
    assert account_for(mixed, delta=1e-5).epsilon == account_for(alike, delta=1e-5).epsilon


def test_a_group_does_not_fit_into_the_place_of_one_record() -> None:
    run = LastIterate(rounds=40, place=1, step_size=0.5, lipschitz=1.0, smoothness=0.5, noise_std=2.0)
    with pytest.raises(BadValue, match="batch at the given place, 1"):
        account_for(run, delta=1e-5, group=2)
    assert account_for(replace(run, place=None), delta=1e-5, group=2).epsilon > 8
    assert account_for(replace(run, batch=2), delta=1e-5, group=2).epsilon < 1


def test_a_place_that_is_not_looked_at_still_counts_as_the_worst() -> None:
    step, noise = [0.5] * 300, [2.0] * 300
    step[150], noise[150] = 500.0, 1e-3
    run = LastIterate(
        rounds=300, step_size=tuple(step), lipschitz=1.0, smoothness=0.0, noise_std=tuple(noise), neighbours="zero-out"
    )
    curve = place_curve(run, delta=1e-5, most=4)
    assert 151 not in curve.places
    assert curve.worst >= account_for(replace(run, place=151), delta=1e-5).epsilon > 10 * max(curve.epsilons)


def test_a_tiny_delta_is_not_rounded_away() -> None:
    leak = ApproximateDP(epsilon=1e-9, delta=1e-17)
    assert account_for(leak, delta=1e-20).epsilon == math.inf
    assert account_for(Repeat(of=leak, times=10**12), epsilon=1e4).delta >= -math.expm1(1e12 * math.log1p(-1e-17))
