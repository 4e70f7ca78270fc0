"""Plans whose clients trust each other little: what their text and name become, and what the certificate says."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dpsgd_plans import dpsgd_plan, settings
from plans import some_plan, some_records

from fedveil.certificate.assumptions import assumptions
from fedveil.core.errors import BadValue, CannotCertify, NotAvailable
from fedveil.engine import sums as summing
from fedveil.federation.agreements import all_floors
from fedveil.models.spec import ModelPlan
from fedveil.noise.entropy import Entropy
from fedveil.planning.plan import Plan, read_plan, write_plan
from fedveil.planning.promises import ADVERSARIES, grid_of, hidden_views, ideal, promise
from fedveil.planning.study import study_of
from fedveil.privacy.guarantee import Adversary
from fedveil.privacy.target import Target
from fedveil.privacy.trust import CENTRAL, Trust
from fedveil.stages.adding import plain_sum
from fedveil.stages.noise_shares import extra_noise
from fedveil.stages.train.dpsgd.settings import Network
from fedveil.stages.train.fedavg.method import FedAvg, LocalSteps
from fedveil.stages.train.simfl.method import SimFL

RECORDS = some_records(60, features=3, clients=12)
WHOLE = {"deal": "clients", "unit": "client", "batch": 4, "rounds": 3}
TABLES: dict[str, Any] = {
    "model": {"kind": "logistic", "radius": 5.0},
    "privacy": {"epsilon": 4.0, "delta": 1e-4},
    "schedule": {"rounds": 4, "passes": 1},
}


def fedavg(**changes: Any) -> Plan:
    settings = {"rounds": 3, "cohort": 12.0, "local": LocalSteps(step=0.5), "update_norm": 0.4}
    settings |= {"noise": "shared", "noise_multiplier": 2.0}
    return Plan(
        name="trial",
        data=RECORDS.shape,
        model=ModelPlan(kind="logistic", classes=2, radius=5.0),
        target=Target(epsilon=5.0, delta=1e-5, unit="client"),
        method=FedAvg(**(settings | changes)),
        grid=-40,
    )


def epsilons(plan: Plan) -> dict[Adversary, float]:
    return {adversary: promise(plan, adversary).epsilon for adversary in ADVERSARIES}


class TestPlan:
    def test_plans_without_trust_do_not_mention_it(self) -> None:
        assert "trust" not in write_plan(some_plan(some_records()))

    @pytest.mark.parametrize(
        "trust",
        [
            Trust(),
            Trust(server="secure-aggregation", dropouts=1, colluders=1),
            Trust(server="homomorphic", dropouts=1),
            Trust(server="homomorphic", key_holder="third-party", colluders=2),
        ],
    )
    def test_trust_is_in_the_text(self, trust: Trust) -> None:
        plan = some_plan(RECORDS)
        trusting = replace(plan, trust=trust)
        assert read_plan(write_plan(trusting)) == trusting
        assert trusting.hash != plan.hash
        assert write_plan(trusting).startswith(write_plan(plan))

    def test_cohorts(self) -> None:
        def cohorts(plan: Plan) -> list[int]:
            return list(plan.method.cohorts(plan.setup))

        assert cohorts(some_plan(RECORDS)) == [12] * 6
        assert cohorts(some_plan(RECORDS, **WHOLE, passes=2)) == [4] * 6
        assert cohorts(some_plan(RECORDS, deal="clients", batch=15, rounds=4)) == [3] * 4
        uneven = some_plan(RECORDS, deal="clients", unit="client", batch=(5, 4, 3), rounds=3)
        assert cohorts(uneven) == [5, 4, 3]
        assert extra_noise(cohorts(uneven), Trust(dropouts=1)) == pytest.approx(1.5)
        each = tuple(settings(rounds=10 if k % 2 else 5) for k in range(12))
        assert cohorts(dpsgd_plan(RECORDS, *each)) == [12] * 5 + [6] * 5

    @pytest.mark.parametrize(
        ("plan", "trust", "says"),
        [
            (some_plan(RECORDS), Trust(dropouts=12), "leave an honest client of the 12"),
            (some_plan(RECORDS, **WHOLE), Trust(dropouts=2, colluders=2), "leave an honest client of the 4"),
            (fedavg(noise="central"), Trust(), r"algorithm\.noise must be shared with \[trust\]"),
            (fedavg(noise="none", noise_multiplier=0.0), Trust(), r"algorithm\.noise must be shared"),
            (replace(some_plan(RECORDS), grid=-9), Trust(), "A share of the noise must hold"),
            (replace(fedavg(update_norm=1e9), grid=-40), Trust(), "A share of the noise must hold"),
            (replace(fedavg(update_norm=1e9, noise_multiplier=1e-9), grid=-40), Trust(), r"stay within 2\*\*52"),
            (replace(fedavg(), grid=-44), Trust(), None),
        ],
    )
    def test_what_cannot_run_by_parts_is_refused(self, plan: Plan, trust: Trust, says: str | None) -> None:
        if says is None:  # the same in range
            assert replace(plan, trust=trust).trust == trust
            return
        with pytest.raises(BadValue, match=says):
            replace(plan, trust=trust)

    def test_laplace_noise_cannot_be_shared(self) -> None:
        one = some_records(60, features=1, clients=12)
        plan = some_plan(one, noise="laplace", batch=1, rounds=60)
        with pytest.raises(BadValue, match=r"algorithm\.noise must be gaussian with \[trust\]"):
            replace(plan, trust=Trust())

    def test_no_server_no_trust(self) -> None:
        plan = replace(
            fedavg(),
            method=SimFL(rounds=3, step_size=0.5, clip=1.1, noise_multiplier=2.0),
            target=Target(epsilon=5.0, delta=1e-5),
        )
        with pytest.raises(BadValue, match=r"\[trust\] must be left out for simfl"):
            replace(plan, trust=Trust())

    @pytest.mark.parametrize(
        "network",
        [Network(delay=0.1), Network(loss=0.1), Network(jitter=0.1), Network(speeds=(2.0,) * 12), Network(window=1.5)],
    )
    def test_clients_that_do_not_wait_need_a_trusted_server(self, network: Network) -> None:
        plan = dpsgd_plan(RECORDS, network=network)
        replace(plan, trust=Trust())
        for server in ("secure-aggregation", "homomorphic"):
            with pytest.raises(BadValue, match="clients that wait for each other"):
                replace(plan, trust=Trust(server=server))  # type: ignore[arg-type]
        replace(dpsgd_plan(RECORDS, network=Network(window=2.0)), trust=Trust(server="secure-aggregation"))


class TestPromises:
    """Which bounds are offered to whom; the numbers are checked in tests/oracle and tests/property."""

    def names(self, plan: Plan, adversary: Adversary) -> set[str]:
        return {e.name for e in hidden_views(plan, adversary) if e.status == "certified"}

    def test_positions_are_coupled_only_where_the_noise_cannot_depend_on_the_order(self) -> None:
        records, clients = some_plan(RECORDS), some_plan(RECORDS, **WHOLE)
        for adversary, plan, trust, coupled in [
            ("final-model", records, Trust(dropouts=3), True),
            ("final-model", clients, Trust(), True),
            ("final-model", clients, Trust(dropouts=1), False),
            ("final-model", clients, Trust(server="secure-aggregation", colluders=1), True),
            ("curious-client", clients, Trust(), True),
            ("curious-client", clients, Trust(dropouts=1), False),
            ("curious-client", clients, Trust(server="secure-aggregation"), False),
            ("curious-client", clients, Trust(server="homomorphic", key_holder="third-party"), False),
            ("curious-client", records, Trust(), False),
        ]:
            found = self.names(replace(plan, trust=trust), adversary)  # type: ignore[arg-type]
            assert ("position" in found) is coupled, (adversary, trust)
            assert "unhidden" in found

    def test_whoever_sees_every_model_has_no_segments(self) -> None:
        clients = some_plan(RECORDS, **WHOLE)
        assert "segments" in self.names(replace(clients, trust=Trust()), "curious-client")
        for plan in (replace(clients, trust=Trust(server="homomorphic")), replace(some_plan(RECORDS), trust=Trust())):
            assert self.names(plan, "curious-client") == {"unhidden"}

    def test_without_dropouts_and_colluders_whole_clients_are_charged_as_ever(self) -> None:
        """The shares are then those that the accounts have always been made with."""
        plan = some_plan(RECORDS, **WHOLE, noise_std=2.0)
        with_trust = replace(plan, trust=Trust())
        for adversary in ADVERSARIES:
            before, after = (ideal(p, adversary, 1e-5).epsilon for p in (plan, with_trust))
            assert after == pytest.approx(before, rel=1e-9)

    def test_secret_cohorts_count_only_while_they_are_secret_and_complete(self) -> None:
        plan = fedavg(sampling="fixed-size", cohort=4.0)
        sure = fedavg(sampling="fixed-size", cohort=4.0, noise_multiplier=2.0)
        base = epsilons(replace(plan, trust=Trust()))
        lost = epsilons(replace(sure, trust=Trust(dropouts=1)))
        named = epsilons(replace(sure, trust=Trust(server="secure-aggregation")))
        assert base["final-model"] < 0.9 * base["server-with-secure-aggregation"]
        assert lost["final-model"] == pytest.approx(lost["server-with-secure-aggregation"], rel=1e-6)
        assert named["final-model"] == pytest.approx(base["final-model"], rel=1e-9)
        assert named["curious-client"] > 1.05 * base["curious-client"]

    def test_local_noise_of_dpsgd_protects_against_everybody_alike(self) -> None:
        plan = dpsgd_plan(RECORDS)
        local = epsilons(plan)
        assert len(set(local.values())) == 1
        assert epsilons(replace(plan, trust=Trust(dropouts=5, noise="local"))) == local
        shared = epsilons(replace(plan, trust=Trust(dropouts=2, colluders=1)))
        assert shared["server"] > shared["server-with-secure-aggregation"] > shared["final-model"]
        assert shared["server-with-secure-aggregation"] == pytest.approx(local["server"], rel=1e-4)

    def test_the_grid_pays_for_every_share_and_every_rounding(self) -> None:
        plan = some_plan(RECORDS)
        one, parts = grid_of(plan), grid_of(replace(plan, trust=Trust()))
        assert parts.distance > 5 * one.distance  # ten contributions, twelve shares
        assert parts.total_variation == pytest.approx(13 * one.total_variation)
        finer = grid_of(replace(plan, grid=-44, trust=Trust()))
        assert finer.distance < parts.distance / 10

    def test_masks_that_may_fail_by_bad_luck_are_in_delta(self) -> None:
        """The ring shows more than sums with a chance of up to 2**-40 a round: below that, masks promise nothing."""
        seen: Adversary = "server-with-secure-aggregation"
        for plain in (some_plan(RECORDS, noise_std=9.0), fedavg()):
            open_, masked = (replace(plain, trust=Trust(server=word)) for word in ("trusted", "secure-aggregation"))
            assert (grid_of(open_, seen).mishap, grid_of(masked, seen).mishap) == (0, plain.method.total * 2.0**-40)
            assert grid_of(masked, "every-model") == grid_of(open_, "every-model")
            assert promise(open_, seen, 1e-14).epsilon < math.inf
            assert promise(masked, seen, 1e-14).epsilon == math.inf
            assert promise(masked, seen).epsilon == pytest.approx(promise(open_, seen).epsilon, rel=2e-3)

    def test_calibration_leaves_no_candidate_without_honest_clients(self) -> None:
        tables = TABLES | {"privacy": {"epsilon": 4.0, "delta": 1e-4, "unit": "client"}, "trust": {"dropouts": 3}}
        tables["schedule"] = {"rounds": 6, "passes": 1}
        tables["algorithm"] = {"kind": "hidden", "order": "secret"}  # where all draw, all answer in every round
        study = study_of(tables, base=Path(), data_given=True)
        with pytest.raises(CannotCertify, match="tolerates no 3 dropouts"):
            study.planned(RECORDS.shape)


class TestWords:
    def rows(
        self, trust: Trust, adversary: Adversary = "server-with-secure-aggregation", **changes: Any
    ) -> dict[str, Any]:
        return {row.name: row for row in assumptions(replace(some_plan(RECORDS, **changes), trust=trust), adversary)}

    def test_what_was_declared_is_kept_by_something(self) -> None:
        rows = self.rows(Trust(server="secure-aggregation", dropouts=2, colluders=1))
        assert rows["the server learns sums only"].value == "secure aggregation"
        assert not rows["the server learns sums only"].enforced_by.startswith("declared")
        share = rows["every client adds its share of the noise"]
        assert share.value == "the planned variance over 9 honest clients that answer"
        assert not share.enforced_by.startswith("declared")
        assert rows["answers to a round"].value == "at least 10 of 12"
        assert rows["clients are missing by chance"].enforced_by.startswith("declared")
        assert rows["colluding clients"].value == "at most 1 a round"

    def test_whoever_holds_the_key_is_named(self) -> None:
        mine, theirs = (
            self.rows(Trust(server="homomorphic", key_holder=holder))["the server learns sums only"].enforced_by
            for holder in ("clients", "third-party")
        )
        assert "the clients hold the decryption key" in mine
        assert "a third party holds the decryption key" in theirs

    def test_what_is_asked_of_a_third_party_is_declared_to_all_whom_it_could_betray(self) -> None:
        name = "the key holder is trusted"
        for adversary in ADVERSARIES:
            rows = self.rows(Trust(server="homomorphic", key_holder="third-party"), adversary)
            assert (name in rows) == (adversary != "server")
            assert name not in self.rows(Trust(server="homomorphic"), adversary)
        rows = self.rows(Trust(server="homomorphic", key_holder="third-party"), "final-model")
        assert rows[name].enforced_by.startswith("declared: it sees every sum")

    def test_clients_who_open_sums_are_declared_to_see_no_more_in_them(self) -> None:
        name = "an opened ciphertext shows its sum alone"
        assert self.rows(Trust(server="homomorphic"), "curious-client")[name].value == "declared"
        assert name not in self.rows(Trust(server="homomorphic"), "every-model")
        for trust in (Trust(server="homomorphic", key_holder="third-party"), Trust(server="secure-aggregation")):
            assert name not in self.rows(trust, "curious-client")

    def test_a_trusted_server_is_declared(self) -> None:
        assert self.rows(Trust())["the server learns sums only"].enforced_by.startswith("declared")
        assert "clients are missing by chance" not in self.rows(Trust())

    def test_the_curious_client_is_told_what_it_is_counted_to_see(self) -> None:
        name = "it is sent a model only when it takes part"
        assert self.rows(Trust(), "curious-client")[name].value == "not used"
        assert self.rows(Trust(), "curious-client", **WHOLE)[name].value == "declared"

    def test_clients_that_do_not_wait_make_no_rows_unless_they_share_their_noise(self) -> None:
        plan = dpsgd_plan(RECORDS, network=Network(delay=1.0))
        for adversary in ADVERSARIES:
            rows = {row.name: row.value for row in assumptions(replace(plan, trust=Trust(dropouts=2)), adversary)}
            assert rows["clients in a window"] == "at least 10, one update of each"
            assert "clients in a window" not in {row.name for row in assumptions(plan, adversary)}


class TestSumming:
    def test_a_trusted_server_adds_up_in_the_open(self) -> None:
        plan = replace(some_plan(RECORDS), trust=Trust(dropouts=2))
        assert summing.summing_of(plan, Entropy.from_seed(0)) is plain_sum
        assert all_floors(plan) == [(12, 10)] * 6

    def test_nobody_knows_the_ring_of_masks_before_the_run(self) -> None:
        """Colluders who knew it could stand around a victim; the same run finds the same ring again."""
        plan = replace(some_plan(RECORDS), trust=Trust(server="secure-aggregation"))
        first, again, other = (summing._name(plan, Entropy.from_key(bytes([key] * 32)), "") for key in (1, 1, 2))
        assert len(first) == 32
        assert first == again != other != bytes.fromhex(plan.hash)
        assert first != summing._name(replace(plan, name="another"), Entropy.from_key(bytes([1] * 32)), "")

    def test_every_sum_has_a_floor_of_its_own(self) -> None:
        uneven = some_plan(RECORDS, deal="clients", unit="client", batch=(5, 4, 3), rounds=3, passes=2)
        floors = all_floors(replace(uneven, trust=Trust(dropouts=1)))
        assert floors == [(5, 4), (4, 3), (3, 2)] * 2
        windows = dpsgd_plan(RECORDS, *(settings(rounds=8 if k else 3) for k in range(12)), network=Network(window=3.0))
        assert all_floors(replace(windows, trust=Trust(dropouts=2, noise="local"))) == [
            (12, 10),
            (11, 9),
            (11, 9),
        ]

    def test_what_is_not_here_is_said(self) -> None:
        plan = replace(some_plan(RECORDS), trust=Trust(server="secure-aggregation"))
        with pytest.raises(NotAvailable, match="secure-aggregation"):
            summing._part("fedveil.sums.nowhere", plan)

    def test_every_word_has_a_way(self) -> None:
        assert set(summing.SERVERS) == {"trusted", "secure-aggregation", "homomorphic"}


class TestAcrossSites:
    """A site's own certificate says what the site enforces, and what it takes from the aggregator and other sites."""

    @pytest.mark.parametrize("trust", [CENTRAL, Trust(dropouts=1)])
    def test_a_secret_order_that_a_guarantee_uses_is_among_its_assumptions(self, trust: Trust | None) -> None:
        noise = (8.0, 8.0, 8.0, 8.0, 8.0, 16.0)
        plan = replace(some_plan(RECORDS, noise_std=noise, seeded=False), trust=trust)
        hidden = replace(plan.hidden, run=replace(plan.run, order="public"))
        known = replace(plan, method=hidden)
        for adversary in ADVERSARIES:
            uses = promise(plan, adversary).epsilon < promise(known, adversary).epsilon
            assert uses == (adversary in ("final-model", "curious-client", "every-model"))
            assert uses == ("secret order" in {row.name for row in assumptions(plan, adversary)})

    @pytest.mark.parametrize("plan", [some_plan(RECORDS), fedavg(cohort=6.0, sampling="fixed-size")])
    def test_what_the_aggregator_draws_is_said_to_be_trusted(self, plan: Plan) -> None:
        rows = {row.name: row for row in assumptions(replace(plan, trust=Trust()), "final-model")}
        (secret,) = {"secret order", "secret cohorts"} & set(rows)
        assert "the aggregator draws it and is trusted with that" in rows[secret].enforced_by

    def test_other_sites_shares_are_declared_and_a_site_is_all_of_its_clients(self) -> None:
        plan = replace(some_plan(RECORDS), trust=Trust(colluders=1))
        for adversary in ADVERSARIES:
            rows = {row.name: row for row in assumptions(plan, adversary)}
            assert "is declared" in rows["every client adds its share of the noise"].enforced_by
            assert ("clients of one site" in rows) == (adversary == "curious-client")
        rows = {row.name: row for row in assumptions(plan, "server-with-secure-aggregation")}
        assert "a site that does is all of its clients" in rows["colluding clients"].enforced_by


def test_ranges_are_proved_for_every_sample() -> None:
    """The largest sample that the sampler can give is below the 13 deviations that the plan allows for."""
    from fedveil.noise.grid import _NORMAL, Sampler

    for steps in (256.0, 300.0, 511.9, 2.0**30, 2.0**45):
        sampler = Sampler.of(_NORMAL, steps)
        ends = np.concatenate([sampler.table.start, sampler.table.start + 2**52]) * 2.0 ** (sampler.block - 52)
        assert np.abs(ends).max() + 1 <= 13 * steps
