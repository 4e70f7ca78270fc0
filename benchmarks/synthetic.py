"""Synthetic tables at epsilon 1: how far all pairs of columns are off, and how well a model trained on rows does.

Adult as published and the credit table, 32,561 and 24,000 rows, means over three seeds. Both are compared in the same
cells: a number in 32 of equal width over its range, a word in its own. AIM of dpmm gets the table in these cells, since
it wants codes; fedveil gets the table as it is, with the same ranges and words stated. FEDVEIL_DPMM names the Python of
an environment with dpmm; its rows are kept in bench-out/dpmm (or where FEDVEIL_DPMM_ROWS says) and made once. The data
lie where benchmarks/accuracy.py says; without them nothing is measured.
"""

import csv
import gzip
import itertools
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import Row
from benchmarks.accuracy import DATA
from benchmarks.preparation import ADULT_COLUMNS, Job, scores
from fedveil.core.values import Indices
from fedveil.data.records import Records
from fedveil.engine.measure import centralised
from fedveil.engine.measured import measured_generator, planned_synthesis
from fedveil.jobs.synthesis import open_synthesis
from fedveil.models.metrics import accuracy
from fedveil.models.spec import ModelPlan
from fedveil.noise.entropy import Entropy
from fedveil.stages.prepare.loading import Unprepared
from fedveil.stages.synthesise.quality import distance, draw_rows, header, shares

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
CELLS = 32  # of a number's range, of equal width; each whole number where there are no more
PEER_ROWS = Path(os.environ.get("FEDVEIL_DPMM_ROWS", "bench-out/dpmm"))
Texts = dict[str, list[str]]  # a table as it is written: of each column, the texts of all rows


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


def coded(texts: Texts, tables: dict[str, Any]) -> tuple[Indices, list[int]]:
    """Return the cells of all rows, the target last, and how many cells each column has."""
    data = tables["data"]
    names = [*data["scale"], *data["categories"], data["target"]]
    codes, sizes = [], []
    for name in names:
        if name not in data["scale"]:
            words = data["classes"] if name == data["target"] else data["categories"][name]
            codes.append(np.array([words.index(text) if text else 0 for text in texts[name]]))
            sizes.append(len(words))
            continue
        low, high = data["scale"][name]
        numbers = np.array([float(text or low) for text in texts[name]])
        size = min(CELLS, high - low + 1)
        cells = np.rint(numbers) - low if high - low < CELLS else (numbers - low) / (high - low) * size
        codes.append(np.clip(cells.astype(np.int64), 0, size - 1))
        sizes.append(size)
    return np.column_stack(codes), sizes


def read(path: str) -> Texts:
    """Return the columns of a CSV file."""
    with Path(path).open(encoding="utf-8", newline="") as file:
        head, *rows = csv.reader(file)
    return {name: [row[k] for row in rows] for k, name in enumerate(head)}


def generated(found: Unprepared, tables: dict[str, Any], seed: int) -> Texts:
    """Return as many synthetic rows as there are records."""
    study, request, _ = open_synthesis(tables)
    plan = planned_synthesis(study, request, found)
    made = measured_generator(plan, request, found, Entropy.from_seed(seed))
    blocks = draw_rows(made, found.train.targets.size, np.random.default_rng(seed))
    columns = zip(*itertools.chain.from_iterable(blocks), strict=True)
    return {name: list(column) for name, column in zip(header(made), columns, strict=True)}


def off(real: Indices, made: Indices, sizes: list[int]) -> float:
    """Return the mean total-variation distance over all pairs of columns."""
    found = []
    for a, b in itertools.combinations(range(len(sizes)), 2):
        tables = [shares(codes[:, a] * sizes[b] + codes[:, b], sizes[a] * sizes[b]) for codes in (real, made)]
        found.append(distance(*tables))
    return float(np.mean(found))


