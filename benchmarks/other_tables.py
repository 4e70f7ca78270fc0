"""Tables that no rule was made on: the default shape of a model beside a linear one, nothing known but names.

Made ones with heavy tails, gaps, a column that is mostly zero, a text of 40 words and curved effects, and diabetes of
scikit-learn; a quarter held out, epsilon 1, delta 1e-5, zero-out, means of three runs and their standard errors. Rows:
how far ``shape = "auto"`` is below the linear model, in thousandths of AUC, accuracy or R2.
"""

import importlib
import math
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_diabetes
from sklearn.metrics import r2_score, roc_auc_score

from benchmarks import Row
from fedveil import run_study

RUNS = 3
Task = tuple[str, str, int, Any]  # name, kind of model, classes, frame


def people(draw: np.random.Generator, count: int) -> tuple[Any, np.ndarray[Any, Any]]:
    """Return columns as people have them, and a score that they decide."""
    frame = importlib.import_module("pandas").DataFrame()
    frame["t"], frame["m"] = draw.standard_t(2, count) * 50, np.exp(draw.normal(3, 2, count))
    frame["age"] = draw.normal(45, 15, count).clip(0, 99).round()
    frame["z"] = np.where(draw.random(count) < 0.9, 0, draw.gamma(2, 500, count))
    frame["deg"], frame["i"] = draw.normal(20, 8, count), draw.integers(0, 5, count)
    frame["city"] = np.array([f"c{place}" for place in range(40)])[np.minimum(draw.geometric(0.1, count) - 1, 39)]
    frame["kind"], frame["note"] = draw.choice(["a", "b", "c"], count), draw.choice(["x", "y"], count)
    score = np.tanh(frame.t / 60) + 0.4 * (np.log(frame.m) - 3) - ((frame.age - 45) / 15) ** 2 * 0.7
    score = np.asarray(score + 0.8 * (frame.z > 0) + np.sin(frame.deg / 5) + (frame.kind == "a") * 1.0)
    for name, share in (("t", 0.08), ("deg", 0.08), ("age", 0.08), ("kind", 0.1)):
        frame.loc[draw.random(count) < share, name] = None if name == "kind" else np.nan
    return frame, score - score.mean()


def tables() -> Iterator[Task]:
    draw = np.random.default_rng(5)
    for name, count, offset in (("made", 60_000, 0.0), ("made, one class in 12", 6_000, 2.5)):
        frame, score = people(draw, count)
        chance = 1 / (1 + np.exp(-2 * (score - offset)))
        yield f"{name}, {count:,} records", "logistic", 2, frame.assign(y=(draw.random(count) < chance).astype(int))
    frame, score = people(draw, 12_000)
    three = np.digitize(score + 0.5 * draw.logistic(size=12_000), [-1, 0.7])
    yield "made, three classes, 12,000 records", "softmax", 3, frame.assign(y=three)
    frame, score = people(draw, 10_000)
    yield "made, a number, 10,000 records", "huber", 0, frame.assign(y=100 * score + 60 * draw.normal(size=10_000))
    found = load_diabetes(scaled=False, as_frame=True)
    yield "diabetes, 442 records", "huber", 0, found.data.assign(y=found.target)


def measured(task: Task, shape: str) -> float:
    """Return AUC, accuracy or R2 on the quarter held out, of the model that a whole run releases."""
    _, kind, classes, frame = task
    order = np.random.default_rng(0).permutation(len(frame))
    train, test = (frame.iloc[part] for part in np.split(order, [len(frame) * 3 // 4]))
    ends = [math.floor(frame.y.min()), math.ceil(frame.y.max())]
    texts = [name for name in frame if frame[name].dtype.kind not in "iuf"]
    study = {
        "data": {"target": "y", **({"classes": classes} if classes else {"target_scale": ends})},
        "model": {"kind": kind, "shape": shape},
        "privacy": {"epsilon": 1.0, "delta": 1e-5, "neighbours": "zero-out"},
        "prepare": {
            "kind": "auto",
            "numbers": [name for name in frame if name not in ("y", *texts)],
            "texts": texts,
        },
    }
    with tempfile.TemporaryDirectory() as folder:
        model = run_study(study, Path(folder) / "out", data=train).model
        rows = test.drop(columns="y")
        if kind == "logistic":
            return float(roc_auc_score(test.y, model.decision_function(rows)))
        told = np.asarray(model.predict(rows))
    return float(np.mean(told.astype(str) == test.y.astype(str))) if classes else float(r2_score(test.y, told))


def run() -> list[Row]:
    found = []
    for task in tables():
        auto, linear = ([measured(task, shape) for _ in range(RUNS)] for shape in ("auto", "linear"))
        error = 1000 * math.hypot(np.std(auto), np.std(linear)) / math.sqrt(RUNS - 1)
        words = [f"{np.mean(some):.3f} ± {np.std(some) / math.sqrt(RUNS - 1):.3f}" for some in (auto, linear)]
        short = 1000 * float(np.mean(linear) - np.mean(auto))
        found.append(Row(f"{task[0]}: auto below linear", error, short, " against ".join(words)))
    return found
