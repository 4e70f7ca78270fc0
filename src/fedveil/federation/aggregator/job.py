"""A job across sites: agree, and then the order of every job (fedveil.engine.job). A crash loses no charge."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from fedveil.core.values import Indices
from fedveil.engine.ending import has_released
from fedveil.engine.files import sole_use
from fedveil.engine.job import PLAN, Release, carried_out, settle_text
from fedveil.federation.aggregator.across import Across
from fedveil.federation.aggregator.consortium import Described
from fedveil.federation.aggregator.conversation import Conversation
from fedveil.federation.agreements import Carried
from fedveil.ledger.books import Ledger
from fedveil.ledger.place import caps_of
from fedveil.ledger.transaction import Transaction, moment
from fedveil.planning.plan import read_any_plan
from fedveil.planning.study import Study
from fedveil.stages.protocol import Consortium


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreed:
    """A plan, what each site must know besides it (rows by site, and values for all), and how its stages run."""

    plan: Carried
    rows: Mapping[str, dict[str, Indices]]
    stages: Callable[[Across], Release]
    values: Mapping[str, Any] = field(default_factory=dict)


class Job(Protocol):
    """What sites do together; ``what``: how messages call it. ``also_told``: files that sites get with the release."""

    study: Study
    what: str
    also_told: tuple[str, ...]

    def agree(self, members: Consortium, described: Described) -> Agreed:
        """Return the plan for these sites, which depends on public numbers alone, and how its stages run."""


def conduct(job: Job, talk: Conversation) -> None:
    """Carry the job out with the sites of ``talk``; what may be published is on the disk when this returns."""
    folder = talk.folder
    with sole_use(folder / "private"):
        if has_released(folder):  # stopped between the release and the certificate
            _end(job, talk)
            return
        members, described = talk.members()
        agreed = job.agree(members, described)
        plan = agreed.plan
        _settle(plan, talk, job.what)

        def run() -> Release:
            lists = talk.propose(plan, lambda site: agreed.rows[site], agreed.values)
            return agreed.stages(talk.across(plan, members, lists))

        carried_out(_charged(job, plan, talk), run, folder, end=lambda output: _end(job, talk))


@contextmanager
def _charged(job: Job, plan: Carried, talk: Conversation) -> Iterator[Transaction]:
    """Charge the whole plan in the aggregator's books, which are about the sites, since it has no data."""
    path, random = talk.books(job.study.books), talk.system.random
    with Ledger.open(path, talk.fingerprint, urandom=random) as ledger:
        books = Transaction(ledger, talk.begun.run, moment(plan, talk.system.now()))
        books.charge(plan, caps=caps_of(job.study.books, job.study.target))
        yield books


def _settle(plan: Carried, talk: Conversation, what: str) -> None:
    """Write the plan, or check that it is the one that was begun."""
    talk.check_holder(plan)
    settle_text(talk.folder, plan.text(), (talk.folder / PLAN).exists(), what)


def _end(job: Job, talk: Conversation) -> None:
    """Destroy the secrets, and send what was released to the sites that do not have it yet."""
    plan: Any = read_any_plan((talk.folder / PLAN).read_text(encoding="utf-8"))
    more = {name: talk.folder / name for name in job.also_told}
    told = {name.removesuffix(".json"): path.read_bytes() for name, path in more.items() if path.exists()}
    talk.end(plan, told)
