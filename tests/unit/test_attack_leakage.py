"""The leakage attack on the real trainer: views that add up, noise of the right size, likeness that falls with it."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits

from fedveil.core.errors import BadValue
from fedveil.data.arrays import records_from_arrays
from fedveil.data.records import DataShape, Records
from fedveil.jobs.attack.game import game
from fedveil.jobs.attack.leakage import constant_of, leakage, synthetic_records
from fedveil.jobs.attack.observed_runs import first_round, observe, with_noise
from fedveil.models.spec import ModelPlan
from fedveil.noise.entropy import Entropy
from fedveil.planning.plan import Plan
from fedveil.planning.study import study_of
from fedveil.privacy.mechanism import LastIterate
from fedveil.privacy.target import Target
from fedveil.privacy.trust import Trust
from fedveil.stages.train.dpsgd.method import DpSgd
from fedveil.stages.train.dpsgd.settings import ClientSettings
from fedveil.stages.train.fedavg.method import FedAvg, LocalSteps
from fedveil.stages.train.hidden.method import Hidden
from fedveil.stages.train.observation import Observations
from fedveil.stages.train.simfl.method import SimFL

PIXELS, LABELS = load_digits(return_X_y=True)
COUNT = 120


def digits(clients: int, *, intercept: float = 1.0) -> Records:
    owner = [f"{client:03}" for client in np.arange(COUNT) * clients // COUNT]
    return records_from_arrays(
        PIXELS[:COUNT] / 16, LABELS[:COUNT], owner, bound=1.0, classes=10, scale=(-1.0, 1.0), intercept=intercept
    )


def plan_of(records: Records, method: Any, *, unit: Any = "record", model: ModelPlan | None = None) -> Plan:
    return Plan(
        name="trial",
        method=method,
        data=records.shape,
        model=model or ModelPlan(kind="softmax", classes=10, radius=10.0),
        target=Target(epsilon=5.0, delta=1e-5, unit=unit, neighbours=getattr(method, "neighbours", "zero-out")),
        grid=-40,
        seeded=True,
    )


def hidden_plan(records: Records, *, batch: int = 20, noise: float = 2.0, model: ModelPlan | None = None) -> Plan:
    model = model or ModelPlan(kind="softmax", classes=10, radius=10.0)
    limits = model.constants(records.bound)
    run = LastIterate(
        rounds=COUNT // batch,
        batch=batch,
        records=COUNT,
        order="secret",
        step_size=0.5,
        lipschitz=limits.lipschitz,
        smoothness=limits.smoothness,
        convex=limits.convex,
        diameter=20.0,
        noise_std=noise,
        neighbours="zero-out",
    )
    return plan_of(records, Hidden(run=run), model=model)


def dpsgd_plan(records: Records, **changes: Any) -> Plan:
    own = ClientSettings(rate=0.5, rounds=4, clip=1.0, noise=2.0, step_size=0.5)
    return plan_of(records, DpSgd(client_settings=(own,), **changes))


def fedavg_plan(records: Records) -> Plan:
    method = FedAvg(
        rounds=3,
        cohort=records.clients,
        local=LocalSteps(step=0.5),
        update_norm=1.0,
        noise="shared",
        noise_multiplier=2.0,
    )
    return plan_of(records, method, unit="client")


def seen(plan: Plan, records: Records, factor: float, seed: int = 1) -> Observations:
    clients = list(range(records.clients))
    return observe(with_noise(plan, factor), records, Entropy.from_seed(seed), clients, noiseless=factor == 0)


def made(kind: str) -> tuple[Records, Plan]:
    records = digits(COUNT if kind == "hidden" else 6)
    return records, {"hidden": hidden_plan, "dpsgd": dpsgd_plan, "fedavg": fedavg_plan}[kind](records)


@pytest.mark.parametrize("kind", ["hidden", "dpsgd", "fedavg"])
def test_without_noise_the_parts_add_up_to_the_sum_of_true_gradients(kind: str) -> None:
    records, plan = made(kind)
    found, used = seen(plan, records, 0.0), first_round(plan, records, Entropy.from_seed(1))
    clip = 1.0 if kind == "dpsgd" else 1e9
    total, _ = plan.model.loss.gradient(
        np.zeros(plan.dimension), records.features[used], records.targets[used], clip=clip
    )
    exact = 1e-4 if kind == "dpsgd" else 1e-8  # whose least noise is a millionth of the clip
    for view in found.shared[:2]:
        np.testing.assert_allclose(view.gradient, total, atol=exact)
    np.testing.assert_allclose(sum(view.gradient for view in found.own.values()), total, atol=exact)


@pytest.mark.parametrize("kind", ["hidden", "dpsgd", "fedavg"])
def test_each_view_has_its_own_noise(kind: str) -> None:
    """The spread of 650 coordinates is within a fifth of the planned one but for a chance below 1e-10."""
    records, plan = made(kind)
    bare, noised = seen(plan, records, 0.0), seen(plan, records, 1.0)
    expected = {
        "hidden": (2.0, 2.0 * np.sqrt(20)),  # of one record, and of a batch of 20
        "dpsgd": (2.0 / np.sqrt(6), 2.0),  # a share of six clients, and noise times clip
        "fedavg": (2.0 / np.sqrt(6) * 20 / 0.5, 2.0 * 20 / 0.5),  # a share, and all; 20 records, step 0.5
    }[kind]
    for client, view in list(noised.own.items())[:3]:
        assert np.std(view.gradient - bare.own[client].gradient) == pytest.approx(expected[0], rel=0.2)
    assert np.std(noised.shared[0].gradient - bare.shared[0].gradient) == pytest.approx(expected[1], rel=0.2)


@pytest.mark.parametrize("kind", ["hidden", "dpsgd", "fedavg"])
def test_half_the_noise_is_half_the_noise(kind: str) -> None:
    records, plan = made(kind)
    bare, half, whole = (seen(plan, records, factor).shared[0].gradient for factor in (0.0, 0.5, 1.0))
    np.testing.assert_allclose(whole - bare, 2 * (half - bare), atol=1e-4)


def test_central_noise_is_the_server_s_own() -> None:
    records = digits(6)
    plan = fedavg_plan(records)
    central = replace(plan, method=replace(plan.method, noise="central"))  # type: ignore[type-var]
    bare, noised = seen(central, records, 0.0), seen(central, records, 1.0)
    np.testing.assert_array_equal(noised.shared[0].gradient, bare.shared[0].gradient)
    np.testing.assert_array_equal(noised.own[0].gradient, bare.own[0].gradient)
    assert np.std(noised.shared[1].gradient - bare.shared[1].gradient) > 1


def test_a_record_alone_is_read_without_noise_and_lost_in_enough_of_it() -> None:
    records = digits(COUNT)
    found = leakage(
        hidden_plan(records), records, Entropy.from_seed(1), public=True, factors=(0, 0.01, 0.1, 1, 10), victims=10
    )
    mine = [row for row in found["rows"] if row["adversary"] == "server"]
    assert [row["noise"] for row in mine] == [0, 0.01, 0.1, 1, 10]
    levels = [row["psnr"] for row in mine]
    assert levels == sorted(levels, reverse=True)
    assert levels[0] > 100
    assert levels[-1] < found["blind"]["psnr"]
    assert mine[0]["labels_right"] == 1.0
    sums = [row for row in found["rows"] if row["adversary"] == "server-with-secure-aggregation"]
    assert sums[0]["psnr"] < levels[0] - 50
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_sampled_by_coins_every_level_of_noise_is_attacked() -> None:
    records = digits(clients=4)
    found = leakage(dpsgd_plan(records, sampling="poisson"), records, Entropy.from_seed(1), public=True, victims=2)
    assert {row["noise"] for row in found["rows"]} == {0.0, 0.01, 0.03, 0.1, 0.3, 1.0}
    own = {row["noise"]: row for row in found["rows"] if row["adversary"] == "server"}
    assert own[0.01]["epsilon"] is None  # less noise than one record's move: what is drawn cannot hide it
    assert own[0.3]["epsilon"] > own[1.0]["epsilon"]


def test_pictures_stand_beside_their_truth() -> None:
    records = digits(COUNT)
    found = leakage(hidden_plan(records), records, Entropy.from_seed(1), public=True, factors=(0.0,), victims=4)
    assert np.array(found["truth"]).shape == (4, 8, 8)
    assert found["labels"] == sorted(set(found["labels"]))
    mine = next(row for row in found["rows"] if row["adversary"] == "server")
    np.testing.assert_allclose(mine["pictures"], found["truth"], atol=1)  # a grey level may round either way
    assert mine["epsilon"] is None


def test_a_run_of_two_classes_is_attacked_too() -> None:
    binary = records_from_arrays(
        PIXELS[:COUNT] / 16, LABELS[:COUNT] > 4, None, bound=1.0, classes=2, scale=(-1.0, 1.0), intercept=0.0
    )
    plan = hidden_plan(binary, model=ModelPlan(kind="logistic", classes=2, radius=10.0))
    assert constant_of(binary) == 0.0
    found = leakage(plan, binary, Entropy.from_seed(1), public=True, factors=(0.0,), victims=4)
    assert next(row for row in found["rows"] if row["adversary"] == "server")["psnr"] > 100


def test_what_may_not_be_shown_or_is_not_known_is_refused() -> None:
    records = digits(6)
    plan, entropy = dpsgd_plan(records), Entropy.from_seed(1)
    with pytest.raises(BadValue, match="attack stand-ins of the same shape"):
        leakage(plan, records, entropy, public=False)
    with pytest.raises(BadValue, match="have the plan's shape"):
        leakage(plan, digits(4), entropy, public=True, factors=(1.0,))
    with pytest.raises(BadValue, match="factor must be finite and non-negative"):
        leakage(plan, records, entropy, public=True, factors=(float("nan"),))
    with pytest.raises(BadValue, match="victims must be at least 1"):
        leakage(plan, records, entropy, public=True, victims=0)
    shared = leakage(replace(plan, grid=plan.grid + 4, trust=Trust()), records, entropy, public=True, factors=[1.0])
    assert {row["adversary"] for row in shared["rows"]} >= {"server", "server-with-secure-aggregation", "final-model"}
    without = replace(plan, method=SimFL(rounds=3, step_size=0.5, clip=3.0, noise_multiplier=6.0))
    with pytest.raises(BadValue, match="does not know it of simfl"):
        leakage(without, records, entropy, public=True)


class TestTorch:
    """A module's gradients, in closed form where its first layer is linear, and by matching."""

    @pytest.fixture(autouse=True)
    def _torch(self) -> None:
        torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install fedveil[torch]")
        torch.set_num_threads(1)

    def test_a_module_is_attacked_in_three_ways(self) -> None:
        records = digits(COUNT, intercept=0.0)
        model = ModelPlan(
            kind="torch", module=f"{__name__}:dense", classes=10, clip=1.0, radius=10.0, parameters=64 * 16 + 16 + 170
        )
        plan = hidden_plan(records, model=model, batch=20)
        found = leakage(plan, records, Entropy.from_seed(1), public=True, factors=(0.0, 1.0), victims=1, steps=100)
        mine = {(row["attack"], row["noise"]): row for row in found["rows"] if row["adversary"] == "server"}
        assert {name for name, _ in mine} == {"analytic", "idlg", "cosine"}
        for name in ("analytic", "idlg", "cosine"):
            assert mine[name, 0.0]["psnr"] > 20
            assert mine[name, 1.0]["psnr"] < 14
        assert mine["idlg", 0.0]["labels_right"] == 1.0


