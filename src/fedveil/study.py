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
from fedveil.errors import BadValue
from fedveil.guarantee import Adversary
from fedveil.model.spec import ModelPlan
from fedveil.prepare.request import PrepareRequest
from fedveil.prepare.statement import Preparation
from fedveil.shared_budget import shared_budget
from fedveil.tables import filled, known, read_tables, table
from fedveil.target import Target
from fedveil.trust import CENTRAL, Trust
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
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Books:
    """Path of the ledger of the data set, and the caps on all spending ever: (adversary, epsilon, delta)."""

    ledger: Path | None = None
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

    @property
    def slots(self) -> Canaries | None:
        """The canaries that the study asks for, or None."""
        if self.canaries is None:
            return None
        return Canaries(count=self.canaries, neighbours=self.target.neighbours, unit=self.target.unit)

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
        preparation: Preparation | None = None,
    ) -> Planned:
        """The plan of this study on data of this shape, canaries included; with its ``preparation``, if there is one.

        Training then gets what the measurements leave of the target: they are composed exactly, and together meet it.
        """
        task = Task(
            data=shape,
            model=self.model,
            target=self.target,
            schedule=self.schedule,
            canaries=self.canaries,
            trust=self.trust,
        )
        if preparation is None:
            return self._designed(task, test_records, test_public)
        return shared_budget(
            self.algorithm, task, preparation, lambda inner: self._designed(inner, test_records, test_public)
        )

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
        )


def read_study(path: Path) -> Study:
    """Read a study from a file; its relative paths start from the folder of the file."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise BadValue(f"The study file {str(path)!r} must be a readable text file: {error}.") from error
    return parse_study(text, base=path.parent, name=path.stem)


def read_study_without_data(path: Path) -> Study:
    """Read a study that leaves [data] and [clients] to the sites."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise BadValue(f"The study file {str(path)!r} must be a readable text file: {error}.") from error
    return study_of(read_tables(text, "The study file"), base=path.parent, name=path.stem, data_given=True)


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
        data.setdefault("feature_bound", 1.0)
    source = None if data_given else Source.parse(data)
    if held_out is not None and source is not None:
        held_out = HeldOut.parse(table(held_out, "data.held_out"), source)
    if prepare is not None and source is not None:
        source, held_out = _left_open(source, held_out, prepare)
    return Study(
        name=_name(parts["study"].get("name", name)),
        base=base,
        source=source,
        split=Split.parse(parts["clients"] or {"kind": "record"}),
        held_out=held_out,
        model=filled(ModelPlan, parts["model"], "model"),
        target=filled(Target, parts["privacy"], "privacy"),
        algorithm=read_request(parts["algorithm"]),
        schedule=filled(ScheduleRequest, parts["schedule"], "schedule"),
        books=_books(parts["books"], base),
        seed=None if seed is None else whole("study.seed", seed),
        baselines=baselines,
        training_public=public,
        canaries=None if "canaries" not in parts["audit"] else check_count(parts["audit"]["canaries"]),
        trust=filled(Trust, parts["trust"], "trust") if "trust" in tables else CENTRAL,
        prepare=prepare,
    )


def _prepare(tables: Mapping[str, Any], data: Mapping[str, Any], data_given: bool) -> PrepareRequest | None:
    """What is to be learned: as [prepare] says; without it only where the study does not even state a feature bound."""
    if "prepare" not in tables:
        return None if data_given or "feature_bound" in data else PrepareRequest()
    found: PrepareRequest = filled(PrepareRequest, table(tables["prepare"], "prepare"), "prepare")
    if found.kind == "stated":
        return None
    hint = 'Sites and programs that bring records of their own state their rule: prepare.kind = "stated".'
    require(not data_given, "[prepare]", "be left out where the study names no data", found.kind, hint)
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
    known(given, ["ledger", "cap"], "[books]")
    caps = table(given.get("cap", {}), "books.cap")
    known(caps, get_args(Adversary), "[books.cap]")
    rows: list[tuple[Any, float, float]] = []
    for adversary, cap in caps.items():
        pair = isinstance(cap, list) and len(cap) == 2
        require(pair, f"books.cap.{adversary}", "be a pair [epsilon, delta]", cap)
        epsilon, delta = (number(f"books.cap.{adversary}", value) for value in cap)
        rows.append((adversary, epsilon, delta))
    ledger = given.get("ledger")
    return Books(ledger=None if ledger is None else base / _text("books.ledger", ledger), caps=tuple(rows))


def _name(given: Any) -> str:
    fits = isinstance(given, str) and given.strip() != "" and given.isprintable() and len(given) <= 200
    require(fits, "study.name", "be one line of at most 200 printable characters", str(given)[:60])
    return str(given)


def _text(name: str, value: Any) -> str:
    require(isinstance(value, str) and value.strip() != "", name, "be a text", value)
    return str(value)
