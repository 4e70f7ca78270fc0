"""Orders in which every record draws its own rounds: the words, the refusals, the numbers that were promised."""

import math
from typing import Any

import numpy as np
import pytest

from fedveil import account_for, calibrate, parse_mechanism, place_curve
from fedveil.accounting.observers import Participation, observe
from fedveil.accounting.sampled import hidden_pairs
from fedveil.core.errors import BadValue
from fedveil.privacy.mechanism import IndependentGaussian, LastIterate, Repeat, SampledGaussian, ShuffledGaussian
from fedveil.privacy.mechanism_file import last_iterate_table, mechanism_of
from fedveil.theory.closing import Part, Shape, at_once, check_plan, joint_lengths, lengths, plan
from fedveil.theory.composition import worst_bracket, worst_upper
from fedveil.theory.concentrated import gaussian_epsilon
from fedveil.theory.fixed_size import ZeroedBatchLaw, sharing
from fedveil.theory.mixture_law import MixtureLaw
from fedveil.theory.renyi import greatest_power
from fedveil.theory.rounds import Rounds

DELTA = 1e-5


def run(**changes: Any) -> LastIterate:
    values: dict[str, Any] = {
        "rounds": 1000,
        "order": "poisson",
        "rate": 0.01,
        "step_size": 0.5,
        "lipschitz": 1.0,
        "smoothness": 0.05,  # so that steps contract however many are likely to join
        "noise_std": 1.0,
        "neighbours": "zero-out",
    }
    return LastIterate(**{**values, **changes})


def scattered(**changes: Any) -> LastIterate:
    return run(**{"order": "independent", "rate": None, "rounds": 500, **changes})


def dp_sgd(text: str, **options: Any) -> Any:
    return account_for(parse_mechanism(f'[mechanism]\nkind = "dp-sgd"\n{text}'), delta=DELTA, **options)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"rate": 64.0}, r"LastIterate.rate must lie in \(0, 1\], got 64.0. Is it a batch size?"),
        ({"rate": 0.0}, r"must lie in \(0, 1\]"),
        ({"rate": math.nan}, r"must lie in \(0, 1\]"),
        ({"rate": None}, "rate must be given when the order is poisson"),
        ({"rate": 0.001, "records": 100}, "expect at least one of the 100 records a round"),
        ({"order": "independent"}, "rate must be at most one over the rounds, 1000, when the order is independent"),
        ({"order": "independent", "rate": None, "records": 999}, "records must be at least rounds, 1000"),
        ({"place": 3}, "place must be left out when the order is poisson"),
        ({"order": "secret"}, "rate must go with order poisson or independent"),
        ({"noise": "laplace"}, "noise must be gaussian when the order is poisson"),
        ({"largest_batch": 5}, "records must be given beside largest_batch"),
    ],
)
def test_bad_draws_get_one_sentence(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadValue, match=sentence):
        run(**changes)


@pytest.mark.parametrize("bad", ["rate = 0.3", "rate = 0.0", "rate = 2.0"])
def test_an_independent_pass_has_whole_rounds(bad: str) -> None:
    with pytest.raises(BadValue, match=r"mechanism.rate must"):
        dp_sgd(f'sampling = "independent"\n{bad}\nrounds = 10\nnoise_multiplier = 1.0')


def test_files_read_back_and_old_ones_are_as_they_were() -> None:
    for one in (run(), scattered(records=600, largest_batch=9), run(passes=3, rounds=10)):
        assert mechanism_of({k: v for k, v in last_iterate_table(one).items() if v is not None}) == one
    plain = LastIterate(rounds=4, step_size=0.5, lipschitz=1.0, noise_std=1.0)
    assert {k for k, v in last_iterate_table(plain).items() if v is None} >= {"rate", "largest_batch"}
    text = '[mechanism]\nkind = "dp-sgd"\nsampling = "independent"\nrecords = 1000\nbatch = 20\nrounds = 120\n'
    once = IndependentGaussian(rounds=50, noise_multiplier=1.0)
    assert parse_mechanism(text, default_noise=1.0) == Repeat(of=once, times=3)


