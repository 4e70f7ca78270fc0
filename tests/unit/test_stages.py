"""The laws of stages, once for all of them: whoever adds up and whatever is killed, the same bits come out."""

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedveil.core.errors import TooFewSurvivors
from fedveil.data.records import Records
from fedveil.engine.evaluator import evaluator_of
from fedveil.engine.train import train
from fedveil.federation.aggregator.across import Across
from fedveil.federation.agreements import spans
from fedveil.noise.entropy import Entropy
from fedveil.planning.plan import Plan
from fedveil.planning.study import study_of
from fedveil.privacy.trust import CENTRAL, Trust
from fedveil.stages.adding import Fails, nobody_fails, plain_sum
from fedveil.stages.measuring import Measurer
from fedveil.stages.protocol import HERE, Consortium, State, Total
from fedveil.stages.train.acting import Interim
from fedveil.stages.train.fedavg.method import FedAvg
from fedveil.sums.seam import Summed, Whole
from fedveil.wire.content import Content
from fedveil.wire.envelope import Refused
from sides import across_sites, asking_of, in_shares, site_here, trained_across
from unit.plans import some_plan, some_records

KEY = Entropy.from_seed(21)
SITES = {"a": np.array([0, 2, 3, 7, 11]), "b": np.array([1, 4, 5, 6, 8, 9, 10])}
TRUST = Trust(dropouts=1)
HIDDEN: dict[str, dict[str, Any]] = {
    "hidden, records dealt": {"passes": 2},
    "hidden, clients dealt": {"deal": "clients", "unit": "client", "batch": 4, "rounds": 3},
    "hidden, poisson": {"order": "poisson", "rate": 0.2, "largest_batch": 60},
    "hidden, independent": {"order": "independent", "largest_batch": 60},
}
WIDE = {"kind": "dpsgd", "network": {"window": 2.0}, "rounds": 7, "clip": "adaptive"}
SEGMENTS = {
    "kind": "dpsgd",
    "rounds": None,
    "segments": [{"rounds": 3, "noise": 9.0}, {"rounds": 6, "noise": 8.0, "rate": 0.3, "step": 0.1}],
    "network": {"window": 4.0},
}
STUDIES: dict[str, dict[str, Any]] = {
    "fedavg": {"kind": "fedavg"},
    "fedavg, fixed size": {"kind": "fedavg", "sampling": "fixed-size", "cohort": 6},
    "fedavg, poisson": {"kind": "fedavg", "sampling": "poisson", "cohort": 6, "local": {"batch": 2}},
    "fedavg, independent": {"kind": "fedavg", "sampling": "independent", "cohort": 4},
    "fedavg, adaptive": {"kind": "fedavg", "clip": "adaptive", "optimizer": "adam", "server_step": 0.1},
    "fedavg, correlated": {"kind": "fedavg", "correlation": {"bands": 3}, "cohort": 4},
    "dpsgd": {"kind": "dpsgd", "optimizer": "sgd"},
    "dpsgd, adam": {"kind": "dpsgd", "optimizer": {"kind": "adam", "average": 0.9}},
    "dpsgd, wide windows": WIDE,
    "dpsgd, segments": SEGMENTS,
    "dpsgd, batches clipped": {"kind": "dpsgd", "clipping": "batch", "weights": [1 / 12] * 12},
    "dpsgd, local": {"kind": "dpsgd", "optimizer": "sgd"},
    "dpsgd, local adam": {"kind": "dpsgd", "optimizer": {"kind": "adam", "average": 0.9}},
    "dpsgd, local wide windows": WIDE,
    "dpsgd, local segments": SEGMENTS,
    "dpsgd, local correlated": {"kind": "dpsgd", "correlation": {"bands": 3}, "sampling": "cyclic", "rate": 0.4},
}
STAGES = pytest.mark.parametrize("name", [*HIDDEN, *STUDIES])
FORGETFUL = [*HIDDEN, *(name for name in STUDIES if "correlated" not in name and "local" not in name)]


@cache
def records() -> Records:
    """Twelve clients with three or seven records each, in no order."""
    owner = np.repeat(np.arange(12), [3, 7] * 6)[np.random.default_rng(0).permutation(60)]
    return replace(some_records(60, features=3, clients=1), owner=owner, clients=12, names=())


@cache
def plan_of(name: str, trust: Trust = TRUST, evaluated: bool = False) -> Plan:
    if "local" in name:
        return designed(STUDIES[name], replace(TRUST, noise="local"), evaluated)
    if trust is CENTRAL:
        return replace(plan_of(name, TRUST, evaluated), trust=CENTRAL)
    if name in HIDDEN:
        return replace(some_plan(records(), **HIDDEN[name]), trust=trust)
    return designed(STUDIES[name], trust, evaluated)


