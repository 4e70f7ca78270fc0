"""A round by parts: what sites and server compute, that it is the whole round, and how much noise its sums have."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from dpsgd_plans import dpsgd_plan
from plans import some_plan, some_records
from scipy.stats import chi2

from fedveil.core.errors import BadValue, TooFewSurvivors
from fedveil.data.records import Records
from fedveil.engine.train import train
from fedveil.models.spec import ModelPlan
from fedveil.noise.entropy import Entropy
from fedveil.planning.plan import Plan
from fedveil.privacy.target import Target
from fedveil.privacy.trust import CENTRAL, Trust
from fedveil.stages.adding import LARGEST_PART, Adder, Noising, bounded, noised, plain_sum
from fedveil.stages.protocol import HERE, Away, Consortium, Memory, State, Total, nobody
from fedveil.stages.train.acting import Interim
from fedveil.stages.train.dpsgd.settings import Network
from fedveil.stages.train.dpsgd.steps import train_dpsgd
from fedveil.stages.train.fedavg.acts import FedAvgAnswering
from fedveil.stages.train.fedavg.method import FedAvg, LocalSteps
from fedveil.stages.train.hidden.answering import HiddenAnswering, Laid, contribution
from fedveil.stages.train.hidden.asking import advance, model_of
from fedveil.stages.train.hidden.deal import Drawn, deal
from fedveil.stages.train.hidden.steps import Rule, step
from fedveil.stages.train.hidden.steps import State as Stepped
from fedveil.stages.train.rounds import unpacked
from fedveil.sums.seam import Summed, Whole
from fedveil.wire.content import Content
from sides import asking_of, share

Vector = np.ndarray
KEY = bytes(range(32))
DEALS: list[dict[str, Any]] = [
    {},
    {"deal": "clients", "unit": "client", "batch": 4, "rounds": 3},
    {"deal": "clients", "batch": 15, "rounds": 4},
    {"passes": 2, "order": "public"},
]


def records_of(clients: int = 12) -> Records:
    return some_records(60, features=3, clients=clients)


def plan_of(changes: Mapping[str, Any], trust: Trust | None = None, **more: Any) -> Plan:
    return replace(some_plan(records_of(), **changes, **more), trust=trust)


def masked_sum(turn: int, parts: Mapping[int, Whole], /) -> Summed:
    """Sums as a masking server sees them: every vector is hidden by a pad modulo 2**64, and the pads cancel."""
    generator = np.random.default_rng(turn)
    clients = sorted(parts)
    size = parts[clients[0]].size
    pads = generator.integers(0, 2**64, size=(len(clients), size), dtype=np.uint64)
    seen = [parts[c].view(np.uint64) + pads[i] - pads[i - 1] for i, c in enumerate(clients)]
    total = np.sum(np.stack(seen), axis=0, dtype=np.uint64)
    return Summed(total.view(np.int64), tuple(clients))


def laid_out(plan: Plan, records: Records, entropy: Entropy) -> Laid | Drawn:
    """The records of every client by round, as one process lays them out."""
    proposal = asking_of(plan, Consortium.here(records), entropy).proposal(HERE)
    return HiddenAnswering(plan, records, tuple(range(records.clients)), proposal.get("place"), entropy).laid


class TestHidden:
    @pytest.mark.parametrize("changes", DEALS)
    def test_parts_add_up_to_the_whole_round(self, changes: dict[str, Any]) -> None:
        """Without noise, within half a step for each contribution and one for the penalty's rounding."""
        records, entropy = records_of(), Entropy.from_key(KEY)
        plan = plan_of(changes, Trust(), model=ModelPlan(kind="logistic", classes=2, radius=5.0, l2=0.1))
        rule, laid, dealt = Rule.of(plan), laid_out(plan, records, entropy), deal(plan, records, entropy)
        state = State(0, np.array([3.0, -2.0, 1.0]) * 2.0**38)
        for _ in range(plan.run.total):
            turn, model = state.round, model_of(rule, state)
            parts = [contribution(rule, turn, model, laid.part(turn, client)) for client in laid.cohort(turn)]
            assert all(part is not None for part in parts)
            here = advance(rule, state, Total(np.sum(np.stack(parts), axis=0)))  # type: ignore[arg-type]
            whole = step(rule, Stepped(turn, state.row), dealt.batch(turn), np.zeros(3))
            assert np.abs(here.row - whole.position).max() <= len(parts) / 2 + 1
            assert np.abs(whole.position - state.row).max() > 2.0**30  # it has moved
            state = here

    @pytest.mark.parametrize("changes", DEALS)
    def test_a_site_with_its_own_records_alone_computes_the_same_bits(self, changes: dict[str, Any]) -> None:
        records, entropy = records_of(), Entropy.from_key(KEY)
        plan = plan_of(changes, Trust())
        rule, laid = Rule.of(plan), laid_out(plan, records, entropy)
        model = np.array([0.5, -0.25, 1.0])
        rng = np.random.default_rng(1)
        for client in range(12):
            mine = records.owner == client
            others = np.where(mine[:, None], records.features, 0.1 * rng.normal(size=records.features.shape))
            blind = replace_records(records, others)  # whatever the others hold
            alone = laid_out(plan, blind, entropy)
            for turn in range(plan.run.rounds):
                if client in laid.cohort(turn):
                    first, again = (contribution(rule, turn, model, x.part(turn, client)) for x in (laid, alone))
                    assert first is not None
                    assert again is not None
                    assert first.tobytes() == again.tobytes()

    def test_who_takes_part(self) -> None:
        entropy, records = Entropy.from_key(KEY), records_of()
        assert list(laid_out(plan_of(DEALS[0], Trust()), records, entropy).cohort(2)) == list(range(12))
        laid = laid_out(plan_of(DEALS[1], Trust()), records, entropy)
        seen = [tuple(laid.cohort(turn)) for turn in range(3)]
        assert sorted(sum(seen, ())) == list(range(12))
        assert laid.cohort(4) == laid.cohort(1)

    @pytest.mark.parametrize("changes", DEALS)
    def test_any_way_of_adding_up_gives_the_same_model(self, changes: dict[str, Any]) -> None:
        plan, entropy = plan_of(changes, Trust(dropouts=1)), Entropy.from_key(KEY)
        fails = lambda turn, client: (turn + client) % 7 == 3 and changes.get("deal") is None and client == 3  # noqa: E731
        open_, hidden = (
            train(plan, records_of(), entropy, add_up=add_up, fails=fails).model for add_up in (plain_sum, masked_sum)
        )
        assert open_.tobytes() == hidden.tobytes()

    def test_it_goes_on_from_any_state_to_the_same_bytes(self) -> None:
        plan, entropy, states = plan_of({}, Trust(dropouts=2)), Entropy.from_key(KEY), list[Interim]()
        fails = lambda turn, client: client in (turn, turn + 4)  # noqa: E731
        last = train(plan, records_of(), entropy, watch=states.append, fails=fails).model
        for state in (states[0], states[3]):
            again = train(plan, records_of(), Entropy.from_key(KEY), begun=state, fails=fails).model
            assert again.tobytes() == last.tobytes()

    def test_too_few_answers_are_refused(self) -> None:
        plan, seen = plan_of({}, Trust(dropouts=2)), list[Interim]()
        fails = lambda turn, client: turn == 2 and client < 3  # noqa: E731
        with pytest.raises(TooFewSurvivors, match="Round 3 has the answers of 9 clients and needs 10"):
            train(plan, records_of(), Entropy.from_key(KEY), watch=seen.append, fails=fails)
        assert [state.round for state in seen] == [1, 2]

    def test_by_parts_and_in_one_piece_models_are_alike(self) -> None:
        """Same data, same variance: means of 60 models differ by less than 6 deviations (false alarm below 1e-8)."""
        plan = plan_of({"noise_std": 2.0}, Trust())
        runs = [
            np.stack([train(p, records_of(), Entropy.from_seed(k)).model for k in range(60)])
            for p in (plan, replace(plan, trust=CENTRAL))
        ]
        means, spread = [r.mean(axis=0) for r in runs], [r.std(axis=0) for r in runs]
        assert (np.abs(means[0] - means[1]) < 6 * np.hypot(*spread) / math.sqrt(60)).all()
        assert (np.abs(np.log(spread[0] / spread[1])) < 6 / math.sqrt(60)).all()


