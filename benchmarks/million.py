"""A made table of a million rows beside pandas with scikit-learn doing the same job: CPU, memory, AUC.

15 numbers of very different scales and offsets, two of them skewed, 5 texts, curved effects; 900,000 rows train. Each
way reads the file in a process of its own, so that its peak memory is its own. fedveil knows nothing but names and
classes, epsilon 1, delta 1e-5, zero-out. Rows: CPU seconds over those of pandas with scikit-learn, memory likewise,
the AUC's shortfall in thousandths, and what planning takes beyond reading the file with pyarrow.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from benchmarks import Row

ROWS, TRAIN = 1_000_000, 900_000
_ENDING = """
import json, resource
print(json.dumps({"cpu": time.process_time() - began, "mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))
"""
_PANDAS = """
import sys, time
began = time.process_time()
import pandas
from sklearn.compose import make_column_transformer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
frame = pandas.read_csv(sys.argv[1] + "/train.csv")
truth = frame.pop("y") == "yes"
numbers = [name for name in frame if name.startswith("n")]
rows = make_column_transformer((StandardScaler(), numbers), (OneHotEncoder(), [n for n in frame if n not in numbers]))
make_pipeline(rows, LogisticRegression(max_iter=200)).fit(frame, truth)
"""
_ARROW = """
import sys, time
began = time.process_time()
import pyarrow.csv
table = pyarrow.csv.read_csv(sys.argv[1] + "/train.csv")
"""
_OURS = """
import sys, time
began = time.process_time()
from fedveil import plan_study, run_study
study = {
    "data": {"source": sys.argv[1] + "/train.csv", "target": "y", "classes": ["no", "yes"]},
    "model": {"kind": "logistic"},
    "privacy": {"epsilon": 1.0, "delta": 1e-5, "neighbours": "zero-out"},
}
"""
_PLAN = _OURS + "plan_study(study)\n"
_RUN = _OURS + 'model = run_study(study, sys.argv[1] + "/out").model\n'
_SCORE = """
import json, sys
import pandas
from sklearn.metrics import roc_auc_score
from fedveil import load_model
frame = pandas.read_csv(sys.argv[1] + "/test.csv")
truth = frame.pop("y") == "yes"
print(json.dumps({"auc": roc_auc_score(truth, load_model(sys.argv[1] + "/out").decision_function(frame))}))
"""


def make(folder: Path) -> None:
    """Write train.csv and test.csv."""
    import pandas

    draw = np.random.default_rng(0)
    normal = draw.normal(size=(ROWS, 15))
    scales = 10.0 ** np.linspace(-3, 5, 15)
    numbers = normal * scales + scales * np.array([0, 5, -3, 100, 0, 1, 0, 20, 0, -50, 3, 0, 8, 0, 1000])
    numbers[:, 4], numbers[:, 8] = np.exp(1.5 * normal[:, 4]) * scales[4], np.exp(normal[:, 8]) * scales[8]
    score = normal @ (0.6 * draw.normal(size=15)) + 1.2 * np.abs(normal[:, 0]) - 1 + 0.8 * np.sin(2 * normal[:, 5])
    columns = {f"n{place}": numbers[:, place] for place in range(15)}
    for place in range(5):
        word = draw.integers(0, 8, ROWS)
        score = score + 0.7 * draw.normal(size=8)[word]
        columns[f"t{place}"] = np.array([f"w{one}" for one in range(8)])[word]
    columns["y"] = np.where(draw.random(ROWS) < 1 / (1 + np.exp(-2 * score)), "yes", "no")
    frame = pandas.DataFrame(columns)
    frame.iloc[:TRAIN].to_csv(folder / "train.csv", index=False)
    frame.iloc[TRAIN:].to_csv(folder / "test.csv", index=False)


def _measured(code: str, folder: Path) -> dict[str, float]:
    said = subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(said.stdout.strip().splitlines()[-1])
    return found


def run() -> list[Row]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make(folder)
        peer, read, plan, own = (_measured(code + _ENDING, folder) for code in (_PANDAS, _ARROW, _PLAN, _RUN))
        area = _measured(_SCORE, folder)["auc"]
    return [
        Row("a million rows: CPU over pandas with scikit-learn", 2.5, own["cpu"] / peer["cpu"], f"{own['cpu']:.1f} s"),
        Row("a million rows: peak memory, likewise", 1.5, own["mb"] / peer["mb"], f"{own['mb']:.0f} MB"),
        Row("a million rows: AUC below 0.963, in thousandths", 0.0, 1000 * (0.963 - area), f"AUC {area:.4f}"),
        Row("a million rows: planning beyond reading, CPU s", 3.0, plan["cpu"] - read["cpu"], f"{plan['cpu']:.1f} s"),
    ]
