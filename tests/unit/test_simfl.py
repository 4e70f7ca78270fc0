"""A run of simfl does what the plan says: turns, clipped sums, every party's own noise, fixed divisor, messages."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binom, chi2

from fedveil.core.errors import BadValue
from fedveil.data.records import Records
from fedveil.models.spec import ModelPlan
from fedveil.noise.entropy import Entropy
from fedveil.planning.plan import Plan, read_plan, write_plan
from fedveil.privacy.target import Target
from fedveil.stages.train.simfl.acts import Message, parties_of, train_simfl
from fedveil.stages.train.simfl.method import SimFL
from unit.plans import some_records

KEY = Entropy.from_seed(3)


def method(**changes: object) -> SimFL:
    settings: dict[str, object] = {"rounds": 5, "step_size": 0.5, "momentum": 0.5, "clip": 0.5, "noise_multiplier": 0.8}
    return SimFL(**(settings | changes))  # type: ignore[arg-type]


def plan_of(records: Records, found: SimFL, **model: object) -> Plan:
    return Plan(
        name="trial",
        data=records.shape,
        model=ModelPlan(kind="logistic", classes=2, clip=0.4, **model),  # type: ignore[arg-type]
        target=Target(epsilon=5.0, delta=1e-5),
        method=found,
        grid=-42,
        seeded=True,
    )


def watched(plan: Plan, records: Records, key: Entropy = KEY) -> tuple[np.ndarray, list[Message]]:
    seen: list[Message] = []
    return train_simfl(plan, records, key, lambda done: None, wire=seen.append).model, seen


def gradient_sum(model: np.ndarray, rows: np.ndarray, targets: np.ndarray, clip: float) -> np.ndarray:
    total = np.zeros(model.size)
    for row, target in zip(rows, targets, strict=True):
        one = (1 / (1 + np.exp(-row @ model)) - target) * row
        total += one * min(1.0, clip / max(np.linalg.norm(one), 1e-300))
    return total


@pytest.mark.parametrize(("rate", "model"), [(1.0, {}), (0.4, {"l2": 0.3}), (1.0, {"radius": 0.2})])
def test_the_run_is_the_one_that_the_plan_describes(rate: float, model: dict[str, object]) -> None:
    """Record by record from the wire's own noise: what is on it less the true sum must be the noise that is stepped."""
    records = some_records(clients=4)
    found = method(rate=rate)
    plan = plan_of(records, found, **model)
    unit, parties = 2.0**plan.grid, parties_of(plan, records)
    w, speed = np.zeros(3), np.zeros(3)
    for turn in range(found.rounds):
        total = np.zeros(3)
        for party in parties:
            joined = party.joining(rate, KEY, turn) if rate < 1 else np.ones(party.targets.size, dtype=bool)
            mine = gradient_sum(w, party.features[joined], party.targets[joined], found.clip)
            noised = party.noised_sum(found, w, unit, KEY, turn)[0] * unit
            assert np.all(np.abs(noised - mine) < 8 * found.noise_std)
            total += noised
        speed = found.momentum * speed + total / (rate * 60) + plan.model.l2 * w
        w = w - found.step_size * speed
        norm = np.linalg.norm(w)
        w = w if norm <= plan.radius else w * plan.radius / norm
    assert watched(plan, records)[0] == pytest.approx(w, abs=1e-9)


@pytest.mark.parametrize(("rounds", "parties"), [(1, 4), (4, 4), (5, 4), (7, 3), (11, 4), (100, 7)])
def test_every_party_leads_as_often_as_any_other_up_to_one(rounds: int, parties: int) -> None:
    found = method(rounds=rounds)
    led = Counter(found.leader(turn, parties) for turn in range(rounds))
    counts = [led[party] for party in range(parties)]
    assert max(counts) - min(counts) <= 1
    assert counts == [found.leads(party, parties) for party in range(parties)]


