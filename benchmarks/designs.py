"""The default designs of ``hidden`` and ``dpsgd`` on real data: accuracy against gradient work, zero-out, last model.

The data lie where benchmarks/accuracy.py looks for them; without them there are no rows. Table: docs/designs.md.
A row's measure is by how many points ``hidden`` stays below ``dpsgd`` (negative: above it), or the ratio that is named.
"""

import sys
from typing import Any

import numpy as np

from benchmarks import Row
from benchmarks.accuracy import A9A, DATA, MNIST, RUNS, mean_over_clients, opened
from fedveil.accounting.calibrate import calibrate
from fedveil.data.load import Loaded
from fedveil.engine.train import train
from fedveil.noise.entropy import Entropy
from fedveil.planning.study import study_of
from fedveil.privacy.mechanism import LastIterate, Repeat, SampledGaussian

JOBS: list[tuple[str, dict[str, Any], float]] = [("a9a", A9A, 1 / 325_610), ("mnist", MNIST, 1e-5)]
EPSILONS = (0.1, 0.5, 1.0)
ALONE: dict[str, Any] = {"clients": {"kind": "equal", "count": 1}}
NOISE = [(0.01, 2000, 4.0), (0.01, 1000, 8.0), (0.001, 10_000, 2.5), (256 / 60_000, 3525, 6.0)]  # rate, rounds, epsilon


def judged(
    tables: dict[str, Any], loaded: Loaded, kind: str, epsilon: float, delta: float
) -> tuple[list[float], float, str]:
    """Accuracies in per cent, passes over the data, and what ran."""
    privacy = {"epsilon": epsilon, "delta": delta, "neighbours": "zero-out"}
    study = study_of({**tables, "privacy": privacy, "algorithm": {"kind": kind}}, base=DATA)
    planned = study.planned(loaded.train.shape)
    found = []
    for seed in range(RUNS):
        model = train(planned.plan, loaded.train, Entropy.from_seed(seed)).model
        found.append(100 * mean_over_clients(planned.plan, model, loaded.test or loaded.train))
    return found, planned.draft.passes or 0.0, f"{planned.plan.method.total} rounds"


def error(found: list[float]) -> float:
    """The standard error of a mean."""
    return float(np.std(found, ddof=1) / np.sqrt(len(found)))


def accuracy_rows(names: tuple[str, ...]) -> list[Row]:
    rows = []
    for name, tables, delta in JOBS:
        if name not in names:
            continue
        whole = {**tables, **ALONE}
        _, loaded = opened(whole, {"epsilon": 1.0, "delta": delta})
        for epsilon in EPSILONS:
            ours, work, what = judged(whole, loaded, "hidden", epsilon, delta)
            theirs, most, _ = judged(whole, loaded, "dpsgd", epsilon, delta)
            better = float(np.mean(ours) - np.mean(theirs))
            detail = (
                f"{np.mean(ours):.2f} +- {error(ours):.2f} with {work:.3g} passes ({what}) against "
                f"{np.mean(theirs):.2f} +- {error(theirs):.2f} with {most:.3g}"
            )
            rows.append(Row(f"{name}, epsilon {epsilon}: hidden below dpsgd, points", 0.0, -better, detail))
            rows.append(Row(f"{name}, epsilon {epsilon}: gradient work over dpsgd's", 0.5, work / most, detail))
    return rows


def noise_rows() -> list[Row]:
    """The noise that the last model needs over that of Poisson batches when every model is seen, c = 1, delta 1e-5."""
    rows = []
    for rate, rounds, epsilon in NOISE:
        once = SampledGaussian(sampling="poisson", rate=rate, noise_multiplier=1.0)
        seen, _ = calibrate(Repeat(of=once, times=rounds), epsilon=epsilon, delta=1e-5, tolerance=1e-3)
        run = LastIterate(
            rounds=rounds,
            order="poisson",
            rate=rate,
            step_size=1.0,
            lipschitz=1.0,
            smoothness=1.0,
            noise_std=1.0,
            neighbours="zero-out",
        )
        hidden, _ = calibrate(run, epsilon=epsilon, delta=1e-5, tolerance=1e-3)
        detail = f"multiplier {hidden:.3f} for the last model, {seen:.3f} for all models, epsilon {epsilon:g}"
        rows.append(Row(f"noise at rate {rate:.4g}, {rounds} rounds, over Poisson's", 1 / 1.3, hidden / seen, detail))
    return rows


def run() -> list[Row]:
    rows = noise_rows()
    if not DATA.is_dir():
        print(f"designs: only noise rows, the data folder {DATA.name} is not here", file=sys.stderr)
        return rows
    return rows + accuracy_rows(tuple(name for name, _, _ in JOBS))
