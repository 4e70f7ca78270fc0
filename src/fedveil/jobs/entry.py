"""How a user comes in: a study drafted for unknown data, and a private profile of them."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedveil.certificate.certify import MeasuredCertificate, certify_measured
from fedveil.core.errors import require
from fedveil.core.tables import filled
from fedveil.data.address import DUCKDB, bare, is_database
from fedveil.data.spec import Features, Source
from fedveil.data.tables import nearest, span
from fedveil.engine.ending import check_unfinished
from fedveil.engine.files import PUBLIC, sole_use, write_atomically
from fedveil.engine.measured import Measuring, Place, conduct_measured
from fedveil.engine.run import Rows
from fedveil.engine.system import System
from fedveil.jobs.draft.columns import DATES, Columns, Kind, columns_of
from fedveil.jobs.draft.study import Draft, DraftColumns, DraftPrivacy, DraftTarget, usual_delta, with_profile
from fedveil.ledger.place import POINTER
from fedveil.planning.study import Books
from fedveil.privacy.guarantee import Unit
from fedveil.privacy.target import Target
from fedveil.stages.profile.learn import profile_of
from fedveil.stages.profile.profile import Profile
from fedveil.stages.profile.request import ProfileRequest, open_data, profile_plan
from fedveil.version import __version__

STUDY = "study.toml"
PAGE = "profile.html"
ENDS = ("certificate.json", STUDY, PAGE)  # what follows the release of a profile, in this order


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What a user says about data that nobody has described; all but the data is optional.

    ``classes`` or ``range``: what the target holds. ``epsilon`` and ``delta``: of the study that is drafted. ``ignore``
    and ``keep``: columns to leave out, and columns to use though they are named like identifiers. ``numbers`` and
    ``texts``: columns whose type is stated, so that no cell decides it. ``person``: the column that names persons, who
    are then protected, and the most rows of one person that are used. ``expires_column``: dates of expiry.
    """

    data: str
    target: str | None = None
    classes: Sequence[str] = ()
    range: tuple[float, float] | None = None
    client_column: str | None = None
    ignore: Sequence[str] = ()
    keep: Sequence[str] = ()
    numbers: Sequence[str] = ()
    texts: Sequence[str] = ()
    reading: Mapping[str, Any] = field(default_factory=dict)
    epsilon: float = 1.0
    delta: float | None = None
    unit: str = "record"
    neighbours: str = "replace-one"
    person: tuple[str, int] | None = None
    expires_column: str | None = None

    def __post_init__(self) -> None:
        both = bool(self.classes) and self.range is not None
        require(not both, "--range", "be left out with --classes", self.range)
        require(len(self.classes) != 1, "--classes", "name at least two", list(self.classes))
        if self.range is not None:
            span("--range", self.range)
        twice = sorted(set(self.keep) & set(self.ignore))
        require(not twice, "--keep", "name no column that --ignore names", twice)
        twice = sorted(set(self.texts) & set(self.numbers))
        require(not twice, "--texts", "name no column that --numbers names", twice)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileResult:
    """A finished profile: what was found, its certificate, and the study drafted from it."""

    folder: Path
    profile: Profile
    certificate: MeasuredCertificate
    draft: Draft
    columns: Columns


