"""Rounds in segments: what is charged is the exact composition, and each segment runs with its own numbers."""

from math import ceil, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedveil.accounting.compare import account_for
from fedveil.core.errors import FedveilError
from fedveil.data.records import Records
from fedveil.engine.train import train
from fedveil.noise.entropy import Entropy
from fedveil.planning.plan import Plan, read_plan, write_plan
from fedveil.planning.promises import promise
from fedveil.planning.study import study_of
from fedveil.privacy.mechanism_file import parse_mechanism
from fedveil.stages.train.dpsgd.client import Client, Sampler
from fedveil.stages.train.dpsgd.method import DpSgd
from fedveil.stages.train.dpsgd.steps import train_dpsgd
from fedveil.stages.train.registry import facts_of
from fedveil.theory.concentrated import gaussian_epsilon
from unit.plans import some_records

KEY = Entropy.from_seed(5)


def plan_for(records: Records, algorithm: dict[str, Any], **parts: Any) -> Plan:
    tables = {
        "study": {"name": "trial"},
        "algorithm": algorithm,
        "model": {"kind": "logistic"},
        "privacy": {"epsilon": 6.0, "delta": 1e-5, "neighbours": "replace-one", "adversary": "every-model"},
        **parts,
    }
    return study_of(tables, base=Path(), data_given=True).planned(records.shape).plan


def quieter_last_pass() -> Plan:
    """Five shuffled passes of ten rounds, multiplier 8, in the last pass 8 over the root of 6."""
    segments = [{"rounds": 40, "noise": 8.0}, {"rounds": 10, "noise": 8 / sqrt(6), "step": 0.1}]
    algorithm = {"kind": "dpsgd", "sampling": "shuffled", "rate": 0.1, "segments": segments}
    return plan_for(some_records(200, clients=2), algorithm)


def test_five_shuffled_passes_with_a_quieter_last_one() -> None:
    """By the composition of Gaussians: the squares of sensitivity over noise add; and by a mechanism file."""
    plan = quieter_last_pass()
    mu = sqrt(4 * (2 / 8) ** 2 + (2 * sqrt(6) / 8) ** 2)
    exact = gaussian_epsilon(mu, 1e-5)
    assert ceil(exact * 1e4) / 1e4 == 3.3415  # as commands show it, rounded up
    found = plan.method
    assert isinstance(found, DpSgd)
    ideal = found.answer("every-model", plan.setup, 1e-5).epsilon
    assert ideal == pytest.approx(exact, rel=1e-12)
    file = """
    [mechanism]
    kind = "compose"
    [[mechanism.parts]]
    kind = "dp-sgd"
    sampling = "shuffled"
    rate = 0.1
    rounds = 40
    noise_multiplier = 8.0
    neighbours = "replace-one"
    [[mechanism.parts]]
    kind = "dp-sgd"
    sampling = "shuffled"
    rate = 0.1
    rounds = 10
    noise_multiplier = 3.265986323710904
    neighbours = "replace-one"
    """
    assert account_for(parse_mechanism(file), delta=1e-5).epsilon == pytest.approx(ideal, rel=1e-12)
    for adversary in ("final-model", "every-model", "server-with-secure-aggregation"):  # the grid costs next to nothing
        assert promise(plan, adversary).epsilon == pytest.approx(ideal, rel=1e-4)


@pytest.mark.parametrize("sampling", ["poisson", "fixed-size"])
def test_segments_that_are_alike_cost_what_the_whole_costs(sampling: str) -> None:
    records = some_records(100, clients=2)
    privacy = {"epsilon": 4.0, "delta": 1e-5, "neighbours": "zero-out", "adversary": "server"}
    whole = plan_for(records, {"kind": "dpsgd", "sampling": sampling, "rate": 0.2, "rounds": 30}, privacy=privacy)
    parted = {"kind": "dpsgd", "sampling": sampling, "rate": 0.2, "segments": [{"rounds": 12}, {"rounds": 18}]}
    plan = plan_for(records, parted, privacy=privacy)
    assert isinstance(whole.method, DpSgd)
    assert isinstance(plan.method, DpSgd)
    noise = [settings.noise for settings in plan.method.client_settings]
    assert noise[0] == noise[1] == pytest.approx(whole.method.client_settings[0].noise, rel=1e-4)
    assert promise(plan, "server").epsilon <= 4.0
    steps = np.concatenate([settings.steps() for settings in plan.method.client_settings])
    assert steps == pytest.approx(whole.method.client_settings[0].steps(), rel=1e-3)


