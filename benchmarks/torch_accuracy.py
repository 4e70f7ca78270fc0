"""The network of Opacus' MNIST example, one data holder, at equal epsilon: accuracy, and time beside Opacus.

DP-SGD with Poisson batches, delta 1e-5, zero-out neighbours; MNIST at epsilon 1.19 and 3, Fashion-MNIST (Debian's
package dataset-fashion-mnist) at epsilon 3, where Opacus' own run is the bar, less a point for its luck. The settings
are large batches with a step that falls linearly to zero, as the literature recommends for small epsilons (De et al.,
Unlocking High-Accuracy Differentially Private Image Classification through Scale). No test records were used to choose
them. For epsilon 1.19 the step, 2, was chosen among 1 and 2 on a tenth of MNIST's training records; for epsilon 3, 8
was chosen among 4 and 8 in 6 passes over the first 50,000 training records, scored on the last 10,000 (95.7% and 96.4%;
a clip of .1 with a step of 40 gave 95.7% too), and 12 passes because more are better. Fashion-MNIST takes MNIST's.

Opacus trains with the same batch, passes and steps, and the noise that it finds for the same epsilon, a round after
each of ours, and both are timed by the processor's clock: for ``timed`` passes, which are all on Fashion-MNIST, where
its accuracy is wanted. Without Opacus, PyTorch or the data there are no rows; all rows together take about half an hour
on one thread of an idle machine.
"""

import importlib
import math
import sys
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import Row
from benchmarks.accuracy import DATA, MNIST, opened
from benchmarks.opacus import missing
from fedveil.core.importing import give
from fedveil.data.load import Loaded
from fedveil.engine.train import train
from fedveil.models.metrics import accuracy
from fedveil.noise.entropy import Entropy
from fedveil.planning.plan import Plan
from fedveil.stages.train.acting import Done

FASHION = Path("/usr/share/datasets/fashion-mnist")
RUNS = 3


@dataclass(frozen=True, slots=True)
class Settings:
    """What is trained; ``step`` falls linearly to zero. ``timed``: the passes that Opacus trains beside ours."""

    data: str
    epsilon: float
    bar: float | None
    batch: int = 1024
    passes: int = 15
    step: float = 2.0
    clip: float = 1.0
    timed: int = 2

    @property
    def turns(self) -> int:
        """The rounds of a pass, as Opacus counts them."""
        return math.ceil(60_000 / self.batch)


ROWS = (
    Settings("mnist", 1.19, 94.6),
    Settings("mnist", 3.0, 96.8, passes=12, step=8.0),
    Settings("fashion-mnist", 3.0, None, passes=12, step=8.0, timed=12),
)
_SPREAD = 255 / 78.6  # MNIST's published standard deviation: the data room has taken the mean off


