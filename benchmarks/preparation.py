"""Accuracy of studies that state nothing, or only ranges, about their columns: everything charged, means over splits.

The plan of a study is made once, from public numbers. Every split holds other records out, learns another preparation
with fresh noise, and trains. A row's measure is the shortfall in points below its bar (negative: above it). Bars of 0
per cent only report. Opacus, where it is installed, runs on the same splits, with rows by published ranges and the best
of five settings, chosen on the test records of these splits, which flatters it; fedveil then has one client and shows
every model, as Opacus does. The data of the heart, Adult and credit studies lie where benchmarks/accuracy.py says;
without them these rows are left out.
"""

import gzip
import sys
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import Row
from benchmarks.accuracy import DATA, HEART, mean_over_clients
from benchmarks.equal_epsilon import ALONE, Setting, opacus_accuracy
from benchmarks.opacus import missing
from fedveil.data.load import Loaded
from fedveil.data.records import DataShape
from fedveil.engine.study import learned_from, planned_for
from fedveil.engine.train import train
from fedveil.jobs.local import open_any_study
from fedveil.models.metrics import accuracy
from fedveil.noise.entropy import Entropy
from fedveil.planning.plan import Plan
from fedveil.planning.study import study_of
from fedveil.stages.prepare.loading import Unprepared

SPLITS = 20
_FIRST = ["age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation", "relationship"]
ADULT_COLUMNS = [*_FIRST, "race", "sex", "capital-gain", "capital-loss", "hours-per-week", "native-country", "income"]
SMALL = [  # for Opacus on a few hundred or thousand records
    Setting(20, 64, 0.5, 0.0, 1.0),
    Setting(40, 64, 1.0, 0.0, 0.5),
    Setting(80, 128, 1.0, 0.0, 0.5),
    Setting(40, 128, 2.0, 0.9, 0.25),
    Setting(60, 256, 4.0, 0.0, 0.25),
]


@dataclass(frozen=True, slots=True)
class Job:
    """A study, its targets with their bars, and how often it runs; ``clients``: mean over clients, as for heart."""

    name: str
    tables: Mapping[str, Any]
    bars: Mapping[float, float]
    delta: float = 1e-4
    splits: int = SPLITS
    by_client: bool = False
    opacus: bool = False
    more: Mapping[str, Any] = field(default_factory=dict)

    def study(self, epsilon: float, split: int) -> dict[str, Any]:
        """The tables of one split."""
        data = dict(self.tables["data"])
        held = dict(data["held_out"])
        if "fraction" in held:
            data["held_out"] = {**held, "seed": split}
        privacy = {"epsilon": epsilon, "delta": self.delta, "neighbours": "zero-out"}
        return {**self.tables, "data": data, "privacy": privacy, **self.more}


def shipped(name: str, model: str, known: bool, clients: int = 4) -> dict[str, Any]:
    """A data set of scikit-learn: with its published ranges, or with nothing known but names."""
    return {
        "data": {"source": f"sklearn:{name}", "held_out": {"fraction": 0.25, "public": True}},
        "clients": {"kind": "equal", "count": clients},
        "model": {"kind": model},
        "prepare": {"kind": "auto" if known else "private"},
    }


def unstated(tables: Mapping[str, Any]) -> dict[str, Any]:
    """The same study with nothing stated about how columns become rows."""
    data = {key: value for key, value in tables["data"].items() if key not in ("scale", "feature_bound", "intercept")}
    return {**tables, "data": data, "prepare": {"kind": "private"}}


ADULT: dict[str, Any] = {
    "data": {
        "source": "adult/adult.data.gz",
        "format": "csv",
        "header": False,
        "names": ADULT_COLUMNS,
        "target": "income",
        "classes": ["<=50K", ">50K"],
        "held_out": {"source": "adult/adult.test.gz", "public": True},
    },
    "model": {"kind": "logistic"},
    "prepare": {"kind": "private"},
}
CREDIT: dict[str, Any] = {
    "data": {
        "source": "credit/UCI_Credit_Card.csv.gz",
        "target": "default-payment-next-month",
        "classes": 2,
        "held_out": {"fraction": 0.25, "public": True},
    },
    "model": {"kind": "logistic"},
    "prepare": {"kind": "private"},
}
JOBS = [
    Job("breast cancer, ranges", shipped("breast_cancer", "logistic", True), {1.0: 94.0, 0.3: 92.0}),
    Job("breast cancer, nothing known", shipped("breast_cancer", "logistic", False), {1.0: 93.0, 0.3: 89.0}),
    Job("wine, ranges", shipped("wine", "softmax", True), {1.0: 0.0}, opacus=True, more=ALONE),
    Job("wine, nothing known", shipped("wine", "softmax", False), {1.0: 0.0}, more=ALONE),
    Job("digits, ranges", shipped("digits", "softmax", True), {1.0: 0.0}, opacus=True, splits=10, more=ALONE),
    Job("digits, nothing known", shipped("digits", "softmax", False), {1.0: 0.0}, splits=10, more=ALONE),
    Job("heart, ranges", {**HEART, "prepare": {"kind": "auto"}}, {0.1: 74.5, 1.0: 77.8}, 1e-3, SPLITS, True),
    Job("heart, nothing known", unstated(HEART), {0.1: 0.0, 1.0: 0.0}, 1e-3, SPLITS, True),
    Job("adult, nothing known", ADULT, {1.0: 84.5, 0.3: 83.8}, 1e-5, 3),
    Job("credit, nothing known", CREDIT, {1.0: 0.0}, 1e-5, 3),
]


