"""Forget records or a whole site of a deployment: the sites that remain go on together, and are charged once each.

The site that holds a leaving record blanks it by its own data file ([left] rows); a site that leaves takes no part.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

from fedveil.core.errors import require
from fedveil.data.records import DataShape
from fedveil.engine.run import BEFORE
from fedveil.engine.system import System
from fedveil.federation.aggregator.consortium import Held, consortium, kept_rule
from fedveil.federation.aggregator.post import Carrier
from fedveil.federation.deploy.files import Deployment, read_deployment
from fedveil.jobs.forget import RECEIPT, Aim, ForgetResult, finish_request, study_of
from fedveil.jobs.local import ENDS, Sign, signing_key
from fedveil.jobs.remote import Tell, Watch, check_open, deployed, federated, silent
from fedveil.planning.forget_design import ForgetDesign, Leaving
from fedveil.planning.plan import Plan
from fedveil.planning.study import read_study_without_data
from fedveil.release.bundle import Bundle
from fedveil.stages.protocol import Consortium
from fedveil.wire.content import Content


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SiteRequest:
    """Who leaves a run across sites: ``leaving`` for its plan; ``before``: the sites that remain, as they were."""

    folder: Path
    bundle: Bundle
    leaving: Leaving
    before: Consortium
    study: Path

    def remaining(self, deployment: Deployment) -> Deployment:
        """Return the deployment without the sites that have left."""
        cards = {name: card for name, card in deployment.cards.items() if name not in self.leaving.away}
        strange = sorted(set(cards) ^ set(self.before.members))
        require(not strange, "--on", "be the deployment that the run was on", strange[:5])
        return replace(deployment, cards=cards)

    def check(self, plan: Plan, members: Consortium) -> Plan:
        """Return the plan; refuse sites whose data are others than planned, or that still count who left."""
        shape = _planned_shape(members.shape, plan)
        require(shape == plan.data, "The sites' data", "be as when the run began", shape)
        marked, wanted = members.left - self.before.left, 0 if self._site_leaves else self.leaving.units
        hint = "The site that has them lists their rows in its data file: [left] rows."
        rule = f"have marked {wanted} more records as left"
        require(marked == wanted, "The sites", rule, marked, hint)
        return plan

    @property
    def _site_leaves(self) -> bool:
        return self.leaving.away != self.bundle.plan.forgetting.away


def open_request(
    folder: Path, site: str | None, marked: int | None, study: Path | None, sites: Sequence[str]
) -> SiteRequest:
    """Return the request, from what the run's folder at the aggregator keeps of its sites.

    ``site``: leaves with all that it has; ``marked``: how many records the sites have marked as left.
    """
    hint = "Name a site (--client), or how many records the sites have marked as left (--left)."
    require((site is None) != (marked is None), "forget --on", "be told who leaves, in one way", (site, marked), hint)
    bundle, path = Bundle.read(folder), folder / "private" / "members"
    require(path.is_file(), str(folder), "be the aggregator's folder of a run across sites", "no list of its sites")
    plan = bundle.plan
    cells = bool(plan.lineage[0].preparation)
    hint = "Sites tell how many records leave, not whose they are. Train again without them: fedveil run --on."
    require(
        plan.target.unit != "person", "forget --on", "be of a run that protected records or clients", "persons", hint
    )
    said = {name: Content.read(block) for name, block in Content.read(path.read_bytes()).blocks.items()}
    whole, away = consortium(said), plan.forgetting.away
    if site is None:
        require(plan.target.unit == "record", "--left", "count records of a run that protected records", "clients")
        units = marked or 0
        require(1 <= units <= plan.data.records, "--left", "count records that have left", marked)
        leaving = Leaving(units=units, away=away, data=plan.data, cells=cells)
        return SiteRequest(folder=folder, bundle=bundle, leaving=leaving, before=whole, study=study_of(folder, study))
    require(site not in away, "--client", "be a site that is still there", f"{site}, which was forgotten already")
    require(site in said, "--client", f"be one of the sites {', '.join(sorted(sites))}", site)
    rest = consortium({name: content for name, content in said.items() if name != site})
    clients, records = whole.shape.clients - rest.shape.clients, whole.shape.records - rest.shape.records
    by_record = plan.target.unit == "record"
    leaving = Leaving(
        units=records if by_record else clients,
        together=records if by_record else clients,
        away=tuple(sorted({*away, site})),
        data=_planned_shape(rest.shape, plan),
        cells=cells,
    )
    return SiteRequest(folder=folder, bundle=bundle, leaving=leaving, before=rest, study=study_of(folder, study))


def _planned_shape(shape: DataShape, plan: Plan) -> DataShape:
    """Return what sites have, with the rows of the plan: sites that learn columns together do not know these before."""
    if not plan.lineage[0].preparation:
        return shape
    return replace(shape, features=plan.data.features, bound=plan.data.bound)


def plan_forgetting_on(
    folder: str | Path,
    *,
    on: str | Path,
    aim: Aim,
    site: str | None = None,
    marked: int | None = None,
    study: Path | None = None,
) -> ForgetDesign:
    """Return what forgetting across sites would take and cost; no site is asked."""
    sites = sorted(read_deployment(Path(on)).cards)
    request = open_request(Path(folder), site, marked, study, sites)
    return aim.design(request.bundle, request.leaving)


def forget_on(
    folder: str | Path,
    *,
    on: str | Path,
    out: str | Path,
    aim: Aim,
    site: str | None = None,
    marked: int | None = None,
    study: Path | None = None,
    resume: bool = False,
    sign: Sign = None,
    watch: Watch = None,
    tell: Tell = silent,
) -> ForgetResult:
    """Go on from the model in ``folder`` with the sites that remain; ``on``: the aggregator's folder.

    ``site``, ``marked``: as in :func:`open_request`. ``study``: the run's, where its path is not known.
    """
    deployment, target = read_deployment(Path(on)), Path(out)
    check_open(target, resume, (*ENDS, f"{RECEIPT}.html"))
    request = open_request(Path(folder), site, marked, study, sorted(deployment.cards))
    remaining = request.remaining(deployment)
    design = aim.design(request.bundle, request.leaving)
    with deployed(remaining, target, resume) as carrier:
        return carry_out(request, design, target, remaining, carrier, resume=resume, sign=sign, watch=watch, tell=tell)


def carry_out(
    request: SiteRequest,
    design: ForgetDesign,
    target: Path,
    deployment: Deployment,
    carrier: Carrier,
    *,
    resume: bool = False,
    sign: Sign = None,
    watch: Watch = None,
    tell: Tell = silent,
    system: System | None = None,
) -> ForgetResult:
    """Run the rounds with the sites that the carrier reaches; certify, and write the receipt."""
    key, plan = signing_key(sign), design.chosen.plan
    result = federated(
        read_study_without_data(request.study),
        target,
        deployment,
        carrier,
        Held(),
        resume=resume,
        watch=watch,
        tell=tell,
        system=system,
        key=key,
        preparation=None if plan.preparation else request.bundle.preparation or kept_rule(request.folder),
        goes_on=lambda members: request.check(plan, members),
        before={BEFORE: request.bundle.parameters},
    )
    return finish_request(request.folder, result, design, key)
