"""Attacks on runs of the real trainer: much is seen without noise, and no more than is allowed with it.

Seeds are fixed: an outcome is the same each time. The claims below are false for a sound trainer with chance below 1e-6
(verdicts, by the one-run bound) or are statements about noiseless runs.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedveil.audit.claim import claim_of_plan
from fedveil.core.errors import BadValue
from fedveil.data.arrays import records_from_arrays
from fedveil.data.records import Records
from fedveil.jobs.attack.canary_clients import canary_estimate
from fedveil.jobs.attack.membership import attacked, membership, watched
from fedveil.noise.entropy import Entropy
from fedveil.planning.plan import Plan
from fedveil.planning.study import study_of

TABLES: dict[str, Any] = {
    "model": {"kind": "logistic", "radius": 30.0},
    "privacy": {"epsilon": 0.5, "delta": 1e-4, "neighbours": "zero-out"},
    "schedule": {"kind": "constant", "passes": 30, "rounds": 1, "step_size": 4.0},
}


def records(rows: int = 200, features: int = 300) -> Records:
    """Labels by lot, so that whatever is learned of them is memory."""
    generator = np.random.default_rng(1)
    X = generator.standard_normal((rows, features))
    X /= np.linalg.norm(X, axis=1)[:, None]
    return records_from_arrays(X, generator.integers(0, 2, rows), bound=1.0, classes=2, intercept=0.0)


def with_noise(plan: Plan, share: float) -> Plan:
    run = plan.run
    return replace(plan, method=replace(plan.hidden, run=replace(run, noise_std=np.multiply(run.noise_std, share))))


@pytest.fixture(scope="module")
def plan() -> Plan:
    return study_of(TABLES, base=Path(), data_given=True).planned(records().shape).plan


def test_lira_sees_members_without_noise_and_not_with_it(plan: Plan) -> None:
    claim = claim_of_plan(plan, "final-model")
    entropy = Entropy.from_seed(0)
    sound, bare = (
        {f.attack: f for f in attacked(plan, watched(one, records(), 65, entropy), claim=claim)}
        for one in (plan, with_noise(plan, 1e-3))
    )
    for finding in sound.values():
        assert finding.verdict == "consistent"
        assert not any(row["exceeds"] for row in finding.details["rates"])
    best = bare["LiRA online"]
    assert best.verdict == "broken"
    assert best.details["p_value"] <= 1e-6
    for row in best.details["rates"]:
        assert row["true_positives"] > 5 * row["allowed"]
        assert row["exceeds"]
    assert best.details["area"] > bare["loss threshold"].details["area"] > 0.7


def test_a_study_is_attacked_with_few_shadows(plan: Plan) -> None:
    found = membership(TABLES, records(), shadows=16, entropy=Entropy.from_seed(1))
    assert [finding.attack for finding in found] == ["loss threshold", "LiRA online", "LiRA offline"]
    assert all(finding.details["trials"] == 17 * 200 for finding in found)
    assert all(finding.verdict == "consistent" and finding.certified for finding in found)


def test_softmax_and_regression_have_confidences() -> None:
    X = np.random.default_rng(0).standard_normal((90, 4))
    three = records_from_arrays(X, np.arange(90) % 3, bound=1.0, classes=3)
    number = records_from_arrays(X, X[:, 0] / 10, bound=1.0, target_scale=(-1.0, 1.0))
    for kind, data in (("softmax", three), ("huber", number)):
        tables = TABLES | {"model": {"kind": kind, "radius": 30.0}, "schedule": TABLES["schedule"] | {"step_size": 1.0}}
        found = membership(tables, data, shadows=12, entropy=Entropy.from_seed(2))
        assert all(0.3 < finding.details["area"] < 0.9 for finding in found)


def test_what_the_attack_does_not_know_is_refused() -> None:
    with pytest.raises(BadValue, match="shadows must lie between"):
        membership(TABLES, records(), shadows=3)
    tables = TABLES | {
        "model": {"kind": "logistic", "l2": 0.1},
        "algorithm": {"kind": "fedavg"},
        "schedule": {"rounds": 2},
        "privacy": TABLES["privacy"] | {"unit": "client"},
    }
    with pytest.raises(BadValue, match=r"model\.l2 must be 0"):
        membership(tables, records(30, 3))
    with pytest.raises(BadValue, match=r"algorithm\.kind must be one that averages updates of whole clients"):
        canary_estimate(TABLES, records(30, 3), generator=np.random.default_rng(0))


def test_canary_clients_are_estimated() -> None:
    """The estimate grows with epsilon and is far larger without noise; it is near the certificate, which is tight."""
    data = records(40, 800)
    found = {}
    for epsilon, noise in ((1.0, "central"), (8.0, "central"), (8.0, "none")):
        tables = TABLES | {
            "privacy": {"epsilon": epsilon, "delta": 1e-5, "neighbours": "zero-out", "unit": "client"},
            "algorithm": {"kind": "fedavg", "noise": noise},
            "schedule": {"rounds": 6},
        }
        generator, entropy = np.random.default_rng(1), Entropy.from_seed(1)
        found[epsilon, noise] = canary_estimate(tables, data, canaries=40, generator=generator, entropy=entropy)
    assert {finding.kind for finding in found.values()} == {"estimate"}
    assert found[1.0, "central"].measured < 3
    assert 4 < found[8.0, "central"].measured < 12
    assert found[8.0, "none"].measured > 15
    assert found[8.0, "none"].certified is None


def test_an_observer_of_every_round_is_estimated() -> None:
    tables = TABLES | {
        "privacy": {"epsilon": 8.0, "delta": 1e-5, "neighbours": "zero-out", "unit": "client"},
        "algorithm": {"kind": "fedavg", "noise": "none"},
        "schedule": {"rounds": 4},
    }
    finding = canary_estimate(
        tables,
        records(20, 400),
        canaries=20,
        every_round=True,
        generator=np.random.default_rng(1),
        entropy=Entropy.from_seed(1),
    )
    assert finding.adversary == "every-model"
    assert finding.measured > 10
