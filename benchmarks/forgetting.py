"""Forgetting on Adult (a9a) at epsilon 1: one record to epsilon 0.1, and one client of 20 where clients are protected.

Accuracy before and after on the public test rows, rounds and charge beside those of training again, mean of some runs:

    python -m benchmarks.forgetting [--runs 3] [--unit record|client] [--l2 0.003] [--order independent]

The data lie beside the repository (``../shared/data``) or where FEDVEIL_DATA points.
"""

import argparse
import json
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.accuracy import A9A, DATA
from fedveil import forget, run_study
from fedveil.core.tables import write_tables


def study_of(unit: str, l2: float, order: str = "public") -> dict[str, Any]:
    """Return the study, on rows that need no preparation."""
    data = {**A9A["data"], "source": "a9a.gz"}
    data["held_out"] = {"source": str(DATA / "a9a" / "a9a.t.gz"), "public": True}
    found: dict[str, Any] = {
        "data": data,
        "model": {"kind": "logistic", "l2": l2},
        "privacy": {"epsilon": 1.0, "delta": 1e-5, "neighbours": "zero-out", "unit": unit},
        "algorithm": {"kind": "hidden", "order": order},
        "report": {"baselines": False},
    }
    if unit == "client":
        found["clients"] = {"kind": "equal", "count": 20}
    return found


def measured(tables: dict[str, Any], unit: str, home: Path) -> dict[str, float]:
    """Train once, forget once; return the figures."""
    study, began = home / "study.toml", time.process_time()
    shutil.copy(DATA / "a9a" / "a9a.gz", home)  # their ledger lies beside them
    study.write_text(write_tables(tables), encoding="utf-8")
    before = run_study(study, home / "first")
    who: dict[str, Any] = {"rows": [17]} if unit == "record" else {"client": "client 7"}
    after = forget(home / "first", epsilon=0.1, out=home / "second", **who)
    scores = [result.metrics["test"]["accuracy"] for result in (before, after)]
    return {
        "accuracy_before": scores[0],
        "accuracy_after": scores[1],
        "points_lost": 100 * (scores[0] - scores[1]),
        "epsilon_left": after.forgotten.new_model.epsilon,
        "rounds": after.design.chosen.rounds,
        "keep": after.design.chosen.keep,
        "rounds_of_training": after.design.retraining_rounds,
        "charged": after.design.chosen.others,
        "charged_by_training": after.design.retraining_epsilon,
        "processor_seconds": time.process_time() - began,
    }


def main() -> None:
    """Print a line of JSON for each run, and the means."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--unit", choices=["record", "client"], default="record")
    parser.add_argument("--l2", type=float, default=0.0)
    parser.add_argument("--order", choices=["public", "secret", "poisson", "independent"], default="public")
    asked = parser.parse_args()
    rows = []
    for _ in range(asked.runs):
        with tempfile.TemporaryDirectory() as home:
            rows.append(measured(study_of(asked.unit, asked.l2, asked.order), asked.unit, Path(home)))
        print(json.dumps(rows[-1]), flush=True)
    print(json.dumps({"mean": {key: float(np.mean([row[key] for row in rows])) for key in rows[0]}}))


if __name__ == "__main__":
    main()
