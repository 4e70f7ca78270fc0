"""Hidden training whose units draw their own rounds: what runs is what is accounted for, for every observer."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom

from fedveil import account_for
from fedveil.certificate.assumptions import assumptions
from fedveil.core.errors import BadValue
from fedveil.data.records import Records
from fedveil.engine.train import train
from fedveil.models.spec import ModelPlan
from fedveil.noise.entropy import Entropy
from fedveil.planning.plan import Plan, read_plan, write_plan
from fedveil.planning.promises import promise
from fedveil.planning.study import study_of
from fedveil.privacy.guarantee import Adversary
from fedveil.privacy.mechanism import IndependentGaussian, LastIterate, Repeat, SampledGaussian
from fedveil.privacy.trust import Trust
from fedveil.stages.adding import noised
from fedveil.stages.train.acting import Interim
from fedveil.stages.train.draws import DrawnOrder, Draws
from fedveil.stages.train.hidden.acts import ACTS
from fedveil.stages.train.hidden.answering import contribution
from fedveil.stages.train.hidden.asking import share_steps
from fedveil.stages.train.hidden.deal import LABEL, Drawn, drawn_order
from fedveil.stages.train.hidden.method import Hidden, chance_of_a_larger_batch, crowd, with_largest_batch
from fedveil.stages.train.hidden.steps import Rule, draw
from fedveil.stages.train.rounds import unpacked
from fedveil.wire.content import Content, filled
from fedveil.wire.envelope import Refused
from sides import share, site_of
from unit.plans import some_plan, some_records

POISSON: dict[str, Any] = {"order": "poisson", "rate": 0.2, "largest_batch": 60}
INDEPENDENT: dict[str, Any] = {"order": "independent", "largest_batch": 60}
KEY = Entropy.from_seed(11)
ORDERS = pytest.mark.parametrize("drawn", [POISSON, INDEPENDENT], ids=["poisson", "independent"])


def who_joins(plan: Plan, records: Records, turn: int) -> list[int]:
    """The records of a round, from the words of each client's stream and nothing else."""
    run, found = plan.run, []
    for client in range(records.clients):
        mine = np.flatnonzero(records.owner == client)
        count = 1 if plan.target.unit == "client" else mine.size
        if run.order == "poisson":
            block = min(run.total, 2**20 // (run.records or 1))
            words = KEY.words(f"{LABEL} {client}", turn // block, block * count)
            joins = words.reshape(block, count)[turn % block] < np.uint64(int((run.rate or 0) * 2**64))
        else:  # no word of so few lies beyond the last multiple
            words = KEY.words(f"{LABEL} {client}", turn // run.rounds, count)
            joins = words % np.uint64(run.rounds) == turn % run.rounds
        found += mine.tolist() if count == 1 and plan.target.unit == "client" and joins[0] else []
        found += mine[joins].tolist() if plan.target.unit == "record" else []
    return found


def by_hand(plan: Plan, records: Records) -> np.ndarray:
    """The same run record by record, in plain floats, sharing no code with the trainer but the noise."""
    rule, model = Rule.of(plan), np.zeros(plan.dimension)
    for turn in range(plan.run.total):
        total = np.zeros(plan.dimension)
        for record in who_joins(plan, records, turn):
            row, target = records.features[record], records.targets[record]
            weight = 1 / records.sizes[records.owner[record]] if plan.target.unit == "client" else 1.0
            gradient = (1 / (1 + np.exp(-row @ model)) - target) * row
            total += weight * gradient * min(1.0, plan.run.lipschitz / max(np.linalg.norm(gradient), 1e-300))
        model = model - rule.steps[turn] * (total / rule.batches[turn] + plan.model.l2 * model)
        model = model + draw(rule, turn, plan.dimension, KEY) * 2.0**plan.grid
        norm = np.linalg.norm(model)
        model = model if norm <= plan.radius else model * plan.radius / norm
    return model


@ORDERS
@pytest.mark.parametrize("clients", [60, 7])
@pytest.mark.parametrize("unit", ["record", "client"])
def test_the_run_is_the_one_that_the_plan_describes(drawn: dict[str, Any], clients: int, unit: str) -> None:
    records = some_records(clients=clients)
    whole: dict[str, Any] = {"deal": "clients", "rounds": 3, "batch": 2} if unit == "client" else {}
    model = ModelPlan(kind="logistic", classes=2, radius=5.0, l2=0.1)
    plan = some_plan(records, unit=unit, passes=3, model=model, **(drawn | whole))
    assert train(plan, records, KEY).model == pytest.approx(by_hand(plan, records), abs=1e-9)


@ORDERS
def test_a_run_that_stops_after_any_round_goes_on_to_the_same_bits(drawn: dict[str, Any]) -> None:
    records, states = some_records(clients=5), list[Interim]()
    plan = some_plan(records, passes=2, **drawn)
    whole = train(plan, records, KEY, watch=states.append)
    for state in states[:-1]:
        assert train(plan, records, KEY, begun=state).model.tobytes() == whole.model.tobytes()


@ORDERS
@pytest.mark.parametrize("server", ["trusted", "secure-aggregation"])
def test_in_shares_the_sum_holds_every_draw_and_every_share(drawn: dict[str, Any], server: Any) -> None:
    """Nobody misses a round: what is added up is all contributions and the noise of all clients, drawn or not."""
    records = some_records(count=12, clients=6)
    settings: dict[str, Any] = drawn | {"rounds": 5, "batch": 2, "noise_std": 1e-3}
    plan = replace(some_plan(records, **settings), trust=Trust(server=server))
    found = Drawn(plan, records, range(6), KEY)
    empty = [(turn, client) for turn in range(5) for client in range(6) if found.part(turn, client) is None]
    assert empty
    assert ACTS.noising is not None
    noising = ACTS.noising(plan, KEY)
    for turn, client in empty:
        part = contribution(Rule.of(plan), turn, np.ones(plan.dimension), None)
        noise = share(KEY, client, turn, share_steps(plan, turn, 6), plan.dimension)
        assert part is not None
        (sent,) = noised({client: part}, noising, turn, KEY).values()
        assert np.array_equal(sent, noise)
        assert np.any(sent != 0)
    assert [list(found.cohort(turn)) for turn in range(5)] == [list(range(6))] * 5
    assert train(plan, records, KEY).model.tobytes() == train(plan, records, KEY).model.tobytes()


@ORDERS
def test_a_site_answers_for_every_client_and_only_when_it_is_sent_a_model(drawn: dict[str, Any]) -> None:
    """Were a model needed only by those who drew a record, refusing to go without one would tell who did."""
    records = some_records(count=12, clients=6)
    settings: dict[str, Any] = drawn | {"rounds": 5, "batch": 2}
    plan = replace(some_plan(records, **settings), trust=Trust())
    site = site_of(plan, records, range(6), KEY, Path("unused"))
    for turn in range(5):
        asked = Content(rows={"model": np.zeros(plan.dimension)})
        assert sorted(site.parts(turn, asked)) == list(range(6))
        with pytest.raises(Refused):
            site.parts(turn, filled(200))


@ORDERS
def test_a_round_that_nobody_joins_still_gets_its_noise(drawn: dict[str, Any]) -> None:
    records = some_records(count=4, clients=2)
    settings: dict[str, Any] = drawn | {"rounds": 4, "batch": 1, "rate": 0.26 if drawn is POISSON else None}
    plan, seen = some_plan(records, passes=5, **settings), [np.zeros(3)]
    train(plan, records, KEY, watch=lambda done: seen.append(unpacked(done.position)[0]))
    found, rule = Drawn(plan, records, range(2), KEY), Rule.of(plan)
    empty = [turn for turn in range(plan.run.total) if found.batch(turn).targets.size == 0]
    assert empty
    for turn in empty:
        noise = draw(rule, turn, plan.dimension, KEY)
        assert np.array_equal(seen[turn + 1] - seen[turn], noise)


def test_many_rounds_share_a_stream_and_all_sites_agree_on_how_many() -> None:
    run = some_plan(some_records(), **POISSON).run
    assert drawn_order(run) == DrawnOrder(order="poisson", rounds=6, rate=0.2, block=6)
    assert drawn_order(replace(run, records=2**22)).block == 1
    assert drawn_order(replace(run, records=2**18, passes=3)).block == 4


@ORDERS
def test_plans_read_back_and_orders_have_hashes_of_their_own(drawn: dict[str, Any]) -> None:
    plan = some_plan(some_records(), **drawn)
    again = read_plan(write_plan(plan))
    assert again == plan
    assert again.hash == plan.hash != some_plan(some_records()).hash


def multiplier(run: LastIterate) -> float:
    assert isinstance(run.noise_std, float)
    assert isinstance(run.batch, int)
    return run.noise_std * math.sqrt(run.batch) / run.lipschitz


@pytest.mark.parametrize("neighbours", ["zero-out", "replace-one"])
def test_every_model_seen_costs_what_other_mechanisms_are_certified_at(neighbours: Any) -> None:
    """Two ways to one number: Poisson DP-SGD of the same noise, and balls in bins."""
    records = some_records()
    for drawn in (POISSON, INDEPENDENT):
        plan = some_plan(records, passes=2, noise_std=1.5, neighbours=neighbours, **drawn)
        noise = multiplier(plan.run)
        once = SampledGaussian(sampling="poisson", rate=0.2, noise_multiplier=noise, neighbours=neighbours)
        other = Repeat(of=once, times=12)
        if drawn is INDEPENDENT:
            a_pass = IndependentGaussian(rounds=6, noise_multiplier=noise, neighbours=neighbours)
            other = Repeat(of=a_pass, times=2)
        expected = account_for(other, delta=1e-5).epsilon
        assert promise(plan, "every-model", 1e-5).epsilon == pytest.approx(expected, rel=2e-3)


@ORDERS
def test_the_servers_rows_are_amplified_where_all_clients_take_part(drawn: dict[str, Any]) -> None:
    records = some_records(clients=6)
    plan = some_plan(records, noise_std=3.0, **drawn)
    shared = replace(plan, trust=Trust(server="secure-aggregation"))

    def epsilon(which: Plan, who: Adversary) -> float:
        return promise(which, who).epsilon

    seen = epsilon(plan, "every-model")
    assert epsilon(shared, "server-with-secure-aggregation") == pytest.approx(seen, rel=1e-3)
    assert epsilon(plan, "server-with-secure-aggregation") > 1.5 * seen
    assert epsilon(plan, "final-model") <= seen * 1.001
    alone = replace(plan, method=Hidden(run=replace(plan.run, noise_std=3.0 / math.sqrt(6)), deal="records"))
    assert epsilon(shared, "server") == pytest.approx(epsilon(alone, "every-model"), rel=1e-3)
    beside = replace(plan, method=Hidden(run=replace(plan.run, noise_std=3.0 * math.sqrt(5 / 6)), deal="records"))
    assert epsilon(shared, "curious-client") == pytest.approx(epsilon(beside, "every-model"), rel=1e-3)
    words = {row.name: row.enforced_by for row in assumptions(shared, "server-with-secure-aggregation")}
    assert "answers in every round" in words["secret draws"]
    words = {row.name: row.enforced_by for row in assumptions(plan, "server-with-secure-aggregation")}
    assert "counted as known" in words["the draws"]
    assert "secret draws" not in words


def test_a_run_that_many_may_join_is_planned_for_so_many() -> None:
    """Steps contract up to the largest batch; the chance of more, here exactly, is within a thousandth of delta."""
    run = LastIterate(
        rounds=50,
        passes=2,
        batch=20,
        records=1000,
        order="poisson",
        rate=0.02,
        step_size=0.5,
        lipschitz=1.0,
        smoothness=1.0,
        noise_std=1.0,
    )
    for step, largest in ((0.5, 80), (0.1, 400), (1.5, None), (0.001, 1000)):
        planned = with_largest_batch(replace(run, step_size=step), 1e-5)
        most = planned.largest_batch or 0
        assert 100 * binom.sf(most, 1000, 0.02) <= chance_of_a_larger_batch(planned) <= 1e-8
        assert largest is None or abs(most - largest) <= 1
        if largest is None:  # too long a step for so many: the growth is accounted for, and hides nothing
            assert step * most / 20 > 2
            assert account_for(planned, delta=1e-5).epsilon >= account_for(run, delta=1e-5).epsilon * 0.999
    assert np.all(crowd(run) >= 20)
    assert float(binom.sf(crowd(run)[0], 1000, 0.02)) <= 2.0**-100


def test_a_plan_must_say_how_many_may_join_and_deal_what_is_protected() -> None:
    records = some_records(clients=6)
    with pytest.raises(BadValue, match=r"plan\.run\.largest_batch must be given when the order is poisson"):
        some_plan(records, **(POISSON | {"largest_batch": None}))
    with pytest.raises(BadValue, match=r"algorithm\.deal must be records when records are protected"):
        some_plan(records, deal="clients", **POISSON)
    with pytest.raises(BadValue, match=r"plan\.run\.batch must be one number for all rounds, not a partition"):
        some_plan(records, **(POISSON | {"batch": (10,) * 6}))


MISTAKES: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"order": "poisson", "rate": 1.5}, {}, r"algorithm\.rate must lie in \(0, 1\], got 1\.5\. Is it a batch size\?"),
    ({"order": "poisson", "rate": 0.0}, {}, r"algorithm\.rate must lie in \(0, 1\], got 0\.0"),
    ({"order": "poisson", "rate": 0.01}, {}, r"algorithm\.rate must expect at least one of the 60 units a round"),
    ({"order": "secret", "rate": 0.1}, {}, r'algorithm\.rate must go with order = "poisson"'),
    ({"order": "independent", "rate": 0.1}, {}, r'algorithm\.rate must go with order = "poisson"'),
    ({"order": "independent"}, {"rounds": 61}, r"schedule\.rounds must be at most the number of units, 60, got 61"),
    ({"order": "independent"}, {"batch": [20, 40]}, r"schedule\.batch must be one number, not a partition"),
    ({"order": "poisson"}, {"batch": [20, 40]}, r"schedule\.batch must be one number, not a partition"),
    ({"order": "poisson"}, {"kind": "growing-batches"}, r"schedule\.kind must be constant or decaying when the order"),
    ({"order": "poisson", "rate": 0.1}, {"batch": 6}, r"schedule\.batch must be left out with algorithm\.rate"),
    ({"order": "independent"}, {"batch": 7, "rounds": 6}, r"schedule\.batch must be what 6 rounds of 60 units expect"),
    ({"order": "poisson", "noise": "laplace"}, {}, r"algorithm\.noise must be gaussian"),
    ({"order": "coins"}, {}, r"algorithm\.order must be one of .*poisson, independent, got .coins."),
]


