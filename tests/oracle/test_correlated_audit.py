"""The distinguishing game on correlated noise: the real runs stay below their claims, and faulty twins are caught.

False alarms of a game: 1e-6 each. What the twins do wrong is what an implementation could do wrong: charge for a matrix
that is a band shorter than that of the noise, draw noise anew after a restart, use a victim more often than planned.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedveil.algorithms.correlation import correlation_of
from fedveil.algorithms.dpsgd.method import DpSgd
from fedveil.algorithms.fedavg.method import FedAvg
from fedveil.algorithms.registry import attack_view
from fedveil.audit.claim import claim_of_plan
from fedveil.audit.finding import Finding
from fedveil.audit.game import play
from fedveil.data.records import Records
from fedveil.guarantee import Adversary
from fedveil.jobs.attack.game import game
from fedveil.jobs.attack.releases import Sums, releases, view_of
from fedveil.noise.entropy import Entropy
from fedveil.plan import Plan
from fedveil.study import study_of
from fedveil.values import Vector
from unit.plans import some_records

RUNS = 8000
KEY = Entropy.from_seed(17)
ALGORITHMS: dict[str, dict[str, Any]] = {
    "fedavg": {"kind": "fedavg", "noise": "correlated", "cohort": 5, "bands": 3},
    "buffers": {"kind": "fedavg", "noise": "correlated", "cohort": 5, "buffers": 2},
    "cyclic": {"kind": "dpsgd", "noise": "correlated", "sampling": "cyclic", "rate": 0.25, "rounds": 12, "bands": 3},
    "classes": {"kind": "dpsgd", "noise": "correlated", "rate": 0.2, "rounds": 12, "bands": 3},
}


def plan_of(name: str, epsilon: float = 3.0) -> Plan:
    algorithm = ALGORITHMS[name]
    clients = algorithm["kind"] == "fedavg"
    tables = {
        "algorithm": algorithm,
        "model": {"kind": "logistic", "radius": 5.0},
        "privacy": {
            "epsilon": epsilon,
            "delta": 1e-3,
            "unit": "client" if clients else "record",
            "neighbours": "zero-out",
        },
        "schedule": {"rounds": 12} if clients else {},
    }
    data = some_records(count=120, clients=20 if clients else 1)
    return study_of(tables, base=Path(), data_given=True).planned(data.shape).plan


def played(plan: Plan, sums: Sums, claimed: Plan | None = None) -> Finding:
    seen, who = releases(plan, RUNS, KEY, sums), view_of(plan).seen_by
    adversary: Adversary = who
    return play(*seen, claim_of_plan(claimed or plan, adversary), adversary=who, delta=1e-3, alarm=1e-6)


def real_sums(plan: Plan) -> Sums:
    view = attack_view(plan.method.kind)
    assert view is not None
    assert view.releases is not None
    return view.releases.sums


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_real_run_stays_below_its_claim_and_not_far_below(name: str) -> None:
    plan = plan_of(name)
    (found,) = game(plan, RUNS, KEY)
    assert found.verdict == "consistent", found.evidence
    assert found.certified is not None
    assert 0.15 * found.certified < found.measured <= found.certified  # the attack is a strong one


def test_a_matrix_charged_a_band_too_short_is_caught() -> None:
    plan = plan_of("fedavg")
    method = plan.method
    assert isinstance(method, FedAvg)
    rows = ((3.0, 4.0), (1.0, 0.9, 0.9))
    shorter = ((3.0, 4.0), (1.0,))
    honest, charged = (replace(plan, method=replace(method, correlation=given)) for given in (rows, shorter))
    assert correlation_of(rows, 12) is not None
    assert played(honest, real_sums(plan)).verdict == "consistent"
    assert played(honest, real_sums(plan), claimed=charged).verdict == "broken"


def test_noise_drawn_anew_after_a_restart_is_caught() -> None:
    """Whoever saw the rounds before the crash and after it has two noises on the same sums, and takes their mean."""
    plan = plan_of("fedavg", epsilon=2.0)
    honest = real_sums(plan)

    def redrawn(given: Plan, records: Records, entropy: Entropy) -> Vector:
        other = Entropy(entropy.words("another key", 0, 4).tobytes(), private=False)
        order = honest(given, records, entropy), honest(given, records, other)
        return np.asarray((order[0] + order[1]) / 2, dtype=np.float64)

    def repeated(given: Plan, records: Records, entropy: Entropy) -> Vector:
        return np.asarray((honest(given, records, entropy) + honest(given, records, entropy)) / 2, dtype=np.float64)

    everyone = replace(plan, method=_all_in_one_group(plan))
    assert played(everyone, repeated).verdict == "consistent"
    assert played(everyone, redrawn).verdict == "broken"


def _all_in_one_group(plan: Plan) -> FedAvg:
    """Return the method with all clients in every round, so that a new key deals nobody into another group."""
    method = plan.method
    assert isinstance(method, FedAvg)
    noise = method.noise_multiplier * 2.5
    rows = ((12.0, 1.0), (1.0, 0.5, 0.25))
    return replace(method, sampling="all", cohort=20, correlation=rows, noise_multiplier=noise)


def test_a_participation_too_many_is_caught() -> None:
    plan = plan_of("cyclic")
    method = plan.method
    assert isinstance(method, DpSgd)
    honest = real_sums(plan)

    def oftener(given: Plan, records: Records, entropy: Entropy) -> Vector:
        """Batches twice as large, so every record comes back twice as often; the noise is as planned."""
        once = given.method
        assert isinstance(once, DpSgd)
        half = replace(once.client_settings[0], rate=0.5)
        rows = ((6.0, 2.0), once.correlation[1]) if once.correlation else None
        return honest(replace(given, method=replace(once, client_settings=(half,), correlation=rows)), records, entropy)

    assert played(plan, honest).verdict == "consistent"
    assert played(plan, oftener).verdict == "broken"
