"""The distinguishing game on torch models: real runs stay below their claims, and faulty twins are caught.

False alarms of a game: 1e-6 each. A linear layer takes the module's place, so the twins are faults of everything else.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedveil.audit.claim import claim_of_plan
from fedveil.audit.finding import Finding
from fedveil.audit.game import play
from fedveil.core.errors import BadValue
from fedveil.core.values import Vector
from fedveil.data.records import Records
from fedveil.jobs.attack.audit import Effort, playable
from fedveil.jobs.attack.game import game
from fedveil.jobs.attack.releases import Sums, releases, view_of
from fedveil.noise.entropy import Entropy
from fedveil.planning.plan import Plan
from fedveil.planning.study import study_of
from fedveil.stages.train.dpsgd.method import DpSgd
from unit.plans import some_records

pytest.importorskip("torch", reason="PyTorch is not installed: pip install fedveil[torch]")

RUNS = 4000
KEY = Entropy.from_seed(17)
ALGORITHMS: dict[str, dict[str, Any]] = {
    "poisson": {"kind": "dpsgd", "rate": 0.25, "rounds": 4},
    "cyclic": {"kind": "dpsgd", "correlation": {"bands": 2}, "sampling": "cyclic", "rate": 0.25, "rounds": 8},
}


def network() -> Any:
    from torch import nn

    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3))


def plan_of(algorithm: dict[str, Any], unit: str = "record") -> Plan:
    tables = {
        "algorithm": algorithm,
        "model": {"kind": "torch", "module": f"{__name__}:network", "clip": 0.7},
        "privacy": {"epsilon": 4.0, "delta": 1e-3, "neighbours": "zero-out", "unit": unit},
        "schedule": {"step_size": 0.3} | ({} if unit == "record" else {"rounds": 3}),
    }
    data = some_records(count=120, clients=1 if unit == "record" else 20, classes=3)
    return study_of(tables, base=Path(), data_given=True).planned(data.shape).plan


def played(plan: Plan, sums: Sums) -> Finding:
    who = view_of(plan).seen_by
    return play(*releases(plan, RUNS, KEY, sums), claim_of_plan(plan, who), adversary=who, delta=1e-3, alarm=1e-6)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_real_run_stays_below_its_claim_and_not_far_below(name: str) -> None:
    plan = plan_of(ALGORITHMS[name])
    assert playable(plan, Effort(runs=RUNS)) == (RUNS, "")
    found = played(plan, view_of(plan).sums)  # all runs: one that stops early shows less epsilon
    assert found.verdict == "consistent", found.evidence
    assert found.certified is not None
    assert found.measured <= found.certified
    assert found.details["as_gaussian"] > 0.25 * found.certified  # the attack is a strong one


def test_half_of_the_noise_is_caught() -> None:
    plan = plan_of(ALGORITHMS["cyclic"])

    def quieter(given: Plan, records: Records, entropy: Entropy) -> Vector:
        method = given.method
        assert isinstance(method, DpSgd)
        rows = tuple(replace(one, noise=one.noise / 2) for one in method.client_settings)
        less = replace(given, method=replace(method, client_settings=rows))
        return view_of(plan).sums(less, records, entropy)

    assert played(plan, quieter).verdict == "broken"


def test_a_missing_clip_is_caught() -> None:
    plan = plan_of(ALGORITHMS["cyclic"])

    def unclipped(given: Plan, records: Records, entropy: Entropy) -> Vector:
        """Return the sums with rows ten times as long as the clip, each added as it is, and the noise as planned."""
        silent = replace(records, features=np.zeros_like(records.features))
        noise = view_of(plan).sums(given, silent, entropy)
        return np.asarray(noise + 10 * (view_of(plan).sums(given, records, entropy) - noise), dtype=np.float64)

    assert played(plan, unclipped).verdict == "broken"


def test_clients_that_train_torch_models_are_not_played() -> None:
    plan = plan_of({"kind": "fedavg"}, unit="client")
    assert playable(plan, Effort())[0] == 0
    with pytest.raises(BadValue, match=r"model\.kind must be a loss of one linear score here"):
        game(plan, RUNS, KEY)
