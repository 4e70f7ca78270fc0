"""Make a generator of records that are at sites: agree, charge, ask for sum after sum, record, release.

The order is that of a run (federate.py), and a crash loses no charge. The aggregator never sees a record: it fits the
generator to the noisy sums.
"""

from dataclasses import dataclass, replace
from typing import final

from fedveil.algorithms.across_sites import Consortium
from fedveil.checks import require
from fedveil.errors import BadValue
from fedveil.federation.aggregator.conversation import Conversation
from fedveil.federation.aggregator.counting import CountingServer
from fedveil.federation.aggregator.described import Described
from fedveil.federation.aggregator.federate import together
from fedveil.federation.agreements.terms import carried_by_sites
from fedveil.ledger import Ledger
from fedveil.ledger.transaction import Transaction, caps_of, moment
from fedveil.limits import ENVELOPE
from fedveil.prepare.synthesis.asking import empty_table
from fedveil.prepare.synthesis.generator import FILE, Generator
from fedveil.prepare.synthesis.plan import SynthesisPlan
from fedveil.prepare.synthesis.request import GeneratorRequest
from fedveil.prepare.synthesis.table import Table
from fedveil.run.ending import LAST, has_released
from fedveil.run.files import PUBLIC, sole_use, write_atomically
from fedveil.run.synthesising import check_secret, planned_for
from fedveil.study import Study


def check_counted(plan: SynthesisPlan) -> None:
    """Refuse a generator that sites cannot make together."""
    hint = "Add a [trust] table to the study: every site adds its own share of the noise."
    require(carried_by_sites(plan), "The study", "say whom the sites trust", None, hint)
    largest = max(one.size for one in plan.preparation.measurements)
    # Behind masks and encrypted, a site sends the numbers of each of its clients; an encrypted one has up to 65 bytes.
    each = {"trusted": 1, "secure-aggregation": plan.trust.hand, "homomorphic": 8 * plan.trust.hand}[plan.trust.server]
    most = ENVELOPE // 16
    rule = f"have at most {most} numbers across sites, of all clients of a site together where it is hidden"
    hint = "Leave columns out (data.ignore), take a smaller generator.coarse, or fewer clients at a site."
    require(largest * each <= most, "A sum of the generator", rule, largest * each, hint)


def planned_at_sites(
    study: Study, request: GeneratorRequest, members: Consortium, described: Described
) -> tuple[SynthesisPlan, Table]:
    """Return the plan of a generator of what the sites hold, and their columns without a row."""
    outline, reading = described.outline, described.reading
    if outline is None:
        raise BadValue(
            "The sites must leave the rule for their rows open for a generator, which counts cells: leave "
            "data.feature_bound out of their data files."
        )
    if reading is None or reading.labels.name is None:
        raise BadValue("data.target must name a column at the sites for a generator.")
    hint = "State data.categories at every site: words that nobody knows beforehand cannot be added up in parts."
    require(not outline.open_texts, "The sites", "state the categories of their columns", outline.open_texts, hint)
    table = empty_table(outline, reading.labels, reading.labels.name)
    plan = planned_for(together(study, members), request, table, members.shape)
    check_counted(plan)
    return replace(plan, places=plan.places or members.places, blank_rows=members.blank_rows), table


@final
@dataclass(slots=True, kw_only=True)
class Generation:
    """A generator that one start of an aggregator makes with the sites of ``talk``."""

    study: Study
    request: GeneratorRequest
    talk: Conversation

    def conduct(self) -> Generator:
        """Make the generator and return it; what may be published is on the disk when this returns."""
        check_secret(self.study)
        talk, folder = self.talk, self.talk.folder
        with sole_use(folder / "private"):
            if has_released(folder):  # stopped between the release and the certificate
                self._end()
                return Generator.read((folder / FILE).read_bytes())
            members, described = talk.members()
            plan, table = planned_at_sites(self.study, self.request, members, described)
            self._settle(plan)
            path, random = talk.books(self.study.books), talk.system.random
            with Ledger.open(path, talk.fingerprint, urandom=random) as ledger:
                books = Transaction(ledger, talk.begun.run, moment(plan, talk.system.now()))
                books.charge(plan, caps=caps_of(self.study.books, self.study.target))
                server = CountingServer(plan, self.request, table, members, folder / "private" / "questions")
                talk.propose(plan, server.proposal, {})
                found = server.generator(talk.rounds(plan, server))
                text = found.text().encode()
                books.release(text)
                write_atomically(folder / FILE, text, mode=PUBLIC)
                write_atomically(folder / "private" / "released", text)  # kept until every site has received it
                write_atomically(folder / LAST, books.export(), mode=PUBLIC)
                self._end()
                return found

    def _settle(self, plan: SynthesisPlan) -> None:
        """Write the plan, or check that it is the one that was begun."""
        self.talk.check_holder(plan)
        path = self.talk.folder / "plan.toml"
        if path.exists():
            same = path.read_text(encoding="utf-8") == plan.text()
            require(same, "The generator", "be as it was when it began", plan.name, "Name another folder.")
        write_atomically(path, plan.text().encode(), mode=PUBLIC)

    def _end(self) -> None:
        plan = SynthesisPlan.read((self.talk.folder / "plan.toml").read_text(encoding="utf-8"))
        self.talk.end(plan, {}, plan.trust.timeout)