def network() -> Any:
    """The network, with the forward of Opacus' example; 26,010 parameters."""
    torch = importlib.import_module("torch")
    nn, functional = torch.nn, torch.nn.functional

    class Network(nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.conv1, self.conv2 = nn.Conv2d(1, 16, 8, 2, padding=3), nn.Conv2d(16, 32, 4, 2)
            self.fc1, self.fc2 = nn.Linear(512, 32), nn.Linear(32, 10)

        def forward(self, rows: Any) -> Any:
            here = rows.view(-1, 1, 28, 28) * _SPREAD
            here = functional.max_pool2d(functional.relu(self.conv1(here)), 2, 1)
            here = functional.max_pool2d(functional.relu(self.conv2(here)), 2, 1)
            return self.fc2(functional.relu(self.fc1(here.view(-1, 512))))

    return Network()


def _study(row: Settings) -> tuple[Plan, Loaded]:
    source = {**MNIST["data"], "feature_bound": 28.0}  # no row is longer, so none is cut
    if row.data != "mnist":
        names = {"source": "images-idx3-ubyte.gz", "labels": "labels-idx1-ubyte.gz"}
        source |= {key: str(FASHION / f"train-{name}") for key, name in names.items()}
        source["held_out"] = {"public": True, **{key: str(FASHION / f"t10k-{name}") for key, name in names.items()}}
    model = {"kind": "torch", "module": give(network), "clip": row.clip, "precision": "float32"}
    algorithm = {"kind": "dpsgd", "sampling": "poisson", "optimizer": {"momentum": 0.0, "decay": "linear"}}
    tables = {
        "data": source,
        "clients": {"kind": "equal", "count": 1},
        "model": model,
        "algorithm": {**algorithm, "rounds": row.turns * row.passes},
        "schedule": {"batch": row.batch, "step_size": row.step},
    }
    privacy = {"epsilon": row.epsilon, "delta": 1e-5, "neighbours": "zero-out", "adversary": "every-model"}
    study, loaded = opened(tables, privacy)
    return study.planned(loaded.train.shape).plan, loaded


def _ours(plan: Plan, loaded: Loaded, seed: int, other: Iterator[float]) -> tuple[float, float, float]:
    """Accuracy in per cent; seconds of processor time in the rounds that the other trains too, and those of the other.

    After each of our rounds the other takes one of its own, so that a busy machine hurts both alike.
    """
    ours, theirs, start = 0.0, 0.0, time.process_time()

    def turn(_: Done) -> None:
        nonlocal ours, theirs, start
        mine = time.process_time() - start
        took = next(other, None)
        if took is not None:
            ours, theirs = ours + mine, theirs + took
        start = time.process_time()

    model, test = train(plan, loaded.train, Entropy.from_seed(seed), watch=turn).model, loaded.test
    assert test is not None
    return 100 * float(accuracy(plan.model.loss, model, test.features, test.targets)), ours, theirs


class Opacus:
    """Opacus' training of the same network, with the noise that it finds itself for the same epsilon."""

    def __init__(self, row: Settings, loaded: Loaded) -> None:
        torch = importlib.import_module("torch")
        engine = importlib.import_module("opacus").PrivacyEngine(accountant="prv")
        torch.manual_seed(0)
        rows = torch.from_numpy(loaded.train.features.astype(np.float32))
        data = torch.utils.data.TensorDataset(rows, torch.from_numpy(loaded.train.targets.astype(np.int64)))
        module = network()
        self.row, self.torch = row, torch
        self.module, self.optimizer, self.loader = engine.make_private_with_epsilon(
            module=module, optimizer=torch.optim.SGD(module.parameters(), lr=row.step), target_delta=1e-5,
            data_loader=torch.utils.data.DataLoader(data, batch_size=row.batch), target_epsilon=row.epsilon,
            epochs=row.passes, max_grad_norm=row.clip,
        )  # fmt: skip

    def rounds(self) -> Iterator[float]:
        """Train round by round; the seconds of processor time of each."""
        row, torch, total = self.row, self.torch, self.row.turns * self.row.passes
        falling = torch.optim.lr_scheduler.LinearLR(self.optimizer.original_optimizer, 1.0, 0.0, total)
        for _ in range(row.timed):
            batches = iter(self.loader)
            for _ in range(row.turns):
                start = time.process_time()
                features, targets = next(batches)
                self.optimizer.zero_grad()
                torch.nn.functional.cross_entropy(self.module(features), targets).backward()
                self.optimizer.step()
                falling.step()
                yield time.process_time() - start

    def score(self, loaded: Loaded) -> float:
        """Accuracy in per cent."""
        test = loaded.test
        assert test is not None
        with self.torch.no_grad():
            found = self.module(self.torch.from_numpy(test.features.astype(np.float32))).argmax(1).numpy()
        return 100 * float(np.mean(found == test.targets))


def _rows(row: Settings) -> list[Row]:
    plan, loaded = _study(row)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        other = Opacus(row, loaded)
        first, ours, theirs = _ours(plan, loaded, 0, other.rounds())
        whole = row.timed == row.passes
        reached = other.score(loaded) if whole else math.nan
    mean = float(np.mean([first, *(_ours(plan, loaded, seed, iter(()))[0] for seed in range(1, RUNS))]))
    bar = reached - 1 if row.bar is None else row.bar
    name = f"{row.data}, Opacus' network, epsilon {row.epsilon:g}"
    beside = f"; Opacus {reached:.2f} with the same settings" if whole else ""
    settings = f"{row.passes} passes of batches of {row.batch}, step {row.step:g}, clip {row.clip:g}"
    return [
        Row(
            f"{name}, points below the bar",
            0.0,
            bar - mean,
            f"{mean:.2f} (of {RUNS}) against {bar:.2f}{beside}; {settings}",
        ),
        Row(
            f"{name}, time / Opacus",
            1.0,
            ours / theirs,
            f"{ours:.0f} s against {theirs:.0f} s for {row.timed} passes, by turns",
        ),
    ]


def run() -> list[Row]:
    """All rows for which there are data."""
    lacking = missing() or ("" if DATA.is_dir() else f"the data folder {DATA.name} is not here")
    if lacking:
        print(f"torch_accuracy: no rows, {lacking}", file=sys.stderr)
        return []
    there = {"mnist": True, "fashion-mnist": FASHION.is_dir()}
    return [found for row in ROWS if there[row.data] for found in _rows(row)]
