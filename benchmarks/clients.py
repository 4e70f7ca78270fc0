"""Rounds of federated averaging with 1000 clients: local training of many clients at once against one after another.

A measure is the time of a round of all clients together over the time of the same round in a loop, in one run on one
thread; both give the same sum to the bit. What is saved is what a loop spends besides arithmetic, so the bars differ:
with 31 features that was nearly all of a round. With 785 features and 10 classes nearly all is the matrix products of
each client and the reading of its records from memory, and those are the same in both. Several local epochs of so wide
rows go by products of a client's records with each other (``by_products``), which the loop does not: then both sums
differ by roundings. The products themselves are computed in the first round, which is not the one that counts.
"""

import time
from dataclasses import replace

import numpy as np

from benchmarks import Row
from fedveil.models.loss import Loss
from fedveil.models.margin import Logistic
from fedveil.models.softmax import Softmax
from fedveil.noise.entropy import Entropy
from fedveil.stages.train.fedavg.local import Held, Local, trained
from fedveil.stages.train.fedavg.method import FedAvg, LocalSteps
from fedveil.stages.train.fedavg.steps import summed

CLIENTS = 1000
RUNS = 5
UNIT = 2.0**-30
NORM = 0.1
# records and features of a client, the loss, records of a local step (0: all), epochs, and the largest ratio allowed
SHAPES: tuple[tuple[str, int, int, Loss, int, int, float], ...] = (
    ("logistic, 20 records, 31 features", 20, 31, Logistic(), 0, 1, 0.1),
    ("logistic, 33 records, 124 features", 33, 124, Logistic(), 0, 1, 0.3),
    ("logistic, 33 records, 124 features, batches of 10", 33, 124, Logistic(), 10, 1, 0.3),
    ("softmax, 60 records, 65 features", 60, 65, Softmax(classes=10), 0, 1, 0.35),
    ("softmax, 60 records, 785 features", 60, 785, Softmax(classes=10), 0, 1, 1.0),
    ("softmax, 60 records, 785 features, 5 epochs", 60, 785, Softmax(classes=10), 0, 5, 0.5),
    ("softmax, 60 records, 785 features, 20 epochs", 60, 785, Softmax(classes=10), 0, 20, 0.3),
)


def looped(local: Local, model: np.ndarray, held: Held, key: Entropy, turn: int) -> np.ndarray:
    """The same sum client after client, as it was computed before clients were trained together."""
    total = np.zeros(model.size)
    for client in range(CLIENTS):
        change = trained(local, model, held, client, key, turn) - model
        norm = float(np.sqrt(np.sum(change * change)))
        total += np.trunc(change * (NORM / max(norm, NORM) * (1 - 2.0**-40) / UNIT))
    return total


def row(name: str, records: int, features: int, loss: Loss, batch: int, epochs: int, bar: float) -> Row:
    generator = np.random.default_rng(0)
    X = generator.normal(size=(CLIENTS * records, features)) / np.sqrt(features)
    y = generator.integers(0, loss.classes, size=X.shape[0]).astype(np.float64)
    held = Held(X, y, np.sqrt(np.vecdot(X, X)), np.arange(CLIENTS + 1) * records)
    model, key = generator.normal(size=loss.size(features)) / 10, Entropy.from_seed(0)
    plain = Local(loss, 1.0, 0.0, 1.0, epochs, batch)
    local = replace(plain, by_products=epochs > 1)
    method = FedAvg(rounds=1, cohort=CLIENTS, local=LocalSteps(epochs=epochs), update_norm=NORM, noise_multiplier=1.0)
    everyone, weights = np.arange(CLIENTS), np.ones(CLIENTS)
    times: dict[str, list[float]] = {"together": [], "loop": []}
    for turn in range(RUNS):
        begun = time.process_time()
        found, _ = summed(method, local, model, held, everyone, weights, NORM, UNIT, key, turn)
        times["together"].append(time.process_time() - begun)
        begun = time.process_time()
        other = looped(plain, model, held, key, turn)
        times["loop"].append(time.process_time() - begun)
        same = found.tobytes() == other.tobytes() if epochs == 1 else bool(np.abs(found - other).max() <= CLIENTS)
        assert same
    now, before = min(times["together"]), min(times["loop"])
    detail = f"{1 / now:.1f} rounds a second against {1 / before:.1f}: {before / now:.1f} times as many"
    return Row(f"fedavg, 1000 clients, {name}, time over a loop's", bar, now / before, detail)


def run() -> list[Row]:
    return [row(*shape) for shape in SHAPES]
