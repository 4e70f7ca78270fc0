"""A site's part of DP-SGD: the noised updates of each of its clients in a window."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, final

import numpy as np

from fedveil.algorithms.across_sites import model_needed
from fedveil.algorithms.dpsgd.client import Client
from fedveil.algorithms.dpsgd.shares import contribution, unit_of
from fedveil.algorithms.dpsgd.steps import dpsgd_of
from fedveil.checks import require
from fedveil.data.records import Records
from fedveil.files import write_atomically
from fedveil.noise.entropy import Entropy
from fedveil.sums.seam import Whole
from fedveil.values import Matrix
from fedveil.wire.content import Content
from fedveil.wire.envelope import Refused

if TYPE_CHECKING:
    from fedveil.plan import Plan


@final
@dataclass(frozen=True, slots=True, eq=False)
class DpSgdSite:
    """Implements SiteWork (fedveil.algorithms.across_sites) for DP-SGD."""

    plan: Plan
    clients: tuple[Client, ...]
    width: int
    memory: Path

    @classmethod
    def make(cls, plan: Plan, records: Records, numbers: tuple[int, ...], entropy: Entropy, memory: Path) -> DpSgdSite:
        """Set up every client with its own records, under its number in the study; ``memory``.

        Where velocities (and adaptive clips) are kept.
        """
        method = dpsgd_of(plan)
        order, starts = records.by_client()
        parts = [order[a:b] for a, b in pairwise(starts.tolist())]
        clients = [
            Client(plan, method, number, records.features[part], records.targets[part], entropy)
            for number, part in zip(numbers, parts, strict=True)
        ]
        return cls(plan, tuple(clients), int(method.network.window), memory)

    def parts(self, turn: int, asked: Content) -> dict[int, Whole]:
        """Return what every client with rounds left sends in this window."""
        model, first, method = model_needed(asked, self.plan), turn * self.width, dpsgd_of(self.plan)
        if not 0 <= first < method.total:
            raise Refused("no-such-round")
        unit, found = unit_of(self.plan), dict[int, Whole]()
        before = self._remembered(turn)
        for client, memory in zip(self.clients, before, strict=True):
            client.remember(memory)
        for client in self.clients:
            turns = range(first, min(first + self.width, client.rounds))
            if len(turns):
                weight = method.weights[client.index] if method.weights else self._share(client)
                found[client.index] = contribution(client, model, turn, turns, weight, unit, self.plan.data.clients)
        if found:  # a window without an answer must not replace the remembered one
            self._remember(turn, before)
        return found

    def _remembered(self, turn: int) -> Matrix:
        """Return every client's memory before this window, so that a repeated window starts from the same state."""
        each = self.clients[0].memory.size if self.clients else self.plan.dimension
        size = len(self.clients) * each
        if not self.memory.exists():
            return np.zeros((len(self.clients), each))
        kept = Content.read(self.memory.read_bytes())
        # the earlier state is gone, and with the same noise any other answer would reveal something
        if turn < kept.values["window"]:
            raise Refused("stale-round")
        row = kept.rows["before" if kept.values["window"] == turn else "after"]
        require(row.size == size, str(self.memory), f"hold {size} numbers", row.size)
        return row.astype(np.float64).reshape(len(self.clients), each)

    def _remember(self, turn: int, before: Matrix) -> None:
        after = np.concatenate([client.memory for client in self.clients])
        kept = Content(values={"window": turn}, rows={"before": before.reshape(-1), "after": after})
        write_atomically(self.memory, kept.write())

    def _share(self, client: Client) -> float:
        return float(client.targets.size / self.plan.data.records)
