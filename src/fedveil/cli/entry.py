"""The commands by which a user comes in: draft a study for unknown data, and profile them privately."""

from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from rich.console import Console

from fedveil.certificate.certify import MeasuredCertificate
from fedveil.cli.progress import progress, report_sites, waiting
from fedveil.cli.show import Json, out, plain_table, rounded_up, show, tell_total, total_json
from fedveil.core.errors import require
from fedveil.data.address import bare
from fedveil.engine.system import System
from fedveil.jobs.ask import profile_at_sites
from fedveil.jobs.draft.columns import Columns
from fedveil.jobs.draft.study import Draft
from fedveil.jobs.entry import PAGE, STUDY, ProfileResult, Wish, init_study, profile_data
from fedveil.jobs.remote import How
from fedveil.privacy.guarantee import NAMELESS, Neighbours
from fedveil.privacy.target import LARGEST_PERSON
from fedveil.stages.profile.profile import Profile

Data = Annotated[str, typer.Argument(help="A CSV or Parquet file, a folder of them, or a database's address.")]
TargetColumn = Annotated[str | None, typer.Option("--target", help="The column to predict; guessed if left out.")]
Classes = Annotated[str | None, typer.Option("--classes", help="What the target holds: A,B,...")]
Range = Annotated[str | None, typer.Option("--range", help="LOW,HIGH of a number to predict.")]
Client = Annotated[str | None, typer.Option("--client-column", help="The column that says whose record it is.")]
Ignore = Annotated[list[str] | None, typer.Option("--ignore", help="A column to leave out; may be repeated.")]
Keep = Annotated[list[str] | None, typer.Option("--keep", help="A column to use though its name is an identifier's.")]
NumberColumns = Annotated[list[str] | None, typer.Option("--numbers", help="A column of numbers, whatever it holds.")]
TextColumns = Annotated[list[str] | None, typer.Option("--texts", help="A column of texts, whatever it holds.")]
NoHeader = Annotated[bool, typer.Option("--no-header", help="The first line is a record and names no columns.")]
Delimiter = Annotated[str | None, typer.Option("--delimiter", help="The sign between columns.")]
Decimal = Annotated[str | None, typer.Option("--decimal", help="The decimal sign of numbers.")]
Thousands = Annotated[str | None, typer.Option("--thousands", help="The sign that sets thousands apart.")]
Query = Annotated[str | None, typer.Option("--query", help="The SELECT that gives the rows of a database.")]


def init(
    data: Data,
    target: TargetColumn = None,
    classes: Classes = None,
    range_: Range = None,
    client: Client = None,
    person: Annotated[str | None, typer.Option("--person-column", help="The column that names persons.")] = None,
    expires: Annotated[
        str | None, typer.Option("--expires-column", help="Dates from which records must be out.")
    ] = None,
    largest: Annotated[int, typer.Option("--largest-person", help="Most rows of one person to use.")] = 1,
    ignore: Ignore = None,
    keep: Keep = None,
    numbers: NumberColumns = None,
    texts: TextColumns = None,
    no_header: NoHeader = False,
    delimiter: Delimiter = None,
    decimal: Decimal = None,
    thousands: Thousands = None,
    query: Query = None,
    epsilon: Annotated[float, typer.Option("--epsilon", help="Of the study.")] = 1.0,
    delta: Annotated[float | None, typer.Option("--delta", help="Of the study; below one over the records.")] = None,
    file: Annotated[Path, typer.Option("--out", help="The study file to write.")] = Path(STUDY),
    instead: Annotated[bool, typer.Option("--replace", help="Write over a study file that is there.")] = False,
    as_json: Json = False,
) -> None:
    """Draft a study from the names and types of the columns; no value enters it, and nothing is charged."""
    require(person is not None or largest == 1, "--largest-person", "go with --person-column", largest)
    require(1 <= largest <= LARGEST_PERSON, "--largest-person", f"lie between 1 and {LARGEST_PERSON}", largest)
    wish = Wish(
        data=data,
        target=target,
        classes=_words(classes),
        range=None if range_ is None else _pair(range_),
        client_column=client,
        person=None if person is None else (person, largest),
        expires_column=expires,
        ignore=tuple(ignore or ()),
        keep=tuple(keep or ()),
        numbers=tuple(numbers or ()),
        texts=tuple(texts or ()),
        reading=_reading(query, no_header, delimiter, decimal, thousands),
        epsilon=epsilon,
        delta=delta,
    )
    with waiting("reading the names and types of the columns", quiet=as_json):
        draft, columns = init_study(wish, file, instead=instead)
    result = {"written": str(file), **_draft_json(draft, columns)}

    def text() -> None:
        data = draft.source  # as it may be shown: without a password
        _tell_columns(data, columns, draft)
        out().print(f"written: {file}", soft_wrap=True)
        again = f"fedveil init {data} --replace" + ("" if file == Path(STUDY) else f" --out {file}")
        _tell_questions(draft, "Add all answers to:", again)
        if draft.complete:
            out().print(f"next: fedveil run {file} --out results", soft_wrap=True)
        else:
            asked = f"fedveil profile {data} --epsilon 0.5 --target {draft.target.column}"
            out().print("Or have a charged private profile answer them:")
            out().print(f"  {asked}", soft_wrap=True)

    show(result, as_json, text)
    _tell_holder(columns, draft)


