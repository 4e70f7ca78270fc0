"""Hidden training with shared noise: what a client computes from its records of a round, and the server's step.

In one process and on many machines the same functions get the same rows in the same order. Page: docs/trust.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedveil.algorithms.hidden.deal import Batch, rounds_of_units
from fedveil.algorithms.hidden.drawn import Drawn
from fedveil.algorithms.hidden.steps import LARGEST, Rule, State, model_of
from fedveil.algorithms.noise_shares import share_deviation
from fedveil.algorithms.shares import bounded, rounded_norm
from fedveil.data.records import Records
from fedveil.data.rows import row_norms
from fedveil.noise.entropy import Entropy
from fedveil.sums.seam import Whole
from fedveil.values import Indices, Vector

if TYPE_CHECKING:
    from fedveil.plan import Plan


@dataclass(frozen=True, slots=True, eq=False)
class Laid:
    """Records by round and, within it, by client; ``keys`` are round times clients plus client, rising.

    A site builds it from its own records and their rounds alone, and finds the same batches.
    """

    batch: Batch
    keys: Indices
    rounds: int
    clients: int
    whole: bool

    def part(self, turn: int, client: int) -> Batch | None:
        """Return a client's records of a round, in their own order; None if it has none.

        Passes repeat the same rounds.
        """
        key = turn % self.rounds * self.clients + client
        first, after = np.searchsorted(self.keys, [key, key + 1]).tolist()
        if first == after:
            return None
        rows, here = slice(first, after), self.batch
        weights = None if here.weights is None else here.weights[rows]
        return Batch(here.features[rows], here.targets[rows], here.norms[rows], weights)

    def cohort(self, turn: int) -> Sequence[int]:
        """Return who takes part in a round: all clients if records are dealt, those of the round if clients are."""
        if not self.whole:
            return range(self.clients)
        start = turn % self.rounds * self.clients
        first, after = np.searchsorted(self.keys, [start, start + self.clients]).tolist()
        found: list[int] = (np.unique(self.keys[first:after]) - start).tolist()
        return found


def laid_out(plan: Plan, records: Records, entropy: Entropy) -> Laid | Drawn:
    """Return the records of every client by round: dealt as ``deal.deal`` does, or as their units draw."""
    if plan.run.sampled:
        return Drawn(plan, records, range(records.clients), entropy)
    return laid_by(plan, records, rounds_of_units(plan, records, entropy))


def laid_by(plan: Plan, records: Records, place: Indices) -> Laid:
    """Lay out records (all, or a site's own) in the order of the rounds that they are dealt into; -1: none."""
    used = np.flatnonzero(place >= 0)
    keys = place[used] * records.clients + records.owner[used]
    order = np.argsort(keys, kind="stable")
    chosen = used[order]
    features = records.features[chosen]
    norms = row_norms(features)
    weights = 1.0 / records.sizes[records.owner[chosen]] if plan.target.unit == "client" else None
    batch = Batch(features, records.targets[chosen], norms, weights)
    return Laid(batch, keys[order], plan.run.rounds, records.clients, plan.deal == "clients")


def contribution(rule: Rule, turn: int, model: Vector, batch: Batch | None) -> Whole | None:
    """Minus the step times the clipped gradients of a client's records over the planned batch, in whole grid steps.

    A record whose gradient is no finite number counts as zero; a client without a record sends zeros. None: what came
    out breaks its bound, so it was not computed as planned, and the client must not answer.
    """
    if batch is None:
        return np.zeros(model.size, dtype=np.int64)
    total, _ = rule.loss.gradient(
        model,
        batch.features,
        batch.targets,
        clip=rule.clip,
        weights=batch.weights,
        norms=batch.norms,
        grain=rule.grain,
    )
    scale = rule.steps[turn] / rule.batches[turn]
    units = batch.targets.size if batch.weights is None else float(batch.weights.sum())
    limit = rounded_norm(units * rule.clip * scale / rule.unit, model.size)
    return bounded(np.rint(-(total * scale) / rule.unit), limit)


def advance(rule: Rule, state: State, total: Whole) -> State:
    """Return the state after the server's part of a round: the model shrunk, rounded to the grid, moved by the sum."""
    turn = state.round
    model = model_of(rule, state)
    base = np.rint((model - rule.steps[turn] * rule.l2 * model) / rule.unit).astype(np.int64)
    position = np.clip(base + total, -LARGEST, LARGEST).astype(np.float64)
    return State(turn + 1, position, state.dropped)


def share_steps(plan: Plan, turn: int, cohort: int) -> float:
    """Return the deviation of one client's share in grid steps."""
    return share_deviation(float(plan.hidden.noise()[turn]), plan.trust, cohort) / 2.0**plan.grid
