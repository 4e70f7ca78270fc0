"""Groups of records: certified laws lie above exact ones, in every way that a person's records may be drawn."""

import math

import numpy as np
import pytest
from scipy.stats import hypergeom

from fedveil import Gaussian, Repeat, SampledGaussian, account_for
from fedveil.accounting.evaluator import epsilon_of, for_group
from fedveil.accounting.hidden import rounds_of
from fedveil.accounting.last_iterate import evaluators
from fedveil.privacy.mechanism import LastIterate
from fedveil.theory.concentrated import gaussian_epsilon
from fedveil.theory.fixed_size import ZeroedBatchLaw
from fedveil.theory.loss import FixedSizeLaw
from fedveil.theory.shift import shift_mu
from fedveil.theory.star_law import fixed_size_group

EPSILONS = np.array([0.0, 0.05, 0.3, 1.0, 2.0])
LINE = np.linspace(-25.0, 25.0, 2_501)


def exact_delta(weights: np.ndarray, first: np.ndarray, second: np.ndarray, epsilon: float) -> float:
    """The hockey-stick divergence of two mixtures of unit normals on a line, by the trapezoidal rule."""
    both = [np.exp(-((LINE - means[:, None]) ** 2) / 2).T @ weights for means in (first, second)]
    excess = np.maximum(both[0] - math.exp(epsilon) * both[1], 0.0) / math.sqrt(2 * math.pi)
    return float(np.trapezoid(excess, LINE))


def test_no_batch_of_fixed_size_tells_more_of_a_group_than_is_certified() -> None:
    """100 random groups, batches and data on a line, at five epsilons; k members displace the first k of k records.

    Seeded, so that it either always passes or never does; the tolerance is the trapezoidal rule's error.
    """
    rng, ratios = np.random.default_rng(3), []
    for _ in range(100):
        group, records = int(rng.integers(1, 7)), int(rng.integers(12, 400))
        batch, mu = int(rng.integers(1, records - group)), float(rng.uniform(0.1, 1.5))
        exchanged = bool(rng.integers(2))
        chances = hypergeom(records, group, batch).pmf(np.arange(group + 1))
        away, own = rng.choice([-1.0, 1.0], (2, group)) if rng.integers(2) else (-np.ones(group), np.ones(group))
        other = -own if exchanged else np.zeros(group)
        here, there = (mu * np.append(0.0, np.cumsum(side - away)) for side in (own, other))
        laws = fixed_size_group(mu, batch / records, group, exchanged=exchanged)
        for law, (p, q) in zip(laws, ((here, there), (there, here)), strict=True):
            tails = law.tails(EPSILONS)
            certified = tails.p_above - np.exp(EPSILONS) * tails.q_above
            truth = np.array([exact_delta(chances, p, q, epsilon) for epsilon in EPSILONS.tolist()])
            assert np.all(certified >= truth - 1e-4)
            ratios += (certified[truth > 1e-4] / truth[truth > 1e-4]).tolist()
    assert np.median(ratios) < 1.6  # random data are not the worst ones


def test_a_group_of_one_in_a_batch_of_fixed_size_is_one_record() -> None:
    levels = np.array([-3.0, -0.4, -1e-3, 0.0, 1e-3, 0.2, 1.5, 6.0])
    for mu, rate in ((0.7, 0.1), (0.05, 0.4), (2.0, 0.003)):
        exchanged = fixed_size_group(mu, rate, 1, exchanged=True)[0]
        np.testing.assert_allclose(exchanged.tails(levels), FixedSizeLaw(2 * mu, rate).tails(levels), atol=1e-12)
        for law, removal in zip(fixed_size_group(mu, rate, 1, exchanged=False), (True, False), strict=True):
            known = ZeroedBatchLaw(mu, rate, removal=removal)
            np.testing.assert_allclose(law.tails(levels), known.tails(levels), atol=1e-12)


@pytest.mark.parametrize("neighbours", ["replace-one", "zero-out"])
def test_groups_in_batches_of_fixed_size_stay_finite(neighbours: str) -> None:
    """Hops between neighbours promised nothing to four records here."""
    once = SampledGaussian(sampling="fixed-size", rate=0.01, noise_multiplier=4.0, neighbours=neighbours)  # type: ignore[arg-type]
    found = [account_for(Repeat(of=once, times=1000), delta=1e-5, group=size).epsilon for size in (1, 2, 4)]
    assert found[0] < found[1] < found[2] < 5.2 * found[0]


def test_no_spread_of_a_group_over_a_public_order_is_worse_than_all_at_the_worst_place() -> None:
    rng = np.random.default_rng(5)
    for _ in range(60):
        rounds, group = int(rng.integers(2, 9)), int(rng.integers(2, 6))
        run = LastIterate(
            rounds=rounds, batch=group, step_size=tuple(rng.uniform(0.1, 1.9, rounds).tolist()), lipschitz=1.0,
            smoothness=1.0, strong_convexity=float(rng.choice([0.0, 0.3])), noise_std=float(rng.uniform(0.5, 4.0)),
            diameter=float(rng.uniform(0.5, 5.0)) if rng.integers(2) else None,
        )  # fmt: skip
        arrays = rounds_of(run)
        spread = np.bincount(rng.integers(0, rounds, group), minlength=rounds)
        shift = next(bound for bound in evaluators(run) if bound.name == "shift")
        certified = epsilon_of(for_group(shift, group), 1e-5)
        assert certified >= gaussian_epsilon(shift_mu(arrays, arrays.gap * spread), 1e-5) * (1 - 1e-6)


def test_a_group_moves_a_gaussian_sum_as_far_as_its_members_together() -> None:
    for neighbours, moved in (("replace-one", 2.0), ("zero-out", 1.0)):
        sums = Gaussian(noise_multiplier=7.0, neighbours=neighbours)  # type: ignore[arg-type]
        expected = gaussian_epsilon(5 * moved / 7.0, 1e-6)
        assert account_for(sums, delta=1e-6, group=5)["loss-distribution"].epsilon == pytest.approx(expected, rel=1e-7)