def profile(
    data: Data,
    epsilon: Annotated[float, typer.Option("--epsilon", help="What the profile may cost; charged in the ledger.")],
    delta: Annotated[float | None, typer.Option("--delta", help="Of the profile; below one over the records.")] = None,
    target: TargetColumn = None,
    classes: Classes = None,
    range_: Range = None,
    client: Client = None,
    ignore: Ignore = None,
    keep: Keep = None,
    numbers: NumberColumns = None,
    texts: TextColumns = None,
    no_header: NoHeader = False,
    delimiter: Delimiter = None,
    decimal: Decimal = None,
    thousands: Thousands = None,
    query: Query = None,
    unit: Annotated[str, typer.Option("--unit", help="What is protected: record or client.")] = "record",
    neighbours: Annotated[str, typer.Option("--neighbours", help="replace-one or zero-out.")] = "replace-one",
    run_epsilon: Annotated[float, typer.Option("--run-epsilon", help="Of the study that is drafted.")] = 1.0,
    ledger: Annotated[Path | None, typer.Option("--ledger", help="The ledger, if not beside the data.")] = None,
    folder: Annotated[Path, typer.Option("--out", help="Folder for the profile; new, or with --resume.")] = Path(
        "profile"
    ),
    resume: Annotated[bool, typer.Option("--resume", help="Finish a profile that was interrupted.")] = False,
    on: Annotated[
        Path | None, typer.Option("--on", help="A deployment, whose sites have the data; DATA is then a study file.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure a private profile of unknown data, charge it, and draft a study that runs as it is."""
    if on is not None:
        _profile_on(Path(data), epsilon, folder, on, resume, as_json)
        return
    require(unit in NAMELESS, "--unit", f"be one of {', '.join(NAMELESS)}", unit)
    known = get_args(Neighbours)
    require(neighbours in known, "--neighbours", f"be one of {', '.join(known)}", neighbours)
    require(unit == "record" or client is not None, "--client-column", "be given with --unit client", client)
    wish = Wish(
        data=data,
        target=target,
        classes=_words(classes),
        range=None if range_ is None else _pair(range_),
        client_column=client,
        ignore=tuple(ignore or ()),
        keep=tuple(keep or ()),
        numbers=tuple(numbers or ()),
        texts=tuple(texts or ()),
        reading=_reading(query, no_header, delimiter, decimal, thousands),
        epsilon=run_epsilon,
        delta=delta,
        unit=unit,
        neighbours=neighbours,
    )
    with waiting("reading the data", quiet=as_json) as stage:
        result = profile_data(wish, epsilon, folder, ledger=ledger, resume=resume, tell=stage)
    show(_profile_json(result), as_json, lambda: _tell_profile(bare(data), result))
    _tell_holder(result.columns, result.draft)


def _profile_on(study: Path, epsilon: float, folder: Path, on: Path, resume: bool, as_json: bool) -> None:
    with progress(as_json, "sum") as watch:
        how = How(resume=resume, watch=watch, tell=report_sites(as_json), system=System(tell=watch.stage))
        result, found = profile_at_sites(study, epsilon, folder, on=on, how=how)
    certificate = result.certificate

    def text() -> None:
        _tell_columns_found(found)
        _tell_charge(certificate)
        out().print(f"written: {folder} (open {folder / PAGE}; data.toml is for the sites)", soft_wrap=True)

    show({**certificate.as_json(), **total_json(certificate.data_set), "folder": str(folder)}, as_json, text)


def _words(classes: str | None) -> tuple[str, ...]:
    return () if classes is None else tuple(word.strip() for word in classes.split(","))


def _reading(
    query: str | None, no_header: bool, delimiter: str | None, decimal: str | None, thousands: str | None
) -> dict[str, Any]:
    """The keys of [data] that say how a source is read, as far as they are stated."""
    delimiter = None if delimiter is None else delimiter.replace("\\t", "\t")  # as a shell hands a tab on
    stated = {"query": query, "delimiter": delimiter, "decimal": decimal, "thousands": thousands}
    reading: dict[str, Any] = {key: value for key, value in stated.items() if value is not None}
    return {**reading, "header": False} if no_header else reading


def _pair(text: str) -> tuple[float, float]:
    try:
        low, high = (float(part) for part in text.split(","))
    except ValueError:
        require(False, "--range", "be LOW,HIGH, two numbers", text)
        raise
    return low, high


def _draft_json(draft: Draft, columns: Columns) -> dict[str, Any]:
    return {
        "complete": draft.complete,
        "target": draft.target.column,
        "columns": dict(columns.kinds),
        "reading": dict(columns.reading),
        "left_out": dict(draft.columns.unused),
        "open": [{"key": one.key, "question": one.question, "option": one.option} for one in draft.questions],
    }


def _tell_columns(data: str, columns: Columns, draft: Draft) -> None:
    kinds = list(columns.kinds.values())
    named = {"numbers": "number", "texts": "text", "dates": "date", "empty": "empty"}
    counts = [(kinds.count(kind), kind, one) for kind, one in named.items() if kind in kinds]
    counted = ", ".join(f"{count} {one if count == 1 else kind}" for count, kind, one in counts)
    out().print(f"{data}: {columns.records:,} rows, {len(kinds)} columns ({counted})", soft_wrap=True)
    signs = ", ".join(f"{key} {value!r}" for key, value in columns.reading.items() if key not in ("format", "query"))
    if signs:
        out().print(f"read with: {signs}", soft_wrap=True)
    for name, why in draft.columns.unused.items():
        out().print(f"left out: {name!r} {why}{draft.columns.way_back(name)}", soft_wrap=True)


def _tell_holder(columns: Columns, draft: Draft) -> None:
    """Say on standard error what only the data holder may know, since it was told from values."""
    repeated = [name for name in columns.repeated if name not in (draft.client_column, draft.target.column)]
    if draft.client_column is None and draft.person is None and repeated:
        Console(stderr=True).print(
            f"Note, not published: values of {', '.join(map(repr, repeated))} occur in several rows. If they "
            f"name people, one record is not one person; protect whole people: --person-column {repeated[0]} and "
            "--largest-person, the most rows of one that may be used.",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )


def _tell_questions(draft: Draft, how: str, command: str) -> None:
    """Print what the draft asks; ``how`` and ``command``: where the answers go."""
    if not draft.questions:
        return
    if draft.complete:
        out().print("Please confirm (the study runs as it is):")
    else:
        out().print("The study needs answers before it runs:")
    for number, one in enumerate(draft.questions, start=1):
        out().print(f"  {number}. {one.question}")
        out().print(f"     {one.option}")
    out().print(f"{how} {command}", soft_wrap=True)


def _profile_json(result: ProfileResult) -> dict[str, Any]:
    return {
        **result.certificate.as_json(),
        **total_json(result.certificate.data_set),
        "folder": str(result.folder),
        "study": str(result.folder / STUDY),
        **_draft_json(result.draft, result.columns),
    }


def _tell_profile(data: str, result: ProfileResult) -> None:
    _tell_columns(data, result.columns, result.draft)
    _tell_columns_found(result.profile)
    _tell_charge(result.certificate)
    out().print(f"written: {result.folder} (open {result.folder / PAGE})", soft_wrap=True)
    _tell_questions(result.draft, "Write the answers into:", str(result.folder / STUDY))
    if result.draft.complete:
        out().print(f"next: fedveil run {result.folder / STUDY} --out results", soft_wrap=True)


def _tell_columns_found(profile: Profile) -> None:
    rows: list[dict[str, Any]] = [
        {
            "column": one.name,
            "holds": f"{one.low:g} to {one.high:g}, about {one.centre:.3g}",
            "missing": _share(one.missing),
        }
        for one in profile.numbers
    ]
    for one in profile.texts:
        words = ", ".join(f"{word} {share:.0%}" for word, share in one.words[:4]) or "(all rare)"
        more = f", {len(one.words) - 4} more" if len(one.words) > 4 else ""
        title = f"{one.name} (target)" if one.name == profile.target else one.name
        rows.append({"column": title, "holds": words + more, "missing": _share(one.missing)})
    plain_table(rows)


def _tell_charge(certificate: MeasuredCertificate) -> None:
    target = certificate.plan.target
    final = next(one.answer for one in certificate.guarantees if one.adversary == target.adversary)
    out().print(
        f"charged: epsilon {rounded_up(final.epsilon)} at delta {target.delta:g} for one {target.unit} "
        f"({target.neighbours}); all numbers above are noisy",
        soft_wrap=True,
    )
    tell_total(certificate.data_set, target.adversary)


def _share(share: float) -> str:
    return "-" if share == 0 else f"{share:.1%}"


def register(app: typer.Typer) -> None:
    """Add these commands to the application."""
    app.command(epilog="Example: fedveil init visits.csv --target ill --classes no,yes")(init)
    app.command(epilog="Example: fedveil profile visits.csv --epsilon 0.5 --target ill --out profile")(profile)