def test_messages_go_to_the_leader_and_from_it() -> None:
    records = some_records(clients=4)
    plan = plan_of(records, method())
    model, seen = watched(plan, records)
    for turn in range(5):
        leader, others = turn % 4, {0, 1, 2, 3} - {turn % 4}
        mine = [m for m in seen if m.round == turn]
        assert [m.what for m in mine] == ["gradient"] * 3 + ["model"] * 3
        assert {m.sender for m in mine[:3]} == {m.receiver for m in mine[3:]} == others
        assert {m.receiver for m in mine[:3]} == {m.sender for m in mine[3:]} == {leader}
        assert all(np.array_equal(m.content, np.rint(m.content)) for m in mine[:3])
    assert np.array_equal(seen[-1].content, model)
    done = train_simfl(plan, records, KEY, lambda turn: None)
    assert done.bytes_up == done.bytes_down == 5 * 3 * 3 * 8


def test_every_partys_noise_is_what_the_accountant_is_told() -> None:
    """6000 sums of 3 coordinates: 10% less noise is far outside; false alarm 2e-7. No two sums share their noise."""
    records = some_records(clients=4)
    found = method(noise_multiplier=1.7)
    plan = plan_of(records, found)
    unit, zero, noises = 2.0**plan.grid, np.zeros(3), []
    for party in parties_of(plan, records)[:3]:
        mine = np.rint(gradient_sum(zero, party.features, party.targets, found.clip) / unit)
        noises += [party.noised_sum(found, zero, unit, KEY, turn)[0] - mine for turn in range(2000)]
    drawn = np.concatenate(noises) * unit
    ratio = float(np.sum((drawn / (1.7 * 0.5)) ** 2))
    low, high = chi2.ppf(1e-7, drawn.size), chi2.isf(1e-7, drawn.size)
    assert low < ratio < high
    assert not low < ratio * 0.9**2 < high
    assert len({noise.tobytes() for noise in noises}) == len(noises)


def test_records_join_with_the_planned_rate() -> None:
    """15 records over 4000 rounds; each check fails by chance in 1e-8."""
    party = parties_of(plan_of(some_records(clients=4), method()), some_records(clients=4))[1]
    joined = sum(party.joining(0.3, KEY, turn).astype(int) for turn in range(4000))
    assert np.all((binom.ppf(5e-9, 4000, 0.3) <= joined) & (joined <= binom.isf(5e-9, 4000, 0.3)))


def test_a_party_of_which_no_record_joins_still_sends_noise() -> None:
    records = some_records(clients=4)
    found = method(rate=1e-9)
    plan = plan_of(records, found)
    party = parties_of(plan, records)[0]
    assert not party.joining(found.rate, KEY, 0).any()
    sent, dropped = party.noised_sum(found, np.zeros(3), 2.0**plan.grid, KEY, 0)
    assert np.all(sent != 0)
    assert dropped == 0
    assert found.divisor(plan.data) == pytest.approx(60e-9)


def test_the_same_key_gives_the_same_bytes_and_a_plan_reads_back() -> None:
    records = some_records(clients=4)
    plan = plan_of(records, method(rate=0.5))
    first, again, other = (watched(plan, records, Entropy.from_seed(seed))[0] for seed in (1, 1, 2))
    assert first.tobytes() == again.tobytes() != other.tobytes()
    assert read_plan(write_plan(plan)) == plan


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"rounds": 0}, "simfl.rounds must lie"),
        ({"rate": 64.0}, "simfl.rate must lie in"),
        ({"noise_multiplier": 0.0}, "simfl.noise_multiplier must lie"),
        ({"noise_multiplier": float("nan")}, "simfl.noise_multiplier must"),
        ({"momentum": 1.0}, "simfl.momentum must lie"),
    ],
)
def test_senseless_numbers_are_refused_at_birth(changes: dict[str, object], rule: str) -> None:
    with pytest.raises(BadValue, match=rule):
        method(**changes)


def test_what_does_not_fit_is_refused() -> None:
    records = some_records(clients=4)
    plan = plan_of(records, method())
    with pytest.raises(BadValue, match=r"privacy.unit must be record for simfl"):
        replace(plan, target=Target(epsilon=1.0, delta=1e-5, unit="client"))
    with pytest.raises(BadValue, match=r"simfl.clip must be at least the gradient bound"):
        replace(plan, method=method(clip=0.3))
    with pytest.raises(BadValue, match=r"clients must be at least two for simfl"):
        plan_of(some_records(clients=1), method())