def adult() -> dict[str, Any]:
    """The study with a test file like the training file: without its first remark and the labels' full stops."""
    lines = gzip.decompress((DATA / "adult/adult.test.gz").read_bytes()).decode().splitlines()[1:]
    path = Path(tempfile.mkdtemp(prefix="fedveil-")) / "adult.test.csv"
    path.write_text("\n".join(line.rstrip(".") for line in lines if line) + "\n")
    return {**ADULT, "data": {**ADULT["data"], "held_out": {"source": str(path), "public": True}}}


def scores(job: Job, epsilon: float) -> tuple[Plan, list[float]]:
    """Return the plan, and the accuracy in per cent of each split."""
    plans: dict[DataShape, Plan] = {}  # hospitals hold other numbers of records in other splits
    found = []
    for split in range(job.splits):
        tables = job.study(epsilon, split)
        study, cells = open_any_study(study_of(tables, base=DATA, name=job.name))
        assert isinstance(cells, Unprepared)
        if cells.train.shape not in plans:
            plans[cells.train.shape] = planned_for(study, cells).plan
        plan = plans[cells.train.shape]
        entropy = Entropy.from_seed(split)
        loaded = cells.loaded(learned_from(plan, cells, entropy))
        assert loaded.test is not None
        model = train(plan, loaded.train, entropy).model
        found.append(100 * accuracy_of(plan, model, loaded, job.by_client))
    return plan, found


def accuracy_of(plan: Plan, model: Any, loaded: Loaded, by_client: bool) -> float:
    assert loaded.test is not None
    if by_client:
        return mean_over_clients(plan, model, loaded.test)
    held = loaded.test.present()
    return accuracy(plan.model.loss, model, held.features, held.targets)


def opacus_scores(job: Job, epsilon: float) -> list[float]:
    """The best of five settings of Opacus over the same splits, on rows by published ranges."""
    rows = []
    for setting in SMALL:
        found = []
        for split in range(job.splits):
            tables = {key: value for key, value in job.study(epsilon, split).items() if key != "prepare"}
            tables["data"] = {**tables["data"], "feature_bound": 2.0}
            _, loaded = open_any_study(study_of(tables, base=DATA, name=job.name))
            assert isinstance(loaded, Loaded)
            found.append(opacus_accuracy(loaded, setting, epsilon, job.delta, split))
        rows.append(found)
    return max(rows, key=lambda found: float(np.mean(found)))


def run(only: str = "") -> list[Row]:
    rows = []
    for job in JOBS:
        if only not in job.name:
            continue
        if not job.tables["data"]["source"].startswith("sklearn:") and not DATA.is_dir():
            print(f"preparation: no rows of {job.name}, the data folder is not here", file=sys.stderr)
            continue
        if job.tables is ADULT:
            job = replace(job, tables=adult())
        for epsilon, bar in job.bars.items():
            plan, found = scores(job, epsilon)
            error = np.std(found) / max(len(found) - 1, 1) ** 0.5
            mean, share = float(np.mean(found)), 0.0 if plan.preparation is None else plan.preparation.share
            detail = f"{mean:.2f} +- {error:.2f} over {len(found)} splits, {plan.method.kind}, share {share:.2f}"
            if job.opacus and not missing():
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    theirs = opacus_scores(job, epsilon)
                bar = max(bar, float(np.mean(theirs)))
                detail += f"; Opacus {np.mean(theirs):.2f}"
            rows.append(Row(f"{job.name}, epsilon {epsilon}: points below its bar", 0.0, bar - mean, detail))
            print(rows[-1], file=sys.stderr, flush=True)
    return rows


if __name__ == "__main__":
    run(*sys.argv[1:])
