"""How DP-SGD is carried out: as windows of sums where clients wait for each other, otherwise by the network's clock."""

from __future__ import annotations

from fedveil.data.records import Records
from fedveil.noise.entropy import Entropy
from fedveil.stages.adding import Noising
from fedveil.stages.protocol import Answering, Consortium
from fedveil.stages.train.acting import Acts, Train, TrainAsking
from fedveil.stages.train.base import Training
from fedveil.stages.train.dpsgd.chosen import train_chosen
from fedveil.stages.train.dpsgd.sides import sides_of
from fedveil.stages.train.dpsgd.steps import dpsgd_of, train_network
from fedveil.stages.train.dpsgd.windows import train_windows
from fedveil.wire.content import Content
from fedveil.wire.envelope import Refused


def _own(stage: Training) -> Train | None:
    """Segments that a rule chooses, and clients that do not wait for each other, are no rounds of sums."""
    method = dpsgd_of(stage)
    if method.choice:
        return train_chosen
    waits = method.network.together
    if not method.local(stage.setup):
        return None if waits else train_windows
    return None if stage.trust.shared and waits else train_network


def _asking(stage: Training, members: Consortium, entropy: Entropy) -> TrainAsking:
    return sides_of(stage).asking(stage, members, entropy)


def _answering(stage: Training, records: Records, proposal: Content, entropy: Entropy) -> Answering:
    numbers = tuple(int(number) for number in proposal.rows["numbers"])
    return sides_of(stage).answering(stage, records, numbers, entropy)


def _noising(stage: Training, entropy: Entropy) -> Noising:
    return sides_of(stage).noising(stage, entropy)


def _sent(stage: Training) -> int:
    """A client answers in every window of its rounds."""
    method = dpsgd_of(stage)
    width = int(method.network.window)
    return sum(-(-method.rounds_of(client) // width) for client in range(stage.data.clients))


def _check_proposal(stage: Training, records: Records, proposal: Content) -> None:
    method = dpsgd_of(stage)
    if method.choice:
        raise Refused("a-choice")
    if not method.network.together:
        raise Refused("a-network")


ACTS = Acts(
    asking=_asking,
    answering=_answering,
    noising=_noising,
    sent=_sent,
    check_proposal=_check_proposal,
    own=_own,
)
