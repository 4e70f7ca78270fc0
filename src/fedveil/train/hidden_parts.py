"""Hidden training by parts: what a client computes from its records of a round, and how the server goes on.

In one process and on many machines the same rows meet the same functions in the same order. Page: docs/trust.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedveil.data.records import Records
from fedveil.method.parts import share_deviation
from fedveil.plan import Plan
from fedveil.summing import Whole
from fedveil.train.deal import Batch, rounds_of_units
from fedveil.train.entropy import Entropy
from fedveil.train.hidden import LARGEST, Rule, State, model_of
from fedveil.train.parts import bounded, rounded_norm

Vector = NDArray[np.float64]
Indices = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Laid:
    """Records by round and, within it, by client; ``starts[k]`` has one entry for each client, and the end.

    A site builds it from its own records and their rounds alone, and finds the same batches.
    """

    batch: Batch
    starts: Indices
    cohorts: tuple[Sequence[int], ...]

    def part(self, turn: int, client: int) -> Batch | None:
        """A client's records of a round, in their own order; None if it has none. Passes repeat the same rounds."""
        row = self.starts[turn % self.starts.shape[0]]
        rows = slice(int(row[client]), int(row[client + 1]))
        if rows.start == rows.stop:
            return None
        whole, weights = self.batch, self.batch.weights
        return Batch(
            whole.features[rows], whole.targets[rows], whole.norms[rows], None if weights is None else weights[rows]
        )

    def cohort(self, turn: int) -> Sequence[int]:
        """Who takes part in a round: all clients if records are dealt, the round's own if clients are."""
        return self.cohorts[turn % len(self.cohorts)]


def laid_out(plan: Plan, records: Records, entropy: Entropy) -> Laid:
    """The records of every client in the order of the rounds, dealt as :func:`fedveil.train.deal.deal` does."""
    return laid_by(plan, records, rounds_of_units(plan, records, entropy))


def laid_by(plan: Plan, records: Records, place: Indices) -> Laid:
    """Records, all or a site's own, in the order of the rounds that they are dealt into; -1: none."""
    rounds, clients = plan.run.rounds, records.clients
    used = np.flatnonzero(place >= 0)
    order = used[np.lexsort((used, records.owner[used], place[used]))]
    first = np.arange(rounds)[:, None] * clients + np.arange(clients + 1)[None, :]
    starts = np.searchsorted(place[order] * clients + records.owner[order], first)
    features = records.features[order]
    norms = np.sqrt(np.einsum("ij,ij->i", features, features))
    weights = 1.0 / records.sizes[records.owner[order]] if plan.target.unit == "client" else None
    everyone: Sequence[int] = range(clients)
    own = [np.flatnonzero(np.diff(row)).tolist() for row in starts] if plan.deal == "clients" else [everyone]
    return Laid(Batch(features, records.targets[order], norms, weights), starts, tuple(own))


def contribution(rule: Rule, turn: int, model: Vector, batch: Batch | None) -> Whole | None:
    """Minus the step times the clipped gradients of a client's records over the planned batch, in whole grid steps.

    A record whose gradient is no finite number counts as zero; a client without a record sends zeros. None: what came
    out breaks its bound, so it was not computed as planned, and the client must not answer.
    """
    if batch is None:
        return np.zeros(model.size, dtype=np.int64)
    total, _ = rule.loss.gradient(
        model, batch.features, batch.targets, clip=rule.clip, weights=batch.weights, norms=batch.norms
    )
    scale = rule.steps[turn] / rule.batches[turn]
    units = batch.targets.size if batch.weights is None else float(batch.weights.sum())
    limit = rounded_norm(units * rule.clip * scale / rule.unit, model.size)
    return bounded(np.rint(-(total * scale) / rule.unit), limit)


def advance(rule: Rule, state: State, total: Whole) -> State:
    """The server's part of a round: the model, shrunk by the penalty and rounded to the grid, moved by the sum."""
    turn = state.round
    model = model_of(rule, state)
    base = np.rint((model - rule.steps[turn] * rule.l2 * model) / rule.unit).astype(np.int64)
    position = np.clip(base + total, -LARGEST, LARGEST).astype(np.float64)
    return State(turn + 1, position, state.dropped)


def share_steps(plan: Plan, turn: int, cohort: int) -> float:
    """The deviation of one client's share in grid steps."""
    assert plan.trust is not None  # noqa: S101  asked by parts only
    return share_deviation(float(plan.hidden.noise()[turn]), plan.trust, cohort) / 2.0**plan.grid
