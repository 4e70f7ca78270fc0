"""Accuracy at equal epsilon: the same prepared data, fedveil's two ways to train one model, and Opacus.

``hidden`` promises epsilon to whoever sees the released model; ``dpsgd`` and Opacus promise it also to someone who sees
the model after every step. All three protect one record, left out or not, at the same delta. fedveil runs with the
schedule it designs by itself. Opacus (Poisson batches, its PRV accountant) gets the best of five settings, chosen on
the test records, which flatters it. The settings for MNIST were revised after four others had been tried there (90.6
to 91.5 per cent), mainly to take less time. Every figure is the mean of ``RUNS`` runs. Opacus is not a dependency;
without it, without PyTorch or without the data of benchmarks/accuracy.py there are no rows.
"""

import importlib
import sys
import warnings
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from benchmarks import Row
from benchmarks.accuracy import A9A, DATA, MNIST, opened, scores
from benchmarks.opacus import missing
from fedveil.data.load import Loaded
from fedveil.engine.measure import centralised
from fedveil.models.metrics import accuracy
from fedveil.planning.plan import Plan

RUNS = 3
ALONE: dict[str, Any] = {"clients": {"kind": "equal", "count": 1}, "algorithm": {"kind": "dpsgd"}}
JOBS = [
    ("a9a", A9A, 0.1, 1 / 325_610),
    ("a9a", A9A, 0.5, 1 / 325_610),
    ("a9a", A9A, 1.0, 1 / 325_610),
    ("mnist", MNIST, 1.0, 1e-5),
]
_ALLOWED = 0.3  # points that fedveil may stay below Opacus: a tolerance that was chosen, not derived


@dataclass(frozen=True, slots=True)
class Setting:
    """One way to run Opacus; ``step`` is the learning rate at a clip of one, and falls linearly to zero."""

    epochs: int
    batch: int
    step: float
    momentum: float
    clip: float


SETTINGS = {
    "a9a": [
        Setting(5, 512, 0.5, 0.0, 1.0),
        Setting(10, 1024, 0.5, 0.9, 1.0),
        Setting(20, 2048, 0.5, 0.9, 1.0),
        Setting(20, 4096, 2.0, 0.9, 0.5),
        Setting(40, 4096, 1.0, 0.9, 0.25),
    ],
    "mnist": [
        Setting(5, 1024, 2.0, 0.9, 0.5),
        Setting(10, 1024, 2.0, 0.9, 0.5),
        Setting(10, 2048, 4.0, 0.9, 0.5),
        Setting(20, 2048, 4.0, 0.9, 0.5),
        Setting(20, 2048, 2.0, 0.9, 1.0),
    ],
}


@lru_cache(maxsize=64)
def _opacus_noise(batches: int, epochs: int, epsilon: float, delta: float) -> float:
    """Return the noise that Opacus itself finds for a target, as its make_private_with_epsilon does."""
    found = importlib.import_module("opacus.accountants.utils").get_noise_multiplier(
        target_epsilon=epsilon, target_delta=delta, sample_rate=1 / batches, epochs=epochs, accountant="prv"
    )
    return float(found)


def opacus_accuracy(loaded: Loaded, setting: Setting, epsilon: float, delta: float, seed: int) -> float:
    """Return the accuracy in per cent, on the test records, of a linear model that Opacus trained for this target."""
    torch = importlib.import_module("torch")
    engine = importlib.import_module("opacus").PrivacyEngine(accountant="prv")
    assert loaded.test is not None
    torch.manual_seed(seed)
    rows = torch.from_numpy(loaded.train.features.astype(np.float32))
    data = torch.utils.data.TensorDataset(rows, torch.from_numpy(loaded.train.targets.astype(np.int64)))
    linear = torch.nn.Linear(rows.shape[1], max(loaded.train.classes, 2), bias=False)
    torch.nn.init.zeros_(linear.weight)
    optimizer = torch.optim.SGD(linear.parameters(), lr=setting.step / setting.clip, momentum=setting.momentum)
    batches = torch.utils.data.DataLoader(data, batch_size=setting.batch)
    module, optimizer, loader = engine.make_private(
        module=linear,
        optimizer=optimizer,
        data_loader=batches,
        noise_multiplier=_opacus_noise(len(batches), setting.epochs, epsilon, delta),
        max_grad_norm=setting.clip,
        poisson_sampling=True,
    )
    falling = torch.optim.lr_scheduler.LinearLR(optimizer.original_optimizer, 1.0, 0.0, setting.epochs)
    for _ in range(setting.epochs):
        for features, targets in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(module(features), targets).backward()
            optimizer.step()
        falling.step()
    found = linear(torch.from_numpy(loaded.test.features.astype(np.float32))).argmax(1).numpy()
    return 100 * float(np.mean(found == loaded.test.targets))


def opacus_best(name: str, loaded: Loaded, epsilon: float, delta: float) -> tuple[Setting, list[float]]:
    """Return the setting with the best first run, and the accuracies of all its runs."""
    first = {setting: opacus_accuracy(loaded, setting, epsilon, delta, 0) for setting in SETTINGS[name]}
    best = max(first, key=lambda setting: first[setting])
    return best, [first[best], *(opacus_accuracy(loaded, best, epsilon, delta, seed) for seed in range(1, RUNS))]


def plan_for(tables: dict[str, Any], loaded: Loaded, epsilon: float, delta: float, **more: Any) -> Plan:
    """Return the plan that fedveil designs for the target."""
    study, _ = opened(tables, {"epsilon": epsilon, "delta": delta, "neighbours": "zero-out"}, **more)
    return study.planned(loaded.train.shape).plan


def without_privacy(plan: Plan, loaded: Loaded) -> float:
    """Return the accuracy in per cent of the same model fitted to all records without noise."""
    assert loaded.test is not None
    model = centralised(plan.model, loaded.train)
    return 100 * accuracy(plan.model.loss, model, loaded.test.features, loaded.test.targets)


def run() -> list[Row]:
    if missing() or not DATA.is_dir():
        why = missing() or f"the data folder {DATA.name} is not here"
        print(f"equal_epsilon: no rows, {why}", file=sys.stderr)
        return []
    rows = []
    for name, tables, epsilon, delta in JOBS:
        _, loaded = opened(tables, {"epsilon": epsilon, "delta": delta})
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            setting, theirs = opacus_best(name, loaded, epsilon, delta)
        for way, more in (("hidden", {}), ("dpsgd", ALONE)):
            plan = plan_for(tables, loaded, epsilon, delta, **more)
            ours = scores(plan, loaded, RUNS)
            detail = f"{np.mean(ours):.2f} +- {np.std(ours):.2f} against {np.mean(theirs):.2f} +- {np.std(theirs):.2f}"
            detail += f" of Opacus with {setting}; {without_privacy(plan, loaded):.1f} without privacy"
            below = float(np.mean(theirs) - np.mean(ours))
            rows.append(Row(f"{name}, epsilon {epsilon}, {way}: points below Opacus", _ALLOWED, below, detail))
    return rows