@pytest.mark.parametrize(
    ("rate", "noise", "rounds", "most", "attained"),
    [
        (0.01, 1.0, 1000, 1.345, 1.28),
        (0.001, 0.6, 10000, 0.65, 0.61),
        (256 / 60000, 1.1, 3525, 0.892, 0.87),
        (256 / 60000, 0.6, 3525, 2.07, 1.76),
        (0.01, 0.5, 1000, 5.77, 3.60),
    ],
)
def test_poisson_last_model(rate: float, noise: float, rounds: int, most: float, attained: float) -> None:
    found = account_for(run(rate=rate, noise_std=noise, rounds=rounds), delta=DELTA)
    assert attained <= found.epsilon <= most
    assert found.certified_by == "sampled-shift"
    assert found.epsilon < found["unhidden"].epsilon


@pytest.mark.parametrize(("rate", "noise", "rounds"), [(0.01, 1.0, 300), (0.05, 0.6, 60), (0.9, 2.0, 12)])
@pytest.mark.parametrize("way", ["present", "null", "exchange"])
def test_never_below_what_linear_losses_attain(rate: float, noise: float, rounds: int, way: Any) -> None:
    """Linear losses: every contribution moves the last model alike, so a binomial number of shifts is exact."""
    heads = np.arange(rounds + 1)
    logs = [math.lgamma(rounds + 1) - math.lgamma(h + 1) - math.lgamma(rounds - h + 1) for h in heads]
    weights = np.exp(np.array(logs) + heads * math.log(rate) + (rounds - heads) * math.log1p(-rate))
    kept = weights > 1e-30
    shift = 1 / (noise * math.sqrt(rounds))
    law = MixtureLaw(tuple(heads[kept] * shift), tuple(weights[kept] / weights[kept].sum()), way)
    attained = worst_bracket([[(law, 1)]], DELTA).lower
    kind = "replace-one" if way == "exchange" else "zero-out"
    found = account_for(run(rate=rate, noise_std=noise, rounds=rounds, neighbours=kind), delta=DELTA)
    assert attained <= found.epsilon


def test_both_directions_count() -> None:
    """Zero-out has two: the record's presence shown, and its absence; an exchange is its own mirror image."""
    one = run(rate=0.3, rounds=9, noise_std=2.0)
    pairs = hidden_pairs(one, 1, DELTA)
    assert [{law.way for law, _ in uses} for uses in pairs.alternatives] == [{"present"}, {"null"}]  # type: ignore[attr-defined]
    values = [worst_upper([uses], DELTA) for uses in pairs.alternatives]
    assert account_for(one, delta=DELTA)["sampled-shift"].epsilon == pytest.approx(max(values), rel=1e-9)
    scattering = hidden_pairs(scattered(rounds=9, noise_std=2.0), 1, DELTA)
    assert [law.way for uses in scattering.alternatives for law, _ in uses] == ["present", "null"]  # type: ignore[attr-defined]
    exchanged = hidden_pairs(run(rate=0.3, rounds=9, noise_std=2.0, neighbours="replace-one"), 1, DELTA)
    assert {law.way for uses in exchanged.alternatives for law, _ in uses} == {"exchange"}  # type: ignore[attr-defined]


@pytest.mark.parametrize("rounds", [2, 7, 1000])
def test_every_coin_is_in_exactly_one_part(rounds: int) -> None:
    """The chance that no coin of any part shows heads is that of all coins: none left out, none counted twice."""
    for one in (
        run(rounds=rounds, rate=0.02),
        run(rounds=rounds, rate=0.02, step_size=tuple(np.linspace(1, 2, rounds))),
    ):
        pairs = hidden_pairs(one, 1, DELTA)
        for uses in (pairs.forward, pairs.backward):
            nobody = sum(times * math.log(law.weights[0]) for law, times in uses)  # type: ignore[attr-defined]
            assert nobody == pytest.approx(rounds * math.log1p(-0.02), rel=1e-9)


def test_plans_that_forget_or_reuse_are_refused() -> None:
    good = plan(40, Shape(3, 2, 0.5, 8))
    check_plan(good, 40)
    for bad in (good[1:], [*good, good[-1]], [Part(0, 20, 20, 40), Part(20, 40, 30, 40)], [Part(0, 40, 0, 30)]):
        with pytest.raises(BadValue):
            check_plan(bad, 40)
    check_plan(at_once(5), 5)
    check_plan([Part(0, 20, 0, 40, 0.25), Part(20, 40, 20, 40, 0.75)], 40)
    with pytest.raises(BadValue, match="use the noise of a round once"):
        check_plan([Part(0, 20, 0, 40, 0.25), Part(20, 40, 20, 40, 0.76)], 40)


