"""The plan: a frozen description of what will run, and so of what is accounted for. Its hash identifies it.

The trainer and the accountant read the plan and nothing else. It holds public quantities only: the shape of the data,
never a value, nor a hash of values (guesses can be tested against a hash of private data, so a hash is a release).
"""

import hashlib
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from operator import attrgetter
from typing import Any, Final, get_args

import numpy as np

from fedveil.accounting.grid import choose_grid
from fedveil.accounting.hidden import per_round
from fedveil.accounting.participation import Participation
from fedveil.core.errors import BadValue, require
from fedveil.core.fields import Exclusion, check_exclusions
from fedveil.core.tables import known, read_tables, table, write_tables
from fedveil.core.values import Vector, whole
from fedveil.data.canaries import check_count
from fedveil.data.records import DataShape
from fedveil.data.rows import check_name
from fedveil.data.spec import PLACES, Places
from fedveil.models.personal_request import SHARED_ALONE, PersonalRequest
from fedveil.models.spec import ModelPlan
from fedveil.planning.forgetting import NOBODY_LEAVES, Forgetting
from fedveil.planning.selection import ONE_RUN, Selection
from fedveil.privacy.mechanism import LastIterate
from fedveil.privacy.target import Target
from fedveil.privacy.trust import Trust
from fedveil.stages.evaluate.request import Apart
from fedveil.stages.evaluate.statement import NO_EVALUATION, Evaluation
from fedveil.stages.measured.plan import MeasuredPlan
from fedveil.stages.stage import Stage, SumsStage
from fedveil.stages.sums import NO_SUMS, NoisySums
from fedveil.stages.train.base import Training
from fedveil.stages.train.hidden.method import Hidden, hidden_of
from fedveil.stages.train.registry import KINDS, pulls_when_empty, read_method

FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where the rows to train on come from, as far as a reader of the certificate must know.

    ``places``: what decides who holds which record, where that is more than row numbers. ``public``: the records are
    declared public. ``blank_rows``: rows with a missing value stay, as records that contribute nothing.
    ``feature_map``: the public function that every record went through first.
    """

    places: Places | None = None
    public: bool = False
    blank_rows: bool = False
    feature_map: str | None = None

    def __post_init__(self) -> None:
        for name in ("public", "blank_rows"):
            require(type(getattr(self, name)) is bool, f"origin.{name}", "be true or false", getattr(self, name))
        known_places = self.places is None or self.places in PLACES.values()
        require(known_places, "origin.places", f"be one of {', '.join(PLACES.values())}", self.places)
        if self.feature_map is not None:
            check_name(self.feature_map)

    @property
    def revealed_by_places(self) -> bool:
        """True if the rule of who holds which record reveals private values, which noise does not cover."""
        return self.places == "labels" and not self.public


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutRecords:
    """The records that the model is measured on, and what is published about them; 0 ``records``: there are none.

    ``exact``: what is measured on records that are not public is published without noise. ``apart``: why no held-out
    row that is counted privately trains, where more than a declaration says so. ``baselines``: models trained without
    privacy are measured beside it.
    """

    records: int = 0
    public: bool = True
    exact: bool = False
    apart: Apart | None = None
    baselines: bool = False

    def __post_init__(self) -> None:
        for name in ("public", "exact", "baselines"):
            require(type(getattr(self, name)) is bool, f"held_out.{name}", "be true or false", getattr(self, name))
        object.__setattr__(self, "records", whole("held_out.records", self.records))
        require(self.records >= 0, "held_out.records", "be 0 or more", self.records)
        words = (None, *get_args(Apart))
        require(self.apart in words, "held_out.apart", f"be one of {', '.join(get_args(Apart))}", self.apart)
        told = not self.exact or self.private
        require(told, "held_out.exact", "be about held-out records that are not public", self.exact)

    @property
    def private(self) -> bool:
        """True if there are held-out records that are not public."""
        return self.records > 0 and not self.public


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(Training):
    """What will run; a part that is absent is empty, and then false.

    ``seeded``: the noise comes from a seed that others know. ``canaries``: how many of the records are slots of an
    audit. Where scores are linear, as many features belong to them. ``preparation``: what is measured, with noise,
    before training; ``evaluation``: what is counted after it. ``personal``: how parties make their own models.
    ``selection``: the plan is the best of several candidates, each with a target of its own. ``forgetting``: the plan
    goes on from the model of another one, without units that leave.
    """

    name: str
    seeded: bool = False
    canaries: int = 0
    origin: Origin = Origin()
    held_out: HeldOutRecords = HeldOutRecords()
    preparation: NoisySums = NO_SUMS
    evaluation: Evaluation = NO_EVALUATION
    personal: PersonalRequest = SHARED_ALONE
    selection: Selection = ONE_RUN
    forgetting: Forgetting = NOBODY_LEAVES

    def __post_init__(self) -> None:
        # A name must not contain line breaks, or it could fake further lines of the page that an operator reads.
        plain = isinstance(self.name, str) and self.name.isprintable() and len(self.name) <= 200
        require(plain, "plan.name", "be one line of at most 200 printable characters", str(self.name)[:60])
        require(type(self.seeded) is bool, "plan.seeded", "be true or false", self.seeded)
        object.__setattr__(self, "grid", whole("plan.grid", self.grid))
        require(-1000 <= self.grid <= 1000, "plan.grid", "lie in [-1000, 1000]", self.grid)
        object.__setattr__(self, "canaries", whole("plan.canaries", self.canaries))
        require(self.canaries >= 0, "plan.canaries", "be 0 or more", self.canaries)
        for name, kind in {"trust": Trust, **_PARTS}.items():
            right = isinstance(getattr(self, name), kind)
            require(right, f"plan.{name}", f"be a {kind.__name__}", getattr(self, name))
        self.method.check(self.setup)
        if self.canaries:
            check_canaries(self.canaries, self.data, self.model)
        if self.trust.shared:
            self.method.check_shares(self.setup, self.grid)
        check_exclusions(self, "", EXCLUSIONS)
        self.preparation.check(self.data)
        if "categories" in self.preparation:
            made, most = self.preparation["categories"].threshold or 0.0, self.target.largest_person
            require(made > most, "prepare.threshold", f"be above what one unit makes up, {most}", made)
        if self.evaluation:
            self._check_evaluation(self.evaluation)
        if self.selection:
            self._check_selection(self.selection)
        if self.forgetting:
            self._check_forgetting()

    def _check_evaluation(self, evaluation: Evaluation) -> None:
        evaluation.check(self.data, self.target, self.trust)
        if evaluation.trains:
            return
        hint = "Public records need no private evaluation."
        held = evaluation.held[0] == self.held_out.records and self.held_out.private
        require(held, "evaluation.held_records", "be the plan's held-out records, which are not public", None, hint)
        require(not self.held_out.exact, "held_out.exact", "be false with a private evaluation", True)

    def _check_selection(self, selection: Selection) -> None:
        hint = "Whoever sees every trial is promised their composition, which no selection makes cheaper."
        final = self.target.adversary == "final-model"
        require(final, "privacy.adversary", "be final-model for a tuned study", self.target.adversary, hint)
        found = self.candidates
        for plan in found:
            single = not plan.selection and not plan.method.noiseless
            require(single, "plan.candidates", "be plans of one run each, with noise", plan.method.kind)
            same = all(getattr(plan, key) == getattr(self, key) for key in _ALIKE)
            same = same and _asked(plan.target) == _asked(self.target)
            require(same, "plan.candidates", "differ in model, method and grid alone", plan.name)
        own = found[selection.chosen]
        same = (own.method, own.model, own.grid) == (self.method, self.model, self.grid)
        require(same, "plan.method", "be that of the chosen candidate", selection.chosen)

    def _check_forgetting(self) -> None:
        """Refuse rounds that are not like those before, but for their schedule: only such rounds contract by proof."""
        before, run = self.lineage[-2], self.run
        why = why_not_forgotten(before)
        require(not why, "forget.before", "be a plan whose rounds contract by proof", before.method.kind, why)
        same = all(getattr(before, name) == getattr(self, name) for name in ("model", "trust", "target"))
        require(same, "forget.before", "have the same model, trust and target", before.name)
        ours, theirs = self.data, before.data
        same = (ours.features, ours.classes, ours.bound) == (theirs.features, theirs.classes, theirs.bound)
        fewer = ours.records <= theirs.records and ours.clients <= theirs.clients
        fewer = ours == theirs or (fewer and bool(self.forgetting.away))
        require(same and fewer, "forget.before", "have the same data, or also those of sites that left", before.name)
        alike = ("lipschitz", "smoothness", "strong_convexity", "convex", "diameter", "noise", "neighbours")
        same = all(getattr(before.run, name) == getattr(run, name) for name in alike)
        require(same, "forget.before", "have the same constants", before.name)
        bare = not (self.canaries or self.selection)
        require(bare, "forget", "go on without canaries or a search of its own", self.name)
        # The plan is published with the new model: it bounds the old one, and does not show it.
        keep, reach = self.hidden.keep, self.hidden.reach
        named = self.hidden.start == () and reach == (before.radius if keep > 0 else 0.0)
        require(named, "forget", "go on from the model of the plan before, without naming it", reach)
        if self.preparation:
            require(keep == 0, "forget.keep", "be 0 where columns are learned again", keep)
            sums = [_measured(one.preparation) for one in (self, self.lineage[0])]
            require(sums[0] == sums[1], "prepare.name", "list what the first run measured", [one[0] for one in sums[0]])
        if keep > 0:
            self._check_contraction()

    def _check_contraction(self) -> None:
        """Refuse rounds whose maps may expand a gap, where something of the model before is left to be hidden."""
        run = self.run
        full = run.rounds == 1 and run.order == "public" and run.batch == self.units and run.stopping == "end"
        require(full, "forget", "be rounds of all units", run.order)
        steepest = float(np.max(per_round(run.step_size, run))) * ((run.smoothness or 0.0) + run.strong_convexity)
        require(steepest <= 2 + 1e-9, "forget.step_size", "be at most 2/(smoothness + l2)", steepest)

    @property
    def lineage(self) -> "tuple[Plan, ...]":
        """This plan after those that it goes on from, the first one first."""
        if not self.forgetting:
            return (self,)
        return (*_read_once(self.forgetting.before).lineage, self)

    @property
    def goes_on(self) -> bool:
        """True if the first round starts from a part of the model that the plan before released."""
        return bool(self.forgetting) and self.hidden.keep > 0

    @property
    def noun(self) -> str:
        """How messages call the job."""
        return "run"

    @property
    def output(self) -> str:
        """The file that is released."""
        return "model.npz"

    @property
    def named(self) -> dict[str, str]:
        """What it is, by name."""
        return {"study": self.name}

    @property
    def hides(self) -> bool:
        """True if the promise is that of one run of which only the last model is seen."""
        return self.method.hides and not self.selection

    @property
    def candidates(self) -> "tuple[Plan, ...]":
        """The plans that a trial draws from; empty for a plan of one run."""
        return tuple(_read_once(text) for text in self.selection.candidates)

    def with_chosen(self, number: int) -> "Plan":
        """The same plan, with the candidate of this number as the one that was selected; its hash stays."""
        require(self.selection, "The plan", "be for several candidates here", "one run")
        own = self.candidates[number]
        chosen = replace(self.selection, chosen=number)
        return replace(self, method=own.method, model=own.model, grid=own.grid, selection=chosen)

    @property
    def charged_rounds(self) -> int:
        """How many rounds a charge is for: of all trials, if there are as many as there can be."""
        if not self.selection:
            return self.method.total
        return self.selection.most * max(plan.method.total for plan in self.candidates)

    @property
    def measured(self) -> tuple[tuple[NoisySums, DataShape], ...]:
        """The noisy sums over units that train the model, which are composed with training; and over which data."""
        counted = self.evaluation.sums if self.evaluation.composed else NO_SUMS
        both = (self.preparation, self.data), (counted, self.evaluation.shape(self.data))
        return tuple((sums, data) for sums, data in both if sums)

    @property
    def training(self) -> Training:
        """The training stage by itself."""
        return Training(**{f.name: getattr(self, f.name) for f in fields(Training)})

    @property
    def stages(self) -> tuple[Stage, ...]:
        """What is asked of the clients, in order."""
        clients = self.data.clients
        found: list[Stage] = [self.training]
        if self.preparation:
            found.insert(0, SumsStage("preparation", self.preparation, clients))
        if self.evaluation:
            found.append(SumsStage("evaluation", self.evaluation.sums, self.evaluation.shape(self.data).clients))
        return tuple(found)

    @property
    def real_features(self) -> int:
        """Number of features of the records themselves, without those of canaries."""
        return self.data.features - self.canaries * self.model.linear

    @property
    def test_decides(self) -> bool:
        """True if something that is released depends on the held-out records, beside exact metrics on public ones."""
        chooses = bool(self.selection) or self.method.chooses
        return self.held_out.records > 0 and (chooses or not self.held_out.public)

    @property
    def voided(self) -> bool:
        """True if there is noise, but its guarantee does not hold for this run."""
        return self.seeded or self.origin.revealed_by_places

    @property
    def private(self) -> bool:
        """True if secret noise covers everything that leaves the clients; otherwise nothing is promised."""
        return not self.voided and not self.method.noiseless

    @property
    def exposed_by(self) -> str | None:
        """The reason why nothing is promised, in words; None if something is promised."""
        if self.private:
            return None
        if self.seeded:
            return "the noise comes from a seed that the study names"
        if self.origin.revealed_by_places:
            return "the split among clients depends on labels, and data.public does not declare the records public"
        return "there is no noise"

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences that a reader of the numbers should know."""
        loose = self.target.loose_delta(self.units)
        exact = None
        if self.held_out.exact:
            exact = (
                f"Exact metrics on {self.held_out.records:,} held-out records that are not public are published: "
                "the ledger says no guarantee for every observer."
            )
        return tuple(text for text in (exact, loose) if text is not None)

    @property
    def unprotected(self) -> bool:
        """True if something leaves the clients without noise.

        Every observer is then charged as if it learned everything.
        """
        bare = self.held_out.baselines and not self.origin.public
        return not self.private or self.held_out.exact or bare

    @property
    def hidden(self) -> Hidden:
        """The method, if it is the hidden one; refused otherwise."""
        return hidden_of(self)

    @property
    def run(self) -> LastIterate:
        """The schedule of a hidden method."""
        return self.hidden.run

    @property
    def participation(self) -> Participation:
        """How often clients take part in a hidden method."""
        return self.hidden.participation(self.setup)

    @property
    def hash(self) -> str:
        """SHA-256 of the plan's text; of a selection, before it is known which candidate is chosen."""
        if self.selection.chosen != 0:
            return self.with_chosen(0).hash
        return hashlib.sha256(self.text().encode()).hexdigest()

    def text(self) -> str:
        """Return the plan as TOML text; reading it back gives an equal plan."""
        return write_plan(self)


