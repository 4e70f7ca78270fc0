"""Which unit is used in which round: units are dealt in a secret random order, or in their own order.

The records are laid out in the order of the rounds once, before the first pass, so that every round is one slice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import final

import numpy as np

from fedveil.core.values import Indices, Vector
from fedveil.data.records import Records
from fedveil.data.rows import row_norms
from fedveil.noise.entropy import Entropy, permutation
from fedveil.privacy.mechanism import LastIterate
from fedveil.stages.train.base import Training
from fedveil.stages.train.draws import DrawnOrder, Draws
from fedveil.stages.train.hidden.method import hidden_of


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """The records of one round; ``weights`` is None if each counts once; ``norms`` are the rows' norms."""

    features: Vector
    targets: Vector
    norms: Vector
    weights: Vector | None

    @classmethod
    def of(cls, features: Vector, targets: Vector, weights: Vector | None) -> Batch:
        """Return the batch of these rows."""
        return cls(features, targets, row_norms(features), weights)


@dataclass(frozen=True, slots=True, eq=False)
class Dealt:
    """Records in the order of the rounds; round k (from 0, in a pass) holds ``starts[k]`` up to ``starts[k + 1]``."""

    features: Vector
    targets: Vector
    weights: Vector | None
    starts: Indices

    def batch(self, turn: int) -> Batch:
        """Return the records of a round; passes repeat the same rounds."""
        turn = turn % (self.starts.size - 1)
        part = slice(int(self.starts[turn]), int(self.starts[turn + 1]))
        weights = None if self.weights is None else self.weights[part]
        return Batch.of(self.features[part], self.targets[part], weights)


def deal(plan: Training, records: Records, entropy: Entropy) -> Dealt:
    """Deal records into the plan's rounds; a secret order is drawn from ``entropy``, uniformly over all partitions."""
    ends = np.append(
        0, np.cumsum(np.broadcast_to(np.asarray(hidden_of(plan).run.batch), (hidden_of(plan).run.rounds,)))
    )
    if hidden_of(plan).deal == "records":
        chosen = _order(plan, entropy, plan.data.records)[: ends[-1]]
        return _laid_out(records, chosen, ends, None)
    sizes = records.sizes
    if plan.target.unit != "client":
        ends = ends // plan.data.largest_client  # clients of one size: rounds are counted in clients
    clients = _order(plan, entropy, plan.data.clients)[: ends[-1]]
    starts = np.append(0, np.cumsum(sizes[clients]))[ends]
    chosen = _records_of(clients, records, sizes)
    weights = 1.0 / np.repeat(sizes[clients], sizes[clients]) if plan.target.unit == "client" else None
    return _laid_out(records, chosen, starts, weights)


def rounds_of_units(plan: Training, records: Records, entropy: Entropy) -> Indices:
    """Return the round, in a pass from 0, into which :func:`deal` puts each record; -1 if none."""
    return rounds_of_owned(plan, records.owner, entropy)


def rounds_of_owned(plan: Training, owner: Indices, entropy: Entropy) -> Indices:
    """Return the same as :func:`rounds_of_units` from the owner of each record alone."""
    ends = np.cumsum(np.broadcast_to(np.asarray(hidden_of(plan).run.batch), (hidden_of(plan).run.rounds,)))
    count = plan.data.records
    if hidden_of(plan).deal == "clients":
        count = plan.data.clients
        ends = ends if plan.target.unit == "client" else ends // plan.data.largest_client
    place = np.full(count, -1, dtype=np.int64)
    chosen = _order(plan, entropy, count)[: ends[-1]]
    place[chosen] = np.searchsorted(ends, np.arange(chosen.size), side="right")
    return place if hidden_of(plan).deal == "records" else place[owner]


def _order(plan: Training, entropy: Entropy, count: int) -> Indices:
    return permutation(entropy, count) if hidden_of(plan).run.order == "secret" else np.arange(count, dtype=np.int64)


def _records_of(clients: Indices, records: Records, sizes: Indices) -> Indices:
    """Return the records of these clients, client after client."""
    grouped = np.argsort(records.owner, kind="stable")
    first = np.append(0, np.cumsum(sizes))[:-1]
    lengths = sizes[clients]
    before = np.append(0, np.cumsum(lengths))[:-1]
    within = np.arange(int(lengths.sum())) - np.repeat(before, lengths)
    return np.asarray(grouped[np.repeat(first[clients], lengths) + within], dtype=np.int64)


def _laid_out(records: Records, chosen: Indices, starts: Indices, weights: Vector | None) -> Dealt:
    asis = chosen.size == records.targets.size and bool(np.all(chosen == np.arange(chosen.size)))
    features = records.features if asis else records.features[chosen]  # no copy of what is already in order
    return Dealt(features, records.targets[chosen], weights, np.asarray(starts, dtype=np.int64))


# Batches of units that draw their own rounds: of all clients in one process, or of a site's own clients.


LABEL = "draws of client"
_COINS = 2**20  # tossed at once: for as many rounds as so many coins reach for all units


def drawn_order(run: LastIterate) -> DrawnOrder:
    """Return how the units of a run draw; a function of the plan alone, so all who take part agree on it."""
    block = max(1, min(run.total, _COINS // max(run.records or 1, 1)))
    return DrawnOrder(order=run.order, rounds=run.rounds, rate=run.rate, block=block)  # type: ignore[arg-type]


@final
class Drawn:
    """Records client after client; ``numbers`` are the clients' numbers in the whole study, which name their draws.

    A site that builds it from its own records finds the same batches of its clients as a simulation does.
    """

    def __init__(self, plan: Training, records: Records, numbers: Sequence[int], entropy: Entropy) -> None:
        order, self._starts = records.by_client()
        self._sizes, self._whole = records.sizes, plan.target.unit == "client"
        asis = bool(np.all(order == np.arange(order.size)))
        self._features = records.features if asis else records.features[order]
        self._targets = records.targets[order]
        self._clients = records.clients
        units = [1] * records.clients if self._whole else self._sizes.tolist()
        self._draws = Draws(drawn_order(hidden_of(plan).run), dict(zip(numbers, units, strict=True)), entropy, LABEL)
        self._rows = lru_cache(maxsize=1)(self._joined)

    def batch(self, turn: int) -> Batch:
        """Return all records of a round (counted through all passes), client after client."""
        return self._of(self._rows(turn))

    def part(self, turn: int, client: int) -> Batch | None:
        """One client's records of a round; None if it has none."""
        rows = self._rows(turn)
        first, after = np.searchsorted(rows, self._starts[client : client + 2]).tolist()
        return None if first == after else self._of(rows[first:after])

    def cohort(self, turn: int) -> Sequence[int]:
        """Return all clients: whoever draws nothing still sends its noise."""
        return range(self._clients)

    def _joined(self, turn: int) -> Indices:
        units = self._draws.joined(turn)
        if not self._whole:
            return units
        lengths = self._sizes[units]
        before = np.append(0, np.cumsum(lengths))[:-1]
        within = np.arange(int(lengths.sum())) - np.repeat(before, lengths)
        return np.asarray(np.repeat(self._starts[:-1][units], lengths) + within, dtype=np.int64)

    def _of(self, rows: Indices) -> Batch:
        weights = None
        if self._whole:
            owner = np.searchsorted(self._starts, rows, side="right") - 1
            weights = 1.0 / self._sizes[owner]
        return Batch.of(self._features[rows], self._targets[rows], weights)