def dense() -> Any:
    from torch import nn

    return nn.Sequential(nn.Linear(64, 16), nn.Sigmoid(), nn.Linear(16, 10))


@pytest.mark.parametrize(
    ("features", "clients", "sizes", "classes"),
    [(64, 6, (20, 20), 10), (65, 5, (30, 10), 10), (785, 4, (50, 5), 3), (31, COUNT, (1, 1), 2), (5, 1, (120, 120), 0)],
)
def test_stand_ins_have_the_shape_of_the_data(
    features: int, clients: int, sizes: tuple[int, int], classes: int
) -> None:
    shape = DataShape(
        records=COUNT,
        features=features,
        classes=classes,
        clients=clients,
        largest_client=sizes[0],
        smallest_client=sizes[1],
        bound=1.5,
    )
    found = synthetic_records(shape, np.random.default_rng(0))
    assert found.shape == shape
    assert (constant_of(found) > 0) == (features != 64)
    again = synthetic_records(shape, np.random.default_rng(0))
    np.testing.assert_array_equal(found.features, again.features)


def test_stand_ins_that_cannot_be_are_refused() -> None:
    shape = digits(6).shape
    with pytest.raises(BadValue, match="shape must be possible"):
        synthetic_records(replace(shape, largest_client=21), np.random.default_rng(0))
    with pytest.raises(BadValue, match="at most 200,000,000 numbers"):
        synthetic_records(replace(shape, records=10**8), np.random.default_rng(0))


