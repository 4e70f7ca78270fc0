"""A generator over twenty clients with very different records, on Adult as published, at epsilon 1.

The records are split by a Dirichlet law over the classes. Three generators are compared, by the mean total-variation
distance of all pairs of columns to the records, means over three seeds: one whose noise one party adds (pooled), one
whose noise comes in shares behind masks, and twenty generators of each client's own records, each at the same epsilon,
whose rows are put together in proportion to the clients' records. The data lie where benchmarks/accuracy.py says.
"""

import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import Row
from benchmarks.accuracy import DATA
from benchmarks.synthetic import SEEDS, adult, off
from fedveil.core.errors import FedveilError
from fedveil.core.values import Indices
from fedveil.engine.measured import measured_generator, planned_synthesis
from fedveil.jobs.synthesis import open_synthesis
from fedveil.noise.entropy import Entropy
from fedveil.planning.study import Study
from fedveil.stages.prepare.loading import Unprepared
from fedveil.stages.synthesise.generator import Generator
from fedveil.stages.synthesise.quality import draw_codes
from fedveil.stages.synthesise.table import table_of

CLIENTS = {"kind": "dirichlet", "count": 20, "alpha": 0.3, "seed": 1}
MASKED = {"server": "secure-aggregation"}


def generated(tables: dict[str, Any], found: Unprepared, seed: int, study: Study | None = None) -> Generator:
    """Return a generator of these records; ``study``: in place of that of the tables."""
    own, request, _ = open_synthesis(tables) if study is None else (study, open_synthesis(tables)[1], None)
    plan = planned_synthesis(own, request, found)
    return measured_generator(plan, request, found, Entropy.from_seed(seed))


def own_records(found: Unprepared, client: int) -> Unprepared:
    """Return what one client alone has."""
    rows = np.flatnonzero(found.train.owner == client)
    train = replace(
        found.train,
        features=found.train.features[rows],
        targets=found.train.targets[rows],
        owner=np.zeros(rows.size, dtype=np.int64),
        clients=1,
        names=(),
        raw=None,
    )
    return replace(found, train=train)


def put_together(tables: dict[str, Any], found: Unprepared, seed: int) -> tuple[Indices, int]:
    """Return rows of the clients' own generators, and how many clients have too few records for one at this epsilon.

    The rows of these are left out, so the others count for a little more.
    """
    study, request, _ = open_synthesis(tables)
    parts, without = [], 0
    for client in range(found.train.clients):
        own = own_records(found, client)
        try:
            plan = planned_synthesis(study, request, own)
        except (FedveilError, ValueError):
            without += 1
            continue
        made = measured_generator(plan, request, own, Entropy.from_seed(1000 * seed + client))
        parts.append(draw_codes(made, own.train.targets.size, np.random.default_rng(1000 * seed + client)))
    return np.concatenate(parts), without


def run() -> list[Row]:
    """Return all rows; none without the data."""
    if not (DATA / "adult").exists():
        print(f"synthetic_clients: no data in {DATA}", file=sys.stderr)
        return []
    with tempfile.TemporaryDirectory() as folder:
        tables = adult(Path(folder))
        # The split follows the labels, which only public records may have; nothing else here depends on it.
        tables = {**tables, "clients": CLIENTS, "data": {**tables["data"], "public": True}}
        _, _, found = open_synthesis(tables)
        count, without, same = found.train.targets.size, 0, True
        distances: dict[str, list[float]] = {"pooled": [], "masked": [], "own": []}
        for seed in SEEDS:
            pooled = generated(tables, found, seed)
            masked = generated({**tables, "trust": MASKED}, found, seed)
            if seed == SEEDS[0]:
                same = generated({**tables, "trust": {"server": "trusted"}}, found, seed).text() == masked.text()
            real, sizes = table_of(found).codes(pooled.columns), [one.size for one in pooled.columns]
            draw = np.random.default_rng(seed)
            distances["pooled"].append(off(real, draw_codes(pooled, count, draw), sizes))
            distances["masked"].append(off(real, draw_codes(masked, count, draw), sizes))
            own, without = put_together(tables, found, seed)
            distances["own"].append(off(real, own, sizes))
            print(f"synthetic_clients: seed {seed}", {k: v[-1] for k, v in distances.items()}, file=sys.stderr)
    mean = {name: float(np.mean(values)) for name, values in distances.items()}
    told = {name: ", ".join(f"{value:.4f}" for value in values) for name, values in distances.items()}
    few = f"; {without} clients have too few records for a generator of their own" if without else ""
    return [
        Row("20 skewed clients: masks give other bits than a trusted server", 0.0, 0.0 if same else 1.0),
        Row("20 skewed clients behind masks over pooled", 1.02, mean["masked"] / mean["pooled"], told["masked"]),
        Row("pooled: mean distance of all pairs", 1.0, mean["pooled"], told["pooled"]),
        Row("20 skewed clients over their own generators", 1.0, mean["masked"] / mean["own"], told["own"] + few),
    ]
