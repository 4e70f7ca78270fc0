"""Correlated noise: its law, its restarts, its memory and its plans."""

import itertools
import math
import tracemalloc
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from scipy.linalg import toeplitz

from contract.method_examples import Example
from fedveil.accounting.compare import account_for
from fedveil.core.errors import BadValue
from fedveil.engine.train import train
from fedveil.federation.site.stages import SiteStages
from fedveil.noise.correlated import CorrelatedNoise
from fedveil.noise.entropy import Entropy
from fedveil.planning.plan import Plan
from fedveil.planning.promises import ADVERSARIES, grid_of, promise
from fedveil.planning.study import study_of
from fedveil.privacy.mechanism import Repeat, SampledGaussian
from fedveil.stages.train.correlation import Attendance, Correlation
from fedveil.stages.train.dpsgd.client import Client, Sampler
from fedveil.stages.train.dpsgd.method import DpSgd
from fedveil.stages.train.fedavg.acts import cohort_of
from fedveil.stages.train.fedavg.method import FedAvg
from fedveil.stages.train.fedavg.steps import noise_source
from fedveil.theory.correlated import Factor
from fedveil.theory.divergence import gaussian_delta
from fedveil.wire.content import Content
from sides import site_of
from unit.dpsgd_plans import settings
from unit.plans import some_records

BANDED = Factor(column=(1.0, 0.6, 0.4, 0.1))
BUFFERED = Factor(scales=(0.3, 0.25), decays=(0.9, 0.4))
STEPS, ROUNDS = 2.0**30, 20
ALARM = 1e-7


def study(algorithm: dict[str, Any], clients: int = 12, unit: str = "client", **schedule: Any) -> Plan:
    privacy = {"epsilon": 4.0, "delta": 1e-4, "unit": unit, "neighbours": "zero-out"}
    tables = {
        "algorithm": algorithm,
        "model": {"kind": "logistic", "radius": 5.0},
        "privacy": privacy,
        "schedule": schedule,
    }
    data = some_records(count=120, clients=clients)
    return study_of(tables, base=Path(), data_given=True).planned(data.shape).plan


def rows_of(factor: Factor, size: int = 3000, seed: int = 5) -> np.ndarray:
    noise = CorrelatedNoise(factor, Entropy.from_seed(seed), "noise", STEPS, size, ROUNDS)
    return np.stack([noise.at(turn) for turn in range(ROUNDS)])


def whitened(factor: Factor, rows: np.ndarray) -> np.ndarray:
    return np.tril(toeplitz(factor.coefficients(ROUNDS))) @ rows / STEPS


def independent(values: np.ndarray) -> bool:
    """Variances and covariances up to four rounds apart of independent normals; false alarms below 100 * ALARM."""
    rounds, size = values.shape
    sums = np.sum(values**2, axis=1)
    fine = bool(np.all((stats.chi2.ppf(ALARM, size) < sums) & (sums < stats.chi2.isf(ALARM, size))))
    pairs = [(t, t - lag) for lag in range(1, 5) for t in range(lag, rounds)]
    both = np.array([float(values[a] @ values[b]) for a, b in pairs]) / math.sqrt(size)
    return fine and bool(np.all(np.abs(both) < stats.norm.isf(ALARM / 2) * 1.05))


@pytest.mark.parametrize("factor", [BANDED, BUFFERED])
def test_the_matrix_turns_the_noise_into_independent_noise(factor: Factor) -> None:
    rows = rows_of(factor)
    assert np.array_equal(rows, np.rint(rows))
    assert independent(whitened(factor, rows))


@pytest.mark.parametrize(("factor", "shorter"), [(BANDED, Factor(column=(1.0, 0.6, 0.4))), (BUFFERED, BANDED)])
def test_noise_of_another_matrix_is_caught(factor: Factor, shorter: Factor) -> None:
    assert not independent(whitened(factor, rows_of(shorter, size=60_000)))


