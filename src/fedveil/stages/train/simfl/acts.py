"""How SimFL is carried out: in this process, or between parties whose sealed messages the aggregator carries."""

from __future__ import annotations

from fedveil.data.records import Records
from fedveil.noise.entropy import Entropy
from fedveil.stages.train.acting import Acts, Relay, Session, Trained
from fedveil.stages.train.simfl.site import SimFLSite, check_parties, check_party, relayed_model
from fedveil.stages.train.simfl.steps import train_simfl
from fedveil.stages.train.stage import Training


def _train(plan: Training, records: Records, entropy: Entropy, session: Session) -> Trained:
    return train_simfl(plan, records, entropy, session.tick)


ACTS = Acts(
    own=lambda stage: _train,
    relay=Relay(check_parties=check_parties, model=relayed_model, check_party=check_party, party=SimFLSite.make),
)