class TestFedAvg:
    def plan(self, trust: Trust | None, **changes: Any) -> Plan:
        records = records_of()
        settings = {
            "rounds": 3,
            "sampling": "fixed-size",
            "cohort": 6.0,
            "local": LocalSteps(epochs=2, step=0.5),
            "update_norm": 0.4,
            "noise": "shared",
            "noise_multiplier": 0.5,
        }
        return Plan(
            name="trial",
            data=records.shape,
            model=ModelPlan(kind="logistic", classes=2, radius=5.0),
            target=Target(epsilon=5.0, delta=1e-5, unit="client"),
            method=FedAvg(**(settings | changes)),  # type: ignore[arg-type]
            grid=-40,
            trust=trust,
        )

    def test_parts_add_up_to_the_whole_sum_exactly(self) -> None:
        plan, records, entropy = (
            self.plan(Trust(), most_records=7),
            records_of(),
            Entropy.from_key(KEY),
        )
        here = FedAvgAnswering(plan, records, tuple(range(12)), entropy)
        asked = Content(rows={"model": np.array([0.5, 1.0, -0.5]), "clients": np.arange(12)})
        whole, parts = here.whole(1, asked), here.parts(1, asked)
        assert here.dropped == 0
        assert sorted(parts) == list(range(12))
        assert np.array_equal(np.sum(np.stack(list(parts.values())), axis=0), whole)
        assert all(np.any(part) for part in parts.values())

    def test_an_update_that_is_no_number_is_zero_and_sent(self) -> None:
        """Not to answer would tell about the records."""
        plan, records = self.plan(Trust(), local=LocalSteps(epochs=2, step=1e9)), records_of()
        asked = Content(rows={"model": np.full(3, 1e308), "clients": np.arange(12)})
        parts = FedAvgAnswering(plan, records, tuple(range(12)), Entropy.from_key(KEY)).parts(0, asked)
        assert sorted(parts) == list(range(12))

    def test_any_way_of_adding_up_gives_the_same_model(self) -> None:
        plan, entropy = self.plan(Trust(dropouts=2, colluders=1)), Entropy.from_key(KEY)
        fails = lambda turn, client: client in (2, 5)  # noqa: E731
        found = [train(plan, records_of(), entropy, add_up=way, fails=fails).model for way in (plain_sum, masked_sum)]
        assert found[0].tobytes() == found[1].tobytes()

    def test_too_few_answers_are_refused(self) -> None:
        plan, ticks = self.plan(Trust(dropouts=1)), list[int]()
        with pytest.raises(TooFewSurvivors, match="needs 5"):
            train(
                plan,
                records_of(),
                Entropy.from_key(KEY),
                watch=lambda done: ticks.append(done.round),
                fails=lambda t, c: t == 1 and c % 2 == 0,
            )
        assert ticks == [1]


