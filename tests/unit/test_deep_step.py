"""Steps of DP-SGD for a torch model where none is stated: by the noise and the length of the starting parameters."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install fedveil[torch]")

from fedveil.data.records import Records  # noqa: E402
from fedveil.planning.plan import Plan  # noqa: E402
from fedveil.planning.study import study_of  # noqa: E402
from fedveil.stages.train.dpsgd.steps import dpsgd_of  # noqa: E402  after the skip

torch.set_num_threads(1)
nn = torch.nn


def small() -> Any:
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


def zeros() -> Any:
    module = small()
    for value in module.parameters():
        nn.init.zeros_(value)
    return module


def planned(module: str = "small", clip: float = 1.0, clients: int = 1, epsilon: float = 1.0, **algorithm: Any) -> Plan:
    rows = np.random.default_rng(0).normal(size=(400, 3)) / 3
    owner, bound = np.arange(400) % clients, 5.0
    targets = (rows[:, 0] > 0).astype(np.float64)
    records = Records(features=rows, targets=targets, owner=owner, clients=clients, names=(), bound=bound, classes=2)
    tables = {
        "model": {"kind": "torch", "module": f"{__name__}:{module}", "clip": clip},
        "privacy": {"epsilon": epsilon, "delta": 1e-4, "neighbours": "zero-out"},
        "algorithm": {"kind": "dpsgd", **algorithm},
    }
    return study_of(tables, base=Path(), data_given=True).planned(records.shape).plan


def noise_walk(plan: Plan, momentum: float) -> float:
    """How far noise alone moves the model, in the root of the mean square: every round's noise followed to the end."""
    method = dpsgd_of(plan)
    one = method.client_settings[0]
    steps = one.steps()
    gains = [sum(momentum ** (later - turn) * steps[later] for later in range(turn, one.rounds)) for turn in
             range(one.rounds)]  # fmt: skip
    of_round = one.noise * one.clip / (one.rate * plan.data.records)  # all clients together have it once
    return float(np.sqrt(plan.dimension * np.sum(np.square(gains))) * of_round)


@pytest.mark.parametrize(("momentum", "clients", "short"), [(0.9, 1, 0.05), (0.0, 1, 0.005), (0.9, 4, 0.08)])
def test_the_noise_of_all_rounds_moves_the_model_by_three_lengths_of_its_start(
    momentum: float, clients: int, short: float
) -> None:
    """A little less with momentum, which the last rounds cannot use up."""
    plan = planned(optimizer={"momentum": momentum}, clients=clients)
    length = float(np.linalg.norm(plan.model.loss.start(3)))
    assert length > 1
    assert noise_walk(plan, momentum) == pytest.approx(3 * length, rel=short)


def test_where_noise_is_small_one_round_moves_the_model_by_its_length_at_most() -> None:
    plan = planned(epsilon=40.0)
    one, length = dpsgd_of(plan).client_settings[0], float(np.linalg.norm(plan.model.loss.start(3)))
    assert one.step(0) * one.clip / (1 - 0.9) == pytest.approx(length)
    assert noise_walk(plan, 0.9) < 3 * length


@pytest.mark.parametrize("epsilon", [1.0, 40.0])
def test_a_smaller_clip_takes_longer_steps_of_the_same_way(epsilon: float) -> None:
    whole, half = (dpsgd_of(planned(clip=clip, epsilon=epsilon)).client_settings[0] for clip in (1.0, 0.5))
    assert half.steps() == pytest.approx(2 * whole.steps())


def test_a_start_of_zeros_counts_as_a_length_of_one() -> None:
    assert noise_walk(planned("zeros"), 0.9) == pytest.approx(3.0, rel=0.05)


def test_a_stated_step_is_kept() -> None:
    assert dpsgd_of(planned(steps=0.25)).client_settings[0].step_size == 0.25