def test_a_plan_is_attacked_with_stand_ins_alone() -> None:
    plan = hidden_plan(digits(COUNT))
    records = synthetic_records(plan.data, np.random.default_rng(0))
    found = leakage(plan, records, Entropy.from_seed(1), public=True, factors=(0.0,), victims=3)
    assert next(row for row in found["rows"] if row["adversary"] == "server")["psnr"] > 100


@pytest.mark.parametrize("order", ["public", "secret", "poisson", "independent"])
def test_hidden_training_is_attacked_in_every_order(order: str) -> None:
    """A client's own share of the noise can be wider than the sampler's widest; the attack rounds it more coarsely."""
    generator = np.random.default_rng(0)
    X = generator.standard_normal((400, 30))
    records = records_from_arrays(X, (X[:, 0] > 0).astype(float), np.arange(400) % 4, bound=1.0, classes=2)
    tables = {
        "model": {"kind": "logistic", "radius": 10.0},
        "privacy": {"epsilon": 1.0, "delta": 1e-4, "neighbours": "zero-out"},
        "algorithm": {"kind": "hidden", "order": order},
        "schedule": {"rounds": 4, "passes": 2},
    }
    plan = study_of(tables, base=Path(), data_given=True).planned(records.shape).plan
    shown = leakage(plan, records, Entropy.from_seed(1), public=True, victims=2, factors=(0.0, 1.0))
    assert {row["adversary"] for row in shown["rows"]} >= {"server", "every-model", "final-model"}


def test_a_run_with_more_canaries_than_records_can_be_played() -> None:
    X = np.random.default_rng(0).standard_normal((40, 3))
    records = records_from_arrays(X, np.arange(40) % 2, np.arange(40) % 2, bound=1.0, classes=2)
    tables = {
        "model": {"kind": "logistic"},
        "privacy": {"epsilon": 2.0, "delta": 1e-4, "neighbours": "zero-out"},
        "algorithm": {"kind": "dpsgd"},
        "audit": {"canaries": 300},
    }
    study = study_of(tables, base=Path(), data_given=True)
    plan = study.planned(study.slots.blank(records).shape).plan
    (finding,) = game(plan, 400, Entropy.from_seed(1))
    assert finding.verdict == "consistent"
