"""What a client of DP-SGD does in a round: which records, which divisor, which noise; and what is refused."""

import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest

from fedveil.core.errors import BadValue
from fedveil.models.spec import ModelPlan
from fedveil.noise.entropy import Entropy
from fedveil.noise.grid import rounded_normal
from fedveil.planning.plan import read_plan, write_plan
from fedveil.planning.study import study_of
from fedveil.privacy.mechanism import Gaussian, Repeat, SampledGaussian, shuffled
from fedveil.privacy.target import Target
from fedveil.stages.train.dpsgd.client import Client, Sampler, coins, compressed, message_bytes, subset
from fedveil.stages.train.dpsgd.clock import Journal
from fedveil.stages.train.dpsgd.method import DpSgd
from fedveil.stages.train.dpsgd.settings import Network
from fedveil.stages.train.dpsgd.steps import train_dpsgd
from fedveil.stages.train.optimiser import Optimiser
from fedveil.stages.train.registry import assumptions_of, facts_of
from fedveil.stages.train.settings import CompressionRequest
from unit.dpsgd_plans import dpsgd_plan, settings
from unit.plans import some_records

KEY = Entropy.from_seed(1)


def client_of(plan, records, key=KEY) -> Client:
    return Client(plan, plan.method, 0, records.features, records.targets, key)


def by_hand(plan, records, chosen, model) -> np.ndarray:
    """Sum of clipped logistic gradients, record by record."""
    total, clip = np.zeros(model.size), plan.method.client_settings[0].clip
    for row, label in zip(records.features[chosen], records.targets[chosen], strict=True):
        gradient = (1 / (1 + np.exp(-row @ model)) - label) * row
        total += gradient * min(1.0, clip / np.linalg.norm(gradient))
    return total


@pytest.mark.parametrize("sampling", ["poisson", "fixed-size", "shuffled"])
def test_a_release_is_the_clipped_sum_plus_noise_over_the_planned_batch(sampling) -> None:
    records = some_records(200, clients=1)
    plan = dpsgd_plan(records, settings(clip=0.2), sampling=sampling)
    client, model = client_of(plan, records), np.array([1.0, -2.0, 0.5])
    sizes = set()
    for turn in range(5):
        chosen = client._sampler.batch(turn)
        sizes.add(chosen.size)
        quiet = by_hand(plan, records, chosen, model)
        noise = rounded_normal(KEY.stream("dpsgd noise 0", turn), 2.0 * 0.2 * 2.0**40, 3) * 2.0**-40
        np.testing.assert_allclose(client.release(model, turn), (quiet + noise) / 20, atol=1e-11)
    assert (len(sizes) > 1) == (sampling == "poisson")  # so the divisor 20 was not the size of the batch


def test_an_empty_batch_sends_noise() -> None:
    records = some_records(60, clients=1)
    plan = dpsgd_plan(records, settings(rate=1e-6, rounds=3))
    client = client_of(plan, records)
    for turn in range(3):
        assert client._sampler.batch(turn).size == 0
        assert np.all(client.release(np.zeros(3), turn) != 0)
    journal = Journal()
    train_dpsgd(plan, records, KEY, lambda done: None, journal=journal)
    assert len(journal.messages) == 3


def test_batch_clipping_bounds_the_mean() -> None:
    records = some_records(200, clients=1)
    plan = dpsgd_plan(records, settings(clip=0.01), clipping="batch")
    client = client_of(plan, records)
    chosen = client._sampler.batch(0)
    exact = client_of(dpsgd_plan(records, settings(clip=99.0), clipping="batch"), records).total(np.zeros(3), chosen)
    total = client.total(np.zeros(3), chosen)
    assert np.linalg.norm(total) == pytest.approx(0.01)
    np.testing.assert_allclose(total, exact * (0.01 / np.linalg.norm(exact)))
    quiet = by_hand(dpsgd_plan(records, settings(clip=9.0)), records, chosen, np.zeros(3)) / 20
    np.testing.assert_allclose(exact, quiet, atol=1e-12)


