"""A convolutional network on 1000 MNIST clients, each protected as a whole: federated averaging with local epochs.

The network of Opacus's MNIST example (26,010 parameters), 60 records a client, Poisson cohorts of 100. A measure is
the epsilon that is certified for the final model; the detail says how well the model does and how long a round takes.
"""

import sys
import time
from pathlib import Path

from benchmarks import Row
from benchmarks.accuracy import DATA, MNIST, opened
from benchmarks.fedavg import CLIENTS, dealt
from benchmarks.opacus import cnn
from fedveil.core.importing import give
from fedveil.engine.train import train
from fedveil.models.metrics import accuracy
from fedveil.noise.entropy import Entropy
from fedveil.planning.promises import promise
from fedveil.planning.study import study_of

ROUNDS = 60
EPSILON = 8.0
ALGORITHM = {
    "kind": "fedavg",
    "sampling": "poisson",
    "cohort": 100,
    "local": {"epochs": 1, "batch": 20, "step": 0.1},
    "update_norm": 0.5,
    "server_step": 1.0,
    "optimizer": {"momentum": 0.5},
}


def run() -> list[Row]:
    try:
        import torch
    except ImportError:
        print("clients_torch: no rows, PyTorch is not installed", file=sys.stderr)
        return []
    if not DATA.is_dir():
        print(f"clients_torch: no rows, the data folder {DATA.name} is not here", file=sys.stderr)
        return []
    torch.set_num_threads(1)
    tables = {**MNIST, "data": {**MNIST["data"], "feature_bound": 28.0}}
    _, loaded = opened(tables, {"epsilon": EPSILON, "delta": 1e-4})
    model = {"kind": "torch", "module": give(cnn), "clip": 1.0, "precision": "float32"}
    privacy = {"epsilon": EPSILON, "delta": 1e-4, "unit": "client", "neighbours": "zero-out"}
    study = {"model": model, "privacy": privacy, "algorithm": ALGORITHM, "schedule": {"rounds": ROUNDS}}
    records = dealt(loaded.train, "iid")
    plan = study_of(study, base=Path(), data_given=True).planned(records.shape).plan
    begun = time.process_time()
    found = train(plan, records, Entropy.from_seed(0)).model
    spent = (time.process_time() - begun) / ROUNDS
    assert loaded.test is not None
    score = 100 * accuracy(plan.model.loss, found, loaded.test.features, loaded.test.targets)
    certified = promise(plan, "final-model").epsilon
    detail = f"accuracy {score:.2f} after {ROUNDS} rounds of 100 clients, {spent:.2f} s a round"
    return [Row(f"cnn, {CLIENTS} mnist clients, client level, certified epsilon", EPSILON, certified, detail)]
