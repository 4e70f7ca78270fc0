"""Torch models in sampled batches: what is planned and certified, what runs, and what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install fedveil[torch]")

from fedveil.core.errors import BadValue  # noqa: E402
from fedveil.data.records import Records  # noqa: E402
from fedveil.engine.train import train  # noqa: E402
from fedveil.models.torch.loss import TorchLoss  # noqa: E402
from fedveil.noise.entropy import Entropy  # noqa: E402
from fedveil.planning.plan import Plan, read_plan, write_plan  # noqa: E402
from fedveil.planning.promises import grid_of, promise  # noqa: E402
from fedveil.planning.study import study_of  # noqa: E402
from fedveil.stages.train.dpsgd.steps import clients_of, dpsgd_of  # noqa: E402  after the skip
from fedveil.stages.train.hidden.answering import contribution  # noqa: E402
from fedveil.stages.train.hidden.deal import Drawn  # noqa: E402
from fedveil.stages.train.hidden.steps import Rule  # noqa: E402

torch.set_num_threads(1)
nn = torch.nn
COUNT = 240


def small() -> Any:
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


def some_records(clients: int = 1) -> Records:
    source = np.random.default_rng(0)
    rows = source.normal(size=(COUNT, 3)) / 3
    targets = (rows[:, 0] * rows[:, 1] > 0).astype(np.float64)
    owner = np.arange(COUNT) % clients
    return Records(features=rows, targets=targets, owner=owner, clients=clients, names=(), bound=5.0, classes=2)


def planned(records: Records, algorithm: dict[str, Any], **tables: Any) -> Plan:
    study = {
        "model": {"kind": "torch", "module": f"{__name__}:small", "clip": 1.0, "precision": "float32"},
        "privacy": {"epsilon": 2.0, "delta": 1e-4, "neighbours": "zero-out"},
        "schedule": {"step_size": 0.5, "batch": 24, "passes": 2},
        "algorithm": algorithm,
    }
    return study_of({**study, **tables}, base=Path(), data_given=True).planned(records.shape).plan


@pytest.mark.parametrize("sampling", ["poisson", "independent", "fixed-size"])
def test_dpsgd_takes_sampled_batches_and_no_record_tells_on_another(sampling: str) -> None:
    records = some_records()
    plan = planned(records, {"kind": "dpsgd", "sampling": sampling})
    assert read_plan(write_plan(plan)) == plan
    assert 1.9 < promise(plan, "server").epsilon <= 2.0
    assert grid_of(plan, "server").distance < 1e-6
    client, unit = clients_of(plan, dpsgd_of(plan), records, Entropy.from_seed(0))[0], 2.0**plan.grid
    model = np.random.default_rng(1).normal(size=plan.dimension)
    each = np.stack([client.total(model, np.array([i])) for i in range(COUNT)]) / unit
    assert np.array_equal(each, np.rint(each))
    chosen = np.random.default_rng(2).permutation(COUNT)[:101]
    assert np.array_equal(client.total(model, chosen) / unit, each[chosen].sum(axis=0))
    trained = train(plan, records, Entropy.from_seed(0))
    assert np.array_equal(trained.model, train(plan, records, Entropy.from_seed(0)).model)
    assert np.linalg.norm(trained.model) > 0


@pytest.mark.parametrize("sampling", ["poisson", "independent"])
def test_releases_of_neighbours_differ_by_the_victim_alone_and_only_where_it_joins(sampling: str) -> None:
    """With the same draws and the same noise: to the bit, in every round, at models far from each other."""
    records, victim = some_records(), 17
    plan = planned(records, {"kind": "dpsgd", "sampling": sampling})
    one, other = (clients_of(plan, dpsgd_of(plan), records, Entropy.from_seed(5))[0] for _ in range(2))
    other.targets = np.where(np.arange(COUNT) == victim, 9.0, records.targets)  # no class, so it is left out
    joined, scale = 0, one.divisor / 2.0**plan.grid
    for turn in range(one.rounds):
        model = np.random.default_rng(turn).normal(size=plan.dimension)
        gap = np.rint(one.release(model, turn) * scale) - np.rint(other.release(model, turn) * scale)
        there = victim in one._batch(turn)
        alone = np.rint(one.total(model, np.array([victim])) / 2.0**plan.grid)
        assert np.array_equal(gap, alone if there else np.zeros_like(gap))
        joined += there
    assert 0 < joined < one.rounds


def test_sampling_is_poisson_unless_another_is_wished_and_takes_less_noise_than_a_shuffle() -> None:
    records = some_records()
    usual, shuffled = planned(records, {"kind": "dpsgd"}), planned(records, {"kind": "dpsgd", "sampling": "shuffled"})
    assert dpsgd_of(usual).sampling == "poisson"
    assert dpsgd_of(usual).client_settings[0].noise < 0.6 * dpsgd_of(shuffled).client_settings[0].noise


def test_gradients_of_a_torch_model_are_clipped_record_by_record() -> None:
    with pytest.raises(BadValue, match=r"algorithm\.clipping must be individual for a torch model"):
        planned(some_records(), {"kind": "dpsgd", "clipping": "batch"})


def test_correlated_noise_takes_dealt_batches_alone() -> None:
    correlated = {"kind": "dpsgd", "correlation": {"bands": 2}}
    with pytest.raises(BadValue, match=r"algorithm\.sampling must be cyclic for a torch model with correlated noise"):
        planned(some_records(), correlated | {"sampling": "poisson"})
    plan = planned(some_records(), correlated | {"sampling": "cyclic"})
    assert not dpsgd_of(plan).apart(plan.model)


@pytest.mark.parametrize("order", ["poisson", "independent"])
def test_hidden_training_takes_units_that_draw_their_own_rounds(order: str) -> None:
    records = some_records()
    plan = planned(records, {"kind": "hidden", "order": order})
    assert (plan.run.order, plan.run.smoothness, plan.run.batch, plan.run.rounds) == (order, None, 24, 10)
    assert read_plan(write_plan(plan)) == plan
    found = promise(plan, "final-model")
    assert 1.9 < found.epsilon <= 2.0
    assert {bound.name for bound in found.bounds if bound.status == "certified"} == {"unhidden"}
    assert grid_of(plan, "final-model").distance < 1e-6
    once, again = (train(plan, records, Entropy.from_seed(3)) for _ in range(2))
    assert np.array_equal(once.model, again.model)
    assert once.dropped == 0


@pytest.mark.parametrize("neighbours", ["zero-out", "replace-one"])
def test_without_a_wish_the_order_of_least_noise_is_taken(neighbours: str) -> None:
    records, target = some_records(), {"epsilon": 2.0, "delta": 1e-4, "neighbours": neighbours}

    def noise(order: str) -> tuple[str, float]:
        plan = planned(records, {"kind": "hidden", "order": order}, privacy=target)
        return plan.run.order, float(plan.run.noise_std)

    chosen, least = noise("auto")
    others = dict(noise(order) for order in ("secret", "poisson", "independent"))
    assert chosen in ("poisson", "independent")
    assert least == others[chosen] == min(others.values())
    assert least < 0.8 * others["secret"]


def test_a_rate_may_be_stated_in_place_of_a_batch() -> None:
    schedule = {"step_size": 0.5, "passes": 1, "rounds": 7}
    plan = planned(some_records(), {"kind": "hidden", "order": "poisson", "rate": 0.25}, schedule=schedule)
    assert (plan.run.rate, plan.run.batch, plan.run.rounds) == (0.25, 60, 7)
    with pytest.raises(BadValue, match=r"schedule\.batch must be left out with algorithm\.rate"):
        planned(some_records(), {"kind": "hidden", "order": "poisson", "rate": 0.25})
    both = {"step_size": 0.5, "batch": [100, 100], "passes": 1}
    with pytest.raises(BadValue, match=r"schedule\.batch must be one number"):
        planned(some_records(), {"kind": "hidden", "order": "independent"}, schedule=both)


@pytest.mark.parametrize("algorithm", [{"kind": "hidden", "order": "poisson"}, {"kind": "dpsgd"}])
def test_a_server_that_sees_sums_alone_is_given_the_same_bits(algorithm: dict[str, Any]) -> None:
    """With noise in shares every client sends in every round, and what its records add depends on no one else."""
    records = some_records(clients=4)
    trust = {"server": "secure-aggregation"}
    privacy = {"epsilon": 4.0, "delta": 1e-4, "adversary": "server-with-secure-aggregation"}
    plan = planned(records, algorithm, trust=trust, privacy=privacy)
    assert promise(plan, "server-with-secure-aggregation").epsilon <= 4.0
    assert train(plan, records, Entropy.from_seed(0)).dropped == 0
    if algorithm["kind"] == "hidden":
        drawn, rule = Drawn(plan, records, range(4), Entropy.from_seed(0)), Rule.of(plan)
        model = np.random.default_rng(1).normal(size=plan.dimension)
        parts = [drawn.part(0, client) for client in range(4)]
        assert all(contribution(rule, 0, model, part) is not None for part in parts)


class Growing(nn.Module):
    """As many outputs as there are rows."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, rows: Any) -> Any:
        found = self.layer(rows)
        return found[:, :1].repeat(1, max(2, 6 - rows.shape[0]))


