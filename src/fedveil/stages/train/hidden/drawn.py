"""Batches of units that draw their own rounds: of all clients in one process, or of a site's own clients."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import final

import numpy as np

from fedveil.core.values import Indices
from fedveil.data.records import Records
from fedveil.data.rows import row_norms
from fedveil.noise.entropy import Entropy
from fedveil.privacy.mechanism import LastIterate
from fedveil.stages.train.draws import DrawnOrder, Draws
from fedveil.stages.train.hidden.deal import Batch
from fedveil.stages.train.hidden.method import hidden_of
from fedveil.stages.train.stage import Training

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
        self._features = np.ascontiguousarray(records.features if asis else records.features[order])
        self._targets, self._norms = records.targets[order], row_norms(self._features)
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
        return Batch(self._features[rows], self._targets[rows], self._norms[rows], weights)
