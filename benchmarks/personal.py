"""Own models beside the shared one: mean accuracy of each client's model on its own held-out records, over seeds.

python benchmarks/personal.py heart FOLDER --seeds 5    # processed.*.data of the four hospitals
python benchmarks/personal.py mnist FOLDER --seeds 5    # the IDX files; ten clients of two labels each

With ``--shown 1``: also models that may be shown, each a hidden run at this epsilon from the shared model.
"""

import argparse
import csv
import json
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedveil import run_study
from fedveil.data.load import Loaded
from fedveil.data.read_formats import idx_array
from fedveil.data.records import Records
from fedveil.data.rows import cut_rows
from fedveil.engine.study import conduct_study
from fedveil.engine.system import System
from fedveil.planning.study import study_of
from fedveil.release.bundle import Bundle

HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
LOW = np.array([20, 0, 1, 80, 0, 0, 0, 60, 0, -3, 1, 0, 3.0])  # public ranges of the thirteen columns
HIGH = np.array([80, 1, 4, 200, 600, 1, 2, 200, 1, 7, 3, 3, 7.0])
Pair = tuple[Records, Records]


def heart(folder: Path, seed: int) -> Pair:
    """Thirteen columns, the middle of the range where one is missing; three tenths of the records are held out."""
    rows, labels, owner = [], [], []
    for index, name in enumerate(HOSPITALS):
        with (folder / f"processed.{name}.data").open() as file:
            for cells in csv.reader(file):
                values = [np.nan if cell == "?" else float(cell) for cell in cells]
                rows.append(values[:13])
                labels.append(float(values[13] > 0))
                owner.append(index)
    scaled = np.nan_to_num(np.clip((np.array(rows) - (LOW + HIGH) / 2) / ((HIGH - LOW) / 2), -1, 1))
    cut_rows(scaled, 2.0)
    features, held = np.column_stack([scaled, np.ones(len(rows))]), np.random.default_rng(seed).random(len(rows)) < 0.3
    return _pair(features, np.array(labels), np.array(owner), held, HOSPITALS, 5**0.5 + 1e-9, 2)


def mnist(folder: Path, seed: int) -> Pair:
    """Ten clients with 200 records of two labels each, and 200 more of the same kind held out."""
    images = idx_array(folder / "train-images-idx3-ubyte.gz")
    labels = idx_array(folder / "train-labels-idx1-ubyte.gz").astype(np.float64)
    order, chosen, owner = np.random.default_rng(seed).permutation(labels.size), [], []
    for client in range(10):
        own = order[np.isin(labels[order], [client, (client + 1) % 10])][600 * client : 600 * client + 400]
        chosen.append(own)
        owner.append(np.full(400, client))
    rows = np.concatenate(chosen)
    features = images[rows].reshape(rows.size, -1) / 255.0
    cut_rows(features, 8.0)
    held = np.tile(np.arange(400) >= 200, 10)
    names = tuple(f"client {index + 1}" for index in range(10))
    return _pair(features / 8.0, labels[rows], np.concatenate(owner), held, names, 1.0, 10)


def _pair(features, labels, owner, held, names, bound, classes) -> Pair:  # type: ignore[no-untyped-def]
    def part(rows):  # type: ignore[no-untyped-def]
        return Records(
            features=np.ascontiguousarray(features[rows]),
            targets=labels[rows],
            owner=owner[rows].astype(np.int64),
            clients=len(names),
            bound=bound,
            classes=classes,
            names=names,
        )

    return part(~held), part(held)


def may_be_shown(home: Path, train: Records, test: Records, epsilon: float) -> float:
    """Return the mean accuracy of models that each client makes with noise, as fedveil personalise --epsilon does."""
    bundle, right = Bundle.read(home / "out"), []
    tables = {
        "model": {"kind": bundle.plan.model.kind},
        "privacy": {"epsilon": epsilon, "delta": 1e-5, "neighbours": "zero-out"},
        "algorithm": {"kind": "hidden"},
    }
    for client in range(train.clients):
        own, held = (
            replace(
                part,
                features=part.features[part.owner == client],
                targets=part.targets[part.owner == client],
                owner=np.zeros(int(np.sum(part.owner == client)), dtype=np.int64),
                clients=1,
                names=(train.names[client],),
            )
            for part in (train, test)
        )
        loaded = Loaded(train=own, test=None, test_public=False, dropped_rows=0, feature_names=())
        study = replace(study_of(tables, base=home, name="own", data_given=True), baselines=False)
        out = home / f"shown-{client}"
        conduct_study(study, loaded, out, system=System(), start=bundle.parameters)
        with np.load(out / "model.npz") as arrays:
            scores = held.features @ arrays["coefficients"]
        labels = np.argmax(scores, axis=1) if scores.shape[1] > 1 else (scores[:, 0] > 0)
        right.append(float(np.mean(labels == held.targets)))
    return float(np.mean(right))


def main() -> None:
    """Print a line of JSON for each seed, and the means."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", choices=["heart", "mnist"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epsilon", type=float, default=4.0)
    parser.add_argument("--shown", type=float)
    asked = parser.parse_args()
    means, shown = [], []
    for seed in range(asked.seeds):
        tables = {
            "data": {"public": True},
            "model": {"kind": "logistic" if asked.data == "heart" else "softmax"},
            "privacy": {"epsilon": asked.epsilon, "delta": 1e-5, "neighbours": "zero-out"},
            "algorithm": {"kind": "dpsgd", "rate": 0.2, "rounds": 60},
            "personal": {},
        }
        with tempfile.TemporaryDirectory() as home:
            pair = (heart if asked.data == "heart" else mnist)(asked.folder, seed)
            run_study(tables, Path(home) / "out", data=pair)
            told = json.loads((Path(home) / "out" / "private" / "personal.json").read_text())["clients"]
            if asked.shown is not None:
                shown.append(may_be_shown(Path(home), *pair, asked.shown))
        pairs = [(row["shared_accuracy"], row["own_accuracy"], row["margin"]) for row in told.values()]
        means.append([float(np.mean([pair[k] for pair in pairs])) for k in (0, 1)])
        worst = min(own - shared + margin for shared, own, margin in pairs)
        kinds = [row["kind"] for row in told.values()]
        line = {"seed": seed, "shared": means[-1][0], "own": means[-1][1], "least_over_margin": worst, "kinds": kinds}
        print(json.dumps(line), flush=True)
    whole = {"shared": float(np.mean(means, axis=0)[0]), "own": float(np.mean(means, axis=0)[1])}
    print(json.dumps(whole | ({"shown": float(np.mean(shown)), "by seed": shown} if shown else {})))


if __name__ == "__main__":
    main()