class Calling(nn.Module):
    """Another shape with every call."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.calls = nn.Linear(3, 2), 0

    def forward(self, rows: Any) -> Any:
        self.calls += 1
        return self.layer(rows)[:, :1].repeat(1, self.calls + 1)


class Crowded(torch.autograd.Function):
    """The identity, but for the last bit of a gradient where some row of the block is long: no probe of values sees it.

    A stand-in for a kernel that chooses its way by the numbers.
    """

    @staticmethod
    def forward(rows: Any) -> Any:
        return rows.clone()

    @staticmethod
    def setup_context(context: Any, inputs: Any, output: Any) -> None:
        context.save_for_backward(*inputs)

    @staticmethod
    def backward(context: Any, error: Any) -> Any:
        return error

    @staticmethod
    def vmap(info: Any, in_dims: Any, rows: Any) -> Any:
        return rows * (1 + 1e-6 * rows.abs().max()), 0


class Telling(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, rows: Any) -> Any:
        return self.layer(Crowded.apply(rows))


growing, calling, telling = Growing, Calling, Telling


@pytest.mark.parametrize("algorithm", [{"kind": "dpsgd"}, {"kind": "hidden", "order": "independent"}])
def test_a_module_that_tells_who_else_was_drawn_is_refused_when_the_plan_is_made(algorithm: dict[str, Any]) -> None:
    model = {"kind": "torch", "module": f"{__name__}:telling", "clip": 1.0}
    with pytest.raises(BadValue, match=r"model\.module must give a record the same bits in any company"):
        planned(some_records(), algorithm, model=model)
    shuffled = {"dpsgd": {"sampling": "shuffled"}, "hidden": {"order": "secret"}}[algorithm["kind"]]
    planned(some_records(), algorithm | shuffled, model=model)


@pytest.mark.parametrize(
    ("name", "message"), [("growing", "keep the shape"), ("calling", "be a function of its input")]
)
def test_a_module_that_changes_its_shape_is_refused_in_a_sentence(name: str, message: str) -> None:
    with pytest.raises(BadValue, match=f"model.module must {message}"):
        TorchLoss(module=f"{__name__}:{name}", classes=2).size(3)


def elsewhere() -> Any:
    return nn.Linear(3, 2)


def test_a_device_that_is_not_there_is_refused_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDVEIL_TORCH_DEVICE", "abacus")
    with pytest.raises(BadValue, match="FEDVEIL_TORCH_DEVICE must be cpu, or a CUDA device that torch finds"):
        TorchLoss(module=f"{__name__}:elsewhere", classes=2).size(3)
