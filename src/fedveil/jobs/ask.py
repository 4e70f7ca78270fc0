"""Certified statistics as one call: questions from a file or a program, here or at sites; answers and a page."""

import csv
import io
import math
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from fedveil.certificate.certify import MeasuredCertificate
from fedveil.core.errors import BadValue, require
from fedveil.core.notebook import html_table
from fedveil.core.strict_json import read_object
from fedveil.core.tables import table, write_tables
from fedveil.data.frames import columns_of_frame
from fedveil.data.spec import OTHER
from fedveil.engine.ending import check_unfinished
from fedveil.engine.files import PUBLIC, write_atomically
from fedveil.engine.measured import conduct_stage, planned_measured
from fedveil.engine.system import System
from fedveil.federation.aggregator.measured import check_sizes
from fedveil.jobs.local import FRAME, ReadTables, read_given
from fedveil.jobs.measured import MeasuredResult, certify_result, measure_at_sites
from fedveil.jobs.remote import How, at_deployment, at_trial, check_open
from fedveil.jobs.synthesis import LABELS, Described, open_columns_of, read_synthesis
from fedveil.ledger.books import Ledger
from fedveil.ledger.budget import Cap
from fedveil.ledger.costs import Charged, charged, cost_of, together
from fedveil.ledger.odometer import observers
from fedveil.ledger.place import default_place
from fedveil.planning.promises import ADVERSARIES
from fedveil.planning.study import Study
from fedveil.stages.ask.question import Question
from fedveil.stages.ask.stage import layout_of, read_questions, settings_of
from fedveil.stages.measured.plan import ASK, MeasuredPlan
from fedveil.stages.prepare.budget import total_mu
from fedveil.stages.prepare.columns import Outline
from fedveil.stages.prepare.loading import Unprepared
from fedveil.stages.profile.answers import profile_from
from fedveil.stages.profile.profile import Profile
from fedveil.stages.synthesise.table import table_of

PAGE: Final = "report.html"
ENDS: Final = ("certificate.json", PAGE)  # what follows the release of answers
PROFILE_FILES: Final = ("profile.json", "data.toml", "profile.html")  # what a profile of sites leaves besides
_OF_PROFILE: Final = ("study", "data", "clients", "privacy", "trust", "books")
_MULTIPLES: Final = (0.5, 1.0, 2.0, 4.0)  # of epsilon, at which a plan says how precise answers would be


@dataclass(frozen=True, slots=True, kw_only=True)
class AskResult:
    """Answers that were released, and their certificate."""

    folder: Path
    answers: Mapping[str, Any]
    certificate: MeasuredCertificate

    def rows(self, question: str, part: str = "") -> list[dict[str, Any]]:
        """Return the rows of one question's table; ``part``: of a further one, as the summary of a survival curve."""
        for one in self.answers["answers"]:
            if one["question"]["name"] == question:
                tables = one["tables"]
                require(part in tables, "part", f"be one of {', '.join(map(repr, tables))}", part)
                return list(tables[part])
        names = [one["question"]["name"] for one in self.answers["answers"]]
        raise BadValue(f"The question must be one of {', '.join(names)}, got {question!r}.")

    def __getitem__(self, question: str) -> Any:
        """Return the answer to a question as a data frame."""
        return self.frame(question)

    def frame(self, question: str, part: str = "") -> Any:
        """Return a table as a data frame of pandas."""
        return import_module("pandas").DataFrame(self.rows(question, part))  # only those who want frames have it

    def _repr_html_(self) -> str:
        """Return all answers and their certificate for a notebook."""
        tables = []
        for one in self.answers["answers"]:
            name = one["question"]["name"]
            tables += [html_table(rows, f"{name} {part}".strip()) for part, rows in one["tables"].items() if rows]
            tables += [f"<p>{escape(sentence)}</p>" for sentence in one["notes"]]
        return "".join(tables) + self.certificate._repr_html_()


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """What an answer is expected to be like at some epsilons, before anything is charged."""

    question: str
    what: str
    unit: str
    half_widths: Mapping[float, float]
    of: float

    def sentence(self, epsilon: float) -> str:
        """Return it in words."""
        width = self.half_widths[epsilon]
        shown = "no interval would hold" if width == math.inf else f"±{width:.3g} {self.unit}".rstrip()
        return f"{self.question}: {self.what}, {shown}"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Questions:
    """A study with its questions; ``rows``: what it measures, where this process has the data."""

    study: Study
    questions: tuple[Question, ...]
    rows: Unprepared | None

    @property
    def settings(self) -> dict[str, Any]:
        """The questions, as a plan states them."""
        return settings_of(self.questions)

    @property
    def here(self) -> Unprepared:
        """The rows that it measures; refused where they are at sites."""
        if self.rows is None:
            raise BadValue("[data] must name a source.")
        return self.rows

    def plan(self) -> MeasuredPlan:
        """Return the plan of these questions."""
        rows = table_of(self.here)
        return planned_measured(self.study, ASK, self.settings, rows.all_columns, self.here.train.shape)


