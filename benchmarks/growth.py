"""How the cost of training grows: slope of log time over log size, for records, clients, parameters (1 is linear)."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks import Row
from fedveil.data.records import Records
from fedveil.engine.train import train
from fedveil.noise.entropy import Entropy
from fedveil.planning.study import study_of

SIZES = (1, 4, 16)
LIMIT = 1.15  # a slope above is more than linear; overheads that do not grow pull it below


def records(count: int, features: int, clients: int) -> Records:
    generator = np.random.default_rng(0)
    rows = generator.standard_normal((count, features))
    rows /= np.linalg.norm(rows, axis=1)[:, None] * (1 + 1e-12)
    return Records(
        features=rows,
        targets=(rows[:, 0] > 0).astype(np.float64),
        owner=np.arange(count) * clients // count,
        clients=clients,
        bound=1.0,
        classes=2,
    )


def trainer(kind: str, data: Records) -> Callable[[], Any]:
    unit = "client" if kind == "fedavg" else "record"
    tables = {
        "algorithm": {"kind": kind},
        "model": {"kind": "logistic", "radius": 10.0},
        "privacy": {"epsilon": 8.0, "delta": 1e-5, "unit": unit, "neighbours": "zero-out"},
        "schedule": {"passes": 2, "rounds": 10, "kind": "constant"} if kind == "hidden" else {},
    }
    from pathlib import Path

    plan = study_of(tables, base=Path(), data_given=True).planned(data.shape).plan
    return lambda: train(plan, data, Entropy.from_seed(0))


def slope(times: list[float]) -> float:
    return float(np.polyfit(np.log(SIZES), np.log(times), 1)[0])


def seconds(job: Callable[[], Any], repeats: int = 3) -> float:
    best = np.inf
    for _ in range(repeats):
        began = time.process_time()
        job()
        best = min(best, time.process_time() - began)
    return float(best)


def run() -> list[Row]:
    cases = {
        "hidden, records": ("hidden", lambda k: records(40_000 * k, 20, 40)),
        "hidden, parameters": ("hidden", lambda k: records(20_000, 40 * k, 40)),
        "hidden, clients": ("hidden", lambda k: records(160_000, 20, 2_500 * k)),
        "dpsgd, records": ("dpsgd", lambda k: records(20_000 * k, 20, 1)),
        "dpsgd, parameters": ("dpsgd", lambda k: records(20_000, 40 * k, 1)),
        "dpsgd, clients": ("dpsgd", lambda k: records(8_000, 20, 2 * k)),
        "fedavg, clients": ("fedavg", lambda k: records(16_000, 20, 50 * k)),
    }
    rows = []
    for name, (kind, make) in cases.items():
        times = [seconds(trainer(kind, make(k))) for k in SIZES]
        shown = ", ".join(f"{t:.3f}" for t in times)
        rows.append(Row(f"{name}: slope of time", LIMIT, slope(times), f"{shown} s at sizes {SIZES}"))
    return rows