@pytest.mark.parametrize("factor", [Factor(column=(1.0,)), BANDED, BUFFERED])
def test_a_restart_repeats_the_noise_to_the_bit(factor: Factor) -> None:
    rows = rows_of(factor, size=5000)  # more than is drawn at a time
    again = CorrelatedNoise(factor, Entropy.from_seed(5), "noise", STEPS, 5000, ROUNDS)
    for turn in (7, 3, 3, 8, 19):
        assert np.array_equal(again.at(turn), rows[turn])
    other = CorrelatedNoise(factor, Entropy.from_seed(6), "noise", STEPS, 5000, ROUNDS)
    assert not np.array_equal(other.at(0), rows[0])


def test_the_noise_of_an_address_is_frozen() -> None:
    """A run that was stopped by one version is continued by a later one with the same noise."""
    frozen = {BANDED: [20067776.0, 1022097136.0, -1222882572.0], BUFFERED: [246767542.0, 927939643.0, -1211830709.0]}
    for factor, values in frozen.items():
        assert CorrelatedNoise(factor, Entropy.from_seed(5), "noise", STEPS, 3, ROUNDS).at(19).tolist() == values


def test_its_memory_is_that_of_the_band() -> None:
    size, bands = 40_000, 12
    tracemalloc.start()
    noise = CorrelatedNoise(Factor(column=(1.0,) + (0.05,) * (bands - 1)), Entropy.from_seed(0), "n", STEPS, size, 100)
    for turn in range(bands + 2):
        noise.at(turn)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most <= (bands + 2) * 8 * size + 4_000_000  # tables of the sampler, and a part that is being drawn


@pytest.mark.parametrize("factor", [BANDED, BUFFERED])
def test_the_stated_rounding_covers_what_floats_do(factor: Factor) -> None:
    """In whole numbers and fractions: how far the noise that was drawn is from what the matrix says."""
    rows = rows_of(factor, size=3)
    fresh = [
        CorrelatedNoise(Factor(column=(1.0,)), Entropy.from_seed(5), "noise", STEPS, 3, ROUNDS).at(t)
        for t in range(ROUNDS)
    ]
    column = [Fraction(1)]
    if factor.banded:
        column = [Fraction(value) for value in factor.column] + [Fraction(0)] * ROUNDS
    else:
        pairs = [(Fraction(a), Fraction(d)) for a, d in zip(factor.scales, factor.decays, strict=True)]
        column += [sum((a * d**t for a, d in pairs), Fraction(0)) for t in range(ROUNDS)]
    most = Fraction(factor.rounding(STEPS, ROUNDS))
    for place in range(3):
        noise = [Fraction(float(row[place])) for row in rows]
        for turn in range(ROUNDS):
            exact = sum((column[age] * noise[turn - age] for age in range(1, turn + 1)), Fraction(0))
            assert abs(Fraction(float(fresh[turn][place])) - exact - noise[turn]) <= most


def test_the_whole_run_is_one_gaussian_for_every_observer() -> None:
    plan = study({"kind": "fedavg", "correlation": {"bands": 3}, "cohort": 4}, rounds=9)
    method = plan.method
    assert isinstance(method, FedAvg)
    found = method.correlated
    assert found is not None
    assert (found.participations, found.separation) == (3, 3)
    norm = math.sqrt(3) * float(np.linalg.norm(found.factor.column))  # three columns that never overlap, all whole
    mu = norm / method.noise_multiplier
    for adversary in ("final-model", "every-model", "curious-client"):
        epsilon = promise(plan, adversary).epsilon
        assert gaussian_delta(epsilon, mu) == pytest.approx(1e-4, rel=2e-2)
        assert gaussian_delta(epsilon, mu) <= 1e-4
    for adversary in ("server", "server-with-secure-aggregation"):
        assert promise(plan, adversary).epsilon == math.inf


