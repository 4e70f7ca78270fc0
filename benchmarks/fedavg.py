"""Federated averaging with clients protected: MNIST on 1000 clients, beside the same without noise.

Each client holds 60 records: dealt at random, or of two labels (shards of 30 by label, two a client). A row's measure
is the shortfall in points below a reference implementation of the same task (negative: above it), mean of three runs.
"""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks import Row
from benchmarks.accuracy import DATA, MNIST, opened
from fedveil.data.load import Loaded
from fedveil.data.records import Records
from fedveil.engine.train import train
from fedveil.models.metrics import accuracy
from fedveil.noise.entropy import Entropy
from fedveil.planning.study import study_of

RUNS = 3
CLIENTS = 1000
BARS = {"iid": {1.0: 87.7, 8.0: 88.1}, "two labels": {1.0: 81.9, 8.0: 83.4}}


def dealt(records: Records, kind: str) -> Records:
    """Equal clients: at random, or two shards of one label each."""
    generator = np.random.default_rng(0)
    count = records.targets.size
    if kind == "iid":
        order = generator.permutation(count)
    else:
        shards = np.argsort(records.targets, kind="stable").reshape(2 * CLIENTS, -1)
        order = shards[generator.permutation(2 * CLIENTS)].ravel()
    owner = np.empty(count, dtype=np.int64)
    owner[order] = np.arange(count) * CLIENTS // count
    return replace(records, owner=owner, clients=CLIENTS, names=())


def scores(records: Records, loaded: Loaded, epsilon: float, noise: str) -> list[float]:
    privacy = {"epsilon": epsilon, "delta": 1e-4, "unit": "client", "neighbours": "zero-out"}
    tables = {"model": MNIST["model"], "privacy": privacy, "algorithm": {"kind": "fedavg", "noise": noise}}
    plan = study_of(tables, base=Path(), data_given=True).planned(records.shape).plan
    held, found = loaded.test, []
    assert held is not None
    for seed in range(RUNS if noise != "none" else 1):
        model = train(plan, records, Entropy.from_seed(seed)).model
        found.append(100 * accuracy(plan.model.loss, model, held.features, held.targets))
    return found


def run() -> list[Row]:
    if not DATA.is_dir():
        print(f"fedavg: no rows, the data folder {DATA.name} is not here", file=sys.stderr)
        return []
    _, loaded = opened(MNIST, {"epsilon": 1.0, "delta": 1e-4})
    rows = []
    for kind, bars in BARS.items():
        records = dealt(loaded.train, kind)
        plain = scores(records, loaded, 1.0, "none")[0]
        for epsilon, bar in bars.items():
            found = scores(records, loaded, epsilon, "central")
            mean = float(np.mean(found))
            detail = f"{mean:.2f} +- {np.std(found):.2f} against {bar}; without noise {plain:.2f}"
            rows.append(Row(f"mnist, 1000 clients, {kind}, epsilon {epsilon:g}, points below", 0.0, bar - mean, detail))
    return rows