def test_a_small_domain_counts_only_where_a_window_follows_all_its_victims_and_is_theirs_alone() -> None:
    one = np.ones(4)
    narrow, wide = (Rounds(one, one, 2 * one, one, np.full(4, math.inf), size) for size in (1e-3, math.inf))
    assert lengths(narrow, Part(0, 2, 2, 4)).tolist() == pytest.approx([1e-3 / math.sqrt(2)] * 2, rel=1e-9)
    for part in (Part(0, 4, 0, 4), Part(0, 2, 2, 4, 0.5)):
        assert lengths(narrow, part).tolist() == lengths(wide, part).tolist()
    whole, half = Part(0, 4, 0, 4), Part(0, 4, 0, 4, 0.5)
    pairs = np.array([[0, 1], [1, 3]])
    assert joint_lengths(wide, half, pairs) == pytest.approx(joint_lengths(wide, whole, pairs) * math.sqrt(2), rel=1e-9)


def test_independent_numbers() -> None:
    seen = dp_sgd('sampling = "independent"\nrecords = 1000\nbatch = 20\nnoise_multiplier = 2.683\nrounds = 50')
    row = seen["loss-distribution"]
    assert row.epsilon <= 0.180
    assert row.epsilon_lower >= 0.176
    found = account_for(scattered(), delta=DELTA)
    assert found["unhidden"].epsilon <= 0.2125
    assert found.epsilon <= 0.154
    several = account_for(scattered(passes=4), delta=DELTA)
    assert found.epsilon < several.epsilon < several["unhidden"].epsilon
    limit = account_for(scattered(rounds=5000, noise_std=20.0, neighbours="replace-one"), delta=DELTA).epsilon
    assert gaussian_epsilon(2 / (20 * math.sqrt(5000)), DELTA) * 0.999 <= limit
    assert limit <= 1.03 * gaussian_epsilon(2 / (20 * math.sqrt(5000)), DELTA)


def test_one_round_a_pass_hides_nothing() -> None:
    one = account_for(scattered(rounds=1, passes=4, noise_std=2.0), delta=DELTA)
    assert one["unhidden"].epsilon == pytest.approx(gaussian_epsilon(1.0, DELTA), rel=1e-3)


def test_strong_convexity_and_a_bounded_domain_help() -> None:
    plain = account_for(run(rounds=200, rate=0.05), delta=DELTA).epsilon
    curved = account_for(run(rounds=200, rate=0.05, strong_convexity=0.2, smoothness=0.25), delta=DELTA).epsilon
    narrow = account_for(run(rounds=200, rate=0.05, diameter=0.05), delta=DELTA).epsilon
    assert curved < 0.8 * plain
    assert narrow < plain
    rough = account_for(run(rounds=200, rate=0.05, smoothness=None), delta=DELTA)
    assert rough["sampled-shift"].status == "does-not-apply"
    assert rough.certified_by == "unhidden"


def test_calibration_meets_its_target_and_composition_adds() -> None:
    factor, noisy = calibrate(run(rounds=200, rate=0.02), epsilon=1.0, delta=DELTA)
    assert account_for(noisy, delta=DELTA).epsilon <= 1.0
    assert account_for(run(rounds=200, rate=0.02, noise_std=0.99 * factor), delta=DELTA).epsilon > 1.0
    one = account_for(noisy, delta=DELTA).epsilon
    two = account_for(Repeat(of=noisy, times=2), delta=DELTA).epsilon
    assert one < two < 2 * one


def test_groups_and_places() -> None:
    small = run(rounds=100, rate=0.02, noise_std=2.0)
    values = [account_for(small, delta=DELTA, group=g).epsilon for g in (1, 2, 4)]
    assert values[0] < values[1] < values[2] < 8 * values[0]
    with pytest.raises(BadValue, match="every record draws its own rounds"):
        place_curve(small, delta=DELTA)