def test_charges() -> None:
    one = settings(rate=0.3, rounds=7)
    poisson = SampledGaussian(sampling="poisson", rate=0.3, noise_multiplier=2.0)
    assert one.charged("poisson", "individual", "zero-out") == Repeat(of=poisson, times=7)
    half = dataclasses.replace(poisson, noise_multiplier=1.0)
    assert one.charged("poisson", "batch", "zero-out") == Repeat(of=half, times=7)
    # a shuffled pass of three batches: the seventh round is in the third pass, and none is sampled
    for neighbours in ("zero-out", "replace-one"):
        wanted = shuffled(rate=0.3, rounds=7, noise_multiplier=2.0, neighbours=neighbours)
        assert one.charged("shuffled", "individual", neighbours) == wanted
        assert wanted == Repeat(of=Gaussian(noise_multiplier=2.0, neighbours=neighbours), times=3)
        # a clipped batch moves by 2 * clip, exchange or not; also when it holds every record
        full = settings(rate=1.0).charged("fixed-size", "batch", neighbours)
        assert full.of.neighbours == "replace-one"
        assert full.of.noise_multiplier == 2.0
        assert one.charged("shuffled", "batch", neighbours).of.mu == 2 / 2.0


@pytest.mark.parametrize("rate", [0.1, 1 / 3, 0.5, 1.0, 0.24])
@pytest.mark.parametrize("records", [10, 30, 97])
def test_a_shuffled_record_is_used_at_most_once_in_each_pass_that_is_charged(rate, records) -> None:
    one = settings(rate=rate, rounds=25)
    sampler = Sampler(one, "shuffled", records, KEY, 0)
    uses = np.zeros(records, dtype=int)
    for turn in range(25):
        batch = sampler.batch(turn)
        assert batch.size == one.size(records) <= rate * records + 1e-9
        uses[batch] += 1
    assert uses.max() <= one.charged("shuffled", "individual", "zero-out").times


def test_one_client_alone_is_the_clock_with_an_instant_network() -> None:
    records = some_records(120, clients=1)
    plan = dpsgd_plan(records, optimiser=Optimiser(momentum=0.5))
    alone = train_dpsgd(plan, records, KEY, lambda done: None)
    timed = train_dpsgd(plan, records, KEY, lambda done: None, journal=Journal())
    np.testing.assert_array_equal(alone.model, timed.model)
    assert alone.bytes_up == timed.bytes_up == 10 * 24


@pytest.mark.parametrize("compression", ["random-k", "top-k", "quantised"])
def test_compression_sees_noised_values_only_and_shrinks_messages(compression) -> None:
    method = DpSgd(client_settings=(settings(),), compression=CompressionRequest(kind=compression, keep=0.25, levels=3))
    update = np.random.default_rng(0).normal(size=40)
    sent = compressed(method, update, KEY.stream("x", 0))
    assert message_bytes(method, 40) < 8 * 40
    if compression == "quantised":
        steps = sent / (np.abs(update).max() / 3)
        np.testing.assert_allclose(steps, np.rint(steps), atol=1e-12)
        assert np.all(np.abs(sent - update) <= np.abs(update).max() / 3)
    else:
        assert np.count_nonzero(sent) == 10
    if compression == "top-k":
        assert np.abs(update[sent != 0]).min() >= np.abs(update[sent == 0]).max()
    else:  # unbiased: a mean of 4000, each within 4 of it, is 6 deviations away with chance below 1e-7 a coordinate
        mean = np.mean([compressed(method, update, KEY.stream("y", k)) for k in range(4000)], axis=0)
        assert np.abs(mean - update).max() < 6 * 2 * np.abs(update).max() / np.sqrt(4000)


def test_coins_and_subsets() -> None:
    assert coins(KEY.stream("c", 0), 1.0, 5).tolist() == [0, 1, 2, 3, 4]
    assert subset(KEY.stream("c", 0), 5, 5).tolist() == [0, 1, 2, 3, 4]
    assert len(set(subset(KEY.stream("c", 0), 7, 50).tolist())) == 7


