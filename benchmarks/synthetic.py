"""Synthetic tables at epsilon 1: how far all pairs of columns are off, and how well a model trained on rows does.

Adult as published and the credit table, 32,561 and 24,000 rows, means over three seeds. Real rows and synthetic ones
are compared in the same fine cells. Where dpmm is installed, its AIM gets the same cells. The data lie where
benchmarks/accuracy.py says; without them nothing is measured.
"""

import gzip
import itertools
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import Row
from benchmarks.accuracy import DATA
from benchmarks.preparation import ADULT_COLUMNS
from fedveil.jobs.synthesis import open_synthesis
from fedveil.model.metrics import accuracy
from fedveil.model.spec import ModelPlan
from fedveil.noise.entropy import Entropy
from fedveil.prepare.loading import Unprepared
from fedveil.prepare.synthesis.generator import Generator
from fedveil.prepare.synthesis.quality import distance, one_hot, shares
from fedveil.prepare.synthesis.rows import draw_codes
from fedveil.prepare.synthesis.table import public_table, table_of
from fedveil.run.baselines import centralised
from fedveil.run.synthesising import measured_generator, planned_synthesis
from fedveil.run.synthetic_quality import records_of
from fedveil.values import Indices

SEEDS = (1, 2, 3)
PRIVACY = {"epsilon": 1.0, "delta": 1e-5, "neighbours": "zero-out"}
ADULT_RANGES = {
    "age": (16, 96),
    "fnlwgt": (0, 1_500_000),
    "education-num": (1, 16),
    "capital-gain": (0, 100_000),
    "capital-loss": (0, 5_000),
    "hours-per-week": (0, 100),
}
HIDDEN = {"adult": 0.852, "credit": 0.8165}  # accuracy of the hidden algorithm on the same test rows, epsilon 1


def adult(folder: Path) -> dict[str, Any]:
    """Write the two published files with a header, and return the tables of the study."""
    words: dict[str, set[str]] = {}
    for name in ("data", "test"):
        lines = gzip.decompress((DATA / "adult" / f"adult.{name}.gz").read_bytes()).decode().splitlines()
        rows = [[cell.strip().rstrip(".") for cell in line.split(",")] for line in lines if line.count(",") == 14]
        for place, column in enumerate(ADULT_COLUMNS):
            if column not in ADULT_RANGES:
                words.setdefault(column, set()).update(row[place] for row in rows)
        text = [",".join(ADULT_COLUMNS), *(",".join(row) for row in rows)]
        (folder / f"adult.{name}.csv").write_text("\n".join(text) + "\n", encoding="utf-8")
    data = {
        "source": str(folder / "adult.data.csv"),
        "target": "income",
        "classes": sorted(words.pop("income")),
        "missing": [""],
        "scale": {name: list(span) for name, span in ADULT_RANGES.items()},
        "categories": {name: sorted(own) for name, own in words.items()},
        "held_out": {"source": str(folder / "adult.test.csv"), "public": True},
    }
    return {"data": data, "privacy": PRIVACY, "generator": {"whole": list(ADULT_RANGES)}}