def draft_study(wish: Wish, *, base: Path | None = None) -> tuple[Draft, Columns]:
    """Draft a study from the names and types of the columns; no value enters it. Paths start from ``base``."""
    base = Path() if base is None else base
    stated: dict[str, Kind] = {**dict.fromkeys(wish.numbers, "numbers"), **dict.fromkeys(wish.texts, "texts")}
    unit: Unit = "record" if wish.person is None else "person"
    unit, units = ("client", wish.client_column) if wish.unit == "client" else (unit, None)
    result = columns_of(wish.data, base, wish.reading, stated=stated, client=units)
    options: dict[str, Sequence[str | None]] = {
        "--ignore": wish.ignore,
        "--keep": wish.keep,
        "--numbers": wish.numbers,
        "--texts": wish.texts,
    }
    person = None if wish.person is None else wish.person[0]
    options |= {"--client-column": [wish.client_column], "--person-column": [person]}
    options |= {"--expires-column": [wish.expires_column]}
    for option, names in options.items():
        for name in names:
            known = name is None or name in result.kinds
            require(known, option, "name a column of the data", name, "" if known else nearest(str(name), result.kinds))
    target, guessed = result.target(wish.target, wish.client_column)
    whose = {wish.client_column, person, wish.expires_column}
    apart = {target, *whose, *wish.keep}
    unused = {name: why for name, why in result.unused.items() if name not in apart and name not in stated}
    identifiers = tuple(name for name in result.identifiers if name in unused and name not in wish.ignore)
    unused |= dict.fromkeys(wish.ignore, "was named by --ignore")
    features = [name for name in result.kinds if name not in unused and name not in {target, *whose}]
    used, dated = {target, *features}, {name for name, why in unused.items() if why == DATES}
    require(features, "The data", "have a column to predict from", list(result.kinds)[:10])
    draft = Draft(
        name=_name(wish.data),
        source=bare(wish.data),
        target=DraftTarget(
            column=target if result.reading.get("header", True) else int(target),
            classes=tuple(wish.classes),
            span=wish.range,
            guessed=guessed,
        ),
        records=result.records,
        privacy=DraftPrivacy(epsilon=wish.epsilon, delta=wish.delta, unit=unit, neighbours=wish.neighbours),
        reading=result.reading,
        columns=DraftColumns(
            numbers=tuple(name for name in features if result.kinds[name] in ("numbers", "empty")),
            texts=tuple(name for name in features if result.kinds[name] in ("texts", "dates")),
            unused=unused,
            identifiers=identifiers,
            mixed=tuple(name for name in result.mixed if name in used),
            unsettled=tuple(name for name in result.unsettled if name in used or name in dated),
            layout=result.layout,
        ),
        rules=Features(fill={target: "drop-row"}),
        client_column=wish.client_column,
        person=wish.person,
        expires_column=wish.expires_column,
    )
    return draft, result


def init_study(wish: Wish, out: Path, *, instead: bool = False) -> tuple[Draft, Columns]:
    """Write a drafted study to the file ``out``, which must be new, or may be replaced (``instead``)."""
    require(instead or not out.exists(), "--out", "name a new file", str(out), "Or give --replace to write over it.")
    draft, result = draft_study(wish)
    remark = "Drafted from the names and types of the columns. Whoever publishes this study states them: check them."
    _write(out, replace(draft, remarks=(remark,), source=_path_from(out.parent, wish.data)))
    return draft, result


def profile_data(
    wish: Wish,
    epsilon: float,
    out: Path,
    *,
    ledger: Path | None = None,
    resume: bool = False,
    tell: Callable[[str], None] | None = None,
    system: System | None = None,
) -> ProfileResult:
    """Measure a private profile into the folder ``out``, certify it, and draft a study from it.

    ``epsilon``: of the profile itself; that of the drafted study is in ``wish``. ``ledger``: the books of the data, if
    they are not beside them. ``tell`` is told what is being done.
    """
    if resume:
        check_unfinished(out, ENDS)
    draft, columns = draft_study(wish)
    _refuse_doubts(draft)
    delta = usual_delta(columns.records) if wish.delta is None else wish.delta
    given = {"unit": wish.unit, "neighbours": wish.neighbours}
    target = filled(Target, {"epsilon": epsilon, "delta": delta, **given}, "privacy")
    kinds = {
        name: kind in ("numbers", "empty")
        for name, kind in columns.kinds.items()
        if name not in draft.columns.unused and name != wish.client_column
    }
    source = Source.of(
        source=wish.data,
        feature_bound=1.0,
        target=draft.target.column,
        classes=2,
        client_column=wish.client_column,
        ignore=tuple(draft.columns.unused),
        learned="all",
        **columns.reading,
    )
    name = f"profile of {draft.name}"
    request = ProfileRequest(name=name, base=Path(), source=source, kinds=kinds, target=target)
    data = open_data(request)
    if tell is not None:
        tell("measuring with noise")
    books = Books(ledger=ledger)
    plan = profile_plan(name, data.shape, target, data.sizes, request.places)
    measuring = Measuring(
        plan=plan,
        program=lambda by: profile_of(plan, data.columns, data.numbers, request.predicted, by).text().encode(),
        rows=Rows(data.owner, data.clients, np.arange(data.owner.size, dtype=np.int64)),
        place=Place(source=source, base=Path(), books=books),
        fingerprint=data.fingerprint,
        cells=data.fingerprint,
    )
    result = Profile.read(conduct_measured(measuring, out, resume=resume, system=system or System()))
    with sole_use(out / "private"):
        certificate, draft = _certified_profile(wish, target, draft, result, out, ledger)
    return ProfileResult(folder=out, profile=result, certificate=certificate, draft=draft, columns=columns)