def starting_from(plan: Plan, model: Vector) -> Plan:
    """Return the plan of hidden training that starts from public parameters, on a grid that holds them too.

    No guarantee depends on where a run starts, as long as nobody's record decides it.
    """
    method = replace(plan.hidden, start=tuple(float(value) for value in model))
    noise = method.noise()
    grid = choose_grid(method.radius(plan.setup), float(noise.min()), float(noise.max()))
    return replace(plan, method=method, grid=grid)


def _measured(sums: NoisySums) -> list[tuple[str, int, float, bool]]:
    """Return what is measured, whatever its noise."""
    return [(one.name, one.size, one.bound, one.counts) for one in sums.measurements]


def why_not_forgotten(plan: Plan) -> str:
    """Return why further rounds do not forget a unit by proof; empty where they do."""
    price = f"epsilon {plan.target.epsilon:g} once more for every {plan.target.unit} that stays"
    retrain = f"Train again without it (fedveil run): that costs {price}."
    if plan.method.kind != Hidden.kind:
        return f"It is proved for hidden training alone, not for {plan.method.kind}. {retrain}"
    if plan.selection or plan.canaries:
        return f"A search and canaries have no single run that could go on. {retrain}"
    if not plan.private:
        return f"Nothing was promised: {plan.exposed_by}. {retrain}"
    if plan.run.smoothness is None or not plan.run.convex:
        return f"Steps on a loss that is not smooth and convex do not contract by proof. {retrain}"
    if plan.run.noise != "gaussian":
        return f"Further rounds are certified with Gaussian noise. {retrain}"
    if plan.model.curves.monotone:
        return f"Shapes made monotone after training are not the model that rounds go on from. {retrain}"
    if len(plan.lineage) >= MOST_LINEAGE:
        return f"So many requests were served from one training. {retrain}"
    return ""


