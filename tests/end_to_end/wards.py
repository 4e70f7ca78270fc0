"""A hospital's wards: a study with texts and gaps, its table, and how its rows are made by hand."""

import csv
import io
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

STUDY = """
[study]
name = "wards"
{study}
[data]
source = "train.csv"
target = "ill"
classes = ["no", "yes"]
client_column = "site"
feature_bound = 1.5
missing = ["", "?", "-9"]
[data.scale]
age = [0, 100]
pressure = [80, 200]
[data.categories]
ward = ["A", "B", "C"]
[data.fill]
pressure = 130
ward = "B"
age = {age}
[data.held_out]
fraction = 0.25
{held_out}
[clients]
kind = "column"
[model]
kind = "{model}"
radius = 10.0
[privacy]
epsilon = {epsilon}
delta = 1e-4
neighbours = "zero-out"
[schedule]
kind = "constant"
rounds = 4
passes = 2
"""
PUBLIC = "public = true"
Command = Callable[..., SimpleNamespace]


def table(rows: int = 600, seed: int = 0) -> list[dict[str, str]]:
    """Mixed types, gaps in two columns, labels as texts."""
    random = np.random.default_rng(seed)
    age, pressure = random.integers(20, 90, rows), random.normal(130, 20, rows).round(1)
    ward = random.choice(["A", "B", "C", "?"], rows, p=[0.4, 0.3, 0.25, 0.05])
    ill = random.random(rows) < 1 / (1 + np.exp(-((age - 60) / 8 + (pressure - 130) / 20 + 2.0 * (ward == "C"))))
    gaps = random.choice(["", "-9", "ok"], rows, p=[0.03, 0.03, 0.94])
    return [
        {
            "site": f"s{row % 4}",
            "age": str(age[row]),
            "ward": str(ward[row]),
            "pressure": str(pressure[row]) if gaps[row] == "ok" else gaps[row],
            "ill": "yes" if ill[row] else "no",
        }
        for row in range(rows)
    ]


def write_csv(path: Path, rows: list[dict[str, str]], *leave_out: str) -> Path:
    names = [name for name in rows[0] if name not in leave_out]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, names, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    return path


def write_study(folder: Path, **parts: Any) -> Path:
    write_csv(folder / "train.csv", table())
    settings = {"study": "seed = 1", "age": '"refuse"', "held_out": PUBLIC, "model": "logistic", "epsilon": 4.0} | parts
    path = folder / "study.toml"
    path.write_text(STUDY.format(**settings), encoding="utf-8")
    return path


def by_hand(run: Path, rows: list[dict[str, str]]) -> np.ndarray[Any, Any]:
    """The probability of "yes", from the study's own words and the released parameters, cell by cell."""
    weights = np.load(run / "model.npz")["parameters"]
    found = []
    for row in rows:
        pressure = 130.0 if row["pressure"] in ("", "-9") else float(row["pressure"])
        ward = "B" if row["ward"] == "?" else row["ward"]
        scaled = [(float(row["age"]) - 50) / 50, *(float(ward == one) for one in "ABC"), (pressure - 140) / 60]
        cut = np.clip(scaled, -1, 1)
        cut = cut * min(1.0, 1.5 / np.linalg.norm(cut))
        found.append(1 / (1 + np.exp(-(np.append(cut, 1.0) @ weights))))
    return np.array(found)


def read(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"))))