def designed(algorithm: dict[str, Any], trust: Trust, evaluated: bool = False) -> Plan:
    fedavg = algorithm["kind"] == "fedavg"
    privacy: dict[str, Any] = {"epsilon": 8.0, "delta": 1e-4, "neighbours": "zero-out"}
    if fedavg:
        privacy |= {"unit": "client"}
        own = {"noise": "shared"}
        if "correlation" in algorithm:
            privacy |= {"adversary": "server-with-secure-aggregation"}
            own = {}
    else:
        own = {"rounds": 5, "rate": 0.5}
    tables = {
        "model": {"kind": "logistic", "radius": 5.0},
        "privacy": privacy,
        "algorithm": {key: value for key, value in (own | algorithm).items() if value is not None},
        "schedule": {"rounds": 6} if fedavg else {} if "segments" in algorithm else {"step_size": 0.1},
        **({"evaluation": {"private": True, "share": 0.2}} if evaluated else {}),
    }
    study = replace(study_of(tables, base=Path(), data_given=True), trust=trust)
    return study.planned(records().shape).plan


def one_missing(turn: int, client: int) -> bool:
    return client == (5 * turn + 2) % 12


def who_sends(plan: Plan) -> dict[int, list[int]]:
    """Who sends in each turn where nobody fails."""
    seen: dict[int, list[int]] = {}

    def kept(turn: int, parts: Mapping[int, Whole], /) -> Summed:
        seen[turn] = sorted(parts)
        return plain_sum(turn, parts)

    in_shares(plan, records(), KEY, kept)
    return seen


@STAGES
def test_sites_that_are_killed_after_every_turn_find_the_bits_of_one_process(name: str, tmp_path: Path) -> None:
    plan = plan_of(name)
    whole = in_shares(plan, records(), KEY).model
    assert np.any(whole != 0)
    assert trained_across(plan, records(), KEY, tmp_path, SITES).tobytes() == whole.tobytes()


@STAGES
@pytest.mark.parametrize("trust", [CENTRAL, TRUST], ids=["at once", "in shares"])
def test_a_run_that_is_killed_after_any_round_goes_on_to_the_same_bits(name: str, trust: Trust) -> None:
    plan, told = plan_of(name, trust), list[Any]()
    whole = train(plan, records(), KEY, watch=told.append, fails=one_missing)
    kept = [state for state in told if isinstance(state, Interim)]
    assert len(kept) >= 2
    for state in kept:  # written down only now: a later round may not have changed it
        begun, rest = Interim.read(state.round, state.position, state.dropped), list[Any]()
        again = train(plan, records(), KEY, begun=begun, watch=rest.append, fails=one_missing)
        assert again.model.tobytes() == whole.model.tobytes()
        assert len(rest) == len(told) - 1 - told.index(state)  # nothing is done twice


@pytest.mark.parametrize("correlation", [{"bands": 3}, {"buffers": 2}], ids=["bands", "buffers"])
def test_one_party_that_draws_the_noise_of_all_streams_correlates_it_itself(correlation: dict[str, Any]) -> None:
    """Nobody sends an update again where nobody adds a share: the run is that of central noise, to the bit."""
    plan = designed({**STUDIES["fedavg, correlated"], "correlation": correlation}, CENTRAL)
    method = plan.method
    assert isinstance(method, FedAvg)
    assert method.streams
    alone = replace(plan, method=replace(method, noise="central"))
    found = [train(one, records(), KEY).model.tobytes() for one in (plan, alone)]
    assert found[0] == found[1]


@pytest.mark.parametrize("name", FORGETFUL)
def test_a_client_that_fails_is_missing_alike_everywhere(name: str, tmp_path: Path) -> None:
    """Where clients keep nothing, a lost answer is one that was never computed."""
    plan = plan_of(name)
    here = in_shares(plan, records(), KEY, fails=one_missing).model
    assert trained_across(plan, records(), KEY, tmp_path, SITES, one_missing).tobytes() == here.tobytes()
    assert not np.array_equal(here, in_shares(plan, records(), KEY).model)


@STAGES
def test_too_few_answers_are_refused_everywhere(name: str, tmp_path: Path) -> None:
    plan = plan_of(name)
    turn, senders = 1, who_sends(plan)[1]
    gone = senders[:2]
    sentence = f"Round 2 has the answers of {len(senders) - 2} clients and needs {len(senders) - 1}"

    def fails(now: int, client: int) -> bool:
        return now == turn and client in gone

    told = list[Any]()
    with pytest.raises(TooFewSurvivors, match=sentence):
        train(plan, records(), KEY, fails=fails, watch=told.append)
    assert len(told) == 1
    with pytest.raises(TooFewSurvivors, match=sentence):
        trained_across(plan, records(), KEY, tmp_path, SITES, fails)


