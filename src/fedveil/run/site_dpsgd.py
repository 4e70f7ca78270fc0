"""A site's part of DP-SGD: the noised updates of each of its clients in a window."""

from dataclasses import dataclass
from itertools import pairwise
from typing import final

from fedveil.data.records import Records
from fedveil.plan import Plan
from fedveil.run.asked import model_needed
from fedveil.run.server_dpsgd import dpsgd_of
from fedveil.summing import Whole
from fedveil.train.dpsgd_client import Client
from fedveil.train.dpsgd_parts import contribution, unit_of
from fedveil.train.entropy import Entropy
from fedveil.wire.content import Content
from fedveil.wire.envelope import Refused


@final
@dataclass(frozen=True, slots=True, eq=False)
class DpSgdSite:
    """See fedveil.run.site_work.SiteWork."""

    plan: Plan
    clients: tuple[Client, ...]
    width: int

    @classmethod
    def make(cls, plan: Plan, records: Records, numbers: tuple[int, ...], entropy: Entropy) -> "DpSgdSite":
        """Every client with its own records, under its number in the study."""
        method = dpsgd_of(plan)
        order, starts = records.by_client()
        parts = [order[a:b] for a, b in pairwise(starts.tolist())]
        clients = [
            Client(plan, method, number, records.features[part], records.targets[part], entropy)
            for number, part in zip(numbers, parts, strict=True)
        ]
        return cls(plan, tuple(clients), int(method.network.window))

    def parts(self, turn: int, asked: Content) -> dict[int, Whole]:
        """What every client with rounds left does in this window."""
        model, first, method = model_needed(asked, self.plan), turn * self.width, dpsgd_of(self.plan)
        if not 0 <= first < method.total:
            raise Refused("no-such-round")
        unit, found = unit_of(self.plan), dict[int, Whole]()
        for client in self.clients:
            turns = range(first, min(first + self.width, client.posture.rounds))
            if len(turns):
                weight = method.weights[client.index] if method.weights else self._share(client)
                found[client.index] = contribution(client, model, turns, weight, unit, self.plan.data.clients)
        return found

    def _share(self, client: Client) -> float:
        return float(client.targets.size / self.plan.data.records)
