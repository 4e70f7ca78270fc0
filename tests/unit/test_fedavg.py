"""A round of fedavg does what the plan says: cohort, local training, clipping, exact sums, noise, fixed divisor."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom, chi2

from fedveil.core.errors import BadValue
from fedveil.data.records import Records
from fedveil.engine.train import train
from fedveil.models.spec import ModelPlan
from fedveil.noise.entropy import Entropy
from fedveil.planning.plan import Plan, read_plan, write_plan
from fedveil.privacy.target import Target
from fedveil.stages.train.fedavg.acts import cohort_of
from fedveil.stages.train.fedavg.method import FedAvg, LocalSteps
from fedveil.stages.train.fedavg.steps import clipped, noise_of, weights_of
from fedveil.stages.train.optimiser import Optimiser
from unit.plans import some_records

KEY = Entropy.from_seed(11)
ADAM = Optimiser(kind="adam", momentum=0.5, beta2=0.9, floor=0.01)
PULLED = LocalSteps(epochs=2, step=0.5, proximal=0.7)


def method(**changes: object) -> FedAvg:
    settings: dict[str, object] = {
        "rounds": 3,
        "sampling": "all",
        "cohort": 12,
        "local": LocalSteps(epochs=2, step=0.5),
        "update_norm": 0.1,
        "server_step": 3.0,
        "optimiser": Optimiser(momentum=0.5),
        "noise_multiplier": 0.7,
    }
    return FedAvg(**(settings | changes))  # type: ignore[arg-type]


def plan_of(records: Records, found: FedAvg, **model: object) -> Plan:
    return Plan(
        name="trial",
        data=records.shape,
        model=ModelPlan(kind="logistic", classes=2, **model),  # type: ignore[arg-type]
        target=Target(epsilon=5.0, delta=1e-5, unit="client"),
        method=found,
        grid=-42,
        seeded=True,
    )


def trained(plan: Plan, records: Records, key: Entropy = KEY) -> np.ndarray:
    return train(plan, records, key).model


def by_hand(plan: Plan, records: Records) -> np.ndarray:
    """The same run record by record, in plain floats, sharing nothing with the trainer but cohorts and noise."""
    found = plan.method
    assert isinstance(found, FedAvg)
    lipschitz = plan.constants.lipschitz
    model, speed, squares = np.zeros(plan.dimension), np.zeros(plan.dimension), np.zeros(plan.dimension)
    for turn in range(found.rounds):
        total = noise_of(found, plan.dimension, 2.0**plan.grid, KEY, turn) * 2.0**plan.grid
        for client in cohort_of(found, records.clients, KEY, turn):
            mine, local = records.owner == client, model
            for _ in range(found.local.epochs):
                gradient = np.zeros(plan.dimension)
                for row, target in zip(records.features[mine], records.targets[mine], strict=True):
                    one = (1 / (1 + np.exp(-row @ local)) - target) * row
                    gradient += one * min(1.0, lipschitz / max(np.linalg.norm(one), 1e-300))
                pull = plan.model.l2 * local + found.local.proximal * (local - model)
                local = local - found.local.step * (gradient / mine.sum() + pull)
            weight = 1.0 if found.weights == "uniform" else min(mine.sum(), found.most_records) / found.most_records
            change = local - model
            total += weight * change * min(1.0, found.update_norm / np.linalg.norm(change))
        mean = total / found.divisor(plan.data)
        server = found.optimiser
        if server.kind == "adam":
            beta2, floor = server.beta2, server.floor
            speed = server.momentum * speed + (1 - server.momentum) * mean
            squares = beta2 * squares + (1 - beta2) * mean * mean
            root = np.sqrt(squares / (1 - beta2 ** (turn + 1))) + floor
            model = model + found.server_step * speed / (1 - server.momentum ** (turn + 1)) / root
        else:
            speed = server.momentum * speed + mean
            model = model + found.server_step * speed
        norm = np.linalg.norm(model)
        model = model if norm <= plan.radius else model * plan.radius / norm
    return model


@pytest.mark.parametrize(
    ("changes", "settings"),
    [
        ({}, {}),
        ({"sampling": "poisson", "cohort": 4.5}, {"l2": 0.2, "clip": 0.05}),
        ({"sampling": "fixed-size", "cohort": 5, "noise": "shared"}, {"radius": 0.3}),
        ({"most_records": 4, "update_norm": 5.0}, {}),
        ({"noise": "none", "noise_multiplier": 0.0, "update_norm": 1e6}, {}),
        ({"optimiser": Optimiser(kind="adam", momentum=0.9), "server_step": 0.1, "rounds": 6}, {"l2": 0.1}),
        ({"optimiser": ADAM, "server_step": 0.1, "local": PULLED}, {}),
        ({"sampling": "independent", "cohort": 4, "picks": 3, "local": PULLED, "optimiser": Optimiser()}, {}),
    ],
)
def test_the_run_is_the_one_that_the_plan_describes(changes: dict[str, object], settings: dict[str, object]) -> None:
    records = uneven()
    plan = plan_of(records, method(**changes), **settings)
    assert trained(plan, records) == pytest.approx(by_hand(plan, records), abs=1e-6)


def uneven() -> Records:
    base = some_records(count=60, clients=60)
    owner = np.repeat(np.arange(12), [3, 7] * 6)[np.random.default_rng(0).permutation(60)]
    return replace(base, owner=owner, clients=12, names=())


def test_local_batches_use_every_record_once_an_epoch() -> None:
    """Batches of one with a tiny step add up to one full step; a new order in every round and client."""
    records = some_records(clients=12)
    whole = method(noise="none", noise_multiplier=0.0, update_norm=1e6, local=LocalSteps(step=1e-6), rounds=1)
    single = replace(whole, local=LocalSteps(batch=1, step=1e-6 / 5))
    found, other = (trained(plan_of(records, m), records) for m in (whole, single))
    assert found == pytest.approx(other, rel=1e-4)


def test_noise_is_what_the_accountant_is_told() -> None:
    """2000 rounds of 50 coordinates against the stated deviation: 10% less is far outside; false alarm 2e-7."""
    found, unit = method(noise_multiplier=1.7, update_norm=0.3), 2.0**-40
    drawn = np.concatenate([noise_of(found, 50, unit, KEY, turn) for turn in range(2000)])
    ratio = float(np.sum((drawn * unit / (1.7 * 0.3)) ** 2))
    low, high = chi2.ppf(1e-7, drawn.size), chi2.isf(1e-7, drawn.size)
    assert low < ratio < high
    assert not low < ratio * 0.9**2 < high


def test_poisson_cohorts_have_the_planned_rate() -> None:
    """Every client and every pair of clients over 4000 rounds; each of the 78 checks fails by chance in 1e-9."""
    found, rounds = method(sampling="poisson", cohort=3.6), 4000
    joined = np.zeros((rounds, 12), dtype=np.int64)
    for turn in range(rounds):
        joined[turn, cohort_of(found, 12, KEY, turn)] = 1
    together = joined.T @ joined
    for a in range(12):
        for b in range(a + 1):
            chance = 0.3 if a == b else 0.09
            assert binom.ppf(5e-10, rounds, chance) <= together[a, b] <= binom.isf(5e-10, rounds, chance)
    assert joined.sum(axis=1).std() > 0


def test_fixed_cohorts_have_their_size_and_every_client_is_as_likely() -> None:
    """4000 rounds, 12 checks that fail by chance in 1e-8 each."""
    found, rounds = method(sampling="fixed-size", cohort=3), 4000
    cohorts = [cohort_of(found, 12, KEY, turn) for turn in range(rounds)]
    assert all(np.unique(cohort).size == 3 for cohort in cohorts)
    for count in np.bincount(np.concatenate(cohorts), minlength=12):
        assert binom.ppf(5e-9, rounds, 0.25) <= count <= binom.isf(5e-9, rounds, 0.25)


def test_an_empty_cohort_still_sends_noise_over_the_planned_divisor() -> None:
    records = some_records(clients=12)
    found = method(sampling="poisson", cohort=1e-6, rounds=1, optimiser=Optimiser(), server_step=1e-6)
    plan = plan_of(records, found)
    assert cohort_of(found, 12, KEY, 0).size == 0
    noise = noise_of(found, plan.dimension, 2.0**plan.grid, KEY, 0) * 2.0**plan.grid
    assert np.all(noise != 0)
    assert trained(plan, records) == pytest.approx(noise, rel=1e-12)


def test_the_divisor_is_planned_whoever_answers() -> None:
    shape = uneven().shape
    assert method(sampling="poisson", cohort=4.5).divisor(shape) == 4.5
    assert method(most_records=7).divisor(shape) == pytest.approx(60 / 7)
    assert method(most_records=1).divisor(shape) == 12
    heavy = weights_of(method(most_records=4), uneven().sizes)
    assert heavy.max() == 1.0
    assert heavy.min() == 0.75


def test_an_update_that_is_no_number_is_a_dropout() -> None:
    records = some_records(clients=12)
    plan = plan_of(records, method(local=LocalSteps(epochs=40, step=1e9), noise="none", noise_multiplier=0.0), l2=1e9)
    done = train(plan, records, KEY)
    assert done.dropped == 3 * 12
    assert np.array_equal(done.model, np.zeros(3))
    assert clipped(np.array([np.inf, 0.0]), 1.0, 1.0, 0.5) is None
    assert np.array_equal(clipped(np.zeros(2), 1.0, 1.0, 0.5), np.zeros(2))  # type: ignore[arg-type]


def test_the_same_key_gives_the_same_bytes_and_traffic_is_counted() -> None:
    records = some_records(clients=12)
    plan, seen = plan_of(records, method(local=LocalSteps(epochs=2, batch=2, step=0.5))), list[int]()
    first = train(plan, records, KEY, watch=lambda done: seen.append(done.round))
    assert first.model.tobytes() == trained(plan, records).tobytes()
    assert first.model.tobytes() != trained(plan, records, Entropy.from_seed(12)).tobytes()
    assert first.bytes_up == first.bytes_down == 3 * 12 * 3 * 8
    assert seen == [1, 2, 3]


def test_a_plan_is_written_and_read_back() -> None:
    plan = plan_of(some_records(clients=12), method(most_records=5))
    assert read_plan(write_plan(plan)) == plan


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"rounds": 0}, "fedavg.rounds must lie between"),
        ({"cohort": 2.5}, "fedavg.cohort must be a whole number"),
        ({"noise_multiplier": 0.0}, "fedavg.noise_multiplier must be positive"),
        ({"noise_multiplier": float("nan")}, "fedavg.noise_multiplier must"),
        ({"noise": "none"}, "fedavg.noise_multiplier must be 0"),
        ({"update_norm": 0.0}, "fedavg.update_norm must lie"),
        ({"most_records": -1}, "fedavg.most_records must be 0"),
    ],
)
def test_senseless_numbers_are_refused_at_birth(changes: dict[str, object], rule: str) -> None:
    with pytest.raises(BadValue, match=rule):
        method(**changes)


@pytest.mark.parametrize(
    ("given", "rule"),
    [
        ({"epochs": 0}, "fedavg.local.epochs must lie between 1 and 10000"),
        ({"step": float("nan")}, "fedavg.local.step must lie in"),
        ({"proximal": -1.0}, "fedavg.local.proximal must lie in"),
        ({"proximal": float("nan")}, "fedavg.local.proximal must lie in"),
        ({"mean_gradient": 1}, "fedavg.local.mean_gradient must be true or false"),
        ({"by_products": True, "batch": 3}, "fedavg.local.by_products must go without local batches"),
    ],
)
def test_senseless_local_steps_are_refused_at_birth(given: dict[str, Any], rule: str) -> None:
    with pytest.raises(BadValue, match=rule):
        LocalSteps(**given)


def test_what_does_not_fit_the_data_is_refused() -> None:
    records = some_records(clients=12)
    plan = plan_of(records, method())
    with pytest.raises(BadValue, match=r"privacy.unit must be client for fedavg"):
        replace(plan, target=Target(epsilon=1.0, delta=1e-5))
    with pytest.raises(BadValue, match=r"fedavg.cohort must be at most the number of clients, 12"):
        replace(plan, method=method(cohort=13, sampling="fixed-size"))
    with pytest.raises(BadValue, match=r"fedavg.cohort must be all 12 clients"):
        replace(plan, method=method(cohort=11))
    with pytest.raises(BadValue, match=r"The data must have the plan's shape"):
        trained(plan, some_records(clients=6))
