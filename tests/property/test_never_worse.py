"""More secrecy never raises epsilon, nor does a smaller group: whoever knows less learns no more."""

import math
from collections import Counter
from dataclasses import replace
from itertools import pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedveil import Compose, Gaussian, LastIterate, Mechanism, Repeat, SampledGaussian, account_for
from fedveil.accounting.curious import known_draws
from fedveil.accounting.sampled import disclosed_mu
from fedveil.privacy.mechanism import IndependentGaussian, ShuffledGaussian
from fedveil.theory.composition import group_curve
from fedveil.theory.concentrated import gaussian_epsilon
from fedveil.theory.divergence import log_gaussian_delta
from fedveil.theory.fixed_size import sharing

DRAWN = ["poisson", "independent"]


@pytest.mark.parametrize(
    ("rounds", "passes", "noise", "delta", "known"),
    [(300, 1, 4.35, 1e-12, 1.53), (50, 2, 0.391, 1e-5, 21.31), (10, 5, 0.233, 1e-3, 74.85)],
)
def test_secret_draws_are_finite_wherever_known_ones_are(
    rounds: int, passes: int, noise: float, delta: float, known: float
) -> None:
    run = LastIterate(
        rounds=rounds, passes=passes, order="independent", step_size=0.5, lipschitz=1.0, smoothness=1.0,
        noise_std=noise, neighbours="zero-out",
    )  # fmt: skip
    told = account_for(known_draws(run), delta=delta)["unhidden"].epsilon
    assert told == pytest.approx(known, rel=1e-3)
    seen: Mechanism = Repeat(of=IndependentGaussian(rounds=rounds, noise_multiplier=noise), times=passes)
    for secret in (run, seen):
        assert account_for(secret, delta=delta).epsilon <= told * (1 + 1e-6)


@settings(max_examples=25, deadline=None)
@given(
    order=st.sampled_from(DRAWN),
    rounds=st.integers(2, 12),
    passes=st.integers(1, 2),
    noise=st.floats(0.1, 6.0),
    steps=st.lists(st.floats(0.1, 1.5), min_size=12, max_size=12),
    neighbours=st.sampled_from(["replace-one", "zero-out"]),
    log_delta=st.floats(-27.6, -3.0),
)
def test_secret_draws_never_cost_more_than_known_ones(
    order: str,
    rounds: int,
    passes: int,
    noise: float,
    steps: list[float],
    neighbours: str,
    log_delta: float,
) -> None:
    run = LastIterate(
        rounds=rounds, passes=passes, order=order, rate=0.3 if order == "poisson" else None,  # type: ignore[arg-type]
        step_size=tuple(steps[:rounds]), lipschitz=1.0, smoothness=1.0, noise_std=noise, records=60,
        neighbours=neighbours,  # type: ignore[arg-type]
    )  # fmt: skip
    delta = math.exp(log_delta)
    told = account_for(known_draws(run), delta=delta)["unhidden"].epsilon
    assert told is not None
    assert account_for(run, delta=delta).epsilon <= told * (1 + 1e-6)
    together = account_for(Compose(parts=(run, Gaussian(noise_multiplier=2.0, neighbours=run.neighbours))), delta=delta)
    moved = math.hypot(disclosed_mu(run), Gaussian(noise_multiplier=2.0, neighbours=run.neighbours).mu)
    assert together.epsilon <= gaussian_epsilon(moved, delta) * (1 + 1e-6)


ONCE = LastIterate(
    rounds=6, batch=8, step_size=0.5, lipschitz=1.0, smoothness=1.0, noise_std=8.0, neighbours="zero-out"
)  # fmt: skip
GROUPED: dict[str, Mechanism] = {
    "public": ONCE,
    "secret": replace(ONCE, order="secret"),
    "independent": replace(ONCE, order="independent", records=48),
    "poisson, hidden": replace(ONCE, order="poisson", rate=0.2),
    "poisson": Repeat(of=SampledGaussian(sampling="poisson", rate=0.02, noise_multiplier=2.0), times=50),
    "poisson, replaced": Repeat(
        of=SampledGaussian(sampling="poisson", rate=0.02, noise_multiplier=2.0, neighbours="replace-one"), times=50
    ),
    "fixed size": Repeat(
        of=SampledGaussian(sampling="fixed-size", rate=0.02, noise_multiplier=4.0, neighbours="replace-one"), times=50
    ),
    "shuffled": Repeat(of=ShuffledGaussian(batches=50, size=10, noise_multiplier=8.0), times=5),
}


