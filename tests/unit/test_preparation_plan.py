"""A plan with a preparation: one promise for both, equal to the account of their composition."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedveil.accounting.compare import account_for
from fedveil.core.errors import BadValue
from fedveil.data.records import DataShape
from fedveil.planning.plan import Plan, read_plan, write_plan
from fedveil.planning.promises import ADVERSARIES, promise
from fedveil.planning.study import study_of
from fedveil.privacy.guarantee import Adversary
from fedveil.privacy.mechanism import Compose, Gaussian, Mechanism
from fedveil.privacy.target import Target
from fedveil.privacy.trust import CENTRAL, Trust
from fedveil.stages.prepare.budget import largest_within, left_for_training, settle_preparation, total_mu
from fedveil.stages.prepare.columns import Outline
from fedveil.stages.prepare.learned import threshold_of
from fedveil.stages.prepare.request import PrepareRequest
from fedveil.stages.sums import NO_SUMS, STEPS, Measurement, NoisySums, variance_left
from fedveil.stages.train.dpsgd.method import DpSgd
from fedveil.stages.train.fedavg.method import FedAvg
from fedveil.stages.train.simfl.method import SimFL
from fedveil.theory.concentrated import gaussian_epsilon

SHAPE = DataShape(records=600, features=6, classes=2, clients=60, largest_client=10, smallest_client=10, bound=2**0.5)
OUTLINE = Outline(numbers=("a", "b", "c", "d", "e"), texts=())
TWO = NoisySums(
    measurements=(
        Measurement(name="ranges", size=810, bound=5**0.5 + 1e-9, noise=8.0),
        Measurement(name="means", size=5, bound=2.0, noise=10.0),
    ),
    share=0.3,
)


def planned(kind: str, unit: str = "record", trust: Trust = CENTRAL, **settings: Any) -> Plan:
    tables = {
        "model": {"kind": "logistic", "radius": 4.0},
        "privacy": {"epsilon": 1.5, "delta": 1e-5, "neighbours": "zero-out", "unit": unit},
        "algorithm": {"kind": kind, **settings},
        "schedule": {"rounds": 5, "passes": 2} if kind == "hidden" else {},
    }
    study = replace(study_of(tables, base=None, data_given=True), trust=trust)  # type: ignore[arg-type]
    preparation, outline = settle_preparation(PrepareRequest(kind="private"), OUTLINE, SHAPE, study.target, trust)
    assert outline.width == SHAPE.features
    return study.planned(SHAPE, preparation=preparation).plan


def training(plan: Plan, adversary: Adversary) -> Mechanism:
    """What the observer sees of training alone, as a mechanism file would state it."""
    match plan.method:
        case DpSgd() as method:
            one, left = method.client_settings[0], plan.trust.left(adversary, plan.data.clients)
            seen = replace(one, noise=one.noise * math.sqrt(left))
            return seen.charged(method.sampling, method.clipping, plan.target.neighbours)
        case FedAvg() as method:
            found = method.mechanism(adversary, plan.setup)
            assert found is not None
            return found
        case SimFL() as method:
            return method.mechanism(adversary, plan.data.clients, plan.target.neighbours)
        case _:
            return plan.run


@pytest.mark.parametrize(
    ("kind", "unit", "adversary"),
    [
        ("hidden", "record", "final-model"),
        ("dpsgd", "record", "final-model"),
        ("dpsgd", "record", "curious-client"),
        ("fedavg", "client", "final-model"),
        ("simfl", "record", "every-model"),
    ],
)
def test_the_whole_costs_what_the_account_of_the_composition_says(kind: str, unit: str, adversary: Adversary) -> None:
    plan = planned(kind, unit, **({"order": "public"} if kind == "hidden" else {}))  # quicker to account for
    assert plan.preparation
    left = variance_left(adversary, plan.data, plan.target, plan.trust)
    measured = tuple(
        Gaussian(noise_multiplier=one.noise * math.sqrt(left), neighbours="zero-out")
        for one in plan.preparation.measurements
    )
    alone = account_for(Compose(parts=(training(plan, adversary), *measured)), delta=1e-5).epsilon
    assert promise(plan, adversary).epsilon == pytest.approx(alone, rel=2e-4)
    assert promise(plan, plan.target.adversary).epsilon <= 1.5
    assert promise(plan, plan.target.adversary).epsilon > 1.5 * 0.998  # and little is given away


def test_records_that_draw_their_own_rounds_compose_by_their_pairs() -> None:
    """Their certified curve alone would give half as much again."""
    plan = planned("hidden", order="independent")
    assert plan.preparation
    whole = Compose(parts=(plan.run, plan.preparation.mechanism("zero-out")))
    assert plan.run.sampled
    assert promise(plan, "final-model").epsilon == pytest.approx(account_for(whole, delta=1e-5).epsilon, rel=2e-4)


def test_dp_accounting_composes_to_the_same_number() -> None:
    accounting = pytest.importorskip("dp_accounting")
    from dp_accounting.pld import PLDAccountant

    plan = planned("dpsgd")
    assert isinstance(plan.method, DpSgd)
    assert plan.preparation
    settings = plan.method.client_settings[0]
    found = PLDAccountant(accounting.NeighboringRelation.ADD_OR_REMOVE_ONE, value_discretization_interval=1e-4)
    for one in plan.preparation.measurements:
        found.compose(accounting.GaussianDpEvent(one.noise))
    sampled = accounting.PoissonSampledDpEvent(settings.rate, accounting.GaussianDpEvent(settings.noise))
    found.compose(sampled, settings.rounds)
    assert promise(plan, "final-model").epsilon == pytest.approx(found.get_epsilon(1e-5), rel=5e-3)


def test_every_observer_is_charged_for_the_preparation() -> None:
    plan = planned("dpsgd")
    for adversary in ADVERSARIES:
        bare = promise(replace(plan, preparation=NO_SUMS), adversary).epsilon
        assert promise(plan, adversary).epsilon > bare
    seen = {adversary: promise(plan, adversary).epsilon for adversary in ADVERSARIES}
    assert seen["final-model"] < seen["curious-client"] < seen["server"]


def test_what_each_observer_does_not_know() -> None:
    target = Target(epsilon=1.0, delta=1e-5)
    left = {adversary: variance_left(adversary, SHAPE, target, CENTRAL) for adversary in ADVERSARIES}
    assert left["final-model"] == left["every-model"] == left["server-with-secure-aggregation"] == 1.0
    assert left["curious-client"] == pytest.approx(590 / 600)
    assert left["server"] == pytest.approx(1 / 600)
    shared = Trust(dropouts=5, colluders=5)
    assert variance_left("server", SHAPE, target, shared) == pytest.approx(1 / 50)
    assert variance_left("curious-client", SHAPE, target, shared) == 1.0  # 54 others answer, and 50 are planned for
    one = replace(SHAPE, clients=1, largest_client=600, smallest_client=600)
    assert {variance_left(who, one, target, CENTRAL) for who in ADVERSARIES} == {1.0}  # all noise is the holder's


def test_a_client_who_knows_all_the_noise_is_promised_nothing() -> None:
    plan = planned("dpsgd")
    two = replace(plan, data=replace(SHAPE, clients=2, largest_client=600, smallest_client=1))
    assert promise(two, "curious-client").epsilon == math.inf
    alone = replace(plan, data=replace(SHAPE, clients=1, largest_client=600, smallest_client=600))
    assert promise(alone, "curious-client").epsilon == promise(alone, "every-model").epsilon < math.inf


def test_a_plan_with_a_preparation_reads_back_and_has_another_name() -> None:
    plan = planned("dpsgd")
    assert read_plan(write_plan(plan)) == plan
    bare = replace(plan, preparation=NO_SUMS)
    assert "[prepare]" not in write_plan(bare)
    assert bare.hash != plan.hash
    noisier = replace(plan, preparation=TWO)
    assert noisier.hash != plan.hash


@pytest.mark.parametrize(
    "wrong",
    [
        {"noise": 0.0},
        {"noise": math.nan},
        {"bound": 0.0},
        {"size": 0},
        {"name": "two\nlines"},
        {"threshold": 3.0},
        {"slip": 1.0},
    ],
)
def test_senseless_measurements_are_refused_at_birth(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadValue, match=r"prepare\."):
        Measurement(**{"name": "means", "size": 5, "bound": 1.0, "noise": 1.0, **wrong})


def test_sums_that_could_leave_64_bits_are_refused() -> None:
    wide = Measurement(name="moments", size=3, bound=2.0**20, noise=1.0)
    plan = planned("dpsgd")
    with pytest.raises(BadValue, match=r"have sums within 2\*\*62 grid steps"):
        replace(plan, data=replace(SHAPE, records=2**40), preparation=NoisySums(measurements=(wide,), share=0.1))


def test_measurements_add_their_inverse_variances() -> None:
    together = TWO.mechanism("zero-out")
    assert together.mu == pytest.approx(math.hypot(1 / 8, 1 / 10))
    assert together.mu >= math.hypot(1 / 8, 1 / 10)
    assert TWO.mechanism("replace-one").mu == pytest.approx(2 * together.mu)


@pytest.mark.parametrize("share", [0.05, 0.4, 0.9])
def test_a_stated_share_is_the_share_of_mu_squared(share: float) -> None:
    target = Target(epsilon=1.0, delta=1e-5, neighbours="zero-out")
    found, _ = settle_preparation(PrepareRequest(share=share), OUTLINE, SHAPE, target, CENTRAL)
    assert found.mechanism("zero-out").mu ** 2 == pytest.approx(share * total_mu(target) ** 2, rel=1e-6)
    assert gaussian_epsilon(total_mu(target), 1e-5) == pytest.approx(1.0, rel=1e-6)
    assert left_for_training(target, share) < 1.0


@pytest.mark.parametrize("share", [0, 1, -0.1, 1.5, math.nan])
def test_all_or_nothing_is_no_share(share: float) -> None:
    with pytest.raises(BadValue, match=r"prepare\.share must lie strictly between 0 and 1"):
        PrepareRequest(share=share)


def test_many_records_make_the_preparation_cheap_and_spreads_worth_it() -> None:
    target = Target(epsilon=1.0, delta=1e-5, neighbours="zero-out")
    few, _ = settle_preparation(PrepareRequest(), OUTLINE, SHAPE, target, CENTRAL)
    many, _ = settle_preparation(PrepareRequest(), OUTLINE, replace(SHAPE, records=10**6), target, CENTRAL)
    assert "spreads" not in few
    assert "spreads" in many
    assert many.share < few.share / 10
    stated = replace(OUTLINE, scale=dict.fromkeys(OUTLINE.numbers, (0.0, 1.0)))
    ranges_known, _ = settle_preparation(PrepareRequest(), stated, SHAPE, target, CENTRAL)
    assert "ranges" not in ranges_known
    assert "means" in ranges_known


def test_the_threshold_keeps_single_words_out() -> None:
    """Two ways: the normal tail, and a count of samples (false alarm below 1e-9 by Chernoff's bound)."""
    threshold, chance = threshold_of(deviation=10.0, slip=1e-3, columns=2, words=1)
    assert chance == pytest.approx(1e-3, rel=1e-6)
    assert threshold > 1
    noise = np.random.default_rng(0).normal(scale=10.0, size=(400_000, 2))
    assert float(np.mean(np.any(1 + noise > threshold, axis=1))) < 1.35e-3
    one = Measurement(name="categories", size=10, bound=1.0, noise=10.0, threshold=threshold, slip=chance)
    planned_ = NoisySums(measurements=(one,), share=0.1)
    assert planned_.total_variation(SHAPE, CENTRAL) >= chance
    assert one.deviation >= 10.0 * STEPS


def test_the_slip_is_charged_in_delta() -> None:
    plan = planned("dpsgd")
    words = Measurement(name="categories", size=10, bound=1.0, noise=8.0, threshold=30.0, slip=1e-7)
    silent = replace(words, slip=0.0)
    costs = [
        promise(replace(plan, preparation=NoisySums(measurements=(one,), share=0.1)), "final-model").epsilon
        for one in (words, silent)
    ]
    assert costs[0] > costs[1]
    careless = replace(words, slip=1e-4)  # more than delta: nothing is left to promise
    plan = replace(plan, preparation=NoisySums(measurements=(careless,), share=0.1))
    assert promise(plan, "final-model").epsilon == math.inf


def test_the_search_ends_below_the_target() -> None:
    asked: list[float] = []

    def at(inner: float) -> tuple[float, float]:
        asked.append(inner)
        return inner, math.hypot(inner, 0.6)

    found = largest_within(1.0, 0.9, at)
    assert 0.795 < found <= 0.8
    assert len(asked) <= 6


def test_unknown_words_cannot_be_added_up_in_parts() -> None:
    target = Target(epsilon=1.0, delta=1e-5)
    texts = replace(OUTLINE, texts=("word",), slots=12)
    with pytest.raises(BadValue, match="find every category stated"):
        settle_preparation(PrepareRequest(), texts, SHAPE, target, Trust())
    found, _ = settle_preparation(PrepareRequest(), replace(texts, categories={"word": ("a",)}), SHAPE, target, Trust())
    assert "categories" not in found