def test_a_server_that_must_not_know_the_noise_has_it_from_the_clients() -> None:
    algorithm = {"kind": "fedavg", "correlation": {"bands": 3}, "cohort": 4}
    tables = {
        "algorithm": algorithm,
        "model": {"kind": "logistic", "radius": 5.0},
        "privacy": {
            "epsilon": 4.0,
            "delta": 1e-4,
            "unit": "client",
            "neighbours": "zero-out",
            "adversary": "server-with-secure-aggregation",
        },
        "schedule": {"rounds": 9},
    }
    data = some_records(count=120, clients=12)
    plan = study_of(tables, base=Path(), data_given=True).planned(data.shape).plan
    method = plan.method
    assert isinstance(method, FedAvg)
    assert method.noise == "shared"
    found = {adversary: promise(plan, adversary).epsilon for adversary in ADVERSARIES}
    assert found["every-model"] == found["server-with-secure-aggregation"] <= 4.0
    assert found["every-model"] < found["curious-client"] < found["server"] < math.inf
    assert method.correlated
    mu = method.correlated.sensitivity / method.noise_multiplier * math.sqrt(12)  # one stream of twelve
    assert gaussian_delta(found["server"], mu) == pytest.approx(1e-4, rel=5e-2)


def test_no_round_alone_moves_farther_than_is_said() -> None:
    for factor in (BANDED, BUFFERED):
        found = Correlation(factor=factor, participations=3, separation=2, rounds=8)
        matrix = np.tril(toeplitz(factor.coefficients(8)))
        for starts in itertools.combinations(range(8), 3):
            if all(b - a >= 2 for a, b in itertools.pairwise(starts)):
                assert np.max(matrix[:, starts].sum(axis=1)) <= found.largest_move


def test_a_single_stream_that_moves_far_in_all_rounds_is_still_promised_something() -> None:
    """All rounds together move by 10 deviations, one round by two: rare errors of samples stay below delta."""
    plan = study({"kind": "fedavg", "correlation": {"bands": 3}, "cohort": 4}, rounds=120)
    method = plan.method
    assert isinstance(method, FedAvg)
    assert method.correlated
    less = replace(plan, method=replace(method, noise_multiplier=method.correlated.sensitivity / 10))
    assert 80 < promise(less, "every-model").epsilon < 120


def test_classes_that_take_turns_are_charged_as_sampled_rounds() -> None:
    plan = study({"kind": "dpsgd", "correlation": {"bands": 4}, "rate": 0.1, "rounds": 12}, 1, "record")
    method = plan.method
    assert isinstance(method, DpSgd)
    found = method.correlated
    assert found is not None
    noise = method.client_settings[0].noise / float(np.linalg.norm(found.factor.column))
    once = SampledGaussian(sampling="poisson", rate=0.4, noise_multiplier=noise, neighbours="zero-out")
    expected = account_for(Repeat(of=once, times=3), delta=1e-4).epsilon
    assert promise(plan, "server").epsilon == pytest.approx(expected, rel=1e-3)


def test_records_join_the_rounds_of_their_class_alone() -> None:
    sampler = Sampler(settings(rate=0.1), "poisson", 400, Entropy.from_seed(3), 0, classes=4)
    seen = [set[int]() for _ in range(4)]
    count = 0
    for turn in range(200):
        batch = sampler.batch(turn).tolist()
        seen[turn % 4] |= set(batch)
        count += len(batch)
    assert sorted(len(group) for group in seen) == [100] * 4
    assert not any(seen[a] & seen[b] for a in range(4) for b in range(a))
    assert stats.binomtest(count, 200 * 100, 0.4).pvalue > ALARM


def test_cyclic_batches_use_every_record_once_a_pass_in_the_same_round() -> None:
    sampler = Sampler(settings(rate=0.25), "cyclic", 10, Entropy.from_seed(3), 0)
    first = [sampler.batch(turn).tolist() for turn in range(4)]
    assert sorted(place for batch in first for place in batch) == list(range(10))
    assert [sampler.batch(turn).tolist() for turn in range(4, 8)] == first