def open_questions(given: Described | ReadTables, frame: Any = None, *, at_sites: bool = False) -> Questions:
    """Return a study with its questions, from a file or from tables; with its rows, unless they are at sites."""
    read = read_given(given)
    tables = dict(read.tables)
    questions = read_questions(tables.pop("question", []))
    if "data" in tables:  # every column is asked about alike, so a study's own target is one of them
        tables["data"] = {key: value for key, value in table(tables["data"], "data").items() if key not in LABELS}
    if frame is not None:
        tables["data"] = {**table(tables.get("data", {}), "data"), "source": FRAME}
    study, _ = read_synthesis(ReadTables(tables, read.base, read.name), data_given=at_sites)
    unit = study.target.unit
    require(unit == "record", "privacy.unit", "be record for questions: each is answered by counting records", unit)
    if at_sites:
        return Questions(study=study, questions=questions, rows=None)
    if study.source is None:
        raise BadValue("[data] must name a source.")
    if frame is not None:
        source = replace(study.source, frame=columns_of_frame(frame))
        study = replace(study, data=replace(study.data, source=source))
    return Questions(study=study, questions=questions, rows=open_columns_of(study))


@dataclass(frozen=True, slots=True, kw_only=True)
class Spending:
    """What the data set's ledger has charged for the target's observer, before and with these answers.

    ``cap``: of the ledger; ``left``: the share of it that remains for whatever comes afterwards, such as a model.
    """

    before: float
    after: float
    delta: float
    cap: float | None = None
    left: float | None = None

    def sentence(self) -> str:
        """Return it in words."""
        result = f"Ledger of these data: epsilon {self.before:.3g} spent, {self.after:.3g} with these answers"
        result += f" (together at delta {self.delta:.2g})"
        if self.cap is None or self.left is None:
            return f"{result}. There is no cap, so what a model may spend afterwards is for you to say."
        return f"{result}. {self.left:.0%} of the cap, epsilon {self.cap:g}, remain for a model afterwards."


def plan_questions(given: Described | ReadTables) -> tuple[MeasuredPlan, list[Precision], Spending]:
    """Return the plan of a question file, how precise its answers will be, and what they cost; nothing is charged."""
    asked = open_questions(given)
    plan = asked.plan()
    return plan, precision(plan, table_of(asked.here).all_columns), spending(asked.study, plan)


def spending(study: Study, plan: MeasuredPlan) -> Spending:
    """Return what the ledger of a study's data has charged, and what it will have with this plan."""
    place = study.books.ledger or default_place(study)
    runs: list[Charged] = []
    caps: Sequence[Cap] = ()
    if place is not None and place.exists():
        with Ledger.look(place) as ledger:
            runs, caps = charged(ledger.entries()), ledger.caps()
    own = Charged(tuple(cost_of(plan, who) for who in ADVERSARIES), ((plan.text(), 1),))
    target = plan.target
    question = (target.adversary, target.unit, target.neighbours)
    row = next(one for one in observers([*runs, own], caps) if one.question == question)
    return Spending(
        before=together(runs, question, row.delta) if runs else 0.0,
        after=row.composed,
        delta=row.delta,
        cap=None if row.left is None else row.left.cap.epsilon,
        left=None if row.left is None else row.left.share,
    )