def _persons(plan: Plan) -> bool:
    return plan.target.unit == "person"


def _pulled(plan: Plan) -> bool:
    return pulls_when_empty(plan.method.kind) and plan.model.l2 > 0 and plan.target.neighbours == "zero-out"


_OF, _ONE_MODEL = attrgetter, "Measure or personalise the model of one run."
_CANARIES, _COUNTED, _OWN_MODELS, _TUNED = _OF("canaries"), _OF("evaluation"), _OF("personal"), _OF("selection")
_THRESHOLD, _PERSONS = _OF("model.decision_threshold"), _persons
EXCLUSIONS: Final = (
    Exclusion(
        "audit.canaries",
        "a feature map",
        "A canary is a feature of its own, which no map makes.",
        _OF("origin.feature_map"),
        _CANARIES,
    ),
    Exclusion(
        "audit.canaries",
        "a private preparation",
        "Canaries are rows of the features that a study states: state the preparation.",
        _OF("preparation"),
        _CANARIES,
    ),
    Exclusion(
        "audit.canaries", "a private evaluation", "Canaries would be counted among the records.", _COUNTED, _CANARIES
    ),
    Exclusion(
        "audit.canaries", "[personal]", "Canaries are looked for in the shared model alone.", _OWN_MODELS, _CANARIES
    ),
    Exclusion("audit.canaries", "[tune]", "Canaries are looked for in the model of one run.", _TUNED, _CANARIES),
    Exclusion(
        "audit.canaries",
        "fedavg, l2 and zero-out neighbours",
        "A client without records would still send the penalty's pull: take replace-one neighbours.",
        _pulled,
        _CANARIES,
    ),
    Exclusion("audit.canaries", 'privacy.unit = "person"', "A canary is a single record.", _PERSONS, _CANARIES),
    Exclusion(
        "tune.score",
        'privacy.unit = "person"',
        "Private scores are noised for single records: score on public ones.",
        _PERSONS,
        _OF("selection.private"),
    ),
    Exclusion(
        "[evaluation]",
        "a survival model",
        "Hold public records out, to measure it on them.",
        _OF("model.survival"),
        _COUNTED,
    ),
    Exclusion(
        "model.decision_threshold",
        "a private evaluation",
        "Counts tell classes apart where their scores are equal.",
        _COUNTED,
        _THRESHOLD,
    ),
    Exclusion(
        "report.baselines",
        "a private evaluation of held-out records",
        "Their metrics would be computed on the same private records, without noise.",
        lambda plan: not plan.evaluation.trains,
        _OF("held_out.baselines"),
    ),
    Exclusion(
        "[personal]", "a survival model", "Own models are for classes and numbers.", _OF("model.survival"), _OWN_MODELS
    ),
    Exclusion("[personal]", "a torch model", "Linear models alone.", lambda plan: not plan.model.linear, _OWN_MODELS),
    Exclusion(
        "model.decision_threshold", "[personal]", "Every party finds its own threshold.", _OWN_MODELS, _THRESHOLD
    ),
    Exclusion("[evaluation]", "[tune]", _ONE_MODEL, _TUNED, _COUNTED),
    Exclusion("[personal]", "[tune]", _ONE_MODEL, _TUNED, _OWN_MODELS),
)
# Parts of a plan by the name of their table in its text; a part that is as by default has no table.
_TABLES: Final = {
    "origin": ("origin", Origin),
    "held_out": ("held_out", HeldOutRecords),
    "prepare": ("preparation", NoisySums),
    "evaluation": ("evaluation", Evaluation),
    "personal": ("personal", PersonalRequest),
    "tune": ("selection", Selection),
    "forget": ("forgetting", Forgetting),
}
_PARTS: Final[dict[str, Any]] = dict(_TABLES.values())
_HEAD: Final = ("name", "grid", "seeded", "canaries")
MOST_LINEAGE: Final = 20  # plans that follow each other without some units
_OWN: Final = ("method", "model", "grid", "target", "selection")  # in which candidates of a selection may differ
_ALIKE: Final = [f.name for f in fields(Plan) if f.name not in _OWN]
_USUAL: Final = {f.name: f.default for f in fields(Plan)}


