"""What a site checks before it shows a proposed plan to its operator: that it is for its data, and charges enough."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from fedveil.core.errors import FedveilError
from fedveil.data.records import Records
from fedveil.federation.agreements import Carried, fits
from fedveil.federation.site.data import SiteData
from fedveil.planning.plan import Plan
from fedveil.stages.measured.plan import GENERATOR, MeasuredPlan
from fedveil.stages.measured.stage import check_sought
from fedveil.stages.prepare.columns import Outline
from fedveil.stages.prepare.learn import check_sizes
from fedveil.stages.prepare.shape import with_shape
from fedveil.stages.sums import COUNTED
from fedveil.stages.synthesise.table import Table
from fedveil.stages.train.acting import acts_of
from fedveil.wire.content import Content
from fedveil.wire.envelope import Refused
from fedveil.wire.keys import Card


def check_proposed(plan: Carried, asked: Content, data: SiteData, name: str, peers: Mapping[str, Card]) -> None:
    """Refuse a plan that is not for the data of this site, or that charges them for too little."""
    check_persons(plan, data)
    if isinstance(plan, MeasuredPlan):
        (check_synthesis if plan.stage == GENERATOR else check_measured)(plan, asked, data)
        return
    fits(plan, data.shape(outline_at(plan, data, asked)))
    check_proposal(plan, asked, data.records)
    check_evaluation(plan, data)
    relay = acts_of(plan.method.kind).relay
    if relay is not None:
        relay.check_party(plan, asked, data.records, name, peers)


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


def outline_at(plan: Plan, data: SiteData, proposal: Content) -> Outline | None:
    """Return the outline of the rows that are to be learned, None for a site whose rows are made already.

    Refuse a plan with measurements for such a site, one without for the other kind, and one that does not fit.
    """
    planned, cells = plan.preparation, data.cells
    if not planned and cells is None:
        return None
    if not planned or cells is None:
        raise Refused("other-preparation")
    asked, whiten = proposal.values.get("components"), proposal.values.get("whiten", False)
    most = cells.outline.unprojected
    counted = asked is None or (type(asked) is int and 1 <= asked < most)
    if not counted or not isinstance(whiten, bool) or cells.outline.open_texts:
        raise Refused("other-preparation")
    try:
        outline = replace(with_shape(cells.outline, plan.model), components=asked, whiten=whiten, slots=0)
        check_sizes(planned, outline, data.records.classes)
    except FedveilError as error:
        raise Refused("other-preparation") from error
    return outline


def check_persons(plan: Carried, data: SiteData) -> None:
    """Refuse a plan that protects persons with fewer records than a person may have here; a trial has made its rows."""
    named = data.largest_person is not None and data.largest_person <= plan.target.largest_person
    if plan.target.unit == "person" and not (named or data.fixed is not None):
        raise Refused("other-persons")


def check_evaluation(plan: Plan, data: SiteData) -> None:
    """Refuse an evaluation of held-out records that the site does not have, or that is charged for too little.

    Every client of a site owns records of both kinds. Where clients are protected, both costs must add up for them.
    """
    planned = plan.evaluation
    if plan.held_out.apart is not None:  # nobody has compared the rows of several sites, so nobody may certify it
        raise Refused("other-evaluation")
    if not planned or planned.trains:
        return
    counted, held = planned.shape(plan.data), data.held
    if held is None or (plan.target.unit == "client" and not planned.joint) or counted.clients != plan.data.clients:
        raise Refused("other-evaluation")
    mine = held.shape
    within = counted.smallest_client <= mine.smallest_client and mine.largest_client <= counted.largest_client
    if not (within and mine.records <= counted.records):
        raise Refused("other-evaluation")


def check_synthesis(plan: MeasuredPlan, proposal: Content, data: SiteData) -> None:
    """Refuse a generator that the site's columns are not for, and counts of words that nobody has listed."""
    table = table_at(data)
    columns = len(table.outline.numbers) + len(table.outline.texts) + 1
    planned = all(name in plan.sums for name in COUNTED) and "categories" not in plan.sums
    if not (planned and 2 <= plan.data.features <= columns):
        raise Refused("other-generator")
    fits(plan, replace(data.records.shape, features=plan.data.features, bound=plan.data.bound))
    check_numbers(plan.data.clients, proposal, data.records)


def check_measured(plan: MeasuredPlan, proposal: Content, data: SiteData) -> None:
    """Refuse sums of other columns than the site has, or that charge a record for less than it adds."""
    try:
        check_sought(plan, table_at(data, counted=False).all_columns)
    except FedveilError as error:
        raise Refused("other-generator") from error
    fits(plan, data.shape())
    check_numbers(plan.data.clients, proposal, data.records)


def table_at(data: SiteData, *, counted: bool = True) -> Table:
    """Return the site's cells; refuse a site that has rows in their place.

    ``counted``: every column is, so there must be a target, and all words must be listed.
    """
    cells = data.cells
    if cells is None or cells.reading is None:
        raise Refused("other-generator")
    if counted and (cells.reading.labels.name is None or cells.outline.open_texts):
        raise Refused("other-generator")
    labels = cells.reading.labels
    return Table(
        outline=cells.outline,
        columns=cells.columns,
        targets=data.records.targets,
        labels=labels,
        target=cells.reading.labels.name,
    )