def test_a_plan_reads_back() -> None:
    records = some_records(60, clients=2)
    client_settings = (settings(rounds=2, step_size=(0.5, 0.25)), settings(noise=3.0))
    network = Network(speeds=(1.0, 2.0), delay=0.5, loss=0.1)
    plan = dpsgd_plan(
        records, *client_settings, weights=(0.25, 0.75), network=network, optimiser=Optimiser(momentum=0.5)
    )
    assert read_plan(write_plan(plan)) == plan


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"weights": (-0.5, 1.5)}, "algorithm.weights must be non-negative"),
        ({"weights": (0.5, 0.4)}, "algorithm.weights must sum to 1"),
        ({"weights": (1.0,)}, "algorithm.weights must have one entry for each of 2 clients"),
        ({"sampling": "often"}, "algorithm.sampling must be one of"),
        ({"network": Network(speeds=(1.0,))}, "algorithm.speeds must have one entry for each of 2 clients"),
    ],
)
def test_impossible_plans_are_refused(change, sentence) -> None:
    with pytest.raises(BadValue, match=re.escape(sentence)):
        dpsgd_plan(some_records(60, clients=2), **change)


def test_missing_and_impossible_settings_are_refused() -> None:
    records = some_records(60, clients=3)
    with pytest.raises(BadValue, match=r"algorithm\.client_settings must have one entry for each of 3 clients, got 2"):
        dpsgd_plan(records, settings(), settings())
    with pytest.raises(BadValue, match="must hold the settings of at least one client"):
        DpSgd(client_settings=())
    with pytest.raises(BadValue, match="batch of at least one record"):
        dpsgd_plan(records, settings(rate=0.01), sampling="shuffled")
    bad = [("rate", 32), ("noise", 0.0), ("clip", float("nan")), ("rounds", 0), ("step_size", (1.0, 2.0))]
    for name, value in bad:
        with pytest.raises(BadValue, match=rf"ClientSettings\.{name} must"):
            settings(**{name: value})
    for name, value in (("loss", 1.0), ("delay", -1.0), ("window", 0.0), ("max_lag", 0), ("speeds", (0.0,))):
        with pytest.raises(BadValue, match=rf"algorithm\.network\.{name} must"):
            Network(**{name: value})


def test_whole_clients_are_not_protected_here() -> None:
    records = some_records(60, clients=2)
    plan = dpsgd_plan(records)
    with pytest.raises(
        BadValue, match=r"privacy\.unit must be record or person for dpsgd, got 'client'. Use kind = \"fedavg\""
    ):
        dataclasses.replace(plan, target=Target(epsilon=1.0, delta=1e-5, unit="client"))


def study(algorithm: dict, schedule: dict | None = None, trust: dict | None = None, **privacy) -> object:
    tables = {"model": {"kind": "logistic"}, "privacy": {"epsilon": 2.0, "delta": 1e-4, **privacy}}
    tables |= {} if trust is None else {"trust": trust}
    tables |= {"algorithm": {"kind": "dpsgd", **algorithm}, "schedule": schedule or {}}
    return study_of(tables, base=Path(), data_given=True)


@pytest.mark.parametrize("sampling", ["poisson", "fixed-size", "shuffled"])
@pytest.mark.parametrize("clipping", ["individual", "batch"])
def test_a_study_is_planned_and_each_client_meets_the_target(sampling, clipping) -> None:
    records = some_records(400, clients=2)
    given = {"sampling": sampling, "clipping": clipping, "rate": [0.1, 0.2], "clip": [0.5, 0.25], "rounds": [20, 10]}
    plan = study(given, trust={"noise": "local"}, neighbours="zero-out").planned(records.shape).plan
    rows = plan.method.clients(1e-4, plan.setup)
    assert [client for client, _ in rows] == [0, 1]
    assert all(1.95 < epsilon <= 2.0 for _, epsilon in rows)
    assert read_plan(write_plan(plan)) == plan
    assert len(dict(facts_of(plan.method, plan.setup))) == 6
    assert len(assumptions_of(plan.method, "server", plan.setup)) == 7  # who must answer
    trained = train_dpsgd(plan, records, KEY, lambda done: None)
    assert np.isfinite(trained.model).all()
    assert np.linalg.norm(trained.model) <= plan.radius


