"""DP-SGD whose records pick one round of each pass: draws, divisor, charges, promises to all, and what is refused."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedveil.accounting.compare import account_for
from fedveil.core.errors import BadValue
from fedveil.models.margin import Huber, Logistic, SmoothedHinge
from fedveil.models.rows import row_norms
from fedveil.models.softmax import Softmax
from fedveil.noise.entropy import Entropy
from fedveil.noise.grid import rounded_normal
from fedveil.planning.plan import read_plan, write_plan
from fedveil.planning.promises import ADVERSARIES, promise
from fedveil.planning.study import Study, study_of
from fedveil.privacy.guarantee import Answer
from fedveil.privacy.mechanism import Compose, Gaussian, IndependentGaussian, Repeat
from fedveil.stages.train.dpsgd.client import Client, Sampler
from fedveil.stages.train.dpsgd.clock import Journal
from fedveil.stages.train.dpsgd.steps import clients_of, train_dpsgd
from fedveil.stages.train.registry import assumptions_of
from unit.dpsgd_plans import dpsgd_plan, settings
from unit.plans import some_records

KEY = Entropy.from_seed(1)
INDEPENDENT: Any = "independent"


def study(
    algorithm: dict[str, Any],
    schedule: dict[str, Any] | None = None,
    trust: dict[str, Any] | None = None,
    **privacy: Any,
) -> Study:
    tables: dict[str, Any] = {"model": {"kind": "logistic"}, "privacy": {"epsilon": 2.0, "delta": 1e-4, **privacy}}
    tables |= {"algorithm": {"kind": "dpsgd", "sampling": "independent", **algorithm}, "schedule": schedule or {}}
    tables |= {} if trust is None else {"trust": trust}
    return study_of(tables, base=Path(), data_given=True)


@pytest.mark.parametrize("rounds", [1, 7, 10, 49])
def test_every_record_is_in_exactly_one_round_of_each_pass(rounds: int) -> None:
    sampler = Sampler(settings(rate=1 / rounds, rounds=3 * rounds), INDEPENDENT, 97, KEY, 4)
    passes = []
    for first in range(0, 3 * rounds, rounds):
        batches = [sampler.batch(turn) for turn in range(first, first + rounds)]
        assert sorted(np.concatenate(batches).tolist()) == list(range(97))
        assert all(np.all(np.diff(batch) > 0) for batch in batches)
        passes.append([batch.tolist() for batch in batches])
    assert rounds == 1 or (passes[0] != passes[1] != passes[2])
    # begun again, or asked for one round alone, the draws are the same
    again = Sampler(settings(rate=1 / rounds, rounds=3 * rounds), INDEPENDENT, 97, KEY, 4)
    assert again.batch(2 * rounds).tolist() == passes[2][0]
    other = Sampler(settings(rate=1 / rounds, rounds=3 * rounds), INDEPENDENT, 97, KEY, 5)
    assert rounds == 1 or other.batch(0).tolist() != passes[0][0]


def test_a_release_is_the_clipped_sum_plus_noise_over_the_planned_batch() -> None:
    records = some_records(200, clients=1)
    plan = dpsgd_plan(records, settings(clip=0.2), sampling=INDEPENDENT)
    client = Client(plan, plan.method, 0, records.features, records.targets, KEY)
    model, sizes = np.array([1.0, -2.0, 0.5]), set()
    for turn in range(5):
        chosen = client._sampler.batch(turn)
        sizes.add(chosen.size)
        quiet = np.zeros(3)
        for row, label in zip(records.features[chosen], records.targets[chosen], strict=True):
            gradient = (1 / (1 + np.exp(-row @ model)) - label) * row
            quiet += gradient * min(1.0, 0.2 / np.linalg.norm(gradient))
        noise = rounded_normal(KEY.stream("dpsgd noise 0", turn), 2.0 * 0.2 * 2.0**40, 3) * 2.0**-40
        np.testing.assert_allclose(client.release(model, turn), (quiet + noise) / 20, atol=1e-10)
    assert len(sizes) > 1  # so the divisor 20 was not the size of the batch


def test_an_empty_batch_sends_noise() -> None:
    records = some_records(40, clients=2)
    plan = dpsgd_plan(records, settings(rate=1 / 20, rounds=20), sampling=INDEPENDENT)
    empty = 0
    for client in clients_of(plan, plan.method, records, KEY):
        for turn in range(20):
            empty += client._sampler.batch(turn).size == 0
            assert np.all(client.release(np.zeros(3), turn) != 0)
    assert empty > 3  # a third of all, on average
    journal = Journal()
    train_dpsgd(plan, records, KEY, lambda done: None, journal=journal)
    assert len(journal.messages) == 40


@pytest.mark.parametrize(
    ("loss", "features"), [(Logistic(), 123), (Softmax(10), 37), (Softmax(3), 5), (Huber(), 8), (SmoothedHinge(), 33)]
)
def test_a_record_adds_the_same_bits_whoever_else_is_there(loss: Any, features: int) -> None:
    """The float sum does not: its last bits follow the size of the batch."""
    generator = np.random.default_rng(3)
    rows = generator.normal(size=(300, features))
    targets = generator.integers(0, max(loss.classes, 2), 300).astype(np.float64)
    model, norms, unit = generator.normal(size=loss.size(features)), row_norms(rows), 2.0**-44
    targets[7] = np.nan  # contributes nothing, wherever it is

    def added(chosen: Any) -> np.ndarray:
        return loss.gradient(model, rows[chosen], targets[chosen], clip=0.5, norms=norms[chosen], grain=unit)[0]

    alone = np.stack([added([k]) for k in range(300)])
    assert not alone[7].any()
    for share in np.linspace(0.01, 1.0, 30):
        chosen = np.flatnonzero(generator.random(300) < share)
        np.testing.assert_array_equal(added(chosen), alone[chosen].sum(axis=0))
        victim = int(generator.integers(300))
        without = chosen[chosen != victim]
        np.testing.assert_array_equal(added(np.append(without, victim)) - added(without), alone[victim])
    kept = np.delete(np.arange(300), 7)
    exact, dropped = loss.gradient(model, rows[kept], targets[kept], clip=0.5)
    assert dropped == 0
    np.testing.assert_allclose(added(kept), exact, atol=300 * unit)
    floats = [loss.gradient(model, rows[[k]], targets[[k]], clip=0.5)[0] for k in range(300)]
    assert not np.array_equal(np.sum(floats, axis=0), exact)  # what was done before


def test_a_client_rounds_each_record_on_its_own_also_in_large_batches() -> None:
    records = some_records(1500, features=9, clients=1)
    plan = dpsgd_plan(records, settings(clip=0.2), sampling=INDEPENDENT)
    client = Client(plan, plan.method, 0, records.features, records.targets, KEY)
    model = np.linspace(-1, 1, 9)
    alone = [client.total(model, np.array([k])) for k in range(1500)]
    for count in (1, 511, 512, 513, 1400):
        np.testing.assert_array_equal(client.total(model, np.arange(count)), np.sum(alone[:count], axis=0))
    norms = np.linalg.norm(alone, axis=1)
    assert norms.max() <= 0.2 * (1 + 1e-11)


def test_charges() -> None:
    one = settings(rate=0.1, rounds=25)
    once = IndependentGaussian(rounds=10, noise_multiplier=2.0)
    assert one.charged(INDEPENDENT, "individual", "zero-out") == Repeat(of=once, times=3)  # the third was only begun
    half = dataclasses.replace(once, noise_multiplier=1.0)
    assert one.charged(INDEPENDENT, "batch", "zero-out") == Repeat(of=half, times=3)
    swap = dataclasses.replace(once, neighbours="replace-one")
    assert one.charged(INDEPENDENT, "individual", "replace-one") == Repeat(of=swap, times=3)


@pytest.mark.parametrize("neighbours", ["zero-out", "replace-one"])
@pytest.mark.parametrize("clipping", ["individual", "batch"])
def test_a_study_is_planned_and_all_rows_are_amplified(neighbours: str, clipping: str) -> None:
    """Every client sends in each of its rounds with noise of its own: nobody who looks learns the draws."""
    records = some_records(400, clients=2)
    given, schedule = {"clipping": clipping, "clip": [0.5, 0.25]}, {"rounds": 10, "passes": 2}
    target = {"neighbours": neighbours, "epsilon": 0.7}
    if neighbours == "replace-one":  # not calibrated: an exchange takes long to work out again and again
        given["noise_multiplier"], target["epsilon"] = 8.0, 2.0
    plan = study(given, schedule, {"noise": "local"}, **target).planned(records.shape).plan
    assert read_plan(write_plan(plan)) == plan
    assert {(p.rate, p.rounds) for p in plan.method.client_settings} == {(0.1, 20)}
    rows = [promise(plan, adversary).epsilon for adversary in ADVERSARIES]
    assert len(set(rows)) == 1
    assert neighbours == "replace-one" or 0.69 < rows[0] <= 0.7
    known = dataclasses.replace(plan, method=dataclasses.replace(plan.method, sampling="shuffled"))
    assert promise(known, "server-with-secure-aggregation").epsilon > 1.5 * rows[0]
    charged = plan.method.client_settings[0].charged(INDEPENDENT, clipping, neighbours)  # type: ignore[arg-type]
    assert account_for(charged, delta=1e-4).epsilon == pytest.approx(rows[0], rel=1e-3)
    trained = train_dpsgd(plan, records, KEY, lambda done: None)
    assert np.linalg.norm(trained.model) <= plan.radius


def test_the_certificate_says_why_the_server_learns_no_draws() -> None:
    records = some_records(60, clients=2)
    for sampling, there in ((INDEPENDENT, True), ("shuffled", False)):
        plan = dpsgd_plan(records, sampling=sampling)
        for adversary in ADVERSARIES:
            rows = assumptions_of(plan.method, adversary, plan.setup)
            assert ("every client takes part in each of its rounds" in [name for name, _, _ in rows]) == there
            how = {name: why for name, _, why in rows}["sampling rate"]
            assert ("picks one round of each pass" in how) == there


def lower_of(found: Answer) -> float:
    return next(bound.epsilon_lower or 0.0 for bound in found.bounds if bound.name == "loss-distribution")


def test_zero_out_is_certified_from_both_sides() -> None:
    one = settings(rate=1 / 20, rounds=60, noise=2.0).charged(INDEPENDENT, "individual", "zero-out")
    found = account_for(one, delta=1e-5)
    assert 0.98 * found.epsilon < lower_of(found) <= found.epsilon


@pytest.mark.parametrize(("noise", "passes"), [(0.6, 3), (0.4, 1), (0.3, 3)])
def test_with_very_little_noise_a_secret_round_is_never_worse_than_a_known_one(noise: float, passes: int) -> None:
    """Where the grids of secret rounds end, the round counts as known; of that there is no lower value."""
    drawn = Repeat(of=IndependentGaussian(rounds=4, noise_multiplier=noise), times=passes)
    known = account_for(Repeat(of=Gaussian(noise_multiplier=noise), times=passes), delta=1e-5)
    found = account_for(drawn, delta=1e-5)
    assert 0 < found.epsilon <= known.epsilon * (1 + 1e-12)
    assert account_for(drawn, epsilon=found.epsilon).delta <= 1e-5 * (1 + 1e-6)
    assert noise > 0.4 or lower_of(found) == 0.0
    with_more = account_for(Compose(parts=(drawn, Gaussian(noise_multiplier=1.0))), delta=1e-5)
    assert found.epsilon < with_more.epsilon < known.epsilon + 20


@pytest.mark.parametrize(
    ("algorithm", "schedule", "sentence"),
    [
        ({"rate": 0.1}, {}, 'algorithm.rate must be left out with sampling = "independent", got 0.1. Every record'),
        ({"rate": [0.1, 0.2]}, {}, "algorithm.rate must be left out"),
        ({}, {"rounds": 31}, "schedule.rounds must be at most the 30 records of the smallest client"),
        ({}, {"batch": 1}, "schedule.rounds must be at most the 30 records of the smallest client"),
        ({}, {"batch": 61}, "schedule.batch must be at most the 60 records, got 61."),
        (
            {},
            {"rounds": 10, "batch": 20},
            "schedule.batch must make the 10 rounds of a pass that schedule.rounds states",
        ),
        ({}, {"batch": [3, 4]}, "schedule.batch must be one number for dpsgd"),
        ({"optimizer": {"momentum": 1.0}}, {}, "algorithm.optimizer.momentum must lie in [0, 1)"),
        ({"clipping": "none"}, {}, "algorithm.clipping must be one of individual, batch"),
    ],
)
def test_what_does_not_fit_is_refused(algorithm: dict[str, Any], schedule: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadValue, match=re.escape(sentence)):
        study(algorithm, schedule).planned(some_records(60, clients=2).shape)


def test_what_the_schedule_says_is_done() -> None:
    records = some_records(400, clients=2)
    for schedule, picked in (({"rounds": 8}, 8), ({"batch": 40}, 10), ({"rounds": 10, "batch": 40}, 10), ({}, 20)):
        plan = study({"noise_multiplier": 9.0}, {**schedule, "passes": 3}).planned(records.shape).plan
        made = plan.method.client_settings[0]
        assert (made.batches_a_pass, made.rounds) == (picked, 3 * picked)


def test_a_plan_whose_rate_is_no_whole_number_of_rounds_is_refused() -> None:
    with pytest.raises(BadValue, match="one over the rounds of a pass for independent sampling"):
        dpsgd_plan(some_records(60, clients=2), settings(rate=0.3), sampling=INDEPENDENT)
