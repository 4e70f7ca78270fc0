"""A study: which data, which clients, which model, which privacy target. Reads and checks a study file."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, get_args

from fedveil.core.errors import BadValue, require, why
from fedveil.core.fields import Exclusion, check_exclusions
from fedveil.core.files import read_file
from fedveil.core.tables import filled, known, read_tables, table
from fedveil.core.values import number, whole
from fedveil.data.canaries import Canaries, check_count
from fedveil.data.records import DataShape
from fedveil.data.spec import HeldOut, Learned, Source, Split
from fedveil.models.personal_request import SHARED_ALONE, PersonalRequest
from fedveil.models.spec import ModelPlan
from fedveil.planning.design import Planned, make_plan, read_request, shared_budget
from fedveil.planning.plan import HeldOutRecords, Origin
from fedveil.planning.tuning import NOT_TUNED, Candidate, Design, TuneRequest, read_tune, tuned
from fedveil.privacy.guarantee import Adversary
from fedveil.privacy.target import Target
from fedveil.privacy.trust import CENTRAL, Trust
from fedveil.stages.evaluate.budget import settle_evaluation
from fedveil.stages.evaluate.request import UNSAID, Apart, EvaluationRequest
from fedveil.stages.evaluate.statement import NO_EVALUATION, Evaluation
from fedveil.stages.prepare.request import BOUND, PrepareRequest
from fedveil.stages.sums import NO_SUMS, NoisySums
from fedveil.stages.train.request import AlgorithmRequest, ScheduleRequest, Task

_TABLES = [
    "study",
    "data",
    "clients",
    "model",
    "privacy",
    "algorithm",
    "schedule",
    "books",
    "report",
    "audit",
    "trust",
    "prepare",
    "evaluation",
    "personal",
    "tune",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Books:
    """Path of the ledger of the data set, and the caps on all spending ever: (adversary, epsilon, delta).

    ``held_out``: path of the ledger of a held-out source that has one of its own.
    """

    ledger: Path | None = None
    held_out: Path | None = None
    caps: tuple[tuple[Adversary, float, float], ...] = ()

    def __post_init__(self) -> None:
        for adversary, epsilon, delta in self.caps:
            require(adversary in get_args(Adversary), "books.cap", f"name one of {get_args(Adversary)}", adversary)
            require(0 < epsilon <= 1e6, f"books.cap.{adversary}", "give an epsilon in (0, 1e6]", epsilon)
            require(0 <= delta < 1, f"books.cap.{adversary}", "give a delta in [0, 1)", delta)


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyData:
    """What a study says about its records: where they are, whose they are, and which of them do not train.

    ``base``: the folder that relative paths start from. ``source``: None where the records are given. ``public``: they
    are declared public. ``feature_map``: the public function that records go through first, as the source or the given
    records state it.
    """

    base: Path
    source: Source | None
    split: Split
    held_out: HeldOut | None = None
    public: bool = False
    feature_map: str | None = None

    @property
    def origin(self) -> Origin:
        """What a plan states of the rows; row numbers, and given records, have no places."""
        found = self.split.places
        return Origin(
            places=None if self.source is None or found == "row numbers" else found,
            public=self.public,
            blank_rows=self.source is not None and self.source.drops_rows,
            feature_map=self.feature_map,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """A whole study; a part that it does not have is empty, and then false.

    ``canaries``: how many are put among the records for an audit. ``prepare``: what of the columns is learned
    privately; None where the study states how they become rows. ``evaluation``: how the model is measured on records
    that are not public. ``personal``: how parties make models of their own from it. ``tune``: the candidates of which
    the best is released.
    """

    name: str
    data: StudyData
    model: ModelPlan
    target: Target
    algorithm: AlgorithmRequest
    schedule: ScheduleRequest
    books: Books = Books()
    seed: int | None = None
    baselines: bool = False
    canaries: int = 0
    trust: Trust = CENTRAL
    prepare: PrepareRequest | None = None
    evaluation: EvaluationRequest = UNSAID
    personal: PersonalRequest = SHARED_ALONE
    tune: TuneRequest = NOT_TUNED

    @property
    def source(self) -> Source | None:
        """Where the records are; None where they are given."""
        return self.data.source

    @property
    def base(self) -> Path:
        """The folder that relative paths start from."""
        return self.data.base

    @property
    def slots(self) -> Canaries | None:
        """The canaries that the study asks for, or None."""
        if not self.canaries:
            return None
        linear = self.model.linear
        return Canaries(count=self.canaries, neighbours=self.target.neighbours, unit=self.target.unit, columns=linear)

    def planned(
        self,
        shape: DataShape,
        test_records: int = 0,
        test_public: bool = True,
        preparation: NoisySums = NO_SUMS,
        held: DataShape | None = None,
        joint: bool = False,
        apart: Apart | None = None,
    ) -> Planned:
        """The plan of this study on data of this shape, canaries included, with its ``preparation``.

        Training then gets what the measurements leave of the target: they are composed exactly, and together meet it.
        ``held``: the shape of the held-out records, which a private evaluation may be about; ``joint``: clients may own
        records of both kinds; ``apart``: why no held-out row trains, where that is more than declared.
        """
        if self.tune:
            check_exclusions(self, "", EXCLUSIONS)

            def design(candidate: Candidate, target: Target) -> Planned:
                one = self.candidate(candidate, target)
                return one.planned(shape, test_records, test_public, preparation, apart=apart)

            return self.tuned(design, test_records, test_public)
        task = Task(
            data=shape,
            model=self.model,
            target=self.target,
            schedule=self.schedule,
            canaries=self.canaries,
            trust=self.trust,
        )

        def designed(inner: Task) -> Planned:
            return self._designed(inner, test_records, test_public)

        private = None if test_public else held
        evaluation = self._counted(shape, private, joint) if private is not None or self.evaluation else NO_EVALUATION
        counted = evaluation if evaluation.composed else NO_EVALUATION
        if preparation or counted or self.target.unit == "person":
            planned = shared_budget(self.algorithm, task, preparation, designed, counted)
        else:
            planned = designed(task)
        exact = self.exact and test_records > 0 and not test_public
        held_out = replace(planned.plan.held_out, exact=exact, apart=apart)
        plan = replace(planned.plan, personal=self.personal, evaluation=evaluation, held_out=held_out)
        return replace(planned, plan=plan)

    def _counted(self, shape: DataShape, held: DataShape | None, joint: bool) -> Evaluation:
        """The private evaluation that the study asks for, or has because it can be had."""
        asked = self.counting
        if not asked:
            return NO_EVALUATION
        both = joint and self.target.unit == "client"
        found = settle_evaluation(asked, shape, self.target, self.trust, held, both)
        if not found.trains:
            self._check_held()
        return found

    @property
    def exact(self) -> bool:
        """True if the study asks for exact metrics on held-out records, whoever they are of.

        The metrics of baselines are such metrics, so whoever asks for baselines asks for these too.
        """
        return not self.evaluation.private if self.evaluation else self.baselines

    @property
    def counting(self) -> EvaluationRequest:
        """The private evaluation on held-out records that are not public, if there is one.

        A study that says nothing has one wherever that is possible; otherwise nothing about these records is published.
        """
        if self.evaluation:
            return self.evaluation if self.evaluation.private else UNSAID
        return UNSAID if self.exact or self.tune or self.uncounted is not None else EvaluationRequest()

    @property
    def uncounted(self) -> str | None:
        """Why held-out records cannot be counted privately, in words; None if they can."""
        if self.model.survival:
            return "a survival model has no private evaluation"
        if self.model.generates:
            return "a generator has no scores"
        if self.model.decision_threshold is not None:
            return "the study states a decision threshold"
        if self.canaries:
            return "canaries stand among the records"
        return None if self._named else "clients are protected, and the data do not say whose the held-out records are"

    @property
    def _named(self) -> bool:
        return self.target.unit != "client" or self.source is None or self.data.split.natural

    def _check_held(self) -> None:
        """Refuse to count held-out records of clients that the data do not name, where clients are protected."""
        hint = 'Records held out of clients that fedveil deals are nobody\'s: say records = "training".'
        require(self._named, "evaluation.records", "be training when privacy.unit is client here", "held-out", hint)

    def candidate(self, candidate: Candidate, target: Target) -> "Study":
        """The study of one candidate, with a target of its own."""
        model, algorithm, schedule = candidate.model, candidate.algorithm, candidate.schedule
        return replace(self, tune=NOT_TUNED, target=target, model=model, algorithm=algorithm, schedule=schedule)

    def tuned(self, design: Design, test_records: int, test_public: bool) -> Planned:
        """The plan of the best of the candidates, which ``design`` plans one by one."""
        require(self.tune, "The study", "have a [tune] table to be tuned", self.name)
        hint = "Add [data.held_out]: a trial is scored on records that it was not trained on."
        require(test_records > 0, "[data.held_out]", "be there for a tuned study", "no held-out records", hint)
        if self.tune.score == "public":
            hint = 'Declare data.held_out.public, or state tune.score = "private" to have the score noised and charged.'
            require(test_public, "tune.score", "be private for records that are not public", "public", hint)
        elif self.target.unit == "client":
            apart = self.data.held_out is not None and self.data.held_out.source is None
            hint = "A client must be trained on or held out, not both: hold out a fraction, which takes whole clients."
            require(
                apart, "tune.score", "be public for clients and another source of held-out records", "private", hint
            )
            hint = "Records held out of clients that fedveil deals count as one client, and the noise hides it."
            named = self.data.split.natural
            require(named, "tune.score", "be public for clients that the data do not name", "private", hint)
        return tuned(self.tune, self.target, design)

    def _designed(self, task: Task, test_records: int, test_public: bool) -> Planned:
        return make_plan(
            self.name,
            self.algorithm,
            task,
            seeded=self.seed is not None,
            origin=self.data.origin,
            held_out=HeldOutRecords(records=test_records, public=test_public, baselines=self.baselines),
        )


_ONE_MODEL: Final = "Measure or personalise the model of one run."
EXCLUSIONS: Final = (
    Exclusion("[evaluation]", "[tune]", _ONE_MODEL, lambda study: study.tune, lambda study: study.evaluation),
    Exclusion("[personal]", "[tune]", _ONE_MODEL, lambda study: study.tune, lambda study: study.personal),
)


def read_study(path: Path) -> Study:
    """Read a study from a file; its relative paths start from the folder of the file."""
    return study_of(tables_of(path), base=path.parent, name=path.stem)


def read_study_without_data(path: Path) -> Study:
    """Read a study that leaves [data] and [clients] to the sites."""
    return study_of(tables_of(path), base=path.parent, name=path.stem, data_given=True)


def tables_of(path: Path) -> dict[str, Any]:
    """Return the tables of a study file."""
    try:
        text = read_file(path).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise BadValue(f"The study file {str(path)!r} must be a readable text file: {why(error)}.") from error
    return read_tables(text, "The study file")


def parse_study(text: str, *, base: Path, name: str = "study") -> Study:
    """Return the study that a text describes."""
    return study_of(read_tables(text, "The study file"), base=base, name=name)


def study_of(tables: Mapping[str, Any], *, base: Path, name: str = "study", data_given: bool = False) -> Study:
    """Return the study of these tables; ``data_given``: the records come as arrays, so it may not name a source."""
    known(tables, _TABLES, "a study")
    if data_given:
        # the table names no source and no rule
        own = {"data"} if set(table(tables.get("data", {}), "data")) <= {"public", "largest_person"} else set()
        stray = sorted({"data", "clients"} & set(tables) - own)
        hint = "Of [data] only public and largest_person may be stated."
        require(not stray, "The study", "leave [data] and [clients] out when records are given", stray, hint)
    for needed in ("model", "privacy") if data_given else ("data", "model", "privacy"):
        require(needed in tables, "The study", f"have a [{needed}] table", sorted(tables))
    parts = {key: table(tables.get(key, {}), key) for key in _TABLES}
    known(parts["study"], ["name", "seed"], "[study]")
    known(parts["audit"], ["canaries"], "[audit]")
    known(parts["report"], ["baselines"], "[report]")
    baselines, seed = parts["report"].get("baselines", False), parts["study"].get("seed")
    require(isinstance(baselines, bool), "report.baselines", "be true or false", baselines)
    data, public = dict(parts["data"]), parts["data"].get("public", False)
    require(isinstance(public, bool), "data.public", "be true or false", public)
    held_out = data.pop("held_out", None)
    additive = parts["model"].get("shape") == "additive" and not data_given
    prepare = PrepareRequest() if additive and "prepare" not in tables else _prepare(tables, data, data_given)
    if prepare is not None:
        data.setdefault("feature_bound", BOUND)
    source = None if data_given else Source.parse(data)
    if held_out is not None and source is not None:
        held_out = HeldOut.parse(table(held_out, "data.held_out"), source)
    if prepare is not None and source is not None:
        source, held_out = _left_open(source, held_out, prepare)
    _check_counts(parts["model"], source)
    request, target = read_request(parts["algorithm"]), _target(parts["privacy"], data)
    return Study(
        name=_name(parts["study"].get("name", name)),
        data=StudyData(
            base=base,
            source=source,
            split=_split(parts, data_given),
            held_out=held_out,
            public=public,
            feature_map=None if source is None else source.feature_map,
        ),
        model=ModelPlan.parse(parts["model"]),
        target=target,
        algorithm=request,
        schedule=filled(ScheduleRequest, parts["schedule"], "schedule"),
        books=_books(parts["books"], base),
        seed=None if seed is None else whole("study.seed", seed),
        baselines=baselines,
        canaries=check_count(parts["audit"]["canaries"], target.epsilon) if "canaries" in parts["audit"] else 0,
        trust=filled(Trust, parts["trust"], "trust") if "trust" in tables else CENTRAL,
        prepare=prepare,
        evaluation=_evaluation(tables),
        personal=PersonalRequest.read(table(tables["personal"], "personal")) if "personal" in tables else SHARED_ALONE,
        tune=read_tune(tables),
    )


def _target(privacy: Mapping[str, Any], data: Mapping[str, Any]) -> Target:
    """Return the target; the most records of a person stand with the column that names persons, in [data]."""
    require("largest_person" not in privacy, "privacy.largest_person", "stand in [data]", privacy.get("largest_person"))
    stated = {key: data[key] for key in ("largest_person",) if key in data}
    persons = privacy.get("unit") == "person"
    hint = "State data.person_column and data.largest_person, the most rows of one person that may be used."
    require(not persons or stated, "privacy.unit", "be person with data.largest_person", "person", hint)
    found: Target = filled(Target, {**privacy, **stated}, "privacy")
    return found


def _split(parts: Mapping[str, Mapping[str, Any]], data_given: bool) -> Split:
    """Who owns what: as [clients] says; else as the client column says; else one holder owns all records.

    What needs several clients has to be told who they are.
    """
    if parts["clients"]:
        return Split.parse(parts["clients"])
    if "client_column" in parts["data"]:
        return Split.parse({"kind": "column"})
    hint = (
        'Records that nobody divides are one holder\'s. State [clients]: kind = "column" with data.client_column, '
        '"file" for a folder, or "record" if every row is a client of its own.'
    )
    several = {"[trust]": bool(parts["trust"]), 'privacy.unit = "client"': parts["privacy"].get("unit") == "client"}
    for name, asked in several.items():
        require(data_given or not asked, name, "come with a study that says who the clients are", "no [clients]", hint)
    return Split.parse({"kind": "equal", "count": 1})


def _prepare(tables: Mapping[str, Any], data: Mapping[str, Any], data_given: bool) -> PrepareRequest | None:
    """What is to be learned: as [prepare] says; without it only where the study does not even state a feature bound."""
    if "prepare" not in tables:
        return None if data_given or "feature_bound" in data else PrepareRequest()
    found: PrepareRequest = filled(PrepareRequest, table(tables["prepare"], "prepare"), "prepare")
    # Without data of its own the study is for given records, or for sites, which may leave their rule open.
    return None if found.kind == "stated" and not data_given else found


def _check_counts(model: Mapping[str, Any], source: Source | None) -> None:
    """Refuse counts whose range does not begin at 0."""
    if model.get("kind") != "poisson" or source is None or source.labelling.target_scale is None:
        return
    low = source.labelling.target_scale[0]
    hint = "The range of a count is [0, the most that is counted]."
    require(low == 0, "data.target_scale", "begin at 0 for a poisson model", low, hint)


def _evaluation(tables: Mapping[str, Any]) -> EvaluationRequest:
    if "evaluation" not in tables:
        return UNSAID
    found: EvaluationRequest = filled(EvaluationRequest, table(tables["evaluation"], "evaluation"), "evaluation")
    return found


def _left_open(source: Source, held_out: HeldOut | None, prepare: PrepareRequest) -> tuple[Source, HeldOut | None]:
    """The sources with what is left to the preparation."""
    left: Learned = "all" if prepare.kind == "private" else "unstated"
    if held_out is not None and held_out.source is not None:
        held_out = replace(held_out, source=replace(held_out.source, learned=left))
    return replace(source, learned=left), held_out


def _books(given: Mapping[str, Any], base: Path) -> Books:
    known(given, ["ledger", "held_out", "cap"], "[books]")
    caps = table(given.get("cap", {}), "books.cap")
    known(caps, get_args(Adversary), "[books.cap]")
    rows: list[tuple[Any, float, float]] = []
    for adversary, cap in caps.items():
        pair = isinstance(cap, list) and len(cap) == 2
        require(pair, f"books.cap.{adversary}", "be a pair [epsilon, delta]", cap)
        epsilon, delta = (number(f"books.cap.{adversary}", value) for value in cap)
        rows.append((adversary, epsilon, delta))
    paths = {key: base / _text(f"books.{key}", given[key]) for key in ("ledger", "held_out") if key in given}
    return Books(**paths, caps=tuple(rows))


def _name(given: Any) -> str:
    fits = isinstance(given, str) and given.strip() != "" and given.isprintable() and len(given) <= 200
    require(fits, "study.name", "be one line of at most 200 printable characters", str(given)[:60])
    return str(given)


def _text(name: str, value: Any) -> str:
    require(isinstance(value, str) and value.strip() != "", name, "be a text", value)
    return str(value)
