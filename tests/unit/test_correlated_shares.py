"""Correlated noise in shares: what leaves the clients, how far it moves, what is left of it at the server."""

import math
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.linalg import solve_triangular, toeplitz

from fedveil.core.errors import BadValue
from fedveil.data.records import Records
from fedveil.federation.site.stages import SiteStages
from fedveil.noise.entropy import Entropy
from fedveil.planning.plan import Plan
from fedveil.planning.promises import grid_of, promise
from fedveil.planning.study import study_of
from fedveil.stages.adding import Fails, nobody_fails, plain_sum
from fedveil.stages.train.correlation import Attendance, Correlation
from fedveil.stages.train.fedavg.acts import Resending, nothing_past, taken_off, weighted
from fedveil.stages.train.fedavg.method import FedAvg
from fedveil.stages.train.fedavg.steps import share_steps
from fedveil.sums.seam import Summed, Whole
from fedveil.theory.correlated import Factor
from fedveil.theory.divergence import gaussian_delta
from fedveil.wire.content import Content
from fedveil.wire.envelope import Refused
from sides import in_shares, share, site_of
from unit.plans import some_records

CLIENTS, ROUNDS, KEY = 12, 9, Entropy.from_seed(8)
TRUST = {"dropouts": 2, "colluders": 1}
Sent = dict[int, Mapping[int, Whole]]


def records() -> Records:
    return some_records(count=120, clients=CLIENTS)


def plan_of(trust: Mapping[str, Any] = TRUST, **algorithm: Any) -> Plan:
    tables = {
        "algorithm": {"kind": "fedavg", "correlation": {}, "cohort": 4, "update_norm": 0.01, **algorithm},
        "model": {"kind": "logistic", "radius": 5.0},
        "privacy": {
            "epsilon": 4.0,
            "delta": 1e-4,
            "unit": "client",
            "neighbours": "zero-out",
            "adversary": "server-with-secure-aggregation",
        },
        "schedule": {"rounds": ROUNDS},
        "trust": dict(trust),
    }
    return study_of(tables, base=Path(), data_given=True).planned(records().shape).plan


def fedavg_of(plan: Plan) -> FedAvg:
    assert isinstance(plan.method, FedAvg)
    return plan.method


def ran(plan: Plan, fails: Fails = nobody_fails) -> tuple[Sent, np.ndarray]:
    """Return what every client added to its noise in every round, and the model."""
    seen, steps = Sent(), share_steps(plan, 0)

    def kept(turn: int, parts: Mapping[int, Whole], /) -> Summed:
        seen[turn] = {client: part - share(KEY, client, turn, steps, plan.sum_length) for client, part in parts.items()}
        return plain_sum(turn, parts)

    return seen, in_shares(plan, records(), KEY, kept, fails).model


def test_everybody_sends_in_every_round_and_trains_in_its_own() -> None:
    plan = plan_of()
    seen, _ = ran(plan)
    column = fedavg_of(plan).correlated.factor.column  # type: ignore[union-attr]
    assert len(column) == 3
    assert [len(parts) for parts in seen.values()] == [CLIENTS] * ROUNDS
    for client in range(CLIENTS):
        first = next(turn for turn in range(3) if np.any(seen[turn][client]))
        for start in range(first, ROUNDS, 3):
            for age in range(min(3, ROUNDS - start)):
                expected = np.trunc(column[age] * seen[start][client].astype(np.float64))
                assert np.array_equal(seen[start + age][client], expected)


@pytest.mark.parametrize("fails", [nobody_fails, lambda turn, client: client in (turn, (5 * turn + 3) % CLIENTS)])
def test_no_client_moves_all_sums_farther_than_is_charged(fails: Fails) -> None:
    """In whole numbers: the squares of all that a client sends, against the sensitivity of the plan."""
    plan = plan_of()
    method = fedavg_of(plan)
    seen, _ = ran(plan, fails)
    assert method.correlated
    limit = Fraction(method.correlated.sensitivity) * Fraction(method.scale) / Fraction(2.0**plan.grid)
    ratios = []
    for client in range(CLIENTS):
        squares = sum(int(v) ** 2 for parts in seen.values() if client in parts for v in parts[client])
        assert squares <= limit**2
        ratios.append(float(squares / limit**2))
    if fails is nobody_fails:
        assert max(ratios) > 1 - 1e-6  # updates are clipped, and no more is charged than that