class TestDpSgd:
    @pytest.mark.parametrize("window", [1.0, 3.0])
    def test_windows_are_those_of_the_clock(self, window: float) -> None:
        """The same rounds and the same noise, but for the rounding of each window's sum."""
        records = records_of()
        plan = dpsgd_plan(records, network=Network(window=window))
        here = train(plan, records, Entropy.from_key(KEY)).model
        there = train_dpsgd(plan, records, Entropy.from_key(KEY), lambda done: None).model
        assert np.abs(here).max() > 1e-3
        assert np.abs(here - there).max() < 1e-9

    def test_any_way_of_adding_up_gives_the_same_model(self) -> None:
        records = records_of()
        plan = replace(dpsgd_plan(records), trust=Trust(dropouts=4))
        fails = lambda turn, client: client % 4 == turn % 4  # noqa: E731
        found = [
            train(plan, records, Entropy.from_key(KEY), add_up=way, fails=fails).model
            for way in (plain_sum, masked_sum)
        ]
        assert found[0].tobytes() == found[1].tobytes()
        with pytest.raises(TooFewSurvivors):
            train(plan, records, Entropy.from_key(KEY), fails=lambda t, c: c < 5)

    def test_clients_that_do_not_wait_run_as_without_trust(self) -> None:
        records = records_of()
        plan = dpsgd_plan(records, network=Network(delay=0.5))
        here = train(plan, records, Entropy.from_key(KEY)).model
        there = train_dpsgd(plan, records, Entropy.from_key(KEY), lambda done: None).model
        assert here.tobytes() == there.tobytes()


