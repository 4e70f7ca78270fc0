"""MNIST by a small conditional generator at epsilon 3: a linear model of 60,000 synthetic digits, on real test digits.

The ready generator of moments, 624,075 parameters learned in one round, delta 1e-5, zero-out neighbours, against an
observer of every model. A softmax regression without regularisation worth the name is fitted to 60,000 drawn digits, as
many of each class, and judged on the test file. How rows are drawn was settled on a tenth of the training digits, held
out of the rest, and never on test digits. Without PyTorch or the data there are no rows.
"""

import importlib.util
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import Row
from benchmarks.accuracy import DATA
from fedveil.engine.study import planned_for
from fedveil.engine.synthetic_quality import trained_on
from fedveil.engine.train import train
from fedveil.jobs.deep_synthesis import open_deep
from fedveil.jobs.local import ReadTables
from fedveil.noise.entropy import Entropy

SEEDS, ROWS, BAR = (0,), 60_000, 15.0
GENERATOR = {"kind": "torch", "module": "moments", "image": [28, 28], "whole": True}


def tables() -> dict[str, Any]:
    """The study, as a user would write it."""
    name = "idx{}-ubyte.gz"
    files = {"source": f"-images-{name.format(3)}", "labels": f"-labels-{name.format(1)}"}
    train_files, test_files = (
        {key: str(DATA / "mnist" / f"{part}{end}") for key, end in files.items()} for part in ("train", "t10k")
    )
    return {
        "data": {**train_files, "classes": 10, "default_scale": [0, 255], "held_out": {**test_files, "public": True}},
        "privacy": {"epsilon": 3.0, "delta": 1e-5, "neighbours": "zero-out", "adversary": "every-model"},
        "generator": GENERATOR,
    }


def measured(seed: int) -> tuple[float, float]:
    """Return the share of test digits that a linear model of synthetic ones gets wrong, and seconds of training."""
    study, _, loaded = open_deep(ReadTables(tables(), Path(), "digits"))
    plan = planned_for(study, loaded)
    start = time.process_time()
    model = train(plan, loaded.train, Entropy.from_seed(seed)).model
    took = time.process_time() - start
    draw = plan.model.loss.sampler(model, plan.data.features)  # type: ignore[attr-defined]
    kinds = np.arange(ROWS) % 10
    rows = np.concatenate([draw(part, number) for number, part in enumerate(np.split(kinds, 10))])
    assert loaded.test is not None
    found = trained_on(rows, kinds.astype(float), loaded.test.features, loaded.test.targets, classes=10)
    return 1 - found, took


def run() -> list[Row]:
    """Return the error beside the bar, in per cent, over a few seeds."""
    if importlib.util.find_spec("torch") is None or not (DATA / "mnist").exists():
        print("synthetic_digits: PyTorch or MNIST is missing", file=sys.stderr)
        return []
    found = [measured(seed) for seed in SEEDS]
    error = 100 * float(np.mean([wrong for wrong, _ in found]))
    detail = f"each run: {', '.join(f'{100 * w:.2f}% wrong, {s:.0f} s' for w, s in found)}"
    return [Row("linear model of 60,000 synthetic digits, epsilon 3: per cent wrong", BAR, error, detail)]