def test_the_server_gets_the_sums_of_the_rounds_with_correlated_noise() -> None:
    """The model is that of sums of the rounds' own updates with noise that the inverse of the matrix has made."""
    plan = plan_of({"server": "trusted"}, server_step=1e-9)
    method, steps = fedavg_of(plan), share_steps(plan, 0)
    seen, _ = ran(plan)
    assert method.correlated
    matrix = np.tril(toeplitz(method.correlated.factor.coefficients(ROUNDS)))
    shares = [[share(KEY, c, t, steps, plan.sum_length) for c in range(CLIENTS)] for t in range(ROUNDS)]
    fresh = np.sum(shares, axis=1)
    sent = np.stack([sum(parts.values()) for parts in seen.values()]) + fresh
    noise = solve_triangular(matrix, fresh.astype(np.float64), lower=True)
    sending = [{c for c in range(CLIENTS) if np.any(seen[t][c])} for t in range(3)]
    own = [sending[0], sending[1] - sending[0], sending[2] - sending[1]]  # who begins to send is of the round's group
    updates = np.stack([sum(seen[t][c] for c in own[t % 3]) for t in range(ROUNDS)])
    past, rows = nothing_past(method, plan.sum_length), []
    for total in sent:
        own_sum, past = taken_off(method, past, total.astype(np.float64))
        rows.append(own_sum)
    found = np.stack(rows)
    assert np.abs(found - updates - noise).max() <= 3 * CLIENTS  # cut towards zero, by less than a step a message
    assert np.abs(updates).max() > 1000 * CLIENTS


def test_clients_that_are_missing_change_neither_bound_nor_ways_of_adding_up() -> None:
    plan = plan_of()
    fails = lambda turn, client: client == turn or client == turn - 1  # noqa: E731

    def backwards(turn: int, parts: Mapping[int, Whole], /) -> Summed:
        total = np.zeros(plan.sum_length, dtype=np.int64)
        for client in sorted(parts, reverse=True):
            total += parts[client]
        return Summed(total, tuple(sorted(parts)))

    models = [in_shares(plan, records(), KEY, way, fails).model for way in (plain_sum, backwards)]
    assert models[0].tobytes() == models[1].tobytes()
    assert not np.array_equal(models[0], ran(plan)[1])


def test_every_observer_is_charged_one_gaussian_with_the_noise_that_it_does_not_know() -> None:
    plan = plan_of()
    method = fedavg_of(plan)
    assert method.correlated
    honest = CLIENTS - 3
    assert share_steps(plan, 0) == pytest.approx(method.noise_std / 2.0**plan.grid / math.sqrt(honest))
    norm = math.sqrt(3) * float(np.linalg.norm(method.correlated.factor.column))  # three columns that never overlap
    known = {
        "final-model": 10 / 9,  # whoever is outside does not know the colluder's noise either
        "every-model": 10 / 9,
        "curious-client": 1.0,  # one of the colluders that are tolerated
        "server-with-secure-aggregation": 1.0,
        "server": 1 / honest,
    }
    for adversary, part in known.items():
        found = promise(plan, adversary).epsilon  # type: ignore[arg-type]
        mu = norm / method.noise_multiplier / math.sqrt(part)
        assert gaussian_delta(found, mu) <= 1e-4
        assert gaussian_delta(found, mu) == pytest.approx(1e-4, rel=5e-2)
        assert grid_of(plan, adversary).distance == 0.0  # type: ignore[arg-type]
    alone = replace(plan, trust=replace(plan.trust, colluders=0))
    mu = norm / method.noise_multiplier * math.sqrt(10 / 9)
    assert gaussian_delta(promise(alone, "curious-client").epsilon, mu) == pytest.approx(1e-4, rel=5e-2)


