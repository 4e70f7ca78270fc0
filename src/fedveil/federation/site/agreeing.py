"""What a site checks before it shows a proposed plan to its operator, and the work that the plan then asks for."""

from collections.abc import Mapping

from fedveil.algorithms.across_sites import SiteWork
from fedveil.algorithms.registry import acts_of
from fedveil.data.records import Records
from fedveil.federation.agreements.carried import Carried
from fedveil.federation.agreements.terms import fits
from fedveil.federation.site.counting import CountedWork, check_synthesis
from fedveil.federation.site.data import SiteData
from fedveil.federation.site.evaluating import check_evaluation, whole_work
from fedveil.federation.site.measuring import outline_at
from fedveil.federation.site.prepared import SUMS
from fedveil.federation.site.record import Record
from fedveil.federation.site.work import check_proposal, site_work
from fedveil.noise.entropy import Entropy
from fedveil.prepare.synthesis.plan import SynthesisPlan
from fedveil.wire.content import Content
from fedveil.wire.keys import Card


def check_proposed(plan: Carried, asked: Content, data: SiteData, name: str, peers: Mapping[str, Card]) -> None:
    """Refuse a plan that is not for the data of this site, or that charges them for too little."""
    if isinstance(plan, SynthesisPlan):
        check_synthesis(plan, asked, data)
        return
    fits(plan, data.shape(outline_at(plan, data, asked)))
    check_proposal(plan, asked, data.records)
    check_evaluation(plan, data)
    relay = acts_of(plan.method.kind).relay
    if relay is not None:
        relay.check_party(plan, asked, data.records, name, peers)


def agreed_work(plan: Carried, data: SiteData, proposal: Content, entropy: Entropy, record: Record) -> SiteWork:
    """Return the work of all rounds of a plan that was agreed to."""
    if isinstance(plan, SynthesisPlan):
        return CountedWork(plan, data, tuple(proposal.rows["numbers"].tolist()), entropy)

    def trained(records: Records) -> SiteWork:
        return site_work(plan, records, proposal, entropy, record.private / "memory")

    return whole_work(plan, data, proposal, entropy, record.private / SUMS, trained)