@pytest.mark.parametrize("kind", GROUPED)
def test_a_smaller_group_never_costs_more_and_the_law_of_a_group_beats_even_hops(kind: str) -> None:
    epsilons = [account_for(GROUPED[kind], delta=1e-5, group=size).epsilon for size in (1, 2, 3, 5)]
    for smaller, larger in pairwise(epsilons):
        assert smaller < larger < math.inf
    one = account_for(GROUPED[kind], epsilon=epsilons[2] / 3).delta
    assert one * (math.exp(epsilons[2]) - 1) / (math.exp(epsilons[2] / 3) - 1) >= 1e-5 * (1 - 1e-6)


@pytest.mark.parametrize("size", [2, 4, 8])
def test_hops_of_a_gaussian_are_a_gaussian_so_many_times_as_far(size: int) -> None:
    curve = group_curve(lambda epsilon: log_gaussian_delta(epsilon, 0.2), size)
    for epsilon in (0.3 * size, 0.6 * size, 0.9 * size):
        exact = log_gaussian_delta(epsilon, 0.2 * size)
        assert exact <= curve(epsilon) <= exact + 0.03 * (1 - exact)


def test_groups_of_shuffled_passes_grow_with_the_root_and_stay_finite() -> None:
    passes = Repeat(of=ShuffledGaussian(batches=1000, size=50, noise_multiplier=5.0), times=20)
    epsilons = {size: account_for(passes, delta=1e-5, group=size).epsilon for size in (1, 32, 48, 64, 128)}
    assert max(epsilons.values()) < math.inf
    for size in (32, 48, 64):  # a little more than one Gaussian of sqrt(size), for members that share a batch
        alone = gaussian_epsilon(math.sqrt(20 * size) / 5, 1e-5)
        assert alone < epsilons[size] < 1.2 * alone


@pytest.mark.parametrize(("group", "batches", "size"), [(4, 5, 3), (5, 4, 2), (5, 3, None), (4, 9, None)])
def test_sharing_is_what_counting_all_arrangements_gives(group: int, batches: int, size: int | None) -> None:
    slots = range(batches) if size is None else range(batches * size)
    counts: Counter[int] = Counter()
    for chosen in product(slots, repeat=group):
        if size is None or len(set(chosen)) == group:
            held = Counter(slot if size is None else slot // size for slot in chosen)
            counts[sum(n * n for n in held.values())] += 1
    total = sum(counts.values())
    assert sharing(group, batches, size) == pytest.approx({at: n / total for at, n in counts.items()}, rel=1e-9)


def test_a_record_that_is_left_out_never_costs_more_than_one_that_is_replaced() -> None:
    """A record that contributes nothing is one of those that may take its place.

    The grids of zero-out end too soon here, and promised nothing.
    """
    run = LastIterate(
        rounds=20, order="independent", step_size=1.0, lipschitz=1.0, smoothness=1.0, strong_convexity=0.3, batch=10**5,
        noise_std=0.4 / math.sqrt(10**5), records=20 * 10**5, neighbours="zero-out",
    )  # fmt: skip
    hidden, replaced = (
        account_for(each, delta=1e-5)["sampled-shift"].epsilon for each in (run, replace(run, neighbours="replace-one"))
    )
    assert hidden <= replaced < 0.8 * account_for(run, delta=1e-5)["unhidden"].epsilon
    curve = account_for(run, epsilon=hidden * 1.01)["sampled-shift"]
    assert curve.delta is not None
    assert curve.delta < 1