def test_whoever_knows_the_draws_gets_no_amplification() -> None:
    one = run(rounds=50, rate=0.02, batch=20, records=1000, noise_std=0.6)
    rows = ("final-model", "every-model", "server-with-secure-aggregation")
    inside = [observe(one, row, Participation(clients=10, every_round=True), delta=DELTA).epsilon for row in rows]
    outside = observe(one, rows[-1], Participation(clients=10, every_round=False), delta=DELTA).epsilon
    assert inside[0] <= inside[1] == pytest.approx(inside[2], rel=1e-6)
    mu = math.sqrt(50) / (0.6 * math.sqrt(20))
    assert outside >= gaussian_epsilon(mu, DELTA) * 0.999
    whole = replaced = scattered(rounds=50, noise_std=2.0, records=100)
    known = observe(replaced, rows[-1], Participation(clients=10, every_round=False), delta=DELTA).epsilon
    assert known == pytest.approx(gaussian_epsilon(0.5, DELTA), rel=1e-3)
    assert account_for(whole, delta=DELTA).epsilon < known


def test_zeroed_fixed_batches() -> None:
    found = dp_sgd('sampling = "fixed-size"\nrate = 0.05\nnoise_multiplier = 2.0\nrounds = 400')["loss-distribution"]
    assert 4.01 <= found.epsilon_lower <= 4.05 <= found.epsilon <= 4.29
    once = SampledGaussian(sampling="fixed-size", rate=0.05, noise_multiplier=2.0, neighbours="replace-one")
    assert found.epsilon < 0.6 * account_for(Repeat(of=once, times=400), delta=DELTA).epsilon


@pytest.mark.parametrize("gamma", [0.3, 0.9, 1.0, 1.2, 4.0])
@pytest.mark.parametrize("away", [-1.0, -0.5, 0.0, 0.7, 1.0])
def test_zeroed_batches_dominate_every_further_record(gamma: float, away: float) -> None:
    mu, q = 0.8, 0.3
    x = np.linspace(-10, 12, 200_001)

    def density(mean: float) -> Any:
        return np.exp(-((x - mean) ** 2) / 2) / math.sqrt(2 * math.pi)

    p, other = ((1 - q) * density(away * mu) + q * density(v) for v in (mu, 0.0))
    for removal, (one, two) in ((True, (p, other)), (False, (other, p))):
        exact = float(np.maximum(one - gamma * two, 0.0).sum() * (x[1] - x[0]))
        tails = ZeroedBatchLaw(mu, q, removal).tails(np.array([math.log(gamma)]))
        assert exact <= float(tails.p_above[0] - gamma * tails.q_above[0]) + 1e-6


def test_groups_share_batches_by_chance() -> None:
    text = 'sampling = "shuffled"\nnoise_multiplier = 4.0\nrounds = 50\nneighbours = "replace-one"\n'
    for size, most in ((1, 4.984), (2, 8.42), (4, 14.55)):
        apart = dp_sgd(text + "rate = 0.1", group=size)["loss-distribution"]
        exact = dp_sgd(text + "records = 100\nbatch = 10", group=size)["loss-distribution"]
        assert exact.epsilon <= apart.epsilon * (1 + 1e-9)
        assert apart.epsilon <= most
    assert sharing(2, 10, 10) == pytest.approx({2: 90 / 99, 4: 9 / 99})
    assert sharing(3, 5, None)[9] == pytest.approx(1 / 25)
    assert sharing(4, 4, 1) == {4: 1.0}
    for limit in (6, 8, 10, 16):  # placed independently members share more, stochastically
        loose, strict = (sharing(4, 10, size) for size in (None, 3))
        assert sum(w for s, w in strict.items() if s >= limit) <= sum(w for s, w in loose.items() if s >= limit)
    assert ShuffledGaussian(batches=3, noise_multiplier=2.0).mu == 0.5


def test_renyi_privacy_as_a_test() -> None:
    assert 0.105 < greatest_power(10.0, 0.5, 0.05) <= 0.106
    assert greatest_power(10.0, 0.0, 0.05) == pytest.approx(0.05, rel=1e-6)
    assert greatest_power(2.0, 50.0, 0.05) > 0.99
