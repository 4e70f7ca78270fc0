"""How hidden training is carried out: in this process, at the aggregator, at a site."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedveil.algorithms.acting import Acts
from fedveil.algorithms.hidden.server import HiddenServer
from fedveil.algorithms.hidden.site import HiddenSite
from fedveil.algorithms.hidden.steps import State
from fedveil.algorithms.hidden.train import train, train_shares
from fedveil.data.records import Records
from fedveil.noise.entropy import Entropy
from fedveil.wire.content import Content
from fedveil.wire.envelope import Refused

if TYPE_CHECKING:
    from fedveil.plan import Plan


def _work(plan: Plan, records: Records, proposal: Content, entropy: Entropy, memory: Path) -> HiddenSite:
    place: Any = None if plan.run.sampled else proposal.rows["place"]
    numbers = tuple(int(number) for number in proposal.rows["numbers"])
    return HiddenSite.make(plan, records, numbers, place, entropy)


def _check_proposal(plan: Plan, records: Records, proposal: Content) -> None:
    """Refuse rounds of records that are not as the plan deals them; where units draw, nobody else says their rounds."""
    place = proposal.rows.get("place")
    if plan.run.sampled:
        if place is not None:
            raise Refused("other-deal")
        return
    if place is None or not _places(place, len(records), plan.run.rounds):
        raise Refused("malformed")
    if not _dealt(plan, records, place):
        raise Refused("other-deal")


def _places(place: NDArray[Any], records: int, rounds: int) -> bool:
    shaped = place.dtype == np.int64 and place.shape == (records,)
    return shaped and bool(np.all((place >= -1) & (place < rounds)))


def _dealt(plan: Plan, records: Records, place: NDArray[Any]) -> bool:
    """Return whether the records lie as the plan deals them.

    If clients are dealt, whole clients must be in one round, and no round may hold more units than its planned batch,
    by which every average is divided.
    """
    units = place
    if plan.deal == "clients":
        first = np.unique(records.owner, return_index=True)[1]
        if bool(np.any(place != place[first][records.owner])):
            return False
        units = place[first] if plan.target.unit == "client" else place
    batches = np.broadcast_to(np.asarray(plan.run.batch), (plan.run.rounds,))
    return bool(np.all(np.bincount(units[units >= 0], minlength=plan.run.rounds) <= batches))


ACTS = Acts(
    train=train,
    train_shares=train_shares,
    serve=HiddenServer.make,
    work=_work,
    check_proposal=_check_proposal,
    resumed=State,
)