class TestMessages:
    def test_norms_are_checked_in_whole_numbers(self) -> None:
        close = 2**51 + 1
        assert bounded(np.array([float(close)]), Fraction(close)) is not None
        assert bounded(np.array([float(close)]), Fraction(close) - Fraction(1, 10**9)) is None  # floats cannot tell
        assert bounded(np.array([2.0 * LARGEST_PART]), Fraction(10) ** 30) is None
        for bad in (math.nan, math.inf, -math.inf):
            assert bounded(np.array([bad, 0.0]), Fraction(10) ** 30) is None

    def test_nothing_leaves_without_its_noise(self) -> None:
        """A contribution that is shorter than the sum is noised over the whole length; whoever has none sends none."""
        key, noising = Entropy.from_key(KEY), noise_of_steps(20.0, size=3)
        found = noised({4: np.array([1, 2])}, noising, 7, key)
        assert list(found) == [4]
        assert np.array_equal(found[4], share(key, 4, 7, 20.0, 3) + np.array([1, 2, 0]))
        assert np.any(found[4][2:])
        with pytest.raises(BadValue, match="at most 3 numbers"):
            noised({4: np.ones(4, dtype=np.int64)}, noising, 7, key)

    def test_sums_wrap_alike(self) -> None:
        parts = {3: np.array([2**63 - 1, 5]), 1: np.array([2**63 - 1, 5]), 7: np.array([-(2**62), 1])}
        found, same = plain_sum(0, parts), masked_sum(0, parts)
        assert found.survivors == same.survivors == (1, 3, 7)
        assert np.array_equal(found.total, same.total)
        assert int(found.total[0]) == (2 * (2**63 - 1) - 2**62 + 2**63) % 2**64 - 2**63

    def test_a_client_that_cannot_answer_is_missing(self) -> None:
        answers = {0: np.array([1]), 2: np.array([5])}
        seen = list[tuple[int, ...]]()

        def kept(turn: int, parts: Mapping[int, Whole], /) -> Summed:
            seen.append(tuple(parts))
            return plain_sum(turn, parts)

        found = adder(answers, Trust(dropouts=1), add_up=kept).total(0, Content())
        assert seen == [(0, 2)]
        assert found.steps.tolist() == [6.0]
        with pytest.raises(TooFewSurvivors, match="answers of 2 clients and needs 3"):
            adder(answers, Trust()).total(0, Content())
        with pytest.raises(TooFewSurvivors):
            adder({}, Trust(dropouts=2)).total(0, Content())
        with pytest.raises(TooFewSurvivors, match="answers of 1 clients and needs 2"):
            adder(answers, Trust(dropouts=1), fails=lambda turn, client: client == 2).total(0, Content())

    def test_what_gets_lost_while_adding_up_counts(self) -> None:
        answers = {client: np.array([client]) for client in range(3)}

        def lossy(turn: int, parts: Mapping[int, Whole], /) -> Summed:
            return plain_sum(turn, {0: parts[0]})

        with pytest.raises(TooFewSurvivors, match="answers of 1 clients and needs 2"):
            adder(answers, Trust(dropouts=1), add_up=lossy).total(0, Content())
        with pytest.raises(BadValue, match="clients that answered"):
            adder(answers, Trust(dropouts=1), add_up=lambda t, p: Summed(p[0], (0, 1, 9))).total(0, Content())


