"""DP-SGD of one data holder on real data: accuracy as shortfall in points, mean of three runs, and seconds a run.

The data lie where benchmarks/accuracy.py looks for them; without them there are no rows.
"""

import sys
import time
from typing import Any

import numpy as np

from benchmarks import Row
from benchmarks.accuracy import A9A, DATA, MNIST, mean_over_clients, opened
from benchmarks.opacus import missing, opacus_seconds
from fedveil.noise.entropy import Entropy
from fedveil.stages.train.dpsgd.steps import train_dpsgd

RUNS = 3
ALONE: dict[str, Any] = {"clients": {"kind": "equal", "count": 1}, "algorithm": {"kind": "dpsgd"}}
JOBS = [("a9a", A9A, 0.5, 1 / 325_610, 84.6), ("mnist", MNIST, 1.0, 1e-5, 90.5)]


def measured(tables: dict[str, Any], epsilon: float, delta: float, **more: Any) -> tuple[list[float], list[float], str]:
    """Accuracies in per cent, seconds of each run, and what ran."""
    study, loaded = opened({**tables, **ALONE, **more}, {"epsilon": epsilon, "delta": delta, "neighbours": "zero-out"})
    plan = study.planned(loaded.train.shape).plan
    found, times = [], []
    for seed in range(RUNS):
        began = time.perf_counter()
        trained = train_dpsgd(plan, loaded.train, Entropy.from_seed(seed), lambda done: None)
        times.append(time.perf_counter() - began)
        found.append(100 * mean_over_clients(plan, trained.model, loaded.test or loaded.train))
    facts = dict(plan.method.facts(plan.setup))
    return found, times, f"{facts['sampling']}, {facts['rounds of a client']} rounds"


def run() -> list[Row]:
    if not DATA.is_dir():
        print(f"dpsgd: no rows, the data folder {DATA.name} is not here", file=sys.stderr)
        return []
    rows = []
    for name, tables, epsilon, delta, bar in JOBS:
        found, times, what = measured(tables, epsilon, delta)
        mean = float(np.mean(found))
        detail = f"{mean:.2f} +- {np.std(found):.2f} against {bar}; {min(times):.1f} s a run; {what}"
        rows.append(Row(f"dpsgd on {name}, epsilon {epsilon}, points below the bar", 0.0, bar - mean, detail))
        if name == "mnist" and not missing():
            theirs = 2 * opacus_seconds(epochs=2, batch=1024) * 5  # 20 passes, as ours; two epochs are enough to time
            detail = f"{min(times):.1f} s against {theirs:.1f} s for 20 passes in batches of 1024"
            rows.append(Row("dpsgd on mnist, time over Opacus's", 0.1, min(times) / theirs, detail))
    return rows