def right(rows: Indices, test: Indices, sizes: list[int]) -> float:
    """Return how often, in per cent, a logistic model of these rows is right on test rows; a feature a cell."""

    def hot(codes: Indices) -> np.ndarray:
        blocks = [np.eye(size)[codes[:, place]] for place, size in enumerate(sizes[:-1])]
        return np.hstack([*blocks, np.ones((len(codes), 1))])

    model, targets = ModelPlan(kind="logistic"), rows[:, -1].astype(np.float64)
    owner = np.zeros(len(rows), dtype=np.int64)
    records = Records(features=hot(rows), targets=targets, owner=owner, clients=1, bound=len(sizes) ** 0.5, classes=2)
    fitted = centralised(model, records)
    return 100 * accuracy(model.loss, fitted, hot(test), test[:, -1].astype(np.float64))


def aim(name: str, real: Indices, sizes: list[int], seed: int) -> Indices | None:
    """Return rows of dpmm's AIM in the same cells; None where they are not there and cannot be made."""
    path, python = PEER_ROWS / f"{name}-{seed}.npy", os.environ.get("FEDVEIL_DPMM")
    if not path.exists() and python is not None:
        PEER_ROWS.mkdir(parents=True, exist_ok=True)
        table = PEER_ROWS / f"{name}.npz"
        np.savez(table, codes=real, sizes=np.array(sizes))
        script = Path(__file__).parent / "_dpmm_rows.py"
        subprocess.run([python, str(script), str(table), str(seed), str(path)], check=True)
    return np.load(path) if path.exists() else None


def hidden(name: str, tables: dict[str, Any]) -> float:
    """Return how often, in per cent, models of the hidden algorithm are right on the same test rows."""
    study = {"data": tables["data"], "model": {"kind": "logistic"}, "prepare": {"kind": "auto"}}
    return float(np.mean(scores(Job(name, study, {1.0: 0.0}, PRIVACY["delta"], len(SEEDS)), 1.0)[1]))


def measured(name: str, tables: dict[str, Any]) -> Iterator[Row]:
    """Yield the rows of one table."""
    _, _, found = open_synthesis(tables)
    real, sizes = coded(read(tables["data"]["source"]), tables)
    test, _ = coded(read(tables["data"]["held_out"]["source"]), tables)
    ours, theirs, seconds = [], [], 0.0
    for seed in SEEDS:
        began = time.process_time()
        texts = generated(found, tables, seed)
        seconds = max(seconds, time.process_time() - began)
        rows, peer = coded(texts, tables)[0], aim(name, real, sizes, seed)
        ours.append((off(real, rows, sizes), right(rows, test, sizes)))
        if peer is not None:
            theirs.append((off(real, peer, sizes), right(peer, test, sizes)))
        print(f"synthetic: {name}, seed {seed}:", ours[-1], theirs[-1:], file=sys.stderr, flush=True)
    gap, share = np.mean(ours, axis=0).tolist()
    best = hidden(name, tables)
    yield Row(f"{name}: points below the hidden algorithm", 1.5, best - share, f"{share:.2f} and {best:.2f}")
    if theirs:
        their_gap, their_share = np.mean(theirs, axis=0).tolist()
        told = f"of {len(theirs)} runs"
        yield Row(f"{name}: points below AIM", 0.0, their_share - share, f"{share:.2f} and {their_share:.2f} {told}")
        yield Row(
            f"{name}: distance of pairs over AIM's", 1.1, gap / their_gap, f"{gap:.4f} and {their_gap:.4f} {told}"
        )
    else:
        yield Row(f"{name}: mean distance of all pairs", 1.0, gap, "dpmm is not there")
    yield Row(f"{name}: processor seconds", 180.0, seconds)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    yield Row(f"{name}: megabytes, with all that compares", 2048.0, peak)


def run() -> list[Row]:
    """Return all rows; none without the data."""
    if not (DATA / "adult").exists():
        print(f"synthetic: no data in {DATA}", file=sys.stderr)
        return []
    with tempfile.TemporaryDirectory() as folder:
        return [*measured("adult", adult(Path(folder))), *measured("credit", credit(Path(folder)))]
