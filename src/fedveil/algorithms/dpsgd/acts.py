"""How DP-SGD is carried out: in this process, at the aggregator, at a site."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fedveil.algorithms.acting import Acts, Rounds, Session
from fedveil.algorithms.dpsgd.server import DpSgdServer
from fedveil.algorithms.dpsgd.shares import train_windows
from fedveil.algorithms.dpsgd.site import DpSgdSite
from fedveil.algorithms.dpsgd.steps import dpsgd_of, train_dpsgd
from fedveil.algorithms.trained import Trained
from fedveil.data.records import Records
from fedveil.noise.entropy import Entropy
from fedveil.wire.content import Content
from fedveil.wire.envelope import Refused

if TYPE_CHECKING:
    from fedveil.plan import Plan


def _train(plan: Plan, records: Records, entropy: Entropy, session: Session) -> Trained:
    """Train in windows if clients share trust and wait for each other, otherwise by the clock."""

    def tick(done: int) -> None:
        session.watch(Rounds(done))

    if plan.trust.shared and dpsgd_of(plan).network.together:
        return train_windows(plan, records, entropy, tick, session.add_up, session.fails)
    return train_dpsgd(plan, records, entropy, tick)


def _work(plan: Plan, records: Records, proposal: Content, entropy: Entropy, memory: Path) -> DpSgdSite:
    numbers = tuple(int(number) for number in proposal.rows["numbers"])
    return DpSgdSite.make(plan, records, numbers, entropy, memory)


def _check_proposal(plan: Plan, records: Records, proposal: Content) -> None:
    if not dpsgd_of(plan).network.together:
        raise Refused("a-network")


ACTS = Acts(train=_train, serve=DpSgdServer.make, work=_work, check_proposal=_check_proposal)