def test_every_round_runs_with_the_numbers_of_its_segment() -> None:
    records = some_records(80, clients=1)
    segments = [
        {"rounds": 2, "rate": 0.5, "clip": 0.3, "noise": 5.0, "step": 0.2},
        {"rounds": 3, "rate": 0.25, "clip": 0.1, "noise": 9.0, "step": 0.05},
    ]
    plan = plan_for(records, {"kind": "dpsgd", "optimizer": {"momentum": 0.0}, "segments": segments})
    method = plan.method
    assert isinstance(method, DpSgd)
    assert method.total == 5
    client = Client(plan, method, 0, records.features, records.targets, KEY)
    w = np.zeros(plan.dimension)
    for turn in range(5):
        part = method.client_settings[0 if turn < 2 else 1]
        release = client.release(w, turn)
        local = turn if turn < 2 else turn - 2
        chosen = Sampler(part, "poisson", 80, KEY, 0, 0 if turn < 2 else 1).batch(local)
        total, _ = plan.model.loss.gradient(w, records.features[chosen], records.targets[chosen], clip=part.clip)
        noise = release * (part.rate * 80) - total
        assert np.std(noise) < 4 * part.noise * part.clip  # of the segment's size: the other's clip is thrice as large
        assert client.settings is part
        assert client.divisor == part.rate * 80
    client.update(w, 4)  # momentum 0: the step of the last segment on the release
    again = Client(plan, method, 0, records.features, records.targets, KEY)
    assert again.update(w, 4) == pytest.approx(0.05 * again.release(w, 4))


def test_batches_of_different_segments_are_drawn_anew() -> None:
    method = quieter_last_pass().method
    assert isinstance(method, DpSgd)
    first, second = (Sampler(method.client_settings[0], "shuffled", 100, KEY, 0, segment) for segment in (0, 1))
    assert not np.array_equal(first.batch(0), second.batch(0))


def test_in_windows_and_by_the_clock_segments_give_nearly_the_same_model() -> None:
    records = some_records(90, clients=3)
    algorithm = {"kind": "dpsgd", "rate": 0.3, "segments": [{"rounds": 3, "noise": 9.0}, {"rounds": 2, "noise": 7.0}]}
    shared = plan_for(records, algorithm, trust={"noise": "local"})
    found = [train_dpsgd(shared, records, KEY, lambda done: None).model, train(shared, records, KEY).model]
    assert np.any(found[0] != 0)
    assert found[0] == pytest.approx(found[1], abs=1e-9)  # windows are rounded to whole steps


def test_the_plan_reads_back_and_says_its_segments() -> None:
    plan = quieter_last_pass()
    assert read_plan(write_plan(plan)) == plan
    facts = dict(facts_of(plan.method, plan.setup))
    assert facts["rounds of a client"] == "50"
    assert facts["segments"] == "40 of noise 8, 10 of noise 3.26599"
    fixed = plan_for(some_records(60, clients=3), {"kind": "dpsgd", "rounds": 3})
    assert "segments = false" in write_plan(fixed)


@pytest.mark.parametrize(
    ("algorithm", "sentence"),
    [
        ({"segments": []}, "algorithm.segments must list 1 to 1000 segments"),
        ({"segments": 3}, "algorithm.segments must list 1 to 1000 segments"),
        ({"segments": [{"noise": 3.0}]}, "algorithm.segments.rounds must be given for every segment"),
        ({"segments": [{"rounds": 0}]}, "algorithm.segments.rounds must be at least 1"),
        ({"segments": [{"rounds": 2.5}]}, "algorithm.segments.rounds must be a whole number"),
        ({"segments": [{"rounds": 2, "nois": 3.0}]}, "Key 'nois' must be known to a segment"),
        ({"segments": [{"rounds": 2, "noise": -3.0}]}, "algorithm.segments.noise must be positive and finite"),
        ({"segments": [{"rounds": 2, "noise": float("nan")}]}, "algorithm.segments.noise must be"),
        ({"segments": [{"rounds": 2, "noise": 3.0}, {"rounds": 2}]}, "be stated in all 2 segments or in none, got 1"),
        ({"segments": [{"rounds": 2}], "rounds": 5}, "algorithm.rounds must be left out with segments"),
        ({"segments": [{"rounds": 2}], "clip": "adaptive"}, "must be left out with an adaptive clip"),
        ({"segments": [{"rounds": 2}], "rate": [0.1, 0.2, 0.3]}, "algorithm.rate must be one number with segments"),
        ({"segments": [{"rounds": 9, "noise": 0.5}]}, "epsilon"),
    ],
)  # fmt: skip
def test_a_bad_segment_gets_one_sentence(algorithm: dict[str, Any], sentence: str) -> None:
    with pytest.raises(FedveilError, match=sentence):
        plan_for(some_records(60, clients=3), {"kind": "dpsgd", **algorithm})


