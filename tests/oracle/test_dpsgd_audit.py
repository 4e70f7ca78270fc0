"""Noise, clipping and sampling audited from outside; false alarms below 1e-6, stated test by test."""

import numpy as np
import pytest
from scipy import stats

from fedveil.accounting.compare import account_for
from fedveil.noise.entropy import Entropy
from fedveil.stages.train.dpsgd.client import Client, Sampler
from unit.dpsgd_plans import dpsgd_plan, settings
from unit.plans import some_records

KEY = Entropy.from_seed(11)
ALARM = 1e-7


def noise_is_right(values: np.ndarray, deviation: float) -> bool:
    """Two-sided test of the variance of centred normals, level ALARM."""
    statistic = float(np.sum((values / deviation) ** 2))
    return bool(stats.chi2.ppf(ALARM / 2, values.size) < statistic < stats.chi2.isf(ALARM / 2, values.size))


def releases(noise: float, rounds: int = 400, features: int = 10) -> np.ndarray:
    records = some_records(50, features=features, clients=1)
    plan = dpsgd_plan(records, settings(rate=1e-9, rounds=rounds, noise=noise))
    client = Client(plan, plan.method, 0, records.features, records.targets, KEY)
    sums = [client.release(np.zeros(features), turn) * client.divisor for turn in range(rounds)]
    return np.concatenate(sums)


def test_the_noise_has_the_stated_deviation_and_ten_per_cent_less_is_caught() -> None:
    # 4000 normals: the deviation is known to 1.1 %; 10 % less is 9 of its standard errors away
    assert noise_is_right(releases(2.0), 2.0 * 0.5)
    assert not noise_is_right(releases(1.8), 2.0 * 0.5)


def test_every_record_moves_the_sum_by_at_most_the_clip() -> None:
    records = some_records(200, features=4, clients=1, seed=3)
    plan = dpsgd_plan(records, settings(clip=0.1, rate=1.0))
    client = Client(plan, plan.method, 0, records.features, records.targets, KEY)
    model = np.array([5.0, -5.0, 5.0, 0.0])
    norms = [np.linalg.norm(client.total(model, np.array([k]))) for k in range(200)]
    assert 0.0999 < max(norms) <= 0.1 * (1 + 1e-12)  # clipped, and no more


def test_poisson_coins_are_independent_with_the_stated_rate() -> None:
    rate, records, rounds = 0.3, 100, 2000
    sampler = Sampler(settings(rate=rate), "poisson", records, KEY, 0)
    joined = np.zeros((rounds, records), dtype=bool)
    for turn in range(rounds):
        joined[turn, sampler.batch(turn)] = True
    level = ALARM / (records + 2)
    for count in joined.sum(axis=0):
        assert stats.binomtest(int(count), rounds, rate).pvalue > level
    assert stats.binomtest(int(joined.sum()), rounds * records, rate).pvalue > level
    # sizes vary as independent coins do: a fixed or shuffled batch has variance 0
    spread = joined.sum(axis=1).var() * rounds / (records * rate * (1 - rate))
    assert stats.chi2.ppf(level / 4, rounds) * 0.95 < spread < stats.chi2.isf(level / 4, rounds) * 1.05


def test_fixed_batches_are_uniform_sets() -> None:
    sampler = Sampler(settings(rate=0.5), "fixed-size", 4, KEY, 0)
    sets = [tuple(sampler.batch(turn).tolist()) for turn in range(6000)]
    found, counts = np.unique(np.array(sets), axis=0, return_counts=True)
    assert len(found) == 6
    assert stats.chisquare(counts).pvalue > ALARM


@pytest.mark.parametrize("rounds", [10, 40])
def test_a_shuffled_loader_charged_as_poisson_would_be_caught(rounds: int) -> None:
    """Shuffled, a record surely takes part in each pass; the Poisson charge counts on its absence and is far lower."""
    one = settings(rate=0.1, rounds=rounds)
    sampler = Sampler(one, "shuffled", 100, KEY, 0)
    uses = np.zeros(100, dtype=int)
    for turn in range(rounds):
        uses[sampler.batch(turn)] += 1
    assert np.all(uses == rounds // 10)
    # what an attacker of a record that is used so often gets from Gaussians alone is a floor for any certificate
    floor = account_for(one.charged("shuffled", "individual", "zero-out"), delta=1e-5).epsilon
    mu = np.sqrt(uses[0]) / one.noise
    exact = stats.norm.sf(floor / mu - mu / 2) - np.exp(floor) * stats.norm.sf(floor / mu + mu / 2)
    assert exact == pytest.approx(1e-5, rel=1e-4)
    assert account_for(one.charged("poisson", "individual", "zero-out"), delta=1e-5).epsilon < 0.7 * floor


def test_a_divisor_by_the_actual_size_would_be_caught() -> None:
    """With equal gradients the mean over the actual size would not vary; over the planned one it follows the coins."""
    records = some_records(50, features=1, clients=1)
    plan = dpsgd_plan(records, settings(rate=0.5, noise=1e-6))
    client = Client(plan, plan.method, 0, np.ones((50, 1)), np.ones(50), KEY)
    means = np.array([client.release(np.zeros(1), turn)[0] for turn in range(10)])
    sizes = np.array([client._sampler.batch(turn).size for turn in range(10)])
    np.testing.assert_allclose(means, -0.5 * sizes / 25, atol=1e-5)
    assert np.unique(sizes).size > 1
