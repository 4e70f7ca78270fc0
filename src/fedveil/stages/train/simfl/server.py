"""The aggregator's part of SimFL: it carries sealed messages from the parties to the leader and back, and reads none.

What it carries is on its disk between rounds, so a restart continues with the same envelopes.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from fedveil.core.checks import require
from fedveil.core.files import write_atomically
from fedveil.core.values import Vector
from fedveil.stages.protocol import Consortium
from fedveil.stages.train.acting import Asks
from fedveil.stages.train.simfl.steps import simfl_of
from fedveil.stages.train.stage import Training
from fedveil.wire.content import Content


def check_parties(members: Consortium) -> None:
    """Refuse unless every site is one party and parties are numbered by their names, so that each knows who leads."""
    numbers = [members.members[site].clients.tolist() for site in sorted(members.members)]
    rule = "be one at each site for simfl, numbered in the order of the sites' names"
    require(numbers == [[k] for k in range(len(numbers))], "The clients", rule, numbers)


def relayed_model(plan: Training, sites: list[str], ask: Asks, log: Path, tick: Callable[[int], None]) -> Vector:
    """Relay all rounds and return the model that the last leader releases."""
    method, names = simfl_of(plan), sorted(sites)
    kept = Content.read(log.read_bytes()) if log.exists() else Content(values={"round": 0})
    for turn in range(int(kept.values["round"]), method.rounds):
        leader = names[method.leader(turn, len(names))]
        before = {site: {"model": kept.blocks[site]} if site in kept.blocks else {} for site in names}
        others = {site: Content(blocks=before[site]) for site in names if site != leader}
        sums = {site: said.blocks.get("sum", b"") for site, said in ask("party", turn, others, "sum").items()}
        led = ask("lead", turn, {leader: Content(blocks={**before[leader], **sums})}, "led")[leader]
        kept = Content(values={"round": turn + 1}, rows=led.rows, blocks=led.blocks)
        write_atomically(log, kept.write())
        tick(turn + 1)
    model = kept.rows.get("model")
    right = model is not None and model.shape == (plan.dimension,) and bool(np.all(np.isfinite(model)))
    require(right, "The last leader's model", f"be {plan.dimension} finite numbers", "something else")
    assert model is not None  # noqa: S101
    return model.astype(np.float64)