def test_more_clients_missing_need_more_noise_from_the_others() -> None:
    few, many = plan_of({"dropouts": 0}), plan_of({"dropouts": 6})
    assert fedavg_of(few).noise_multiplier == pytest.approx(fedavg_of(many).noise_multiplier)
    ratio = share_steps(many, 0) * 2.0**many.grid / (share_steps(few, 0) * 2.0**few.grid)
    assert ratio == pytest.approx(math.sqrt(CLIENTS / 6))


class TestSite:
    @staticmethod
    def site(plan: Plan, memory: Path) -> SiteStages:
        memory.mkdir(exist_ok=True)
        return site_of(plan, records(), range(CLIENTS), KEY, memory)

    @staticmethod
    def asked(plan: Plan, joined: list[int], clients: int = CLIENTS) -> Content:
        rows = {"clients": np.arange(clients), "joined": np.array(joined, dtype=np.int64)}
        return Content(rows={"model": np.full(plan.dimension, 0.1), **rows})

    def test_one_that_is_restarted_in_every_round_repeats_itself(self, tmp_path: Path) -> None:
        plan = plan_of()
        whole = self.site(plan, tmp_path / "whole")
        for turn in range(ROUNDS):
            question = self.asked(plan, list(range(turn % 3, CLIENTS, 3)))
            first = whole.parts(turn, question)
            for _ in range(2):  # asked twice, by processes that know nothing of each other
                again = self.site(plan, tmp_path / "broken").parts(turn, question)
                assert sorted(again) == list(range(CLIENTS))
                assert all(np.array_equal(again[c], first[c]) for c in first)

    def test_it_answers_no_pattern_that_the_plan_does_not_allow(self, tmp_path: Path) -> None:
        plan = plan_of()
        site = self.site(plan, tmp_path / "memory")
        site.parts(0, self.asked(plan, [0, 3]))
        for turn, joined, code in ((2, [3], "other-cohort"), (0, [0], "changed-round"), (0, [], "changed-round")):
            with pytest.raises(Refused, match=code):
                self.site(plan, tmp_path / "memory").parts(turn, self.asked(plan, joined))
        for question in (self.asked(plan, [0, 99]), self.asked(plan, [0], clients=5)):
            with pytest.raises(Refused, match="malformed"):
                site.parts(3, question)
        for turn in (3, 6):
            site.parts(turn, self.asked(plan, [0]))
        with pytest.raises(Refused, match="other-cohort"):
            self.site(plan, tmp_path / "memory").parts(9 - 1, self.asked(plan, [0]))

    def test_a_client_takes_part_no_oftener_than_planned(self, tmp_path: Path) -> None:
        plan = plan_of(correlation={"participations": 3, "separation": 2, "bands": 2})
        site = self.site(plan, tmp_path / "memory")
        for turn in (0, 2, 4):
            site.parts(turn, self.asked(plan, [5]))
        with pytest.raises(Refused, match="other-cohort"):
            self.site(plan, tmp_path / "memory").parts(6, self.asked(plan, [5]))


def test_what_was_not_computed_as_planned_does_not_leave() -> None:
    assert weighted(np.array([6, 8]), 0.5, Fraction(10)).tolist() == [3, 4]  # type: ignore[union-attr]
    assert weighted(np.array([6, 8]), -0.5, Fraction(10)).tolist() == [-3, -4]  # type: ignore[union-attr]
    assert weighted(np.array([6, 9]), 0.5, Fraction(9)) is None


def test_an_update_is_gone_when_it_has_left_the_bands() -> None:
    found = Correlation(factor=Factor(column=(1.0, 0.5)), participations=2, separation=3, rounds=ROUNDS)
    memory = Resending(found, Attendance(found, 2), {})
    memory.keep(1, 0, np.array([4]))
    sent = [memory.due(turn, 0, 1, Fraction(4)) for turn in (1, 2, 3)]
    assert [part.tolist() for part in sent if part is not None] == [[4], [2], [0]]
    assert memory.due(2, 1, 1, Fraction(4)).tolist() == [0]  # type: ignore[union-attr]
    with pytest.raises(BadValue, match="at least 3 rounds apart"):
        memory.keep(3, 0, np.array([4]))