@STAGES
def test_a_repeated_turn_has_the_same_answer_and_an_earlier_one_none_where_clients_remember(
    name: str, tmp_path: Path
) -> None:
    plan = plan_of(name)
    asking = asking_of(plan, Consortium.here(records()), KEY)
    site, state, asked = site_here(plan, records(), KEY, tmp_path), asking.start(), list[tuple[Content, dict]]()
    for turn in range(3):
        question = asking.question(state, HERE)
        assert question is not None
        sent = site.parts(turn, question)
        asked.append((question, sent))
        for again in (site, site_here(plan, records(), KEY, tmp_path)):  # by this process, and by a new one
            repeated = again.parts(turn, question)
            assert sorted(repeated) == sorted(sent)
            assert all(np.array_equal(repeated[client], sent[client]) for client in sent)
        state = asking.advance(state, Total(plain_sum(turn, sent).total))
    question, sent = asked[0]
    if name in FORGETFUL or name == "dpsgd, local":
        return
    for again in (site, site_here(plan, records(), KEY, tmp_path)):
        with pytest.raises(Refused, match="stale-round"):
            again.parts(0, question)
        other = Content(rows=asked[2][0].rows | {"model": asked[2][0].rows["model"] + 0.5})
        with pytest.raises(Refused, match="changed-round"):
            again.parts(2, other)


@STAGES
def test_a_state_decides_its_question(name: str) -> None:
    """Whoever starts again from a copy of the state asks everybody the same."""
    plan = plan_of(name)
    asking, again = (asking_of(plan, Consortium.here(records()), KEY) for _ in range(2))
    for turn in range(2):
        state = State(turn, asking.start().row)
        first, other = asking.question(state), again.question(State(turn, state.row.copy()), HERE)
        assert first is not None
        assert other is not None
        assert first.write() == other.write()


class TestNoisySums:
    """The same laws for a stage that is noisy sums and nothing else: a private evaluation, after training."""

    plan = staticmethod(lambda trust=TRUST: plan_of("dpsgd", trust, True))

    def here(self, plan: Plan, model: np.ndarray, fails: Fails = nobody_fails) -> str:
        by = Measurer(
            owner=records().owner,
            clients=12,
            present=np.arange(60),
            target=plan.target,
            entropy=KEY,
            trust=plan.trust,
            fails=fails,
        )
        return json.dumps(evaluator_of(plan, model).counted(records(), by, None), sort_keys=True)

    def across(self, plan: Plan, model: np.ndarray, folder: Path, fails: Fails = nobody_fails) -> str:
        def job(across: Across) -> str:
            by = across.measures("evaluation", across.members.sizes, times=2, beside={"model": model})
            return json.dumps(evaluator_of(plan, model).counted(None, by, None), sort_keys=True)

        return across_sites(plan, records(), KEY, folder, SITES, job, fails)

    def test_sites_that_are_killed_after_every_sum_find_the_bits_of_one_process(self, tmp_path: Path) -> None:
        plan = self.plan()
        model = np.linspace(-1.0, 1.0, plan.dimension)
        assert spans(plan)[-1].stage.turns == 2
        assert self.across(plan, model, tmp_path) == self.here(plan, model)
        assert self.here(plan, model) != self.here(self.plan(CENTRAL), model)

    def test_clients_that_fail_are_missing_alike_and_too_few_are_refused(self, tmp_path: Path) -> None:
        plan = self.plan()
        model = np.zeros(plan.dimension)
        missing = [lambda turn, client, gone=gone: client in gone for gone in ((3,), (3, 4))]
        assert self.across(plan, model, tmp_path / "one", missing[0]) == self.here(plan, model, missing[0])
        for count in (self.here, lambda *given: self.across(*given[:2], tmp_path / "two", given[2])):
            with pytest.raises(TooFewSurvivors, match="answers of 10 clients and needs 11"):
                count(plan, model, missing[1])

    def test_a_repeated_turn_has_the_same_answer_and_every_client_its_own_noise(self, tmp_path: Path) -> None:
        plan = self.plan()
        first, one = spans(plan)[-1].first, plan.evaluation.sums.measurements[0]  # type: ignore[union-attr]
        asked = Content(rows={"model": np.zeros(plan.dimension), "sums": np.zeros(0)})
        sent, again = (site_here(plan, records(), KEY, tmp_path).parts(first, asked) for _ in range(2))
        assert sorted(sent) == list(range(12))
        assert all(np.array_equal(sent[client], again[client]) for client in sent)
        assert len({part.tobytes() for part in sent.values()}) == 12
        assert all(part.size == one.size and np.all(part != 0) for part in sent.values())