@pytest.mark.parametrize(("algorithm", "schedule", "sentence"), MISTAKES)
def test_every_mistake_has_a_sentence(algorithm: dict[str, Any], schedule: dict[str, Any], sentence: str) -> None:
    tables = {
        "study": {"seed": 1},
        "model": {"kind": "logistic", "radius": 5.0},
        "privacy": {"epsilon": 5.0, "delta": 1e-4, "neighbours": "zero-out"},
        "algorithm": {"kind": "hidden", **algorithm},
        "schedule": schedule,
    }
    with pytest.raises(BadValue, match=sentence):
        study_of(tables, base=Path(), name="trial", data_given=True).planned(some_records(clients=6).shape)


def test_draws_of_a_pass_or_a_key_are_never_used_again() -> None:
    """Where coins are reused across passes, the same records meet the same rounds."""
    plan = some_plan(some_records(clients=3), passes=4, **POISSON)
    found = Drawn(plan, some_records(clients=3), range(3), KEY)
    rounds = [tuple(found.batch(turn).features.ravel()) for turn in range(plan.run.total)]
    assert len(set(rounds)) == len(rounds)
    units = dict.fromkeys(range(3), 20)
    other = Draws(drawn_order(plan.run), units, Entropy.from_seed(12), LABEL)
    mine = Draws(drawn_order(plan.run), units, KEY, LABEL)
    assert [mine.joined(t).tolist() for t in range(6)] != [other.joined(t).tolist() for t in range(6)]
