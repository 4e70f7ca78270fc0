"""Segments that a rule chooses: what is charged is the budget, and nothing that would overspend uses a record."""

from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from fedveil.accounting.compare import account_for
from fedveil.core.errors import CannotCertify, FedveilError
from fedveil.data.records import Records
from fedveil.engine.train import train
from fedveil.federation.aggregator.federate import check_carried
from fedveil.noise.entropy import Entropy
from fedveil.planning.design import read_request
from fedveil.planning.plan import Plan, read_plan, write_plan
from fedveil.planning.promises import promise
from fedveil.planning.study import study_of
from fedveil.privacy.guarantee import Adversary
from fedveil.privacy.trust import Trust
from fedveil.stages.train.acting import Session
from fedveil.stages.train.dpsgd.acts import ACTS
from fedveil.stages.train.dpsgd.chosen import train_chosen
from fedveil.stages.train.dpsgd.client import ClientSums
from fedveil.stages.train.dpsgd.cost import charged
from fedveil.stages.train.dpsgd.method import DpSgd
from fedveil.stages.train.dpsgd.observe import ATTACK_VIEW
from fedveil.stages.train.dpsgd.rounds import costs_of_segments
from fedveil.stages.train.registry import facts_of
from fedveil.stages.train.settings import IN_ORDER, Choice, Purse, plateau
from fedveil.wire.content import Content
from fedveil.wire.envelope import Refused
from unit.plans import some_records

KEY = Entropy.from_seed(5)
LOUD_THEN_QUIET = [{"rounds": 5, "noise": 12.0, "step": 0.5}, {"rounds": 5, "noise": 6.0, "step": 0.1}]


def plan_for(records: Records, segments: Any = None, held: int = 10, public: bool = True, **parts: Any) -> Plan:
    rows = LOUD_THEN_QUIET if segments is None else segments
    own = {"kind": "dpsgd", "sampling": "shuffled", "rate": 0.2, "choose": "plateau", "segments": rows}
    tables = {
        "study": {"name": "trial"},
        "algorithm": {**own, **parts.pop("algorithm", {})},
        "model": {"kind": "logistic"},
        "privacy": {"epsilon": 2.0, "delta": 1e-5, "neighbours": "replace-one", "adversary": "every-model"},
        **parts,
    }
    return study_of(tables, base=Path(), data_given=True).planned(records.shape, held, public).plan


def dpsgd(plan: Plan) -> DpSgd:
    assert isinstance(plan.method, DpSgd)
    return plan.method


def choosing(*wanted: int) -> Any:
    """A rule that asks for these segments, whatever they cost."""

    def rule(choice: Choice, chosen: tuple[int, ...], losses: tuple[float, ...], purse: Purse) -> int | None:
        return wanted[len(chosen)] if len(chosen) < len(wanted) else None

    return rule


def budget_of(method: DpSgd) -> float:
    assert method.choice
    return method.choice.budget


def flat(model: Any) -> float:
    return 1.0


