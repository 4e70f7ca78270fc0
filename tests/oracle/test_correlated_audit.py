"""The distinguishing game on correlated noise: the real runs stay below their claims, and faulty twins are caught.

False alarms of a game: 1e-6 each. What the twins do wrong is what an implementation could do wrong: charge for a matrix
that is a band shorter than that of the noise, draw noise anew after a restart, use a victim more often than planned;
with shares of the clients, count on those who tell, or send an update again more often than is charged.
"""

from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedveil.audit.claim import claim_of_plan
from fedveil.audit.finding import Finding
from fedveil.audit.game import play
from fedveil.core.values import Vector
from fedveil.data.records import Records
from fedveil.jobs.attack.releases import Sums, releases, view_of, wide_problem
from fedveil.noise.entropy import Entropy
from fedveil.planning.plan import Plan
from fedveil.planning.study import study_of
from fedveil.privacy.guarantee import Adversary
from fedveil.privacy.mechanism import Gaussian
from fedveil.stages.adding import plain_sum
from fedveil.stages.train.correlation import Correlation
from fedveil.stages.train.dpsgd.method import DpSgd
from fedveil.stages.train.fedavg.acts import cohort_of
from fedveil.stages.train.fedavg.method import FedAvg
from fedveil.stages.train.fedavg.steps import share_steps
from fedveil.stages.train.observation import attack_view
from fedveil.sums.seam import Summed, Whole
from fedveil.theory.correlated import Factor
from sides import in_shares as trained_in_shares
from sides import share
from unit.plans import some_records

RUNS = 8000
KEY = Entropy.from_seed(17)
ALGORITHMS: dict[str, dict[str, Any]] = {
    "fedavg": {"kind": "fedavg", "correlation": {"bands": 3}, "cohort": 5},
    "buffers": {"kind": "fedavg", "correlation": {"buffers": 2}, "cohort": 5},
    "cyclic": {"kind": "dpsgd", "correlation": {"bands": 3}, "sampling": "cyclic", "rate": 0.25, "rounds": 12},
    "classes": {"kind": "dpsgd", "correlation": {"bands": 3}, "rate": 0.2, "rounds": 12},
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
    found = played(plan, real_sums(plan))  # all runs: one that stops early shows less epsilon
    assert found.verdict == "consistent", found.evidence
    assert found.certified is not None
    assert found.measured <= found.certified
    assert found.details["as_gaussian"] > 0.25 * found.certified  # the attack is a strong one


def banded(column: tuple[float, ...], participations: int, separation: int, rounds: int) -> Correlation:
    factor = Factor(column=column)
    return Correlation(factor=factor, participations=participations, separation=separation, rounds=rounds)


def test_a_matrix_charged_a_band_too_short_is_caught() -> None:
    plan = plan_of("fedavg")
    method = plan.method
    assert isinstance(method, FedAvg)
    columns = (1.0, 0.9, 0.9), (1.0,)
    both = [banded(column, 3, 4, method.rounds) for column in columns]
    honest, charged = (replace(plan, method=replace(method, correlated=given)) for given in both)
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
    found = banded((1.0, 0.5, 0.25), 12, 1, method.rounds)
    return replace(method, sampling="all", cohort=20, correlated=found, noise_multiplier=noise)


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
        assert once.correlated is not None
        often = replace(once.correlated, participations=6, separation=2)
        return honest(replace(given, method=replace(once, client_settings=(half,), correlated=often)), records, entropy)

    assert played(plan, honest).verdict == "consistent"
    assert played(plan, oftener).verdict == "broken"


def in_shares(missing: int, telling: int) -> Plan:
    """Groups of 50 of 200 clients, of whom some may be missing and some may tell what they added."""
    tables = {
        "algorithm": {"kind": "fedavg", "correlation": {"bands": 4}, "cohort": 50},
        "model": {"kind": "logistic", "radius": 5.0},
        "privacy": {
            "epsilon": 6.0,
            "delta": 1e-3,
            "unit": "client",
            "neighbours": "zero-out",
            "adversary": "server-with-secure-aggregation",
        },
        "schedule": {"rounds": 8},
        "trust": {"dropouts": missing, "colluders": telling},
    }
    data = some_records(count=200, clients=200)
    return study_of(tables, base=Path(), data_given=True).planned(data.shape).plan


def measured(plan: Plan, missing: int, telling: int, problems: int = 5) -> float:
    """How many deviations apart a server of sums sees a client that is there and one that is not: the mu of its game.

    Real runs by parts, in which every client is the victim of a game of its own; the last ones are missing, the first
    ones tell the server what they added. The server's step is so short that all models are zero, where victims push at
    their clip; the server knows who is asked when. With five problems the deviation of what is returned is below .06.
    """
    method = plan.method
    assert isinstance(method, FedAvg)
    assert method.correlated is not None
    column, still = method.correlated.factor.column, replace(plan, method=replace(method, server_step=1e-9))
    found: list[list[float]] = [[], []]
    for side, number in product(range(2), range(problems)):
        entropy = Entropy.from_seed(10 * side + number)
        sums = unknown_sums(*wide_problem(still, side == 0), entropy, missing, telling)
        for turn in range(4):  # the victims of this group push in this round, and with the next weights after it
            mine = cohort_of(method, 200, entropy, turn)
            mine = mine[mine < 200 - missing]
            found[side] += sum(column[(t - turn) % 4] * sums[t][mine] for t in range(turn, 8)).tolist()
    return float((np.mean(found[0]) - np.mean(found[1])) / np.sqrt(np.mean(np.var(found, axis=1))))


def unknown_sums(plan: Plan, records: Records, entropy: Entropy, missing: int, telling: int) -> list[Vector]:
    """What is left of the sums of a run by parts when those who tell have told."""
    sums, steps = list[Vector](), share_steps(plan, 0)

    def kept(turn: int, parts: Mapping[int, Whole], /) -> Summed:
        total = plain_sum(turn, parts).total
        told = [share(entropy, client, turn, steps, plan.sum_length) for client in sorted(parts)[:telling]]
        sums.append((total - np.sum(told, axis=0, dtype=np.int64)).astype(np.float64))
        return Summed(total, tuple(sorted(parts)))

    trained_in_shares(plan, records, entropy, kept, lambda turn, client: client >= 200 - missing)
    return sums


def charged_mu(plan: Plan) -> float:
    seen = plan.method.mechanism("server-with-secure-aggregation", plan.setup)  # type: ignore[union-attr]
    assert isinstance(seen, Gaussian)
    return seen.mu


def test_shares_of_clients_are_what_is_charged_with_some_missing_and_some_telling() -> None:
    plan = in_shares(60, 30)
    assert charged_mu(plan) - 0.35 < measured(plan, 60, 30) < charged_mu(plan) + 0.35  # false alarm below 1e-7


def test_shares_that_count_on_clients_who_tell_are_caught() -> None:
    """Noise divided among 200 clients, 180 of whom tell the server what they added."""
    plan = in_shares(0, 0)
    assert measured(plan, 0, 180, problems=1) > 2 * charged_mu(plan)


def test_updates_sent_again_more_often_than_is_charged_are_caught() -> None:
    plan = in_shares(0, 0)
    method = plan.method
    assert isinstance(method, FedAvg)
    both = [banded(column, 2, 4, method.rounds) for column in ((1.0, 0.9, 0.9, 0.9), (1.0,))]
    honest, charged = (replace(plan, method=replace(method, correlated=given)) for given in both)
    assert measured(honest, 0, 0, problems=2) > charged_mu(charged) + 0.3
