"""Clipped per-record gradients of torch models against Opacus: same module, same batch, same precision, same run.

Opacus is not a dependency; without it, or without PyTorch, there are no rows. ``opacus_seconds`` times its DP-SGD on
MNIST, for whoever wants to compare a training run.
"""

import importlib
import sys
import time
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np

from benchmarks import Row
from benchmarks.accuracy import DATA, MNIST, opened
from fedveil.core.importing import give
from fedveil.models.torch.loss import TorchLoss

BATCH, FEATURES, CLASSES, CLIP = 256, 784, 10, 1.0
REPEATS = 9
_GENERAL = 1.0  # times Opacus, also for a module that we may not look into: it hooks layers by type, we go by record


def mlp() -> Any:
    nn = importlib.import_module("torch").nn
    return nn.Sequential(nn.Linear(FEATURES, 128), nn.ReLU(), nn.Linear(128, CLASSES))


def cnn() -> Any:
    """The network of Opacus' MNIST example."""
    nn = importlib.import_module("torch").nn
    head = [nn.Flatten(), nn.Linear(512, 32), nn.ReLU(), nn.Linear(32, CLASSES)]
    first = [nn.Conv2d(1, 16, 8, 2, padding=3), nn.ReLU(), nn.MaxPool2d(2, 1)]
    second = [nn.Conv2d(16, 32, 4, 2), nn.ReLU(), nn.MaxPool2d(2, 1)]
    return nn.Sequential(nn.Unflatten(1, (1, 28, 28)), *first, *second, *head)


def _own_forward(make: Callable[[], Any]) -> Any:
    """The same layers behind a forward of the user's own, which we may not look into: the general way."""
    torch = importlib.import_module("torch")

    class Own(torch.nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.inner = make()

        def forward(self, rows: Any) -> Any:
            return self.inner(rows)

    return Own()


def mlp_own() -> Any:
    return _own_forward(mlp)


def cnn_own() -> Any:
    return _own_forward(cnn)


def missing() -> str:
    """Why there is nothing to measure, or nothing."""
    absent = [name for name in ("torch", "opacus") if find_spec(name) is None]
    return f"{' and '.join(absent)} not installed" if absent else ""


def _batch() -> tuple[Any, Any]:
    source = np.random.default_rng(0)
    rows = source.normal(size=(BATCH, FEATURES))
    return rows, source.integers(0, CLASSES, BATCH).astype(np.float64)


def _theirs(make: Callable[[], Any], precision: str, ghost: bool) -> Callable[[], Any]:
    """Forward, backward, clip and sum, as Opacus trains; ``ghost``: its variant that forms no gradients."""
    torch = importlib.import_module("torch")
    samples = importlib.import_module("opacus.grad_sample")
    optimizers = importlib.import_module("opacus.optimizers")
    X, y = _batch()
    rows, targets = torch.from_numpy(X).to(getattr(torch, precision)), torch.from_numpy(y).long()
    module = make().to(rows.dtype)
    plain = torch.optim.SGD(module.parameters(), lr=0.1)
    options = {"noise_multiplier": 0.0, "max_grad_norm": CLIP, "expected_batch_size": BATCH}
    if ghost:
        fast = importlib.import_module("opacus.utils.fast_gradient_clipping_utils")
        wrapped = samples.GradSampleModuleFastGradientClipping(module, max_grad_norm=CLIP, use_ghost_clipping=True)
        optimizer = optimizers.DPOptimizerFastGradientClipping(plain, **options)
        loss = fast.DPLossFastGradientClipping(wrapped, optimizer, torch.nn.CrossEntropyLoss())
    else:
        wrapped, loss = samples.GradSampleModule(module), torch.nn.CrossEntropyLoss()
        optimizer = optimizers.DPOptimizer(plain, **options)

    def once() -> Any:
        optimizer.zero_grad()
        loss(wrapped(rows), targets).backward()
        if not ghost:
            optimizer.clip_and_accumulate()

    return once


def _ours(name: str, precision: str) -> Callable[[], Any]:
    loss = TorchLoss(module=give(globals()[name]), classes=CLASSES, precision=precision)
    w, (X, y) = np.zeros(loss.size(FEATURES)), _batch()
    return lambda: loss.gradient(w, X, y, clip=CLIP)


def _least(works: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Milliseconds, the least of several turns taken one after another."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(REPEATS + 2):
        for name, work in works.items():
            start = time.perf_counter()
            work()
            if turn >= 2:
                times[name].append(1e3 * (time.perf_counter() - start))
    return {name: min(found) for name, found in times.items()}


def _rows(name: str, make: Callable[[], Any], precision: str) -> list[Row]:
    found = _least(
        {
            "opacus": _theirs(make, precision, ghost=False),
            "opacus, ghost": _theirs(make, precision, ghost=True),
            "a stack": _ours(name, precision),
            "own forward": _ours(f"{name}_own", precision),
        }
    )
    out = []
    for way, other in (("a stack", "opacus"), ("own forward", "opacus"), ("a stack", "opacus, ghost")):
        detail = f"{found[way]:.1f} ms against {found[other]:.1f} ms, batch {BATCH}"
        bar = _GENERAL if way == "own forward" else 1.0
        out.append(Row(f"{name} {precision}, {way} / {other}", bar, found[way] / found[other], detail))
    return out


def opacus_seconds(epochs: int, batch: int) -> float:
    """Seconds of Opacus' DP-SGD (Poisson batches) for softmax regression on MNIST's pixels, data already in memory."""
    torch = importlib.import_module("torch")
    engine = importlib.import_module("opacus").PrivacyEngine(accountant="rdp")
    _, loaded = opened(MNIST, {"epsilon": 1.0, "delta": 1e-5})
    rows = torch.from_numpy(loaded.train.features.astype(np.float32))
    data = torch.utils.data.TensorDataset(rows, torch.from_numpy(loaded.train.targets.astype(np.int64)))
    module = torch.nn.Linear(rows.shape[1], CLASSES, bias=False)
    options = {"noise_multiplier": 1.0, "max_grad_norm": 1.0, "poisson_sampling": True}
    optimizer = torch.optim.SGD(module.parameters(), lr=0.5)
    loader = torch.utils.data.DataLoader(data, batch_size=batch)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module, optimizer, loader = engine.make_private(
            module=module, optimizer=optimizer, data_loader=loader, **options
        )
        start = time.perf_counter()
        for _ in range(epochs):
            for features, targets in loader:
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(module(features), targets).backward()
                optimizer.step()
        return time.perf_counter() - start


def run() -> list[Row]:
    if missing():
        print(f"opacus: no rows, {missing()}", file=sys.stderr)
        return []
    rows = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, make in (("mlp", mlp), ("cnn", cnn)):
            for precision in ("float32", "float64"):
                rows += _rows(name, make, precision)
    return rows


if __name__ == "__main__":
    print(f"Opacus, one epoch of MNIST, batch 256: {opacus_seconds(1, 256):.2f} s" if DATA.is_dir() else "no data")
