"""How federated averaging is carried out: in this process, at the aggregator, at a site."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fedveil.algorithms.acting import Acts, Interim, Session
from fedveil.algorithms.fedavg.server import FedAvgServer
from fedveil.algorithms.fedavg.shares import train_shares
from fedveil.algorithms.fedavg.site import FedAvgSite
from fedveil.algorithms.fedavg.steps import train_rounds
from fedveil.algorithms.trained import Trained
from fedveil.data.records import Records
from fedveil.noise.entropy import Entropy
from fedveil.wire.content import Content

if TYPE_CHECKING:
    from fedveil.plan import Plan


def _train(plan: Plan, records: Records, entropy: Entropy, session: Session) -> Trained:
    return train_rounds(plan, records, entropy, session)


def _train_shares(plan: Plan, records: Records, entropy: Entropy, session: Session) -> Trained:
    return train_shares(plan, records, entropy, session.tick, session.add_up, session.fails)


def _work(plan: Plan, records: Records, proposal: Content, entropy: Entropy, memory: Path) -> FedAvgSite:
    numbers = tuple(int(number) for number in proposal.rows["numbers"])
    return FedAvgSite.make(plan, records, numbers, entropy, memory)


ACTS = Acts(train=_train, train_shares=_train_shares, serve=FedAvgServer.make, work=_work, resumed=Interim.read)
