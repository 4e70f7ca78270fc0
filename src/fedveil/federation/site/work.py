"""A site's side of an algorithm with a server: what each of its clients sends in a round."""

from pathlib import Path

import numpy as np

from fedveil.algorithms.across_sites import SiteWork
from fedveil.algorithms.registry import acts_of
from fedveil.data.records import Records
from fedveil.noise.entropy import Entropy
from fedveil.plan import Plan
from fedveil.wire.content import Content
from fedveil.wire.envelope import Refused


def site_work(plan: Plan, records: Records, proposal: Content, entropy: Entropy, memory: Path) -> SiteWork:
    """Return the work that a proposal asks for; ``memory``: a private file for what must survive a restart."""
    work = acts_of(plan.method.kind).work
    if work is None:
        raise Refused("unknown-method")
    return work(plan, records, proposal, entropy, memory)


def check_numbers(clients: int, proposal: Content, records: Records) -> None:
    """Refuse a proposal unless every client of the site has its own number among ``clients``."""
    numbers = proposal.rows.get("numbers")
    if numbers is None or numbers.dtype != np.int64 or numbers.size != records.clients:
        raise Refused("malformed")
    named = sorted(set(numbers.tolist()))
    if not (len(named) == numbers.size and named[0] >= 0 and named[-1] < clients):
        raise Refused("other-data")


def check_proposal(plan: Plan, proposal: Content, records: Records) -> None:
    """Refuse a proposal unless every client has its own number and the algorithm finds the rest as planned."""
    check_numbers(plan.data.clients, proposal, records)
    acts_of(plan.method.kind).check_proposal(plan, records, proposal)
    if plan.seeded != (type(proposal.values.get("seed")) is int):
        raise Refused("malformed")
