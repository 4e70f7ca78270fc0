"""The model of the windows that were, computed from the records: each site goes on from its last window's model."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedveil.data.records import Records
from fedveil.noise.entropy import Entropy
from fedveil.planning.plan import read_plan
from fedveil.stages.train.dpsgd.answering import contribution, unit_of
from fedveil.stages.train.dpsgd.method import DpSgd
from fedveil.stages.train.dpsgd.steps import clients_of, weights_of
from fedveil.stages.train.optimiser import project


def replayed(
    folder: Path, records: Records, owners: Mapping[str, Sequence[int]], windows: Sequence[Sequence[str]], seed: int
) -> Any:
    """``owners``: the numbers of each site's clients; ``windows``: the sites in each, as the aggregator noted them."""
    plan = read_plan((folder / "plan.toml").read_text())
    assert isinstance(plan.method, DpSgd)
    clients, weights = clients_of(plan, plan.method, records, Entropy.from_seed(seed)), weights_of(plan.method, records)
    model, unit, width = np.zeros(plan.dimension), unit_of(plan), int(plan.method.network.window)
    held, turns = dict.fromkeys(owners, model), dict.fromkeys(owners, 0)
    for window in windows:
        total = np.zeros(plan.dimension, dtype=np.int64)
        for site in window:
            first = turns[site] * width
            for client in owners[site]:
                one = clients[client]
                rounds = range(first, min(first + width, one.rounds))
                if len(rounds):
                    total += contribution(one, held[site], turns[site], rounds, weights[client], unit, len(clients))
            turns[site] += 1
        model = project(model - total * unit, plan.radius)
        held |= dict.fromkeys(window, model)
    return model
