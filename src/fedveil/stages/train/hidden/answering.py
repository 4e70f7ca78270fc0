"""Hidden training where records are: what each client contributes to a round, and all of them at once.

In one process and on many machines the same functions get the same rows in the same order. Page: docs/trust.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import final

import numpy as np

from fedveil.core.errors import require
from fedveil.core.values import Indices, Vector
from fedveil.data.records import Records
from fedveil.noise.entropy import Entropy
from fedveil.stages.adding import bounded, rounded_norm
from fedveil.stages.protocol import Away, Memory, finite_row, needed_row, nobody
from fedveil.stages.train.base import Training
from fedveil.stages.train.hidden.deal import Batch, Dealt, Drawn, deal
from fedveil.stages.train.hidden.method import hidden_of
from fedveil.stages.train.hidden.steps import Rule, contributions
from fedveil.sums.seam import Whole
from fedveil.wire.content import Content
from fedveil.wire.envelope import Refused


@dataclass(frozen=True, slots=True, eq=False)
class Laid:
    """Records by round and, within it, by client; ``keys`` are round times clients plus client, rising.

    A site builds it from its own records and their rounds alone, and finds the same batches.
    """

    features: Vector
    targets: Vector
    weights: Vector | None
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
        rows = slice(first, after)
        weights = None if self.weights is None else self.weights[rows]
        return Batch.of(self.features[rows], self.targets[rows], weights)

    def cohort(self, turn: int) -> Sequence[int]:
        """Return who takes part in a round: all clients if records are dealt, those of the round if clients are."""
        if not self.whole:
            return range(self.clients)
        start = turn % self.rounds * self.clients
        first, after = np.searchsorted(self.keys, [start, start + self.clients]).tolist()
        result: list[int] = (np.unique(self.keys[first:after]) - start).tolist()
        return result


def laid_by(stage: Training, records: Records, place: Indices) -> Laid:
    """Lay out records (all, or a site's own) in the order of the rounds that they are dealt into; -1: none."""
    used = np.flatnonzero(place >= 0)
    keys = place[used] * records.clients + records.owner[used]
    order = np.argsort(keys, kind="stable")
    chosen, method = used[order], hidden_of(stage)
    features, targets = records.features[chosen], records.targets[chosen]
    weights = 1.0 / records.sizes[records.owner[chosen]] if stage.target.unit == "client" else None
    whole = method.deal == "clients"
    return Laid(features, targets, weights, keys[order], method.run.rounds, records.clients, whole)


def batches_of(stage: Training, records: Records, entropy: Entropy) -> Dealt | Drawn:
    """Return the batch of every round: dealt before the first one, or drawn by each unit."""
    if hidden_of(stage).run.sampled:
        return Drawn(stage, records, range(records.clients), entropy)
    return deal(stage, records, entropy)


def contribution(rule: Rule, turn: int, model: Vector, batch: Batch | None) -> Whole | None:
    """Minus the step times the clipped gradients of a client's records over the planned batch, in whole grid steps.

    A record whose gradient is no finite number counts as zero; a client without a record sends zeros. None: what came
    out breaks its bound, so it was not computed as planned, and the client must not answer.
    """
    if batch is None:
        return np.zeros(model.size, dtype=np.int64)
    total, _ = _gradient(rule, model, batch)
    scale = rule.steps[turn] / rule.batches[turn]
    units = batch.targets.size if batch.weights is None else float(batch.weights.sum())
    limit = rounded_norm(units * rule.clip * scale / rule.unit, model.size)
    return bounded(np.rint(-(total * scale) / rule.unit), limit)


def _gradient(rule: Rule, model: Vector, batch: Batch) -> tuple[Vector, int]:
    return rule.loss.gradient(
        model,
        batch.features,
        batch.targets,
        clip=rule.clip,
        weights=batch.weights,
        norms=batch.norms,
        grain=rule.grain,
    )


@final
@dataclass(eq=False)
class HiddenAnswering:
    """``numbers``: of these clients in the whole study; ``place``: the round of a pass that each record is dealt into.

    ``place`` (-1: none) is None where units draw their own rounds: then they draw here, from their own key.
    """

    stage: Training
    records: Records
    numbers: tuple[int, ...]
    place: Indices | None
    entropy: Entropy
    dropped: int = 0
    memory: Memory = ()

    def __post_init__(self) -> None:
        self.rule, self.run, place = Rule.of(self.stage), hidden_of(self.stage).run, self.place
        if place is not None:
            inside = place.shape == (len(self.records),) and bool(np.all((place >= -1) & (place < self.run.rounds)))
            require(inside, "place", f"give each of {len(self.records)} records a round of the plan", place.shape)

    @cached_property
    def laid(self) -> Laid | Drawn:
        """The records of every client by round."""
        if self.place is None:
            return Drawn(self.stage, self.records, self.numbers, self.entropy)
        return laid_by(self.stage, self.records, self.place)

    @cached_property
    def _batches(self) -> Dealt | Drawn:
        return batches_of(self.stage, self.records, self.entropy)

    def recall(self, turn: int, memory: Memory) -> None:
        """Do nothing: clients keep nothing between rounds."""

    def whole(self, turn: int, asked: Content) -> Vector:
        """Return the contributions of a round's whole batch; the rounding is left to the step."""
        model = needed_row(asked, "model", self.stage.dimension)
        total, dropped = _gradient(self.rule, model, self._batches.batch(turn))
        self.dropped += dropped
        return contributions(self.rule, turn, total)

    def parts(self, turn: int, asked: Content, away: Away = nobody) -> dict[int, Whole]:
        """Return what the clients of this round contribute.

        A model is sent to a site only for rounds in which it has a record; without one its clients send noise alone.
        Where units draw, every question must hold one: to ask only those who drew a record would tell who did.
        """
        if not 0 <= turn < self.run.total:
            raise Refused("no-such-round")
        model = (needed_row if self.run.sampled else finite_row)(asked, "model", self.stage.dimension)
        result: dict[int, Whole] = {}
        for client in self.laid.cohort(turn):
            if away(self.numbers[client]):
                continue
            batch = self.laid.part(turn, client)
            if batch is not None and model is None:
                raise Refused("no-model")
            start = np.zeros(self.stage.dimension) if model is None else model
            part = contribution(self.rule, turn, start, batch)
            if part is not None:
                result[self.numbers[client]] = part
        return result