def write_plan(plan: Plan) -> str:
    """Return the plan as TOML text; reading it back gives an equal plan.

    Every field is written, except what is None and parts that are as by default.
    """
    head = {key: getattr(plan, key) for key in _HEAD}
    tables = {
        "plan": {"format": FORMAT, "algorithm": plan.method.kind, **head},
        "data": _values(plan.data),
        "model": plan.model.table(),
        "privacy": plan.target.table(),
        "method": plan.method.table(),
        **plan.trust.tables(),
    }
    for name, (key, _) in _TABLES.items():
        part = getattr(plan, key)
        if part != _USUAL[key]:
            tables[name] = part.table() if hasattr(part, "table") else _values(part)
    return write_tables(tables)


def read_plan(text: str) -> Plan:
    """Return the plan that a text describes."""
    tables, names = read_tables(text, "The plan"), ["plan", "data", "model", "privacy", "method"]
    known(tables, [*names, "trust", *_TABLES], "a plan")
    for name in names:
        require(name in tables, "The plan", f"have a [{name}] table", sorted(tables))
    head = dict(table(tables["plan"], "plan"))
    form, kind = head.pop("format", None), head.pop("algorithm", None)
    require(form == FORMAT, "plan.format", f"be {FORMAT}", form, "It was written by another version of fedveil.")
    require(kind in KINDS, "plan.algorithm", f"be one of {', '.join(KINDS)}", kind)
    known(head, _HEAD, "[plan]")
    parts: dict[str, Any] = {
        "data": _read(DataShape, tables["data"], "data"),
        "model": ModelPlan.parse(table(tables["model"], "model")),
        "target": _read(Target, tables["privacy"], "privacy"),
        "method": read_method(str(kind), table(tables["method"], "method")),
    }
    # Without the number in the file we would count parameters in the module, and reading a plan would run its code.
    require(parts["model"].size_known, "model.parameters", "be stated in the plan of a torch model", None)
    if "trust" in tables:
        parts["trust"] = _read(Trust, tables["trust"], "trust")
    for name, (key, part) in _TABLES.items():
        if name in tables:
            given = table(tables[name], name)
            parts[key] = part.read(given) if hasattr(part, "read") else _read(part, given, name)
    try:
        return Plan(**parts, **head)
    except TypeError as error:
        raise BadValue(f"The plan must be complete: {error}.") from error