def precision(plan: MeasuredPlan, columns: Outline) -> list[Precision]:
    """Return how precise the answers of a plan will be, at its epsilon and at others."""
    layout, target = layout_of(plan.stated, columns, plan.data.clients), plan.target
    scales = {}
    for multiple in _MULTIPLES:
        epsilon = target.epsilon * multiple
        if 1e-4 <= epsilon <= 40:
            pure = plan.sums.law == "laplace"
            wider = replace(target, epsilon=epsilon)
            scales[epsilon] = target.epsilon / epsilon if pure else total_mu(target) / total_mu(wider)
    widths: dict[str, dict[float, float]] = {}
    result = []
    for epsilon, scale in scales.items():
        for question, one in layout.expected(plan.sums, plan.units, scale):
            widths.setdefault(question.name, {})[epsilon] = one.half_width
            if epsilon == target.epsilon:
                result.append((question.name, one))
    return [
        Precision(question=name, what=one.what, unit=one.unit, half_widths=widths[name], of=one.of)
        for name, one in result
    ]


def ask_study(
    given: Described | ReadTables,
    out: str | Path,
    *,
    resume: bool = False,
    system: System | None = None,
    frame: Any = None,
) -> AskResult:
    """Answer the questions of a file or of tables, in the folder ``out``."""
    folder, system = Path(out), system or System()
    if resume:
        check_unfinished(folder, ENDS)
    asked = open_questions(given, frame)
    system.tell("asking with noise")
    conduct_stage(asked.study, ASK, asked.settings, asked.here, folder, resume=resume, system=system)
    return _published(certify_result(folder))


def ask_on(
    given: Described | ReadTables,
    out: str | Path,
    on: str | Path,
    how: How | None = None,
    ends: Sequence[str] = ENDS,
) -> AskResult:
    """The same on a deployment, with this process as the aggregator; ``on`` is the aggregator's folder."""
    how, folder = how or How(), Path(out)
    check_open(folder, how.resume, ends)
    asked = open_questions(given, at_sites=True)
    with at_deployment(on, folder, how) as talk:
        return _published(measure_at_sites(asked.study, ASK, asked.settings, talk))


def ask_local(
    given: Described | ReadTables, out: str | Path, sites: int, how: How | None = None, ends: Sequence[str] = ENDS
) -> AskResult:
    """The same with real processes of this machine as sites; their records are left in ``out``/sites."""
    how, folder = how or How(), Path(out)
    check_open(folder, how.resume, ends)
    asked = open_questions(given)
    check_sizes(asked.plan())
    with at_trial(asked.study, asked.here, folder, sites, how) as talk:
        return _published(measure_at_sites(asked.study, ASK, asked.settings, talk))


def profile_at_sites(
    given: Described,
    epsilon: float,
    out: str | Path,
    *,
    on: str | Path | None = None,
    sites: int = 0,
    how: How | None = None,
) -> tuple[AskResult, Profile]:
    """Answer the standard questions about records at sites, and write the profile that they give.

    ``given``: a study or a question file, of which the trust and the privacy hold, but for ``epsilon``; what it trains
    or asks does not matter. ``on``: a deployment; or ``sites``: how many processes of this machine. Beside the profile
    stands ``data.toml``: what all sites may state in their data files, so that a study need not learn it.
    """
    read = read_given(given)
    tables = {key: value for key, value in read.tables.items() if key in _OF_PROFILE}
    tables["privacy"] = {**table(tables.get("privacy", {}), "privacy"), "epsilon": epsilon}
    wanted, ends = ReadTables(tables, read.base, read.name), (*ENDS, *PROFILE_FILES)
    result = ask_local(wanted, out, sites, how, ends) if on is None else ask_on(wanted, out, on, how, ends)
    profile = profile_from(result.answers)
    from fedveil.report.profile_page import profile_page  # imported here because drawing is slow to import

    contents = (profile.text(), _stated_data(profile), profile_page(profile, result.certificate))
    for name, content in zip(PROFILE_FILES, contents, strict=True):
        write_atomically(result.folder / name, content.encode(), mode=PUBLIC)
    return result, profile