class Given:
    """Implements Answering: contributions that are given."""

    memory: Memory = ()
    dropped = 0

    def __init__(self, parts: Mapping[int, Whole]) -> None:
        self._parts = parts

    def recall(self, turn: int, memory: Memory) -> None: ...

    def whole(self, turn: int, asked: Content) -> Whole:
        return plain_sum(turn, self._parts).total

    def parts(self, turn: int, asked: Content, away: Away = nobody) -> dict[int, Whole]:
        return {client: part for client, part in self._parts.items() if not away(client)}


def noise_of_steps(steps: float, size: int) -> Noising:
    return Noising(whole=lambda turn: np.zeros(size), share=lambda turn: steps, size=lambda turn: size)


def adder(parts: Mapping[int, Whole], trust: Trust, **changes: Any) -> Adder:
    """Adds up numbers of three clients without noise."""
    return Adder(
        answering=Given(parts),
        noising=noise_of_steps(0.0, size=1),
        entropy=Entropy.from_key(KEY),
        trust=trust,
        cohort=lambda turn: 3,
        shared=True,
        **changes,
    )


def replace_records(records: Records, features: Vector) -> Records:
    return Records(
        features=np.ascontiguousarray(features / np.maximum(1, np.linalg.norm(features, axis=1))[:, None]),
        targets=records.targets,
        owner=records.owner,
        clients=records.clients,
        bound=1.0,
        classes=2,
    )


def noise_of(plan: Plan, fails: Callable[[int, int], bool]) -> tuple[Vector, Vector]:
    """The noise in every round's sum in grid steps, and the variance it should have."""
    records = some_records(40, features=300, clients=10)
    entropy, totals = Entropy.from_key(bytes(range(32))), dict[int, Summed]()

    def kept(turn: int, parts: dict[int, Whole]) -> Summed:
        totals[turn] = plain_sum(turn, parts)
        return totals[turn]

    rule, laid, rest, due = Rule.of(plan), laid_out(plan, records, entropy), [], []
    states = [asking_of(plan, Consortium.here(records), entropy).start()]

    def watch(done: Interim) -> None:
        states.append(State(done.round, unpacked(done.position)[0]))

    train(plan, records, entropy, add_up=kept, fails=fails, watch=watch)  # type: ignore[arg-type]
    for turn, found in totals.items():
        model = model_of(rule, states[turn])
        parts = [contribution(rule, turn, model, laid.part(turn, client)) for client in found.survivors]
        rest.append(found.total - sum(parts))  # type: ignore[arg-type]
        honest = plan.trust.honest(len(laid.cohort(turn)))
        due.append(rule.noise[turn] ** 2 * len(found.survivors) / honest)
    return np.stack(rest).astype(np.float64), np.array(due)


@pytest.mark.parametrize(
    ("trust", "missing"),
    [(Trust(), ()), (Trust(dropouts=3), (1, 4, 7)), (Trust(dropouts=3, colluders=2), ()), (Trust(dropouts=2), (0, 9))],
)
def test_sums_have_the_noise_of_their_survivors(trust: Trust, missing: tuple[int, ...]) -> None:
    """Chi-square of 1200 numbers, two-sided: the false alarm of each case is 2e-8."""
    records = some_records(40, features=300, clients=10)
    plan = replace(some_plan(records, noise_std=0.7), trust=trust)
    found, due = noise_of(plan, lambda turn, client: client in missing and turn % 2 == 0)
    assert set(due) >= {(plan.hidden.noise()[0] / 2.0**plan.grid) ** 2 * (10 - len(missing)) / trust.honest(10)}
    score = float((found**2 / due[:, None]).sum())
    assert chi2.sf(score, found.size) > 1e-8
    assert chi2.cdf(score, found.size) > 1e-8
    assert (due >= (plan.hidden.noise() / 2.0**plan.grid) ** 2 * (1 - 1e-12)).all()  # never less than planned
    wrong = float((found**2 / (due[:, None] * 10 / 7)).sum())
    assert chi2.cdf(wrong, found.size) < 1e-8  # a wrong count of shares would be seen
