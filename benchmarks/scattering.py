"""A linear head on fixed scattering features of MNIST: accuracy on the test images, mean of three runs.

Tramer and Boneh, "Differentially Private Learning Needs Better Features (or Much More Data)" (2021), whose linear model
reaches 98.7% at epsilon 3. Kymatio computes the features in an environment of its own: FEDVEIL_KYMATIO names its
Python, and FEDVEIL_SCATTERING the folder where they are kept; with neither there are no rows. The authors normalise
every number by its mean and deviation over the private images, with noise; here it is done by public images, the 1797
digits of 8 x 8 pixels that come with scikit-learn, enlarged: their means, deviations and main directions. Then every
row is brought to norm 1. All settings were chosen on training images (docs/feature-maps.md), 50,000 to train and the
other 10,000 to judge; nothing was tried on the test images.
"""

import gzip
import importlib
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from scipy.ndimage import zoom

from benchmarks import Row
from benchmarks.accuracy import DATA
from fedveil import records_from_arrays
from fedveil.data.records import Records
from fedveil.engine.train import train
from fedveil.models.metrics import accuracy
from fedveil.noise.entropy import Entropy
from fedveil.planning.study import study_of

FEATURES = Path(os.environ.get("FEDVEIL_SCATTERING", "bench-out/scattering"))
RUNS, DELTA = 3, 1e-5
BARS = ((1.0, 97.6), (3.0, 98.3))
DIRECTIONS, POWER = 1000, 0.25
BATCH, PASSES, CLIP = 8192, 40, 0.05
STEPS = {1.0: 400.0, 3.0: 1600.0}  # they fall linearly to zero
_BLOCK = 5000  # rows at a time
_FLOOR = 1e-3  # of a deviation: numbers that hardly vary among the public digits are not blown up


class Whitened:
    """Rows by public means and deviations, in the public images' main directions, each by a power of its variance.

    A matrix S of variances would be undone by the power 1/2. Less is taken, so that what public images hardly show is
    not blown up. Then every row is brought to norm 1.
    """

    def __init__(self, public: Any) -> None:
        rows = np.asarray(public, dtype=np.float64)
        self.mean, self.deviation = rows.mean(axis=0), rows.std(axis=0) + _FLOOR
        rows = (rows - self.mean) / self.deviation
        # The main directions of fewer rows than columns: from the products of rows, which are fewer.
        variances, along = np.linalg.eigh(rows @ rows.T / len(rows))
        variances, along = variances[::-1][:DIRECTIONS], along[:, ::-1][:, :DIRECTIONS]
        axes = rows.T @ along / np.sqrt(len(rows) * variances)
        self.axes = (axes * (variances + 1) ** -POWER).astype(np.float32)

    def __call__(self, rows: Any) -> Any:
        found = np.empty((len(rows), self.axes.shape[1]), np.float32)
        for first in range(0, len(rows), _BLOCK):
            block = np.asarray(rows[first : first + _BLOCK])
            found[first : first + _BLOCK] = ((block - self.mean) / self.deviation).astype(np.float32) @ self.axes
        return found / np.sqrt(np.square(found).sum(axis=1, keepdims=True))


def _records(to: Whitened, part: str, labels: str) -> Records:
    with gzip.open(_idx(labels, "labels", 1)) as file:
        targets = np.frombuffer(file.read(), np.uint8, offset=8).astype(np.int64)
    owner = np.zeros(targets.size, dtype=np.int64)  # one data holder
    rows = to(np.load(FEATURES / f"{part}.npy", mmap_mode="r"))
    return records_from_arrays(rows, targets, owner, bound=1.0, classes=10, intercept=0.0)


def _idx(name: str, what: str, dimensions: int) -> Path:
    return DATA / "mnist" / f"{name}-{what}-idx{dimensions}-ubyte.gz"


def _write_images() -> None:
    """The images whose features are wanted: 28 x 28 numbers from 0 to 1."""
    FEATURES.mkdir(parents=True, exist_ok=True)
    for part, name in (("train", "train"), ("test", "t10k")):
        with gzip.open(_idx(name, "images", 3)) as file:
            images = np.frombuffer(file.read(), np.uint8, offset=16).reshape(-1, 28, 28)
        np.save(FEATURES / f"{part}.images.npy", images.astype(np.float32) / 255)
    small = importlib.import_module("sklearn.datasets").load_digits().images / 16
    large = np.zeros((len(small), 28, 28), np.float32)
    for place, image in enumerate(small):  # as large as MNIST's digits, in the middle
        large[place, 4:24, 4:24] = np.clip(zoom(image, 2.5, order=1), 0, 1)
    np.save(FEATURES / "public.images.npy", large)


def ready() -> str:
    """Why there is nothing to measure, or nothing."""
    if not (DATA / "mnist").is_dir():
        return f"the data folder {DATA.name} is not here"
    if all((FEATURES / f"{part}.npy").exists() for part in ("train", "test", "public")):
        return ""
    python = os.environ.get("FEDVEIL_KYMATIO")
    if python is None:
        return "FEDVEIL_KYMATIO names no Python with kymatio"
    _write_images()
    script = Path(__file__).with_name("_scattering_features.py")
    subprocess.run([python, str(script), str(FEATURES)], check=True)
    return ""


def run(runs: int = RUNS) -> list[Row]:
    why = ready()
    if why:
        print(f"scattering: no rows, {why}", file=sys.stderr)
        return []
    to = Whitened(np.load(FEATURES / "public.npy"))
    private, held = _records(to, "train", "train"), _records(to, "test", "t10k")
    rows = []
    for epsilon, bar in BARS:
        privacy = {"epsilon": epsilon, "delta": DELTA, "neighbours": "zero-out"}
        rate = BATCH / len(private)
        algorithm = {"kind": "dpsgd", "rate": rate, "rounds": round(PASSES / rate), "clip": CLIP}
        study = study_of(
            {
                "model": {"kind": "softmax"},
                "privacy": privacy,
                "algorithm": algorithm | {"optimizer": {"momentum": 0.9, "decay": "linear"}},
                "schedule": {"step_size": STEPS[epsilon]},
            },
            base=Path(),
            data_given=True,
        )
        planned, begun = study.planned(private.shape), time.perf_counter()
        plan, found = planned.plan, []
        for seed in range(runs):
            model = train(plan, private, Entropy.from_seed(seed)).model
            found.append(100 * accuracy(plan.model.loss, model, held.features, held.targets))
        each = (time.perf_counter() - begun) / runs
        detail = f"{np.mean(found):.2f} +- {np.std(found):.2f} against {bar}; {plan.method.kind}, "
        detail += f"{planned.draft.passes:g} passes, {each:.0f} s a run"
        name = f"mnist, linear on scattering features, epsilon {epsilon:g}, points below the bar"
        rows.append(Row(name, 0.0, bar - float(np.mean(found)), detail))
        print(rows[-1].name, rows[-1].detail, file=sys.stderr, flush=True)
    return rows


if __name__ == "__main__":
    print(run(int(sys.argv[1]) if len(sys.argv) > 1 else RUNS))
