"""How often the 95% intervals of each kind of question hold the truth: it must be between 92% and 98% of the time.

    python benchmarks/coverage.py [--repetitions 400] [--records 300,3000,30000] [--epsilon 1]

Each repetition draws new records and new noise. The interval of the noise is compared with the same number of the
records themselves, without noise; the interval of noise and sampling with the number of the distribution, which is
computed on two million records. Normal, skewed (gamma) and heavy-tailed (Student with 3 degrees) columns, cut to a
public range. Where a plan refuses a question as all noise, or leaves it unanswered, the line says so.
"""

import argparse
import itertools
import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from fedveil.core.errors import FedveilError
from fedveil.data.records import DataShape
from fedveil.data.row_rule import Labels
from fedveil.privacy.target import Target
from fedveil.privacy.trust import CENTRAL
from fedveil.stages.ask.stage import Ask
from fedveil.stages.measured.stage import measured_plan
from fedveil.stages.prepare.columns import Columns, Outline, Words
from fedveil.stages.synthesise.table import Table

SHAPES = ("normal", "skewed", "heavy")
RANGES = {"normal": (-4.0, 4.0), "skewed": (0.0, 12.0), "heavy": (-10.0, 10.0)}
TRUTH = 1_000_000
COLUMNS = ("x", "other", "y", "late", "seen", "count", "ill")
TIMES = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0)


def draw(shape: str, records: int, generator: np.random.Generator) -> dict[str, Any]:
    """Return records: x of this shape, a column that depends on it, outcomes of known models, and an arm."""
    low, high = RANGES[shape]
    match shape:
        case "normal":
            x = generator.normal(0, 1, records)
        case "skewed":
            x = generator.gamma(2.0, 1.0, records)
        case _:
            x = generator.standard_t(3, records)
    x = np.clip(x, low, high)
    other = np.clip(generator.normal(0, 1, records), -3, 3)
    arm = generator.integers(0, 2, records)
    middle, half = (low + high) / 2, (high - low) / 2
    scaled = (x - middle) / half
    y = np.clip(1 + 2 * scaled - other + 0.4 * arm + 0.5 * generator.normal(0, 1, records), -8, 8)
    chance = 1 / (1 + np.exp(-(0.3 + 2.0 * scaled - 0.6 * other + 0.8 * arm)))
    rate = 0.3 * np.exp(0.8 * scaled + 0.4 * arm)
    death, end = generator.exponential(1 / rate), generator.uniform(0.5, 6, records)
    counted = np.minimum(generator.poisson(np.exp(0.3 + 0.7 * scaled + 0.3 * arm)), 10)
    late, seen = np.minimum(death, end), (death <= end).astype(float)
    ill = (generator.random(records) < chance).astype(float)
    numbers = np.column_stack([x, other, y, late, seen, counted, ill])
    return {"numbers": numbers, "arm": arm}


def questions(shape: str) -> list[dict[str, Any]]:
    """Return one question of each kind."""
    span = list(RANGES[shape])
    ranges = {"x": span, "other": [-3.0, 3.0]}
    pair = ["x", "other", "arm"]
    return [
        {"kind": "count", "where": ["other > 0"]},
        {"kind": "histogram", "column": "x", "range": span, "bins": 8},
        {"kind": "crosstab", "columns": ["x", "arm"], "edges": {"x": np.linspace(*span, 5).tolist()}},
        {"kind": "mean", "column": "x", "range": span, "by": "arm"},
        {"kind": "total", "column": "x", "range": span},
        {"kind": "quantiles", "column": "x", "range": span, "at": [0.25, 0.5, 0.9]},
        {"kind": "survival", "time": "late", "event": "seen", "times": list(TIMES), "by": "arm"},
        {"kind": "correlation", "columns": ["x", "y"], "range": {"x": span, "y": [-8.0, 8.0]}},
        {"kind": "regression", "name": "linear", "column": "y", "columns": pair, "range": {**ranges, "y": [-8.0, 8.0]}},
        {"kind": "regression", "name": "logistic", "model": "logistic", "column": "ill", "columns": pair,
         "range": ranges},
        {"kind": "regression", "name": "poisson", "model": "poisson", "column": "count", "columns": ["x", "arm"],
         "range": {"x": span, "count": [0.0, 10.0]}},
        {"kind": "regression", "name": "cox", "model": "cox", "time": "late", "event": "seen", "times": list(TIMES),
         "columns": ["x", "arm"], "range": {"x": span}},
    ]  # fmt: skip


def table_of(rows: Mapping[str, Any]) -> Table:
    """Return the records as a stage reads them."""
    outline = Outline(numbers=COLUMNS, texts=("arm",), categories={"arm": ("a", "b")})
    arm = Words(spelt=("a", "b"), codes=rows["arm"].astype(np.int64))
    columns = Columns(numbers=rows["numbers"], texts={"arm": arm})
    labels = Labels(span=(-1.0, 1.0))
    return Table(outline=outline, columns=columns, targets=np.zeros(len(columns)), labels=labels, target=None)


