"""A study: which data, which clients, which model, which privacy target. Reads and checks a study file."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_args

from fedveil.algorithms.request import AlgorithmRequest, Task
from fedveil.algorithms.schedule_request import ScheduleRequest
from fedveil.checks import require
from fedveil.data.canaries import Canaries, check_count
from fedveil.data.records import DataShape
from fedveil.data.spec import HeldOut, Learned, Places, Source, Split
from fedveil.design import Planned, make_plan, read_request
from fedveil.errors import BadValue, why
from fedveil.evaluate.budget import settled_evaluation
from fedveil.evaluate.request import Apart, EvaluationRequest
from fedveil.files import read_file
from fedveil.guarantee import Adversary
from fedveil.model.personal_request import PersonalRequest
from fedveil.model.spec import ModelPlan
from fedveil.model.torch import OWN
from fedveil.prepare.request import BOUND, PrepareRequest
from fedveil.shared_budget import shared_budget
from fedveil.stages.sums import NoisySums
from fedveil.tables import filled, known, read_tables, table
from fedveil.target import Target
from fedveil.trust import CENTRAL, Trust
from fedveil.tune_request import Candidate, TuneRequest, read_tune
from fedveil.tuned_plan import Design, tuned
from fedveil.values import number, whole

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
class Study:
    """A whole study.

    ``canaries``: how many are put among the records for an audit. ``training_public``: ``data.public`` declares so.
    ``prepare``: what of the columns is learned privately; None where the study states how they become rows.
    ``evaluation``: how the model is measured on records that are not public; None where the study does not say.
    ``personal``: how parties make models of their own from it; None where they do not.
    ``tune``: the candidates of which the best is released; None for one run.
    ``feature_map``: the public function that records go through first, as the source or the given records state it.
    """

    name: str
    base: Path
    source: Source | None
    split: Split
    held_out: HeldOut | None
    model: ModelPlan
    target: Target
    algorithm: AlgorithmRequest
    schedule: ScheduleRequest
    books: Books = Books()
    seed: int | None = None
    baselines: bool = False
    training_public: bool = False
    canaries: int | None = None
    trust: Trust = CENTRAL
    prepare: PrepareRequest | None = field(default=None, repr=False)
    evaluation: EvaluationRequest | None = field(default=None, repr=False)
    personal: PersonalRequest | None = field(default=None, repr=False)
    tune: TuneRequest | None = field(default=None, repr=False)
    feature_map: str | None = field(default=None, repr=False)

    @property
    def slots(self) -> Canaries | None:
        """The canaries that the study asks for, or None."""
        if self.canaries is None:
            return None
        linear = self.model.kind != "torch"
        return Canaries(count=self.canaries, neighbours=self.target.neighbours, unit=self.target.unit, columns=linear)

    @property
    def places(self) -> Places | None:
        """The rule that decides who holds which record, as a plan states it; None for row numbers or given records."""
        found = self.split.places
        return None if self.source is None or found == "row numbers" else found

    @property
    def told_by_places(self) -> bool:
        """True if the rule of who holds which record reveals private values. Then no run of this study is private."""
        return self.places == "labels" and not self.training_public

    def planned(
        self,
        shape: DataShape,
        test_records: int = 0,
        test_public: bool = True,
        preparation: NoisySums | None = None,
        held: DataShape | None = None,
        joint: bool = False,
        apart: Apart | None = None,
    ) -> Planned:
        """The plan of this study on data of this shape, canaries included; with its ``preparation``, if there is one.

        Training then gets what the measurements leave of the target: they are composed exactly, and together meet it.
        ``held``: the shape of the held-out records, which a private evaluation may be about; ``joint``: clients may own
        records of both kinds; ``apart``: why no held-out row trains, where that is more than declared.
        """
        planned = self._planned(shape, test_records, test_public, preparation, held, joint, apart)
        if self.tune is not None:
            return planned
        exact = self.exact and test_records > 0 and not test_public
        return replace(planned, plan=replace(planned.plan, test_exact=exact, test_apart=apart))

    def _planned(
        self,
        shape: DataShape,
        test_records: int,
        test_public: bool,
        preparation: NoisySums | None,
        held: DataShape | None,
        joint: bool,
        apart: Apart | None,
    ) -> Planned:
        if self.tune is not None:
            alone, hint = self.evaluation is None and self.personal is None, "Measure or personalise one run's model."
            require(alone, "[evaluation] and [personal]", "be left out of a tuned study", "one of them", hint)

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

        evaluation, private = None, None if test_public else held
        asked = self.counting if private is not None or self.evaluation is not None else None
        if asked is not None:
            both = joint and self.target.unit == "client"
            evaluation = settled_evaluation(asked, shape, self.target, self.trust, private, both)
            if not evaluation.trains:
                self._check_held()
        counted = evaluation if evaluation is not None and evaluation.composed else None
        if preparation is None and counted is None:
            planned = designed(task)
        else:
            planned = shared_budget(self.algorithm, task, preparation, designed, counted)
        if self.personal is not None:
            planned = replace(planned, plan=replace(planned.plan, personal=self.personal))
        if evaluation is None or counted is not None:
            return planned
        return replace(planned, plan=replace(planned.plan, evaluation=evaluation))

    @property
    def exact(self) -> bool:
        """True if the study asks for exact metrics on held-out records, whoever they are of.

        The metrics of baselines are such metrics, so whoever asks for baselines asks for these too.
        """
        return self.baselines if self.evaluation is None else not self.evaluation.private

    @property
    def counting(self) -> EvaluationRequest | None:
        """The private evaluation on held-out records that are not public; None where there is none.

        A study that says nothing has one wherever that is possible; otherwise nothing about these records is published.
        """
        if self.evaluation is not None:
            return self.evaluation if self.evaluation.private else None
        return None if self.exact or self.tune is not None or self.uncounted is not None else EvaluationRequest()

    @property
    def uncounted(self) -> str | None:
        """Why held-out records cannot be counted privately, in words; None if they can."""
        if self.model.kind == "survival":
            return "a survival model has no private evaluation"
        if self.model.criterion == OWN:
            return "a generator has no scores"
        if self.model.decision_threshold is not None:
            return "the study states a decision threshold"
        if self.canaries is not None:
            return "canaries stand among the records"
        return None if self._named else "clients are protected, and the data do not say whose the held-out records are"

    @property
    def _named(self) -> bool:
        return self.target.unit == "record" or self.source is None or self.split.natural

    def _check_held(self) -> None:
        """Refuse to count held-out records of clients that the data do not name, where clients are protected."""
        hint = 'Records held out of clients that fedveil deals are nobody\'s: say records = "training".'
        require(self._named, "evaluation.records", "be training when privacy.unit is client here", "held-out", hint)

    def candidate(self, candidate: Candidate, target: Target) -> "Study":
        """The study of one candidate, with a target of its own."""
        model, algorithm, schedule = candidate.model, candidate.algorithm, candidate.schedule
        return replace(self, tune=None, target=target, model=model, algorithm=algorithm, schedule=schedule)

    def tuned(self, design: Design, test_records: int, test_public: bool) -> Planned:
        """The plan of the best of the candidates, which ``design`` plans one by one."""
        if self.tune is None:
            raise BadValue("The study must have a [tune] table to be tuned.")
        hint = "Add [data.held_out]: a trial is scored on records that it was not trained on."
        require(test_records > 0, "[data.held_out]", "be there for a tuned study", "no held-out records", hint)
        if self.tune.score == "public":
            hint = 'Declare data.held_out.public, or state tune.score = "private" to have the score noised and charged.'
            require(test_public, "tune.score", "be private for records that are not public", "public", hint)
        elif self.target.unit == "client":
            apart = self.held_out is not None and self.held_out.source is None
            hint = "A client must be trained on or held out, not both: hold out a fraction, which takes whole clients."
            require(
                apart, "tune.score", "be public for clients and another source of held-out records", "private", hint
            )
            hint = "Records held out of clients that fedveil deals count as one client, and the noise hides it."
            named = self.split.natural
            require(named, "tune.score", "be public for clients that the data do not name", "private", hint)
        return tuned(self.tune, self.target, design)

    def _designed(self, task: Task, test_records: int, test_public: bool) -> Planned:
        return make_plan(
            self.name,
            self.algorithm,
            task,
            seeded=self.seed is not None,
            test_records=test_records,
            test_public=test_public,
            training_public=self.training_public,
            baselines=self.baselines,
            places=self.places,
            blank_rows=self.source is not None and self.source.drops_rows,
            feature_map=self.feature_map,
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
    """Return the study of these tables; ``data_given``.

    The records come as arrays, so the study may not name a source.
    """
    known(tables, _TABLES, "a study")
    if data_given:
        # the table names no source and no rule
        own = {"data"} if set(table(tables.get("data", {}), "data")) <= {"public"} else set()
        stray = sorted({"data", "clients"} & set(tables) - own)
        hint = "Of [data] only public may be stated."
        require(not stray, "The study", "leave [data] and [clients] out when records are given", stray, hint)
    for needed in ("model", "privacy") if data_given else ("data", "model", "privacy"):
        require(needed in tables, "The study", f"have a [{needed}] table", sorted(tables))
    parts = {key: table(tables.get(key, {}), key) for key in _TABLES}
    known(parts["study"], ["name", "seed"], "[study]")
    known(parts["audit"], ["canaries"], "[audit]")
    known(parts["report"], ["baselines", "public_data"], "[report]")
    baselines, seed = parts["report"].get("baselines", False), parts["study"].get("seed")
    require(isinstance(baselines, bool), "report.baselines", "be true or false", baselines)
    data, public = dict(parts["data"]), _public(parts["data"], parts["report"])
    held_out = data.pop("held_out", None)
    if public:
        data["public"] = True
    prepare = _prepare(tables, data, data_given)
    if prepare is not None:
        data.setdefault("feature_bound", BOUND)
    source = None if data_given else Source.parse(data)
    if held_out is not None and source is not None:
        held_out = HeldOut.parse(table(held_out, "data.held_out"), source)
    if prepare is not None and source is not None:
        source, held_out = _left_open(source, held_out, prepare)
    _check_counts(parts["model"], source)
    request = read_request(parts["algorithm"])
    return Study(
        name=_name(parts["study"].get("name", name)),
        base=base,
        source=source,
        split=_split(parts, data_given),
        held_out=held_out,
        model=filled(ModelPlan, parts["model"], "model"),
        target=filled(Target, parts["privacy"], "privacy"),
        algorithm=request,
        schedule=filled(ScheduleRequest, parts["schedule"], "schedule"),
        books=_books(parts["books"], base),
        seed=None if seed is None else whole("study.seed", seed),
        baselines=baselines,
        training_public=public,
        canaries=None if "canaries" not in parts["audit"] else check_count(parts["audit"]["canaries"]),
        trust=filled(Trust, parts["trust"], "trust") if "trust" in tables else CENTRAL,
        prepare=prepare,
        evaluation=_evaluation(tables),
        personal=PersonalRequest.read(table(tables["personal"], "personal")) if "personal" in tables else None,
        tune=read_tune(tables),
        feature_map=None if source is None else source.feature_map,
    )


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
    if model.get("kind") != "poisson" or source is None or source.target_scale is None:
        return
    low = source.target_scale[0]
    hint = "The range of a count is [0, the most that is counted]."
    require(low == 0, "data.target_scale", "begin at 0 for a poisson model", low, hint)


def _evaluation(tables: Mapping[str, Any]) -> EvaluationRequest | None:
    if "evaluation" not in tables:
        return None
    found: EvaluationRequest = filled(EvaluationRequest, table(tables["evaluation"], "evaluation"), "evaluation")
    return found


def _left_open(source: Source, held_out: HeldOut | None, prepare: PrepareRequest) -> tuple[Source, HeldOut | None]:
    """The sources with what is left to the preparation."""
    left: Learned = "all" if prepare.kind == "private" else "unstated"
    if held_out is not None and held_out.source is not None:
        held_out = replace(held_out, source=replace(held_out.source, learned=left))
    return replace(source, learned=left), held_out


def _public(data: Mapping[str, Any], report: Mapping[str, Any]) -> bool:
    """Return whether the training records are declared public by data.public, or by its old name report.public_data."""
    places = (("data.public", data, "public"), ("report.public_data", report, "public_data"))
    stated = {name: given[key] for name, given, key in places if key in given}
    for name, value in stated.items():
        require(isinstance(value, bool), name, "be true or false", value)
    agreed = len(set(stated.values())) <= 1
    require(agreed, "report.public_data", "be left out: data.public is the place to say it", stated)
    return any(stated.values())


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
