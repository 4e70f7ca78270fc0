"""Carry out a study across sites: its stages are those of a run in one process, and so is their order.

The question of a turn is determined by what was on the disk before, so a restarted aggregator asks the same question,
and a site gives the same answer.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, final

from fedveil.core.errors import require
from fedveil.core.fields import Exclusion, check_exclusions
from fedveil.core.limits import ENVELOPE
from fedveil.core.values import Vector
from fedveil.data.load import Loaded
from fedveil.data.records import DataShape, Records
from fedveil.data.row_rule import Labels
from fedveil.engine.ending import written_metrics
from fedveil.engine.job import Release
from fedveil.engine.measure import measure
from fedveil.engine.run import BEFORE, Cells, Data, Released, Rows, release_of, run_stages
from fedveil.federation.aggregator.across import Across, SitesMeasurer
from fedveil.federation.aggregator.consortium import Described, Held, keep_rule, kept_rule
from fedveil.federation.aggregator.conversation import Conversation
from fedveil.federation.aggregator.job import Agreed, conduct
from fedveil.federation.aggregator.late_windows import LateWindows
from fedveil.federation.aggregator.turn import ask_all
from fedveil.federation.agreements import carried_by_sites
from fedveil.noise.entropy import Entropy
from fedveil.planning.plan import Plan
from fedveil.planning.study import Study
from fedveil.privacy.trust import Trust
from fedveil.stages.prepare.budget import settle_preparation
from fedveil.stages.prepare.columns import Outline
from fedveil.stages.prepare.request import PrepareRequest
from fedveil.stages.prepare.shape import settle_shape, with_shape
from fedveil.stages.protocol import Consortium
from fedveil.stages.sums import FILE as PREPARATION
from fedveil.stages.sums import NO_SUMS, NoisySums
from fedveil.stages.train.acting import Relay, TrainAsking, acts_of
from fedveil.wire.content import Content

_LATE: Final = "Updates that come late have no place among its rounds."
EXCLUSIONS: Final = (  # of plans that sites carry out
    Exclusion(
        "[evaluation]",
        "sites and no server",
        "Take an algorithm with a server.",
        lambda plan: not plan.method.served,
        attrgetter("evaluation"),
    ),
    Exclusion("trust.patience", "a private evaluation", _LATE, attrgetter("evaluation"), lambda plan: _patience(plan)),
    Exclusion(
        "trust.patience", "a private preparation", _LATE, attrgetter("preparation"), lambda plan: _patience(plan)
    ),
    Exclusion(
        "algorithm.choose",
        "sites",
        "State segments that are all run, or run the study in one process.",
        lambda plan: True,
        lambda plan: plan.method.choice.rule if plan.method.chooses else None,
    ),
)


def _patience(plan: Plan) -> str | None:
    """Return what is stated, also where it is 0 seconds."""
    return None if plan.trust.patience is None else f"{plan.trust.patience:g} seconds"


def check_carried(plan: Plan) -> None:
    """Refuse a plan that sites cannot carry out together."""
    hint = "Add a [trust] table to the study: every site adds its own share of the noise."
    require(carried_by_sites(plan), "The study", "say whom the sites trust", None, hint)
    hint = "Leave speeds, jitter, delay and loss out: a real network has its own."
    require(plan.method.waits, "algorithm", "let clients wait for each other across sites", "a network", hint)
    most = ENVELOPE // 16  # leaves as many bytes again for everything around the model
    require(plan.dimension <= most, "The model", f"have at most {most} parameters across sites", plan.dimension)
    check_exclusions(plan, "", EXCLUSIONS)


def together(study: Study, members: Consortium) -> Study:
    """Return the study with ``trust.together`` set to the most clients that one of these sites holds.

    A curious site sees what all of its clients see.
    """
    most = max(member.clients.size for member in members.members.values())
    return replace(study, trust=study.trust.joined(most))


def planned_outline(
    study: Study, outline: Outline | None, shape: DataShape
) -> tuple[Study, NoisySums, Outline | None, DataShape]:
    """Return the study, its model settled; what will be measured of columns like these; and their rows.

    Nothing where the sites have rows already.
    """
    asked = study.prepare
    if outline is None:
        stated = asked is None or asked.kind == "stated"
        hint = "Leave data.feature_bound out of the sites' data files, or [prepare] out of the study."
        require(stated, "[prepare]", "find columns left open at the sites", "sites that state their rule", hint)
        return study, NO_SUMS, None, shape
    request = asked or PrepareRequest()
    hint = "State data.feature_bound in the sites' data files, or leave prepare.kind out of the study."
    require(request.kind != "stated", "prepare.kind", "be auto or private for sites like these", request.kind, hint)
    hint = "State data.categories at every site: words that nobody knows beforehand cannot be added up in parts."
    require(not outline.open_texts, "The sites", "state the categories of their columns", outline.open_texts, hint)
    open_outline = replace(outline, components=request.components, whiten=request.whiten)
    model, open_outline, _ = settle_shape(study.model, open_outline, shape, study.target, study.trust)
    result, fitted = settle_preparation(request, open_outline, shape, study.target, study.trust)
    hint = "Leave the knots of one column out of model.knots_at."
    require(result, "[prepare]", "leave something to measure across sites", "a study that states everything", hint)
    return replace(study, model=model), result, fitted, replace(shape, features=fitted.width, bound=fitted.total)


def counted_held(study: Study, members: Consortium, own: int) -> DataShape | None:
    """Return the shape of the sites' held-out records that the study's evaluation counts; None if it counts none.

    ``own``: how many records the aggregator has to measure on.
    """
    if members.held is None or not study.evaluation.asks_of_sites:
        return None
    hint = "Leave [data.held_out] out of the sites' data files, or the aggregator's records out of the study."
    require(own == 0, "[evaluation]", "count held-out records of the sites or of the aggregator, not both", own, hint)
    return members.held


@final
@dataclass(slots=True, kw_only=True)
class Federation:
    """Implements Job: a study that one start of an aggregator carries out with its sites.

    ``goes_on``: for a request that goes on from a released model, what checks the sites and returns its plan;
    ``before``: that model, as in :func:`fedveil.engine.run.run_stages`.
    """

    study: Study
    talk: Conversation
    held: Held
    goes_on: Callable[[Consortium], Plan] | None = None
    before: Mapping[str, Any] = field(default_factory=dict)
    what: str = "study"
    also_told: tuple[str, ...] = (PREPARATION,)

    @property
    def folder(self) -> Path:
        """The folder of the run."""
        return self.talk.folder

    def conduct(self) -> dict[str, Any]:
        """Run the study and return the metrics that were written."""
        require(not self.study.baselines, "report.baselines", "be false across sites", True)
        conduct(self, self.talk)
        return written_metrics(self.folder)

    def agree(self, members: Consortium, described: Described) -> Agreed:
        """Return the plan; every site learns the numbers of its clients and the rounds of its own records."""
        if self.goes_on is None:
            plan, outline = self._planned(members, described)
        else:
            plan = self.goes_on(members)
            outline = self._outline_again(plan, described)
        values: dict[str, Any] = {}
        if plan.seeded:
            values["seed"] = self.study.seed
        if self.study.prepare is not None and plan.preparation:
            values |= {"components": self.study.prepare.components, "whiten": self.study.prepare.whiten}
        asking = self._asking(plan, members)
        numbers = {site: {"numbers": member.clients} for site, member in members.members.items()}
        rows = numbers if asking is None else {site: asking.proposal(site) for site in members.members}
        data = AtSites(self.folder, self.held, described, outline, self._entropy(plan))

        def stages(across: Across) -> Release:
            released = run_stages(plan, data, AcrossSites(self, plan, across), self.before)
            keep_rule(self.folder, described, released.get("preparation"))
            return release_of(plan, data, released, self.folder / "private")

        return Agreed(plan=plan, rows=rows, values=values, stages=stages)

    def _asking(self, plan: Plan, members: Consortium) -> TrainAsking | None:
        make = acts_of(plan.method.kind).asking
        return None if make is None else make(plan, members, self._entropy(plan))

    def trained(self, plan: Plan, across: Across, before: Vector | None) -> Vector:
        """Train with the sites, by rounds that are added up, by windows, or by relayed messages.

        ``before``: the released model that the plan goes on from.
        """
        acts = acts_of(plan.method.kind)
        asking, relay = self._asking(plan, across.members), acts.relay
        if relay is not None:
            return self._relayed(plan, relay)
        assert asking is not None  # noqa: S101  an algorithm has a server or a relay
        if plan.trust.patience is not None:
            return self._windows(plan, across, asking)
        begun = None if before is None else acts.going_on(plan, before)
        return asking.model(across.rounds("training", asking, begun))

    def _planned(self, members: Consortium, described: Described) -> tuple[Plan, Outline | None]:
        study = together(self.study, members)
        study, preparation, outline, shape = planned_outline(study, described.outline, members.shape)
        theirs = counted_held(study, members, self.held.count)
        count, public = (self.held.count, self.held.public) if theirs is None else (theirs.records, False)
        plan = study.planned(shape, count, public, preparation, theirs, joint=True).plan
        blank = plan.origin.blank_rows or members.blank_rows
        origin = replace(plan.origin, places=plan.origin.places or members.places, blank_rows=blank)
        plan = replace(plan, origin=origin)
        check_carried(plan)
        relay = acts_of(plan.method.kind).relay
        if relay is not None:
            relay.check_parties(members)
        return plan, outline

    def _outline_again(self, plan: Plan, described: Described) -> Outline | None:
        """Return the columns of a request that learns them again; None where it does not."""
        if not plan.preparation or described.outline is None:
            return None
        request = self.study.prepare or PrepareRequest()
        asked = replace(described.outline, components=request.components, whiten=request.whiten, slots=0)
        return with_shape(asked, plan.model)

    def _entropy(self, plan: Plan) -> Entropy:
        if self.study.seed is not None:
            return Entropy.from_seed(self.study.seed)
        return Entropy.from_key(self.talk.begun.key, context=plan.hash + self.talk.begun.run)

    def _relayed(self, plan: Plan, relay: Relay) -> Vector:
        """Relay all rounds of a method without a server; the aggregator carries the messages and cannot read them."""
        tick = self.talk.ticking(plan)

        def ask(kind: str, turn: int, asked: Mapping[str, Content], wanted: str, /) -> dict[str, Content]:
            said = ask_all(self.talk.post, kind, asked, Trust().timeout, wanted, turn)
            return {site: answer.content for site, answer in said.items()}

        log = self.folder / "private" / "relayed"
        return relay.model(plan, list(self.talk.cards), ask, log, lambda turn: tick(turn, plan.method.total))

    def _windows(self, plan: Plan, across: Across, asking: TrainAsking) -> Vector:
        """Run all windows of sites that do not wait for each other, and return the last model."""
        return LateWindows(
            plan=plan,
            span=across.span("training"),
            server=asking,
            members=across.members,
            trust=plan.trust,
            post=self.talk.post,
            private=self.folder / "private",
            mark=self.talk.mark(plan),
            tick=self.talk.ticking(plan),
        ).model()


@final
@dataclass(frozen=True, slots=True, eq=False)
class AtSites:
    """Implements Data: records are at the sites; the aggregator may have held-out records of its own.

    ``outline``: of the columns whose rule is learned.
    """

    folder: Path
    held: Held
    described: Described
    outline: Outline | None
    entropy: Entropy

    def stated(self, plan: Plan) -> Released:
        """Return nothing: across sites a rule is stated by them, or something of it is measured."""
        return {}

    def cells(self, plan: Plan) -> Cells:
        """Return the columns that the plan's preparation measures, without a row."""
        assert self.outline is not None  # noqa: S101  the plan has a preparation
        return Cells.without_rows(self.outline, plan.data.classes)

    def train(self, released: Released) -> Records:
        """Refuse: no record that trains is here."""
        raise TypeError("records that train are at the sites")

    def public_test(self, released: Released) -> Records | None:
        """Return None: no rule that looks at public records runs across sites."""
        return None

    def counted(self, plan: Plan, released: Released) -> tuple[Records | None, Labels | None]:
        """Return how the target is called; the records that are counted are at the sites."""
        rule = self.held.preparation or self.described.rule or kept_rule(self.folder)
        return None, None if rule is None else rule.labels

    def metrics(self, plan: Plan, released: Released) -> dict[str, Any]:
        """Return what the aggregator's own held-out records say of the model."""
        held = self.held.rows(released.get("preparation"))
        if held is None:
            task = "classification" if plan.data.classes else "regression"
            return {"format": 1, "task": task, "test": None, "baselines": {}}
        # Without baselines nothing is measured on training records, so the aggregator needs none.
        loaded = Loaded(
            train=held,
            test=held,
            test_public=self.held.public,
            dropped_rows=0,
            feature_names=(),
            preparation=self.held.preparation if self.held.cells is None else kept_rule(self.folder),
        )
        return measure(plan, loaded, released["training"], self.entropy)


@final
@dataclass(frozen=True, slots=True, eq=False)
class AcrossSites:
    """Implements Adder: every sum of a run comes about by asking the sites."""

    job: Federation
    plan: Plan
    across: Across

    def measures(self, stage: str, rows: Rows, beside: Mapping[str, Vector]) -> SitesMeasurer:
        """Return what gives the noisy sums of a stage."""
        members = self.across.members
        if stage == "preparation":
            return self.across.measures(stage, members.sizes)
        held = not self.plan.evaluation.trains and members.held_sizes is not None
        sizes = members.held_sizes if held and members.held_sizes is not None else members.sizes
        # A bound for units that are exchanged is half of how far that moves a sum: the norm is at most twice it.
        return self.across.measures(stage, sizes, times=2, beside=beside)

    def train(self, plan: Plan, data: Data, released: Released) -> Vector:
        """Train with the sites; first they are told what the preparation measured, and again after a restart."""
        if "preparation" in released:
            self.across.tell("preparation")
        return self.job.trained(plan, self.across, released.get(BEFORE))
