"""A site's side of any method by parts: what each of its clients sends in a round."""

from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedveil.data.records import Records
from fedveil.method.dpsgd import DpSgd
from fedveil.method.fedavg import FedAvg
from fedveil.method.hidden import Hidden
from fedveil.plan import Plan
from fedveil.run.site_dpsgd import DpSgdSite
from fedveil.run.site_fedavg import FedAvgSite
from fedveil.run.site_hidden import HiddenSite
from fedveil.summing import Whole
from fedveil.train.entropy import Entropy
from fedveil.wire.content import Content
from fedveil.wire.envelope import Refused


class SiteWork(Protocol):
    """One method at a site, for one run."""

    def parts(self, turn: int, asked: Content) -> dict[int, Whole]:
        """What its clients of this round send, by their numbers in the study; the noise is in it.

        The same round and the same question give the same answer, also after a restart.
        """


def site_work(plan: Plan, records: Records, proposal: Content, entropy: Entropy, memory: Path) -> SiteWork:
    """The work that a proposal asks for; ``memory``: a private file for what must outlive this process."""
    numbers = tuple(int(number) for number in proposal.rows["numbers"])
    match plan.method:
        case Hidden():
            place: Any = proposal.rows["place"]
            return HiddenSite.make(plan, records, numbers, place, entropy)
        case FedAvg():
            return FedAvgSite.make(plan, records, numbers, entropy)
        case DpSgd():
            return DpSgdSite.make(plan, records, numbers, entropy, memory)
        case _:
            raise Refused("unknown-method")


def check_proposal(plan: Plan, proposal: Content, records: Records) -> None:
    """Whether every client of the site has one number of its own, and every unit at most one round of a pass."""
    numbers = proposal.rows.get("numbers")
    if numbers is None or numbers.dtype != np.int64 or numbers.size != records.clients:
        raise Refused("malformed")
    named = sorted(set(numbers.tolist()))
    if not (len(named) == numbers.size and named[0] >= 0 and named[-1] < plan.data.clients):
        raise Refused("other-data")
    if isinstance(plan.method, Hidden):
        place = proposal.rows.get("place")
        if place is None or not _places(place, len(records), plan.run.rounds):
            raise Refused("malformed")
        if not _dealt(plan, records, place):
            raise Refused("other-deal")
    if isinstance(plan.method, DpSgd) and not plan.method.network.together:
        raise Refused("a-network")
    if plan.seeded != (type(proposal.values.get("seed")) is int):
        raise Refused("malformed")


def _dealt(plan: Plan, records: Records, place: NDArray[Any]) -> bool:
    """Whether the records lie as the plan deals them: whole clients where clients are dealt, and no round of more
    units than its planned batch, which is what every average is divided by.
    """
    units = place
    if plan.deal == "clients":
        first = np.unique(records.owner, return_index=True)[1]
        if bool(np.any(place != place[first][records.owner])):
            return False
        units = place[first] if plan.target.unit == "client" else place
    batches = np.broadcast_to(np.asarray(plan.run.batch), (plan.run.rounds,))
    return bool(np.all(np.bincount(units[units >= 0], minlength=plan.run.rounds) <= batches))


def _places(place: NDArray[Any], records: int, rounds: int) -> bool:
    shaped = place.dtype == np.int64 and place.shape == (records,)
    return shaped and bool(np.all((place >= -1) & (place < rounds)))