def test_what_the_schedule_says_is_done() -> None:
    records = some_records(400, clients=1)
    schedule = {"batch": 40, "passes": 3, "step_size": 0.25, "noise_std": 4.0}
    made = study({}, schedule).planned(records.shape).plan.method.client_settings[0]
    assert (made.rate, made.rounds, made.step_size, made.noise * made.clip) == (0.1, 30, 0.25, 4.0)
    with pytest.raises(BadValue, match=r"schedule\.noise_std must be enough"):
        study({}, schedule | {"noise_std": 0.1}).planned(records.shape)
    with pytest.raises(BadValue, match=r"algorithm\.rate must have one entry for each of 1 clients"):
        study({"rate": [0.1, 0.2]}).planned(records.shape)
    with pytest.raises(BadValue, match=r"privacy\.unit must be record"):
        study({}, unit="client").planned(records.shape)


@pytest.mark.parametrize("sampling", ["poisson", "fixed-size", "independent"])
def test_records_of_a_torch_model_are_rounded_alone_unless_a_shuffle_fixes_their_company(sampling: str) -> None:
    """What torch computes for a record may depend on the size of its batch: a sampled one would tell who was drawn."""
    method = dataclasses.replace(dpsgd_plan(some_records(clients=1)).method, sampling=sampling)
    network, linear = ModelPlan(kind="torch", module="a:b", clip=1.0), ModelPlan(kind="logistic")
    assert method.apart(network)
    assert method.apart(linear) == (sampling == "independent")
    assert not dataclasses.replace(method, sampling="shuffled").apart(network)
    assert not dataclasses.replace(method, clipping="batch").apart(network)


def designed(epsilon, model=None, algorithm=None, count=150, **parts) -> DpSgd:
    tables = {
        "model": {"kind": "softmax", **(model or {})},
        "privacy": {"epsilon": epsilon, "delta": 1e-4, "neighbours": "zero-out", "adversary": "every-model"},
        "algorithm": {"kind": "dpsgd", **(algorithm or {})},
        **parts,
    }
    records = some_records(count, features=6, clients=1, classes=3)
    return study_of(tables, base=Path(), data_given=True).planned(records.shape).plan.method


def test_where_noise_limits_the_steps_the_clip_is_half_and_the_steps_are_twice_as_long() -> None:
    """The noise's walk, clip times step, is what it was with the model's clip, which a stated rate keeps."""
    tight, usual = designed(0.5).client_settings[0], designed(0.5, algorithm={"rate": 1 / 15}).client_settings[0]
    assert (tight.rate, tight.rounds) == (pytest.approx(usual.rate), usual.rounds)
    assert tight.clip == pytest.approx(usual.clip / 2)
    assert tight.noise == pytest.approx(usual.noise, rel=1e-3)
    assert tight.clip * tight.step(0) == pytest.approx(usual.clip * usual.step(0), rel=1e-3)


def test_what_is_stated_keeps_the_clip() -> None:
    whole = np.sqrt(2 / 3)  # the norm of a gradient of three classes at the zero model, for rows of norm 1
    assert designed(20.0, count=30_000).client_settings[0].clip == pytest.approx(whole)  # little noise
    assert designed(0.5, model={"clip": 0.7}).client_settings[0].clip == 0.7
    for stated in (
        {"rounds": 30},
        {"steps": 0.1},
        {"clip": 0.6},
        {"optimizer": {"average": 0.9}},
        {"own_epsilon": 0.4},
    ):
        assert designed(0.5, algorithm=stated).client_settings[0].clip == stated.get("clip", pytest.approx(whole))
    assert designed(0.5, schedule={"passes": 4}).client_settings[0].clip == pytest.approx(whole)
