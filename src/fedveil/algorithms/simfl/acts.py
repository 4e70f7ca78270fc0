"""How SimFL is carried out: in this process, or between parties whose sealed messages the aggregator carries."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedveil.algorithms.acting import Acts, Relay, Session
from fedveil.algorithms.simfl.server import check_parties, relayed_model
from fedveil.algorithms.simfl.site import SimFLSite, check_party
from fedveil.algorithms.simfl.steps import train_simfl
from fedveil.algorithms.trained import Trained
from fedveil.data.records import Records
from fedveil.noise.entropy import Entropy

if TYPE_CHECKING:
    from fedveil.plan import Plan


def _train(plan: Plan, records: Records, entropy: Entropy, session: Session) -> Trained:
    return train_simfl(plan, records, entropy, session.tick)


ACTS = Acts(
    train=_train,
    relay=Relay(check_parties=check_parties, model=relayed_model, check_party=check_party, party=SimFLSite.make),
)