def test_groups_of_clients_take_turns() -> None:
    plan = study({"kind": "fedavg", "correlation": {"bands": 2}, "cohort": 5}, rounds=6)
    method = plan.method
    assert isinstance(method, FedAvg)
    key = Entropy.from_seed(1)
    groups = [cohort_of(method, 12, key, turn).tolist() for turn in range(6)]
    assert groups[:3] == groups[3:]
    assert sorted(client for group in groups[:3] for client in group) == list(range(12))


def test_a_run_that_is_started_again_gives_the_same_model() -> None:
    plan = study({"kind": "fedavg", "correlation": {"bands": 3}, "cohort": 4}, rounds=9)
    data = some_records(count=120, clients=12)
    models = [train(plan, data, Entropy.from_seed(4)).model for _ in range(2)]
    assert np.array_equal(*models)
    method = plan.method
    assert isinstance(method, FedAvg)
    noise = noise_source(method, 3, 2.0**plan.grid, Entropy.from_seed(4))
    assert np.array_equal(noise(8), noise_source(method, 3, 2.0**plan.grid, Entropy.from_seed(4))(8))


def test_a_client_of_dpsgd_that_answers_again_answers_the_same() -> None:
    plan = study(
        {"kind": "dpsgd", "correlation": {"bands": 3}, "sampling": "cyclic", "rate": 0.25, "rounds": 8},
        1,
        "record",
    )
    data = some_records(count=120, clients=1)
    method = plan.method
    assert isinstance(method, DpSgd)

    def client() -> Client:
        return Client(plan, method, 0, data.features, data.targets, Entropy.from_seed(2))

    whole = client()
    sent = [whole.release(np.zeros(plan.dimension), turn) for turn in range(8)]
    again = client()
    for turn in (5, 5, 6):
        assert np.array_equal(again.release(np.zeros(plan.dimension), turn), sent[turn])


def test_a_site_that_was_restarted_repeats_its_noise(tmp_path: Path) -> None:
    example = Example(
        algorithm={"kind": "dpsgd", "correlation": {"bands": 3}, "sampling": "cyclic", "rate": 0.5, "rounds": 6},
        noise=("noise",),
        clients=2,
        trust={"server": "trusted"},
    )
    plan, data, key = example.plan(), example.data(), Entropy.from_seed(9)
    asked = Content(rows={"model": np.zeros(plan.dimension)})

    def site(name: str) -> SiteStages:
        (tmp_path / name).mkdir(exist_ok=True)
        return site_of(plan, data, (0, 1), key, tmp_path / name)

    whole = site("whole")
    sent = [whole.parts(turn, asked) for turn in range(6)]
    for turn in range(6):
        again = site("broken").parts(turn, asked)  # a new process for every window
        for number in (0, 1):
            assert np.array_equal(again[number], sent[turn][number])


def test_what_a_round_is_noised_with_is_said_as_it_is() -> None:
    for factor in (BANDED, BUFFERED):
        deviation = float(np.sqrt(np.mean(rows_of(factor, size=20_000) ** 2))) / STEPS
        assert factor.of_a_round(ROUNDS) == pytest.approx(deviation, rel=0.01)  # 400,000 normals: 9 standard errors


def test_the_grid_costs_next_to_nothing() -> None:
    for changes in ({"bands": 3}, {"buffers": 3}):
        plan = study({"kind": "fedavg", "correlation": changes, "cohort": 4}, rounds=9)
        assert 0 < grid_of(plan, "every-model").distance < 1e-9


def test_a_participation_too_many_or_too_early_stops_the_run() -> None:
    pattern = Correlation(factor=BANDED, participations=2, separation=4, rounds=12)
    units = np.array([0, 2], dtype=np.int64)
    early = Attendance(pattern, 3)
    early.note(0, units)
    early.note(0, units)  # the same round once more
    with pytest.raises(BadValue, match="at most 2 times, at least 4 rounds apart"):
        early.note(3, units)
    often = Attendance(pattern, 3)
    for turn in (0, 4):
        often.note(turn, units)
    with pytest.raises(BadValue, match="its use number 3 in round 9"):
        often.note(8, units)