class TestOwnBudgets:
    """A client that stops itself: its later rounds carry noise alone."""

    ALGORITHM = {"kind": "dpsgd", "rate": 0.5, "rounds": 20, "noise_multiplier": 6.0, "own_epsilon": [6.0, 2.0]}  # noqa: RUF012

    def test_its_records_cost_at_most_its_own_epsilon_and_one_round_more_would_cost_more(self) -> None:
        plan = plan_for(some_records(80, clients=2), self.ALGORITHM)
        method = plan.method
        assert isinstance(method, DpSgd)
        assert method.stops is not None
        assert method.stops[0] == 20
        assert 1 <= method.stops[1] < 20
        (_, loud), (_, quiet) = method.clients(1e-5, plan.setup)
        assert quiet <= 2.0 < loud

        def by_hand(rounds: int) -> float:
            file = f"""
            [mechanism]
            kind = "dp-sgd"
            rate = 0.5
            rounds = {rounds}
            noise_multiplier = 6.0
            neighbours = "replace-one"
            """
            return account_for(parse_mechanism(file), delta=1e-5 * (1 - 1e-3)).epsilon

        assert by_hand(method.stops[1]) <= 2.0 * (1 - 1e-3) < by_hand(method.stops[1] + 1)
        assert read_plan(write_plan(plan)) == plan
        assert dict(facts_of(plan.method, plan.setup))["rounds that use a client's records"].endswith("to 20")

    def test_later_rounds_do_not_depend_on_its_records(self) -> None:
        records = some_records(80, clients=2)
        plan = plan_for(records, self.ALGORITHM)
        method = plan.method
        assert isinstance(method, DpSgd)
        assert method.stops is not None
        mine = records.owner == 1
        clients = [
            Client(plan, method, 1, sign * records.features[mine], records.targets[mine], KEY) for sign in (1.0, -1.0)
        ]
        w = np.full(plan.dimension, 0.1)
        for turn in range(20):
            first, second = (client.release(w, turn) for client in clients)
            assert np.array_equal(first, second) == (turn >= method.stops[1])
            assert np.all(first != 0)

    def test_a_budget_that_pays_for_no_round_is_refused(self) -> None:
        with pytest.raises(FedveilError, match=r"algorithm.own_epsilon must pay for one round of client 2 at least"):
            plan_for(some_records(80, clients=2), self.ALGORITHM | {"own_epsilon": [6.0, 1e-4]})
        with pytest.raises(FedveilError, match=r"algorithm.own_epsilon must be positive and finite"):
            plan_for(some_records(80, clients=2), self.ALGORITHM | {"own_epsilon": -1.0})


class TestHidden:
    """Segments of hidden training are another way to write a schedule: the same plan, so the same certificate."""

    SCHEDULE = {"rounds": 4, "passes": 2}  # noqa: RUF012

    def both(self, segments: list[dict[str, Any]], **schedule: Any) -> tuple[Plan, Plan]:
        records = some_records(120, clients=4)
        parts = {"privacy": {"epsilon": 6.0, "delta": 1e-5, "neighbours": "zero-out"}}
        parted = plan_for(records, {"kind": "hidden", "segments": segments}, schedule=self.SCHEDULE, **parts)
        return parted, plan_for(records, {"kind": "hidden"}, schedule={**self.SCHEDULE, **schedule}, **parts)

    def test_stated_noise_and_steps(self) -> None:
        segments = [{"rounds": 6, "noise": 9.0, "step": 0.5}, {"rounds": 2, "noise": 6.0, "step": 0.1}]
        parted, listed = self.both(segments, step_size=[0.5] * 6 + [0.1] * 2, noise_std=[9.0] * 6 + [6.0] * 2)
        assert parted == listed
        assert parted.run.noise_std == (9.0,) * 6 + (6.0,) * 2

    def test_calibrated_noise(self) -> None:
        parted, listed = self.both(
            [{"rounds": 5, "step": 0.5}, {"rounds": 3, "step": 0.1}], step_size=[0.5] * 5 + [0.1] * 3
        )
        assert parted == listed
        assert promise(parted, "final-model").epsilon <= 6.0

    @pytest.mark.parametrize(
        ("segments", "sentence"),
        [
            ([{"rounds": 5, "noise": 3.0}], "rounds must add up to the schedule's rounds of all passes, 8, got 5"),
            ([{"rounds": 8, "clip": 3.0}], "clip must be left out of the segments of hidden training.*One Lipschitz"),
            ([{"rounds": 8, "rate": 0.1}], "rate must be left out of the segments of hidden training.*dealt for whole"),
            ([{"rounds": 4, "noise": 3.0}, {"rounds": 4}], "noise must be stated in all 2 segments or in none"),
            ([], "algorithm.segments must list at least one segment"),
        ],
    )
    def test_a_bad_segment_gets_one_sentence(self, segments: list[dict[str, Any]], sentence: str) -> None:
        with pytest.raises(FedveilError, match=sentence):
            self.both(segments)


