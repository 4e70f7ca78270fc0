"""Noise that is correlated over rounds: its matrices beside those of jax-privacy, and what it buys on MNIST.

Matrices: prefix sums over 1000 rounds; a row's measure is the root of squared error times squared sensitivity over that
of jax-privacy (1: the same). The peer has an environment of its own, whose Python FEDVEIL_JAX_PRIVACY names; without it
the numbers are those of version 2.0.0 that the tests hold too. MNIST: 1000 clients of two labels, linear model, target
``server-with-secure-aggregation``, 50 clients a round in an order that the server knows; a row's measure is by how many
points correlated noise is below independent noise of the same clients in the same rounds (negative: above it), mean of
five runs. Memory: what the noise of 64 bands holds at most, in models.
"""

import json
import math
import os
import subprocess
import sys
import tracemalloc
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import Row
from benchmarks.accuracy import DATA, MNIST, opened
from benchmarks.fedavg import dealt
from fedveil.data.load import Loaded
from fedveil.data.records import Records
from fedveil.engine.train import train
from fedveil.models.metrics import accuracy
from fedveil.noise.correlated import CorrelatedNoise
from fedveil.noise.entropy import Entropy
from fedveil.planning.study import study_of
from fedveil.theory.correlated import Aim, Factor, best_bands, best_buffers, coefficients_of

ROUNDS = 1000
RUNS = 5
# jax-privacy 2.0.0 (jax 0.10.2, 64-bit floats): optimize_banded_toeplitz, and buffered_toeplitz.optimize with 4 buffers
PEER = {
    "mean, 1 bands": 22.371857321197094,
    "mean, 8 bands": 8.351642329405191,
    "mean, 64 bands": 4.03486784154247,
    "last, 1 bands": 31.622776601683793,
    "last, 8 bands": 11.577722126384376,
    "last, 64 bands": 5.126136397061207,
    "mean, 4 buffers": 3.0498251298022607,
    "last, 4 buffers": 3.265379526094738,
}
_SCRIPT = """
import json, math
import jax; jax.config.update("jax_enable_x64", True)
import jax.numpy as jnp
from jax_privacy.matrix_factorization import buffered_toeplitz as bt, toeplitz as tz
found = {}
for name, how, word in (("mean", jnp.mean, "mean"), ("last", lambda v: v[-1], "max")):
    for bands in (1, 8, 64):
        c = jnp.ones(1) if bands == 1 else tz.optimize_banded_toeplitz(1000, bands, reduction_fn=how)
        found[f"{name}, {bands} bands"] = math.sqrt(tz.loss(strategy_coef=c, n=1000, reduction_fn=how))
    blt = bt.optimize(n=1000, min_sep=1000, max_participations=1, error=word, min_buffers=4, max_buffers=4)
    loss = bt.LossFn.build_min_sep(n=1000, error=word, min_sep=1000, max_participations=1).loss(blt)
    found[f"{name}, 4 buffers"] = math.sqrt(float(loss))
print(json.dumps(found))
"""


def peer() -> dict[str, float]:
    python = os.environ.get("FEDVEIL_JAX_PRIVACY")
    if not python:
        print("correlated: jax-privacy is not here, so its recorded numbers are used", file=sys.stderr)
        return PEER
    done = subprocess.run([python, "-c", _SCRIPT], capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def matrices() -> list[Row]:
    known, rows, ones = peer(), [], np.ones(ROUNDS)
    for name, theirs in known.items():
        error, size = name.split(", ")
        aim = (Aim.mean if error == "mean" else Aim.last)(ones, 1, ROUNDS)
        count = int(size.split()[0])
        if size.endswith("bands"):
            factor = Factor(column=best_bands(aim, count))
        else:
            scales, decays = best_buffers(aim, count)
            factor = Factor(scales=scales, decays=decays)
        ours = math.sqrt(aim.loss(factor.coefficients(ROUNDS)))
        rows.append(Row(f"error of a matrix over jax-privacy's, {name}", 1.01, ours / theirs, f"{ours:.6f}"))
    return rows


def memory(bands: int = 64, size: int = 100_000) -> Row:
    factor = Factor(column=tuple(coefficients_of((1.0,), 1)) + (0.01,) * (bands - 1))
    tracemalloc.start()
    noise = CorrelatedNoise(factor, Entropy.from_seed(0), "noise", 2.0**30, size, ROUNDS)
    for turn in range(3):
        noise.at(turn)
    most = tracemalloc.get_traced_memory()[1] / (8 * size)
    tracemalloc.stop()
    return Row(f"models that noise of {bands} bands holds", bands + 2, most, "")


@cache
def mnist() -> tuple[Records, Loaded]:
    _, loaded = opened(MNIST, {"epsilon": 1.0, "delta": 1e-4})
    return dealt(loaded.train, "two labels"), loaded


def scores(epsilon: float, runs: int = RUNS, rounds: int = 100, **algorithm: Any) -> tuple[float, float]:
    """Return mean and spread of the accuracies, in percent."""
    records, loaded = mnist()
    held = loaded.test
    assert held is not None
    privacy = {"epsilon": epsilon, "delta": 1e-4, "unit": "client", "neighbours": "zero-out"}
    privacy["adversary"] = "server-with-secure-aggregation"
    asked = {"kind": "fedavg", **algorithm}
    tables = {"model": MNIST["model"], "privacy": privacy, "algorithm": asked, "schedule": {"rounds": rounds}}
    plan = study_of(tables, base=Path(), data_given=True).planned(records.shape).plan
    found = []
    for seed in range(runs):
        model = train(plan, records, Entropy.from_seed(seed)).model
        found.append(100 * accuracy(plan.model.loss, model, held.features, held.targets))
    return float(np.mean(found)), float(np.std(found))


def run() -> list[Row]:
    rows = [*matrices(), memory()]
    if not DATA.is_dir():
        print(f"correlated: no rows on MNIST, the data folder {DATA.name} is not here", file=sys.stderr)
        return rows
    for epsilon in (1.0, 2.0, 8.0):
        alone, _ = scores(epsilon, noise="correlated", cohort=50, bands=1)
        with_bands, spread = scores(epsilon, noise="correlated", cohort=50, bands=20)
        detail = f"{with_bands:.2f} +- {spread:.2f}, independent {alone:.2f}"
        rows.append(Row(f"mnist, order known, epsilon {epsilon:g}, points below", 0.0, alone - with_bands, detail))
    return rows