AnyPlan = Plan | MeasuredPlan  # whatever is carried out, charged and certified


def read_any_plan(text: str) -> AnyPlan:
    """Return the plan that a text describes: of a run that trains, or of one stage of noisy sums."""
    return MeasuredPlan.read(text) if MeasuredPlan.describes(text) else read_plan(text)


def charged_text(text: str) -> str:
    """Return a plan's text as it was charged: of a selection, before it was known which candidate is chosen."""
    if "\n[tune]\n" not in text:
        return text
    return write_plan(read_plan(text).with_chosen(0))


@lru_cache(maxsize=256)
def _read_once(text: str) -> Plan:
    """Return the plan of a text; those of a selection are asked for again and again."""
    return read_plan(text)


def _asked(target: Target) -> tuple[str, str, str]:
    return target.adversary, target.unit, target.neighbours


def check_canaries(count: int, data: DataShape, model: ModelPlan) -> None:
    """Refuse a number of canaries that shows nothing, or leaves no room for other records and features."""
    check_count(count)
    fits = count < (min(data.records, data.features) if model.linear else data.records)
    require(fits, "plan.canaries", "leave other records and features", (data.records, data.features))


def _values(part: Any) -> dict[str, Any]:
    return {f.name: getattr(part, f.name) for f in fields(part)}


def _read(kind: Any, given: Any, name: str) -> Any:
    values = table(given, name)
    known(values, [f.name for f in fields(kind)], f"[{name}]")
    try:
        return kind(**values)
    except TypeError as error:
        raise BadValue(f"[{name}] must be complete: {error}.") from error
