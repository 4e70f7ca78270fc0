"""Torch modules in federated averaging: local epochs of plain gradients, the client's update clipped as a whole."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from plans import some_records

from fedveil import run_study
from fedveil.core.errors import BadValue
from fedveil.data.records import Records
from fedveil.engine.train import train
from fedveil.jobs.local import plan_study
from fedveil.models.adjusted import Adjusted
from fedveil.models.spec import ModelPlan
from fedveil.models.torch.loss import TorchLoss
from fedveil.noise.entropy import Entropy
from fedveil.planning.plan import Plan, read_plan, write_plan
from fedveil.stages.train.fedavg.local import Held, Local, trained
from fedveil.stages.train.fedavg.method import FedAvg
from fedveil.stages.train.fedavg.steps import summed

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install fedveil[torch]")
nn = torch.nn
KEY = Entropy.from_seed(3)


def tiny() -> Any:
    """Two convolutions on images of 6 by 6."""
    shape = nn.Unflatten(1, (1, 6, 6))
    layers = nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3, stride=2), nn.Tanh()
    return nn.Sequential(shape, *layers, nn.Flatten(), nn.Linear(16, 2))


def images(clients: int = 16) -> Records:
    """Images that are brighter at the left or at the right."""
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(20 * clients, 6, 6)) * 0.3
    targets = generator.integers(0, 2, size=len(rows))
    rows[np.arange(len(rows)), :, 4 * targets] += 1.0
    flat = rows.reshape(len(rows), -1)
    flat /= np.maximum(1.0, np.linalg.norm(flat, axis=1) / 3)[:, None] * (1 + 1e-12)
    base = some_records(len(rows), features=36, clients=clients)
    return replace(base, features=flat, targets=targets.astype(np.float64), bound=3.0)


LOCAL = {"epochs": 2, "batch": 10, "step": 0.6}


def study(**algorithm: Any) -> dict[str, Any]:
    return {
        "data": {"public": True},
        "model": {"kind": "torch", "module": f"{__name__}:tiny", "clip": 1.0},
        "privacy": {"epsilon": 40.0, "delta": 1e-3, "unit": "client", "neighbours": "zero-out"},
        "algorithm": {
            "kind": "fedavg",
            "local": LOCAL,
            "update_norm": 1.0,
            "server_step": 1.0,
            "optimizer": {"momentum": 0.0},
            **algorithm,
        },
        "schedule": {"rounds": 3},
    }


def planned(**algorithm: Any) -> Plan:
    return plan_study(study(**algorithm), data=images()).plan


def test_a_network_is_trained_at_client_level_and_certified(tmp_path: Path) -> None:
    result = run_study(
        study(sampling="poisson", cohort=12, local={**LOCAL, "proximal": 0.01}),
        tmp_path / "out",
        data=(images(), images()),
    )
    rows = json.loads((tmp_path / "out" / "certificate.json").read_text())["guarantees"]
    found = {row["adversary"]: row["epsilon"] for row in rows}
    assert 39 < found["final-model"] <= 40
    assert found["server"] is None
    assert result.metrics["test"]["accuracy"] > 0.8


def test_local_training_is_sgd_as_torch_has_it() -> None:
    """The same epochs and batches with torch's own optimiser, from the module at the same parameters."""
    plan, held = planned(local={**LOCAL, "epochs": 3}), Held.of(images())
    local = Local.of(plan)
    model = np.random.default_rng(1).normal(size=plan.dimension) * 0.05
    loss = plan.model.loss
    assert isinstance(loss, TorchLoss)
    module = loss.module_at(model, 36)
    steps = torch.optim.SGD(module.parameters(), lr=0.6)
    words = KEY.stream("local 4", 2)
    rows, targets = torch.from_numpy(held.features[80:100].copy()), torch.from_numpy(held.targets[80:100].copy())
    for _ in range(3):
        order = np.argsort(words.words(20))
        for first in range(0, 20, 10):
            part = torch.from_numpy(order[first : first + 10].astype(np.int64))
            steps.zero_grad()
            nn.functional.cross_entropy(module(rows[part]), targets[part].long()).backward()
            steps.step()
    flat = torch.cat([value.detach().flatten() for value in module.parameters()]).numpy() - loss.start(36)
    assert trained(local, model, held, 4, KEY, 2) == pytest.approx(flat, abs=1e-12)


def test_a_client_has_the_same_update_in_any_company_and_every_time() -> None:
    plan = planned()
    held, method, local = Held.of(images()), plan.method, Local.of(plan)
    assert isinstance(method, FedAvg)
    assert local.plain
    model, ones, unit = np.zeros(plan.dimension), np.ones(16), 2.0**plan.grid
    arguments = (ones, 1.0, unit, KEY, 1)
    alone = [summed(method, local, model, held, np.array([c]), *arguments)[0] for c in (3, 5, 9)]
    together, _ = summed(method, local, model, held, np.array([3, 5, 9]), *arguments)
    assert together.tobytes() == sum(alone).tobytes()
    once, again = (train(plan, images(), KEY).model for _ in range(2))
    assert once.tobytes() == again.tobytes()
    assert torch.are_deterministic_algorithms_enabled() is False


def test_plain_gradients_are_the_unclipped_sum_and_leave_out_what_is_no_number() -> None:
    loss, held = TorchLoss(module=f"{__name__}:tiny", classes=2), Held.of(images())
    rows, targets = held.features[:9].copy(), held.targets[:9].copy()
    rows[2, 7], targets[5] = np.nan, 2.0
    w = np.random.default_rng(2).normal(size=loss.size(36)) * 0.1
    apart, left = loss.gradient(w, rows, targets, clip=1e30)
    assert left == 2
    assert loss.total(w, rows, targets) == pytest.approx(apart, rel=1e-9, abs=1e-12)
    weighted = Adjusted(loss, class_weights=(1.0, 3.0))
    apart, _ = weighted.gradient(w, rows, targets, clip=1e30)
    assert weighted.total(w, rows, targets) == pytest.approx(apart, rel=1e-9, abs=1e-12)


def test_without_mean_gradients_each_record_is_clipped() -> None:
    plan = planned()
    assert read_plan(write_plan(plan)) == plan
    local = Local.of(replace(plan, method=replace(plan.method, local=replace(plan.method.local, mean_gradient=False))))
    held, model = Held.of(images()), np.zeros(plan.dimension)
    rows, targets, norms = held.features[:5], held.targets[:5], held.norms[:5]
    clipped, _ = plan.model.loss.gradient(model, rows, targets, clip=1.0, norms=norms)
    assert local.total(model, rows, targets, norms).tobytes() == clipped.tobytes()


def test_gradients_as_they_are_belong_to_torch_models() -> None:
    plan = planned()
    with pytest.raises(BadValue, match=r"fedavg\.local\.mean_gradient must be false unless the model is a torch model"):
        plan.method.check(replace(plan.setup, model=ModelPlan(kind="logistic", classes=2)))