def credit(folder: Path) -> dict[str, Any]:
    """Likewise for the credit table: its one-hot columns are made one column each again, and a fifth is held out."""
    text = gzip.decompress((DATA / "credit" / "UCI_Credit_Card.csv.gz").read_bytes()).decode()
    table = [line.split(",") for line in text.splitlines()]
    hot = {name: [k for k, head in enumerate(table[0]) if head.startswith(name)] for name in ("EDUCATION", "MARRIAGE")}
    kept = [k for k, head in enumerate(table[0]) if head != "ID" and not any(k in own for own in hot.values())]
    names = [*(table[0][k] for k in kept), *hot]

    def place(row: list[str], own: list[int]) -> str:
        return next((str(number) for number, k in enumerate(own) if row[k] == "1"), "0")

    rows = [[*(row[k] for k in kept), *(place(row, own) for own in hot.values())] for row in table[1:]]
    order = np.random.default_rng(0).permutation(len(rows)).tolist()
    for name, part in (("train", order[:24_000]), ("test", order[24_000:])):
        lines = [",".join(names), *(",".join(rows[k]) for k in part)]
        (folder / f"credit.{name}.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    scale = {"LIMIT_BAL": [0, 1_000_000], "AGE": [20, 80]}
    scale |= {f"BILL_AMT{k}": [-100_000, 1_000_000] for k in range(1, 7)} | {
        f"PAY_AMT{k}": [0, 500_000] for k in range(1, 7)
    }
    target = "default-payment-next-month"
    words = {name: sorted({row[k] for row in rows}) for k, name in enumerate(names) if name not in scale}
    data = {
        "source": str(folder / "credit.train.csv"),
        "target": target,
        "classes": words.pop(target),
        "scale": scale,
        "categories": words,
        "held_out": {"source": str(folder / "credit.test.csv"), "public": True},
    }
    return {"data": data, "privacy": PRIVACY, "generator": {"whole": list(scale)}}


def generated(found: Unprepared, tables: dict[str, Any], seed: int) -> tuple[Generator, Indices]:
    """Return a generator of these records, and as many rows as there are records."""
    study, request, _ = open_synthesis(tables)
    plan = planned_synthesis(study, request, found)
    made = measured_generator(plan, request, found, Entropy.from_seed(seed))
    return made, draw_codes(made, found.train.targets.size, np.random.default_rng(seed))


def off(real: Indices, made: Indices, sizes: list[int]) -> float:
    """Return the mean total-variation distance over all pairs of columns."""
    found = []
    for a, b in itertools.combinations(range(len(sizes)), 2):
        tables = [shares(codes[:, a] * sizes[b] + codes[:, b], sizes[a] * sizes[b]) for codes in (real, made)]
        found.append(distance(*tables))
    return float(np.mean(found))


def right(generator: Generator, rows: Indices, test: Indices) -> float:
    """Return how often a logistic model of these rows is right on test rows."""
    model = ModelPlan(kind="logistic")
    fitted = centralised(model, records_of(generator, rows[rows[:, -1] < 2], 2))
    return accuracy(model.loss, fitted, one_hot(generator, test), test[:, -1].astype(np.float64))


def aim(real: Indices, sizes: list[int], seed: int) -> Indices | None:
    """Return rows of dpmm's AIM in the same cells; None where it is not installed."""
    with suppress(ImportError):
        frame = import_module("pandas").DataFrame(real, columns=[f"c{k}" for k in range(len(sizes))])
        model = import_module("dpmm.models.aim").AIMGM(epsilon=1.0, delta=1e-5, n_jobs=1)
        model.set_domain({f"c{k}": size for k, size in enumerate(sizes)})
        model.set_random_state(np.random.RandomState(seed))
        model.fit(frame)
        return np.asarray(model.generate(n_records=len(real))[list(frame.columns)], dtype=np.int64)
    return None


def averaged(found: Unprepared, tables: dict[str, Any], seed: int) -> Indices:
    """Return rows of as many generators as there are clients, each of its own client's records, at the same target."""
    parts = []
    for client in range(found.train.clients):
        rows = np.flatnonzero(found.train.owner == client)
        own = replace(
            found.train,
            features=found.train.features[rows],
            targets=found.train.targets[rows],
            owner=np.zeros(rows.size, dtype=np.int64),
            clients=1,
            names=(),
            raw=None,
        )
        parts.append(generated(replace(found, train=own), tables, seed + client)[1])
    return np.concatenate(parts)


def measured(name: str, tables: dict[str, Any]) -> Iterator[Row]:
    """Yield the rows of one table."""
    _, _, found = open_synthesis(tables)
    test_table = public_table(found)
    gaps, ours, theirs, seconds = [], [], [], 0.0
    for seed in SEEDS:
        began = time.monotonic()
        made, rows = generated(found, tables, seed)
        seconds = max(seconds, time.monotonic() - began)
        real, sizes = table_of(found).codes(made.columns), [one.size for one in made.columns]
        test = real if test_table is None else test_table.codes(made.columns)
        gaps.append(100 * (HIDDEN[name] - right(made, rows, test)))
        ours.append(off(real, rows, sizes))
        peer = aim(real, sizes, seed)
        theirs += [] if peer is None else [off(real, peer, sizes)]
    yield Row(f"{name}: points below the hidden algorithm", 1.5, float(np.mean(gaps)))
    told = "" if theirs else "dpmm is not installed here"
    least = 1.1 * float(np.mean(theirs)) if theirs else 1.0
    yield Row(f"{name}: mean distance of all pairs", least, float(np.mean(ours)), told)
    yield Row(f"{name}: seconds", 180.0, seconds)


def skewed(name: str, tables: dict[str, Any]) -> Iterator[Row]:
    """Yield the rows of twenty clients with very different shares of the classes, whose noise is in shares."""
    clients = {"kind": "dirichlet", "count": 20, "alpha": 0.3, "seed": 1}
    tables = {**tables, "clients": clients, "data": {**tables["data"], "public": True}}
    _, _, found = open_synthesis(tables)
    made, rows = generated(found, tables, 1)
    real, sizes = table_of(found).codes(made.columns), [one.size for one in made.columns]
    pooled = off(real, rows, sizes)
    apart = off(real, generated(found, {**tables, "trust": {}}, 1)[1], sizes)
    local = off(real, averaged(found, tables, 1), sizes)
    yield Row(f"{name}: 20 skewed clients over pooled records", 1.02, apart / pooled)
    yield Row(f"{name}: over the clients' own generators together", 1.0, apart / local, f"{apart:.4f} and {local:.4f}")


def run() -> list[Row]:
    """Return all rows; none without the data."""
    if not (DATA / "adult").exists():
        print(f"synthetic: no data in {DATA}", file=sys.stderr)
        return []
    with tempfile.TemporaryDirectory() as folder:
        tables = adult(Path(folder))
        return [*measured("adult", tables), *measured("credit", credit(Path(folder))), *skewed("adult", tables)]