class Noisy:
    """Implements Measures: adds up, and adds noise of the planned law and size times ``factor``."""

    def __init__(self, rows: int, generator: np.random.Generator, factor: float = 1.0) -> None:
        self.present, self.generator, self.factor = np.arange(rows), generator, factor

    def noisy_sum(self, planned: Any, contributions: Callable[[Any], Any], size: int) -> Any:
        """Return the noisy sum, in units."""
        sample = self.generator.laplace if planned.law == "laplace" else self.generator.normal
        noise = sample(0, planned.noise * planned.bound * self.factor, size)
        return contributions(self.present)[:size] / 2**20 + noise


def plan_for(asked: list[dict[str, Any]], records: int, epsilon: float, neighbours: str = "replace-one") -> Any:
    """Return the plan of these questions."""
    shape = DataShape(
        records=records, features=8, classes=0, clients=1, largest_client=records, smallest_client=records, bound=1.0
    )
    target = Target(epsilon=epsilon, delta=1e-5, neighbours=neighbours)  # type: ignore[arg-type]
    outline = table_of({"numbers": np.zeros((0, len(COLUMNS))), "arm": np.zeros(0)}).outline
    return measured_plan("coverage", "ask", {"questions": asked}, outline, shape, target, CENTRAL)


def answers(plan: Any, rows: Mapping[str, Any], by: Noisy, units: int) -> Any:
    """Return the tables of the answers, by name and table."""
    found = json.loads(Ask().result(plan.stated, plan.sums, table_of(rows), units, by))
    return {one["question"]["name"]: one["tables"] for one in found["answers"]}


def rows_of(tables: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Return the rows of the first table, each with a key."""
    for row in tables[""]:
        marks = {key: value for key, value in row.items() if isinstance(value, str) or key in ("time", "quantile")}
        yield json.dumps(marks, sort_keys=True), row


def cover(asked: list[dict[str, Any]], shape: str, records: int, epsilon: float, repetitions: int) -> None:
    """Print how often the intervals of one question hold."""
    name = asked[0].get("name", f"{asked[0]['kind']} 1")
    try:
        plan = plan_for(asked, records, epsilon)
    except FedveilError as error:
        print(f"{name:14} {shape:8} {records:6} refused: {error}"[:110])
        return
    sums = replace(plan.sums, measurements=tuple(replace(one, noise=1e-3) for one in plan.sums.measurements))
    exact = replace(plan, sums=sums)
    big = np.random.default_rng(1)
    whole = answers(exact, draw(shape, TRUTH, big), Noisy(TRUTH, big, 1e-9), TRUTH)
    truth = {key: row["estimate"] for key, row in rows_of(whole[name])}
    held: dict[str, list[bool]] = defaultdict(list)
    signs, width, unanswered = [0, 0], [], 0
    for repetition in range(repetitions):
        generator = np.random.default_rng([7, records, repetition])
        rows = draw(shape, records, generator)
        own = dict(rows_of(answers(exact, rows, Noisy(records, generator, 1e-9), records)[name]))
        noisy = dict(rows_of(answers(plan, rows, Noisy(records, generator), records)[name]))
        unanswered += not noisy
        for key, row in noisy.items():
            if '"time": 0.0' in key or key not in own:
                continue
            slack = 1e-7 * (1 + abs(own[key]["estimate"]))
            held["noise"].append(row["low"] - slack <= own[key]["estimate"] <= row["high"] + slack)
            width.append(row["high"] - row["low"])
            if "population_low" in row:
                held["both"].append(row["population_low"] <= truth[key] <= row["population_high"])
            if "p_value" in row and row["p_value"] < 0.05 and "constant" not in key:
                signs[0] += 1
                signs[1] += (row["estimate"] > 0) != (truth[key] > 0)
    shown = "  ".join(f"{kind} {np.mean(one):6.1%}" for kind, one in held.items())
    more = f"  wrong signs {signs[1]}/{signs[0]}" if signs[0] else ""
    more += f"  unanswered {unanswered / repetitions:.0%}" if unanswered else ""
    half = f"  half-width {np.median(width) / 2:.3g}" if width else ""
    bad = any(not 0.92 <= np.mean(one) <= 0.98 for one in held.values())
    print(
        f"{name:14} {shape:8} {records:6} epsilon {epsilon:<4g} {shown}{half}{more}{'  <-- outside' if bad else ''}",
        flush=True,
    )


def main() -> None:
    """Print one line for each kind, shape and number of records."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=400)
    parser.add_argument("--records", default="300,3000,30000")
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--kinds", default="")
    parser.add_argument("--shapes", default=",".join(SHAPES))
    given = parser.parse_args()
    start = time.process_time()
    for shape, records in itertools.product(given.shapes.split(","), map(int, given.records.split(","))):
        for one in questions(shape):
            if not given.kinds or one.get("name", one["kind"]) in given.kinds.split(","):
                cover([one], shape, records, given.epsilon, given.repetitions)
    print(f"{time.process_time() - start:.0f} CPU s")


if __name__ == "__main__":
    main()