def _stated_data(profile: Profile) -> str:
    """Return the [data] table that states the ranges and words of a profile."""
    stated = {
        "scale": {one.name: [one.low, one.high] for one in profile.numbers},
        "bend": {one.name: one.bend for one in profile.numbers if one.bend > 0},
        "categories": {one.name: [*(word for word, _ in one.words), OTHER] for one in profile.texts if one.words},
    }
    return write_tables({"data": {key: value for key, value in stated.items() if value}})


def ask(
    data: Any,
    questions: Sequence[Mapping[str, Any] | Question] | Mapping[str, Any] | Question,
    *,
    epsilon: float,
    delta: float | None = None,
    neighbours: str = "replace-one",
    out: str | Path | None = None,
    **tables: Any,
) -> AskResult:
    """Answer questions about a data frame (or a file, by its path) with differential privacy.

    ``questions``: dictionaries or values, as in a question file. ``out``: a folder for certificate, ledger and page; a
    new temporary one if left out. ``tables``: further tables of a question file, such as ``data`` or ``trust``. The
    answer to a question is ``result["its name"]``, as a data frame.

    Example::

        question = {"kind": "mean", "name": "age", "column": "age", "range": [18, 90]}
        result = fedveil.ask(frame, question, epsilon=0.5)
        result["age"]  # a data frame with the estimate and its 95% interval
    """
    named = isinstance(data, str | Path)
    records = None if named else len(next(iter(columns_of_frame(data).values())))
    if delta is None:
        require(
            records is not None, "delta", "be stated for a file", None, "A tenth of one over the number of records."
        )
        delta = min(1e-5, 0.1 / max(records or 1, 1))
    listed = questions if isinstance(questions, list | tuple) else [questions]
    stated = [one.stated() if isinstance(one, Question) else one for one in listed]
    own = dict(tables.pop("data", {})) | ({"source": str(data)} if named else {})
    privacy = {"epsilon": epsilon, "delta": delta, "neighbours": neighbours}
    given = {"data": own, "privacy": privacy, "question": stated, **tables}
    folder = Path(tempfile.mkdtemp(prefix="fedveil-ask-")) / "answers" if out is None else Path(out)
    return ask_study(ReadTables(given, Path(), "questions"), folder, frame=None if named else data)


def _published(result: MeasuredResult) -> AskResult:
    """Write one CSV file for each table, and the page, of answers that were released."""
    answers = read_object(result.content, "answers.json")
    from fedveil.report.ask_page import ask_page  # imported here because drawing is slow to import

    for name, rows in _files(answers):
        write_atomically(result.folder / name, _csv(rows).encode(), mode=PUBLIC)
    write_atomically(result.folder / PAGE, ask_page(answers, result.certificate).encode(), mode=PUBLIC)
    return AskResult(folder=result.folder, answers=answers, certificate=result.certificate)


def _files(answers: Mapping[str, Any]) -> list[tuple[str, list[dict[str, Any]]]]:
    """The tables, each with the name of its file; names that would be alike are numbered."""
    result: dict[str, list[dict[str, Any]]] = {}
    for place, one in enumerate(answers["answers"]):
        for part, rows in one["tables"].items():
            words = re.sub(r"[^a-z0-9]+", "-", f"{one['question']['name']} {part}".lower()).strip("-")
            name = f"{words or 'answer'}.csv"
            result[name if name not in result else f"{words}-{place + 1}.csv"] = rows
    return list(result.items())


def _csv(rows: Sequence[Mapping[str, Any]]) -> str:
    text = io.StringIO()
    names = list(dict.fromkeys(key for row in rows for key in row))
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