class TestWhatIsCharged:
    """One number for all observers, and it is the budget's."""

    def test_the_budget_is_the_target_whatever_is_chosen(self) -> None:
        plan = plan_for(some_records(clients=3))
        assert 1.99 < promise(plan, "every-model").epsilon <= 2.0
        local = plan_for(some_records(clients=3), trust={"noise": "local"})
        rows = {promise(local, adversary).epsilon for adversary in get_args(Adversary)}
        assert len(rows) == 1
        assert 1.99 < rows.pop() <= 2.0

    def test_every_affordable_sequence_costs_at_most_the_budget(self) -> None:
        plan = plan_for(some_records(clients=3))
        method = dpsgd(plan)
        costs, budget = costs_of_segments(method), Fraction(budget_of(method))
        assert costs == (Fraction(1, 144), Fraction(1, 36))  # one pass each
        whole = promise(plan, "every-model").epsilon
        most = int(budget / costs[0])
        for quiet in range(int(budget / costs[1]) + 1):
            loud = int((budget - quiet * costs[1]) / costs[0])
            parts = (method.client_settings[0],) * loud + (method.client_settings[1],) * quiet
            fixed = charged(parts, method.sampling, method.clipping, plan.target)
            assert account_for(fixed, delta=1e-5).epsilon <= whole
        assert method.total == 5 * most

    def test_noise_that_is_not_stated_pays_for_all_segments_once(self) -> None:
        plan = plan_for(some_records(clients=3), [{"rounds": 5}, {"rounds": 10}])
        costs = costs_of_segments(dpsgd(plan))
        assert sum(costs) <= Fraction(budget_of(dpsgd(plan))) <= sum(costs) * Fraction(1 + 1e-12)
        assert promise(plan, "every-model").epsilon <= 2.0

    @pytest.mark.parametrize("sampling", ["poisson", "fixed-size"])
    def test_sampled_batches_are_counted(self, sampling: str) -> None:
        rows = [{"rounds": 4, "noise": 3.0, "step": 0.5}, {"rounds": 3, "noise": 3.0, "step": 0.1, "clip": 0.2}]
        plan = plan_for(some_records(clients=3), rows, algorithm={"sampling": sampling})
        method = dpsgd(plan)
        rounds = int(budget_of(method))
        assert costs_of_segments(method) == (4, 3)

        def costs(count: int) -> float:
            part = replace(method.client_settings[0], rounds=count, step_size=1.0)
            return account_for(charged((part,), method.sampling, "individual", plan.target), delta=1e-5).epsilon

        assert costs(rounds) <= 2.0 < costs(rounds + 2)

    def test_the_plan_reads_back_and_says_what_may_be_chosen(self) -> None:
        plan = plan_for(some_records(clients=3))
        assert read_plan(write_plan(plan)) == plan
        facts = dict(facts_of(plan.method, plan.setup))
        assert facts["segments to choose from"] == "5 of noise 12, 5 of noise 6"
        assert facts["rounds of a client"].startswith("at most ")
        fixed = plan_for(some_records(clients=3), LOUD_THEN_QUIET, algorithm={"choose": None})
        assert "choice" not in write_plan(fixed)


class TestTheRun:
    """The filter stands before the records, and the chosen segments run as if they had been planned."""

    def test_a_rule_that_would_overspend_is_refused_before_the_round(self, monkeypatch: pytest.MonkeyPatch) -> None:
        records = some_records(clients=3)
        plan = plan_for(records)
        paid = int(Fraction(budget_of(dpsgd(plan))) / Fraction(1, 36))
        used: list[int] = []
        before = ClientSums.total

        def counting(self: ClientSums, model: Any, chosen: Any) -> Any:
            used.append(chosen.size)
            return before(self, model, chosen)

        monkeypatch.setattr(ClientSums, "total", counting)
        greedy = choosing(*[1] * (paid + 1))
        with pytest.raises(
            CannotCertify, match=r"asks for segment 2, which costs 0\.0277778 .* before its first round"
        ):
            train_chosen(plan, records, KEY, Session(public_loss=flat), greedy)
        assert len(used) == 5 * paid * records.clients  # the rounds that were paid for, and none more

    def test_a_segment_that_does_not_exist_is_refused(self) -> None:
        records = some_records(clients=3)
        with pytest.raises(CannotCertify, match="asks for segment 8"):
            train_chosen(plan_for(records), records, KEY, Session(public_loss=flat), choosing(7))

    @pytest.mark.parametrize("sequence", [(0, 0, 1), (1, 0), (1,)])
    def test_what_is_chosen_runs_as_if_it_had_been_planned(self, sequence: tuple[int, ...]) -> None:
        records = some_records(clients=3)
        plan = plan_for(records)
        ours = train_chosen(plan, records, KEY, Session(public_loss=flat), choosing(*sequence))
        fixed = replace(
            dpsgd(plan),
            client_settings=tuple(dpsgd(plan).client_settings[k] for k in sequence),
            choice=IN_ORDER,
        )
        theirs = train(replace(plan, method=fixed), records, KEY).model
        assert ours.chosen == sequence
        np.testing.assert_allclose(ours.model, theirs, atol=1e-9)  # windows are added up on a grid of their own

    def test_the_rule_of_a_study_ends_within_its_budget(self) -> None:
        records, public = some_records(clients=3), some_records(clients=3, seed=1)
        plan = plan_for(records)
        found = train(plan, records, KEY, public=public)
        costs = costs_of_segments(dpsgd(plan))
        left = Fraction(budget_of(dpsgd(plan))) - sum(costs[k] for k in found.chosen)
        assert 0 <= left < costs[-1]
        assert list(found.chosen) == sorted(found.chosen)

    def test_without_public_records_nothing_runs(self) -> None:
        records = some_records(clients=3)
        with pytest.raises(FedveilError, match=r"algorithm\.choose must go with held-out records that are public"):
            train(plan_for(records), records, KEY)


