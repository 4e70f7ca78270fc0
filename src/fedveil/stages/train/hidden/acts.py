"""How hidden training is carried out: in this process, at the aggregator, at a site."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedveil.accounting.hidden import per_round
from fedveil.data.records import Records
from fedveil.noise.entropy import Entropy
from fedveil.stages.adding import Noising
from fedveil.stages.train.acting import Acts
from fedveil.stages.train.base import Training
from fedveil.stages.train.hidden.answering import HiddenAnswering
from fedveil.stages.train.hidden.asking import HiddenAsking, going_on, share_steps
from fedveil.stages.train.hidden.method import hidden_of
from fedveil.stages.train.hidden.steps import Rule, draw
from fedveil.wire.content import Content
from fedveil.wire.envelope import Refused


def _answering(stage: Training, records: Records, proposal: Content, entropy: Entropy) -> HiddenAnswering:
    place: Any = None if hidden_of(stage).run.sampled else proposal.rows["place"]
    numbers = tuple(int(number) for number in proposal.rows["numbers"])
    return HiddenAnswering(stage, records, numbers, place, entropy)


def _noising(stage: Training, entropy: Entropy) -> Noising:
    """One party draws the sum of the clients' shares at once, so that nobody in this process sees a single share."""
    rule, cohorts = Rule.of(stage), list(hidden_of(stage).cohorts(stage.setup))
    return Noising(
        whole=lambda turn: draw(rule, turn, stage.dimension, entropy),
        share=lambda turn: share_steps(stage, turn, cohorts[turn]),
        size=lambda turn: stage.dimension,
    )


def messages(stage: Training) -> int:
    """At most so many are sent: a client answers once a round, for all of its units in the batch.

    In shares, clients without a unit in the batch send their noise too; and nobody says who drew which round.
    """
    run = hidden_of(stage).run
    if stage.trust.all_send or run.sampled:
        return sum(stage.method.cohorts(stage.setup))
    return int(np.minimum(per_round(run.batch, run), stage.data.clients).sum())


def _check_proposal(plan: Training, records: Records, proposal: Content) -> None:
    """Refuse rounds of records that are not as the plan deals them; where units draw, nobody else says their rounds."""
    place = proposal.rows.get("place")
    if hidden_of(plan).run.sampled:
        if place is not None:
            raise Refused("other-deal")
        return
    if place is None or not _places(place, len(records), hidden_of(plan).run.rounds):
        raise Refused("malformed")
    if not _dealt(plan, records, place):
        raise Refused("other-deal")


def _places(place: NDArray[Any], records: int, rounds: int) -> bool:
    shaped = place.dtype == np.int64 and place.shape == (records,)
    return shaped and bool(np.all((place >= -1) & (place < rounds)))


def _dealt(plan: Training, records: Records, place: NDArray[Any]) -> bool:
    """Return whether the records lie as the plan deals them.

    If clients are dealt, whole clients must be in one round, and no round may hold more units than its planned batch,
    by which every average is divided.
    """
    units = place
    if hidden_of(plan).deal == "clients":
        first = np.unique(records.owner, return_index=True)[1]
        if bool(np.any(place != place[first][records.owner])):
            return False
        units = place[first] if plan.target.unit == "client" else place
    batches = np.broadcast_to(np.asarray(hidden_of(plan).run.batch), (hidden_of(plan).run.rounds,))
    return bool(np.all(np.bincount(units[units >= 0], minlength=hidden_of(plan).run.rounds) <= batches))


ACTS = Acts(
    asking=HiddenAsking.make,
    answering=_answering,
    noising=_noising,
    going_on=going_on,
    sent=messages,
    check_proposal=_check_proposal,
)