class TestFedAvg:
    """Federated averaging in segments."""

    CLIENTS = {"epsilon": 20.0, "delta": 1e-4, "neighbours": "zero-out", "unit": "client", "adversary": "every-model"}  # noqa: RUF012

    def plan(self, segments: list[dict[str, Any]], **parts: Any) -> Plan:
        algorithm = {"kind": "fedavg", "segments": segments, **parts.pop("algorithm", {})}
        return plan_for(some_records(60, clients=12), algorithm, privacy=self.CLIENTS, **parts)

    def test_what_is_charged_is_the_composition(self) -> None:
        plan = self.plan(
            [{"rounds": 6, "noise": 4.0, "rate": 0.5}, {"rounds": 2, "noise": 3.0, "rate": 0.25, "clip": 0.02}],
            algorithm={"sampling": "poisson", "cohort": 6},
        )
        file = """
        [mechanism]
        kind = "dp-sgd"
        rounds = 8
        rate = [0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.25, 0.25]
        noise_multiplier = [4.0, 4.0, 4.0, 4.0, 4.0, 4.0, 3.0, 3.0]
        """
        expected = account_for(parse_mechanism(file), delta=1e-4).epsilon
        assert plan.method.answer("every-model", plan.setup, 1e-4).epsilon == pytest.approx(expected, rel=1e-6)
        assert promise(plan, "every-model").epsilon == pytest.approx(expected, rel=1e-4)
        assert read_plan(write_plan(plan)) == plan
        assert dict(facts_of(plan.method, plan.setup))["segments"] == "6 of noise 4, 2 of noise 3"

    def test_segments_that_are_alike_are_the_whole_to_the_bit(self) -> None:
        """In one process and by shares; steps stated, as the rule for them looks at segments one by one."""
        for trust in ({}, {"trust": {"dropouts": 2}}):
            shared = {"noise": "shared"} if trust else {}
            algorithm = {"update_norm": 0.05, "server_step": 2.0, **shared}
            parted = self.plan([{"rounds": 2, "step": 2.0}, {"rounds": 3, "step": 2.0}], algorithm=algorithm, **trust)
            records = some_records(60, clients=12)
            whole = plan_for(
                records, {"kind": "fedavg", **algorithm}, privacy=self.CLIENTS, schedule={"rounds": 5}, **trust
            )
            assert promise(parted, "every-model").epsilon == pytest.approx(
                promise(whole, "every-model").epsilon, rel=1e-6
            )
            found = [train(plan, records, KEY).model for plan in (parted, whole)]
            assert found[0] == pytest.approx(found[1], rel=1e-6)
            assert np.any(found[0] != 0)

    @pytest.mark.parametrize(
        ("segments", "algorithm", "sentence"),
        [
            ([{"rounds": 2, "rate": 0.5}], {}, "algorithm.segments.rate must be left out when all take part"),
            ([{"rounds": 2}], {"clip": "adaptive"}, "algorithm.clip must be left out with segments"),
            ([{"rounds": 2}], {"noise": "none"}, "algorithm.noise must not be none with segments"),
            ([{"rounds": 2, "noise": 0.0}], {}, "algorithm.segments.noise must be positive"),
            ([{"rounds": 2, "lag": 0.0}], {}, "Key 'lag' must be known to a segment"),
            ([{"noise": 2.0}], {}, "algorithm.segments.rounds must be given"),
            ([{"rounds": 50, "noise": 0.5}], {}, "epsilon"),
        ],
    )
    def test_a_bad_segment_gets_one_sentence(
        self, segments: list[dict[str, Any]], algorithm: dict[str, Any], sentence: str
    ) -> None:
        with pytest.raises(FedveilError, match=sentence):
            self.plan(segments, algorithm=algorithm)