class TestTheRule:
    """Stay while the public loss falls; go on to the next; pass over what is not affordable."""

    purse = Purse(costs=(Fraction(3), Fraction(2), Fraction(1)), left=Fraction(10))
    choice = Choice(rule="plateau", gain=0.1, budget=10.0)

    @pytest.mark.parametrize(
        ("chosen", "losses", "left", "expected"),
        [
            ((), (1.0,), 10, 0),
            ((0,), (1.0, 0.8), 7, 0),
            ((0,), (1.0, 0.95), 7, 1),
            ((0,), (1.0, float("nan")), 7, 1),
            ((0,), (1.0, 0.8), 2, 1),
            ((2,), (1.0, 1.1), 5, 2),
            ((2,), (1.0, 0.5), 0, None),
        ],
    )
    def test_next(self, chosen: tuple[int, ...], losses: tuple[float, ...], left: int, expected: int | None) -> None:
        assert plateau(self.choice, chosen, losses, replace(self.purse, left=Fraction(left))) == expected


@pytest.mark.parametrize(
    ("segments", "algorithm", "sentence"),
    [
        (None, {"choose": "best"}, "algorithm.choose must be one of plateau, got 'best'"),
        (None, {"choose": {"rule": "plateau", "gain": 1.5}}, r"algorithm.choose.gain must lie in \[0, 1\)"),
        (None, {"choose": {"gain": 0.1}}, "algorithm.choose. must be complete: missing"),
        (
            None,
            {"network": {"window": 2.0}},
            "algorithm.choose must go with clients that wait for each other in every round",
        ),
        (
            None,
            {"network": {"delay": 1.0}},
            "algorithm.choose must go with clients that wait for each other in every round",
        ),
        ([{"rounds": 5, "noise": 0.3}], {}, "algorithm.segments must have one whose cost is within the budget"),
        (
            [{"rounds": 5, "noise": 9.0}, {"rounds": 5, "noise": 8.0}],
            {"sampling": "poisson"},
            "algorithm.segments must be alike in rate and noise where batches are sampled and a rule chooses",
        ),
        ([{"rounds": 5, "noise": 0.01}], {"sampling": "poisson"}, "algorithm.segments must cost at most epsilon"),
    ],
)
def test_a_bad_choice_gets_one_sentence(segments: Any, algorithm: dict[str, Any], sentence: str) -> None:
    with pytest.raises(FedveilError, match=sentence):
        plan_for(some_records(clients=3), segments, algorithm=algorithm)


def test_a_rule_needs_segments_and_public_records() -> None:
    with pytest.raises(FedveilError, match=r"algorithm\.choose must go with segments to choose from"):
        study_of(
            {
                "model": {"kind": "logistic"},
                "privacy": {"epsilon": 1.0, "delta": 1e-5},
                "algorithm": {"kind": "dpsgd", "choose": "plateau"},
            },
            base=Path(),
            data_given=True,
        )
    for held, public in ((0, True), (10, False)):
        with pytest.raises(FedveilError, match=r"algorithm\.choose must go with held-out records that are public"):
            plan_for(some_records(clients=3), held=held, public=public)


@pytest.mark.parametrize("kind", ["hidden", "fedavg", "simfl", "auto"])
def test_other_algorithms_say_why_they_refuse(kind: str) -> None:
    with pytest.raises(
        FedveilError,
        match=rf"algorithm\.choose must be a setting of {kind}, got 'plateau'\. It is a setting of dpsgd\. \w+",
    ):
        read_request({"kind": kind, "choose": "plateau"})


def test_sites_and_attacks_say_why_they_refuse() -> None:
    records = some_records(clients=3)
    plan = plan_for(records)
    with pytest.raises(
        FedveilError, match=r"algorithm\.choose must be left out with sites, got 'plateau'\. State segments"
    ):
        check_carried(replace(plan, trust=Trust()))
    with pytest.raises(FedveilError, match=r"algorithm\.choose must be left out with an attack"):
        ATTACK_VIEW.first_round(plan, records, KEY)
    with pytest.raises(Refused, match="a-choice"):
        ACTS.check_proposal(plan, records, Content())


def test_a_server_that_may_not_look_chooses_the_same() -> None:
    records, public = some_records(clients=3), some_records(clients=3, seed=1)
    plan, masked = (plan_for(records, trust={"server": server}) for server in ("trusted", "secure-aggregation"))
    found = [train(one, records, KEY, public=public) for one in (plan, masked)]
    assert found[0].chosen == found[1].chosen
    assert found[0].model.tobytes() == found[1].model.tobytes()
