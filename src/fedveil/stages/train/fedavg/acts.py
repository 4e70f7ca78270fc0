"""How federated averaging is carried out: as rounds of sums."""

from __future__ import annotations

from fedveil.data.records import Records
from fedveil.noise.entropy import Entropy
from fedveil.stages.adding import Noising
from fedveil.stages.train.acting import Acts
from fedveil.stages.train.fedavg.answering import FedAvgAnswering
from fedveil.stages.train.fedavg.asking import FedAvgAsking
from fedveil.stages.train.fedavg.steps import method_of, noise_source, share_steps
from fedveil.stages.train.stage import Training
from fedveil.wire.content import Content


def _answering(stage: Training, records: Records, proposal: Content, entropy: Entropy) -> FedAvgAnswering:
    return FedAvgAnswering(stage, records, tuple(int(number) for number in proposal.rows["numbers"]), entropy)


def _noising(stage: Training, entropy: Entropy) -> Noising:
    size = stage.sum_length
    return Noising(
        whole=noise_source(method_of(stage), size, 2.0**stage.grid, entropy),
        share=lambda turn: share_steps(stage, turn),
        size=lambda turn: size,
    )


def _sent(stage: Training) -> int:
    """As planned, because who really took part is secret."""
    return method_of(stage).traffic(stage.setup, together=False)[0]


ACTS = Acts(asking=FedAvgAsking.make, answering=_answering, noising=_noising, sent=_sent)
