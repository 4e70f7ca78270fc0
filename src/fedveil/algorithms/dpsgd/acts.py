"""How DP-SGD is carried out: in this process, at the aggregator, at a site."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fedveil.algorithms.acting import Acts, Interim, Session
from fedveil.algorithms.dpsgd.chosen import train_chosen
from fedveil.algorithms.dpsgd.server import DpSgdServer
from fedveil.algorithms.dpsgd.shares import train_windows
from fedveil.algorithms.dpsgd.site import DpSgdSite
from fedveil.algorithms.dpsgd.steps import dpsgd_of, train_network
from fedveil.algorithms.trained import Trained
from fedveil.data.records import Records
from fedveil.noise.entropy import Entropy
from fedveil.wire.content import Content
from fedveil.wire.envelope import Refused

if TYPE_CHECKING:
    from fedveil.plan import Plan


def _train(plan: Plan, records: Records, entropy: Entropy, session: Session) -> Trained:
    """Train by the clock of the network, or segment by segment where a rule chooses them."""
    if dpsgd_of(plan).choice is not None:
        return train_chosen(plan, records, entropy, session)
    return train_network(plan, records, entropy, session)


def _train_shares(plan: Plan, records: Records, entropy: Entropy, session: Session) -> Trained:
    """Train in windows that are added up if clients wait for each other, otherwise by the clock."""
    method = dpsgd_of(plan)
    if method.network.together and method.choice is None:
        return train_windows(plan, records, entropy, session)
    return _train(plan, records, entropy, session)


def _work(plan: Plan, records: Records, proposal: Content, entropy: Entropy, memory: Path) -> DpSgdSite:
    numbers = tuple(int(number) for number in proposal.rows["numbers"])
    return DpSgdSite.make(plan, records, numbers, entropy, memory)


def _check_proposal(plan: Plan, records: Records, proposal: Content) -> None:
    method = dpsgd_of(plan)
    if method.choice is not None:
        raise Refused("a-choice")
    if not method.network.together:
        raise Refused("a-network")


ACTS = Acts(
    train=_train,
    train_shares=_train_shares,
    serve=DpSgdServer.make,
    work=_work,
    check_proposal=_check_proposal,
    resumed=Interim.read,
)
