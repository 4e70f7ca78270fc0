"""Clients that draw for themselves: each by its own key, all send, and sites find what a simulation finds."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from plans import some_records
from scipy.stats import chi2

from fedveil.core.errors import BadValue
from fedveil.data.records import Records
from fedveil.jobs.attack.audit import sampler_finding
from fedveil.noise.entropy import Entropy
from fedveil.planning.plan import Plan, read_plan, write_plan
from fedveil.planning.study import study_of
from fedveil.stages.train.fedavg.acts import cohorts_of, own_draws, senders_of
from fedveil.stages.train.fedavg.method import FedAvg, LocalSteps
from fedveil.stages.train.fedavg.steps import share_steps
from fedveil.wire.content import Content
from fedveil.wire.envelope import Refused
from sides import in_shares, share, site_of, trained_across

KEY = bytes(range(32))
PRIVACY = {"epsilon": 30.0, "delta": 1e-4, "unit": "client", "neighbours": "zero-out"}


def records() -> Records:
    base = some_records(60, features=4, clients=1)
    owner = np.repeat(np.arange(12), [3, 7] * 6)[np.random.default_rng(0).permutation(60)]
    return replace(base, owner=owner, clients=12, names=())


def plan_of(algorithm: dict[str, object], trust: dict[str, object] | None = None, rounds: int | None = None) -> Plan:
    tables = {
        "model": {"kind": "logistic"},
        "privacy": PRIVACY | {"adversary": "server-with-secure-aggregation" if trust is not None else "every-model"},
        "algorithm": {"kind": "fedavg", **algorithm},
        "schedule": {} if rounds is None else {"rounds": rounds},
    }
    if trust is not None:
        tables["trust"] = trust
    return study_of(tables, base=Path(), data_given=True).planned(records().shape).plan


SITES = {"a": np.array([0, 2, 3, 7, 11]), "b": np.array([1, 4, 5, 6, 8, 9, 10])}


@pytest.mark.parametrize(
    "algorithm",
    [
        {"sampling": "poisson", "cohort": 4},
        {"sampling": "independent", "cohort": 4, "local": {"batch": 2, "proximal": 0.3}},
        {"sampling": "poisson", "cohort": 5, "optimizer": "adam", "server_step": 0.1, "clip": "adaptive"},
        {"optimizer": {"kind": "adam", "beta2": 0.95, "floor": 1e-3}, "server_step": 0.1},
    ],
)
def test_sites_and_restarts_find_the_bits_of_the_simulation(algorithm: dict[str, object], tmp_path: Path) -> None:
    plan = plan_of({"noise": "shared", **algorithm}, {}, rounds=6)
    assert read_plan(write_plan(plan)) == plan
    simulated, key = in_shares(plan, records(), Entropy.from_key(KEY)), Entropy.from_key(KEY)
    assert trained_across(plan, records(), key, tmp_path, SITES).tobytes() == simulated.model.tobytes()
    assert np.any(simulated.model != 0)


def method(**changes: object) -> FedAvg:
    settings: dict[str, object] = {
        "rounds": 12,
        "sampling": "independent",
        "cohort": 3,
        "picks": 4,
        "local": LocalSteps(step=0.5),
        "update_norm": 0.1,
        "noise": "shared",
        "noise_multiplier": 0.7,
    }
    return FedAvg(**(settings | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize("noise", ["shared", "central"])
def test_every_client_picks_one_round_of_each_pass(noise: str) -> None:
    """4000 picks among 4 rounds; the statistic is beyond its bound by chance in 1e-7."""
    found, key = method(noise=noise, rounds=4 * 334), Entropy.from_key(KEY)
    joined = cohorts_of(found, 12, key)
    counts = np.zeros((334, 4, 12), dtype=np.int64)
    for turn in range(found.rounds):
        counts[turn // 4, turn % 4, joined(turn)] += 1
    assert np.all(counts.sum(axis=1) == 1)
    each = counts.sum(axis=(0, 2))
    assert float(np.sum((each - each.mean()) ** 2) / each.mean()) < chi2.isf(1e-7, 3)
    assert not np.array_equal(counts[0], counts[1])


@pytest.mark.parametrize("changes", [{}, {"sampling": "poisson", "picks": 0}])
def test_a_client_draws_the_same_in_any_company(changes: dict[str, object]) -> None:
    found = method(**changes)
    everyone = own_draws(found, 12, range(12), Entropy.from_key(KEY))
    some = own_draws(found, 12, (2, 7, 9), Entropy.from_key(KEY))
    for turn in range(12):
        assert some(turn).tolist() == [c for c in everyone(turn).tolist() if c in (2, 7, 9)]
        assert senders_of(found, 12, Entropy.from_key(KEY), turn).tolist() == list(range(12))


def test_a_client_that_drew_nothing_sends_its_noise_alone_and_a_site_answers_for_all_or_none() -> None:
    plan, key = plan_of({"noise": "shared", "sampling": "poisson", "cohort": 4}, {}, rounds=6), Entropy.from_key(KEY)
    site, found = site_of(plan, records(), range(12), key, Path("unused")), plan.method
    assert isinstance(found, FedAvg)
    model = np.zeros(plan.dimension)
    sent = site.parts(2, Content(rows={"model": model, "clients": np.arange(12)}))
    drawn = set(cohorts_of(found, 12, key)(2).tolist())
    assert 0 < len(drawn) < 12
    for client, message in sent.items():
        noise = share(key, client, 2, share_steps(plan, 2), plan.sum_length)
        assert np.array_equal(message, noise) == (client not in drawn)
    with pytest.raises(Refused, match="malformed"):
        site.parts(2, Content(rows={"model": model, "clients": np.arange(11)}))


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"picks": 0}, "fedavg.picks must go with independent sampling alone"),
        ({"sampling": "poisson"}, "fedavg.picks must go with independent sampling alone"),
        ({"rounds": 13}, "fedavg.rounds must be a multiple of the 4 rounds of a pass, got 13"),
        ({"segments": [[12, 3, 0.1, 0.7, 1.0]]}, "fedavg.segments must go with other draws"),
    ],
)
def test_what_contradicts_itself_is_refused_at_birth(changes: dict[str, object], rule: str) -> None:
    with pytest.raises(BadValue, match=rule):
        method(**changes)


@pytest.mark.parametrize(
    ("algorithm", "rule"),
    [
        ({"optimizer": "adam"}, "algorithm.server_step must be given for adam"),
        ({"optimizer": "adagrad"}, "algorithm.optimizer.kind must be one of sgd, momentum, adam"),
        ({"optimizer": {"beta2": 0.9}}, "algorithm.optimizer.beta2 must go with adam alone"),
        ({"optimizer": {"kind": "sgd", "momentum": 0.5}}, "algorithm.optimizer.momentum must be 0 for sgd"),
        ({"local": {"proximal": -1.0}}, r"algorithm.local.proximal must lie in \(0, 1e9\]"),
        ({"sampling": "independent"}, "algorithm.sampling must come with a cohort"),
        ({"sampling": "independent", "rate": 0.1}, "algorithm.rate must be left out with sampling other than poisson"),
    ],
)
def test_a_study_is_refused_in_one_sentence(algorithm: dict[str, object], rule: str) -> None:
    with pytest.raises(BadValue, match=rule):
        plan_of(algorithm)


def test_rounds_that_are_no_whole_passes_are_refused() -> None:
    with pytest.raises(BadValue, match=r"fedavg\.rounds must be a multiple of the 3 rounds of a pass, got 10"):
        plan_of({"sampling": "independent", "cohort": 4}, rounds=10)


@pytest.mark.parametrize("trust", [None, {}])
@pytest.mark.parametrize("sampling", ["poisson", "independent"])
def test_the_draws_pass_the_audit_of_samplers(sampling: str, trust: dict[str, object] | None) -> None:
    """Every finding raises a false alarm with a chance of at most 1e-6."""
    noise = "central" if trust is None else "shared"
    plan = plan_of({"noise": noise, "sampling": sampling, "cohort": 4}, trust, rounds=6)
    found = sampler_finding(plan, Entropy.from_key(KEY))
    assert found is not None
    assert (found.verdict, found.adversary) == ("consistent", "every-model")
    assert found.certified is not None
    assert found.certified < 40