def _certified_profile(
    wish: Wish, target: Target, draft: Draft, found: Profile, out: Path, ledger: Path | None
) -> tuple[MeasuredCertificate, Draft]:
    """Write what follows the release of a profile: its certificate, the study drafted from it, and its page."""
    certificate = certify_measured(out, __version__)
    write_atomically(out / "certificate.json", certificate.text().encode(), mode=PUBLIC)
    spent = f"epsilon {target.epsilon:g} at delta {target.delta:g}"
    remarks = (
        f"Drafted from a private profile of the data, which was charged with {spent} in their ledger.",
        "Ranges, categories and labels below come from it: a run states them, and need not learn them again.",
    )
    draft = replace(with_profile(draft, found), remarks=remarks, source=_path_from(out, wish.data))
    charged = Path((out / "private" / POINTER).read_text(encoding="utf-8").strip())
    if ledger is not None:
        draft = replace(draft, ledger=_path_from(out, str(charged)))  # a run must be charged in the same books
    _write(out / STUDY, draft)
    from fedveil.report.profile_page import profile_page  # imported here because drawing is slow to import

    write_atomically(out / PAGE, profile_page(found, certificate, draft.questions_left).encode(), mode=PUBLIC)
    return certificate, draft


def _refuse_doubts(draft: Draft) -> None:
    """Refuse to publish a plan that the cells of one record, or one client, would change."""
    open_columns = draft.columns
    options = " ".join(f"--ignore {name}" for name in open_columns.mixed)
    hint = f"Leave them out ({options}), state --texts for them, or clean them."
    require(
        not open_columns.mixed,
        "Columns of numbers",
        "hold no texts but those of missing values",
        open_columns.mixed,
        hint,
    )
    options = " ".join(f"--numbers {name}" for name in open_columns.unsettled)
    hint = f"State what they hold ({options}, or --texts), or leave them out (--ignore)."
    rule = f"have a type that no single {draft.privacy.unit} decides"
    require(not open_columns.unsettled, "The columns", rule, open_columns.unsettled, hint)
    hint = f"State how the file is read: {' '.join(open_columns.layout.values())}."
    rule = "name the columns, since what a record shows must not decide how a file is read"
    require(not open_columns.layout, "The first line of the data", rule, "what seems to be a record", hint)


def _path_from(folder: Path, data: str) -> str:
    """The path of the data as a file in ``folder`` states it; an address stays as it is, without its password."""
    if data.startswith(DUCKDB):
        return DUCKDB + os.path.relpath(data.removeprefix(DUCKDB), folder)
    if data.startswith("sqlite:///"):
        return "sqlite:///" + os.path.relpath(data.removeprefix("sqlite:///"), folder)
    return bare(data) if is_database(data) else os.path.relpath(data, folder)


def _name(data: str) -> str:
    """A name for the study: that of the file, the folder or the database."""
    plain = bare(data).removeprefix(DUCKDB).rstrip("/").partition("?")[0].rpartition("/")[2]
    return plain.partition(".")[0] or "study"


def _write(path: Path, draft: Draft) -> None:
    write_atomically(path, draft.text().encode(), mode=PUBLIC)
