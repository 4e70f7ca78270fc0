"""Commands that use a released model: predict with it, and hand it on in other formats."""

from pathlib import Path
from typing import Annotated, Any

import typer

from fedveil.cli.show import Json, Module, out, rounded_up, show
from fedveil.core.errors import require
from fedveil.data.tables import nearest
from fedveil.engine.files import PUBLIC, write_atomically
from fedveil.jobs.local import Result
from fedveil.jobs.personal import personalise
from fedveil.jobs.private_personal import personalise_privately
from fedveil.models.personal_request import PersonalRequest
from fedveil.release.bundle import FILE as BUNDLE
from fedveil.release.export import ENDINGS, FORMATS, TRUSTED, export_model
from fedveil.release.model import load_model, summary
from fedveil.release.personal import STAYS
from fedveil.release.predicting import predict_file

Model = Annotated[Path, typer.Argument(metavar="DIR|MODEL", help=f"The folder a run left, or its {BUNDLE} alone.")]


def predict(
    model: Model,
    data: Annotated[
        str, typer.Argument(help="Records, labelled or not: a file, a folder, a database's address, or sklearn:NAME.")
    ],
    file: Annotated[Path, typer.Option("--out", help="File for the predictions: .csv or .parquet.")],
    probabilities: Annotated[
        bool, typer.Option("--probabilities", help="Also the probability of each class, a column each.")
    ] = False,
    keep: Annotated[list[str] | None, typer.Option("--keep", help="A column to copy over; may be repeated.")] = None,
    absent: Annotated[
        str, typer.Option("--absent", help="A column that the data do not have: refuse, or fill as if missing.")
    ] = "refuse",
    unknown: Annotated[
        str, typer.Option("--unknown", help="A category that the model does not know: refuse, or zero (none of them).")
    ] = "refuse",
    query: Annotated[
        str | None, typer.Option("--query", help="The SELECT that gives the records of a database.")
    ] = None,
    module: Module = None,
    as_json: Json = False,
) -> None:
    """Predict with a released model; the records need no labels, and theirs are not looked at."""
    require(absent in ("refuse", "fill"), "--absent", "be refuse or fill", absent)
    require(unknown in ("refuse", "zero"), "--unknown", "be refuse or zero", unknown)
    loaded = load_model(model)
    loaded = loaded.lenient(absent=absent, unknown=unknown)  # type: ignore[arg-type]  # checked above
    written = predict_file(loaded, data, file, with_probabilities=probabilities, keep=keep or (), query=query)

    def text() -> None:
        out().print(summary(loaded.bundle), soft_wrap=True)
        sentence = f"{written.rows:,} record{'s' * (written.rows != 1)}"
        if written.counts is not None:
            few = list(written.counts.items())[:12]
            sentence += ": " + ", ".join(f"{word} {count:,}" for word, count in few)
            sentence += ", ..." if len(written.counts) > len(few) else ""
        out().print(sentence, soft_wrap=True)
        if written.without:
            out().print(f"{written.without:,} of them have a missing value that nothing stands for, and no prediction.")
        out().print(f"written: {file} ({', '.join(written.columns)})", soft_wrap=True)

    show(written.as_json(), as_json, text)


def export(
    model: Model,
    to: Annotated[str, typer.Option("--to", help=f"One of {', '.join(FORMATS)}.")],
    file: Annotated[Path | None, typer.Option("--out", help="File to write; without: beside the model.")] = None,
    module: Module = None,
    as_json: Json = False,
) -> None:
    """Write a released model for others: scikit-learn (.skops, .joblib or .pkl), ONNX, or plain JSON."""
    require(to in FORMATS, "--to", f"be one of {', '.join(FORMATS)}", to, nearest(to, FORMATS))
    ending = file is None or to != "sklearn" or file.suffix in ENDINGS
    hint = "A .skops file runs nothing when it is loaded; the others are pickles."
    require(ending, "--out", f"end in {', '.join(ENDINGS)} for scikit-learn", str(file), hint)
    loaded = load_model(model)
    path = file or (model if model.is_dir() else model.parent) / f"model{FORMATS[to]}"
    write_atomically(path, export_model(loaded.bundle, to, ending=path.suffix), mode=PUBLIC)
    result: dict[str, Any] = {"written": str(path), "to": to, "plan": loaded.plan.hash}
    trusted = list(TRUSTED) if path.suffix == ".skops" else []

    def text() -> None:
        out().print(f"written: {path}", soft_wrap=True)
        if trusted:
            out().print(f"load it: skops.io.load({str(path)!r}, trusted={trusted})", soft_wrap=True, markup=False)

    show(result | ({"trusted": trusted} if trusted else {}), as_json, text)


def personalise_model(
    model: Model,
    client: Annotated[str, typer.Option("--client", help="The party whose model it is.")],
    data: Annotated[str, typer.Option("--data", help="Its labelled records, or a site's data file (TOML).")],
    folder: Annotated[Path, typer.Option("--out", help="A new folder at that party; only its owner can read it.")],
    column: Annotated[
        str | None, typer.Option("--client-column", help="Take only the records that name the client here.")
    ] = None,
    way: Annotated[
        list[str] | None, typer.Option("--way", help="proximal, mixture or threshold; may be repeated.")
    ] = None,
    margin: Annotated[
        float | None, typer.Option("--margin", help="A gain that is not larger changes nothing; 0.01.")
    ] = None,
    epsilon: Annotated[
        float | None, typer.Option("--epsilon", help="Make one that may be shown: trained with noise, and charged.")
    ] = None,
    delta: Annotated[float | None, typer.Option("--delta", help="With --epsilon; as the shared model's.")] = None,
    ledger: Annotated[
        Path | None,
        typer.Option("--ledger", help="With --epsilon: the party's own ledger, if not beside its data."),
    ] = None,
    module: Module = None,
    resume: Annotated[bool, typer.Option("--resume", help="Finish a model that was interrupted.")] = False,
    as_json: Json = False,
) -> None:
    """Make a party's own model from the shared one and its own records; with --epsilon, one that may be shown."""
    if epsilon is not None:
        require(way is None and margin is None, "--epsilon", "go without --way and --margin", epsilon)
        target: Any = {"epsilon": epsilon, "delta": delta, "client_column": column, "ledger": ledger}
        _show_private(personalise_privately(model, client, data, folder, resume=resume, **target), as_json)
        return
    require(delta is None and ledger is None, "--delta and --ledger", "come with --epsilon", (delta, ledger))
    given: Any = {"ways": None if way is None else tuple(way), "margin": margin}
    given = {key: value for key, value in given.items() if value is not None}
    asked = PersonalRequest(**given) if given else None  # as the study says, unless something is said here
    personalised = personalise(model, client, data, folder, client_column=column, request=asked, resume=resume)
    one = personalised.chosen

    def text() -> None:
        if one.gain is None:
            sentence = f"the shared model is kept: {one.records} records are too few to choose by"
        elif not one.own:
            sentence = (
                f"the shared model is kept: the best gain, {one.gain:.3f}, is not above the margin, {one.margin:.3f}"
            )
        else:
            kind = one.kind if one.strength is None else f"{one.kind} ({one.strength:.3g})"
            moved = f", threshold {one.threshold:.3g}" if one.threshold else ""
            sentence = f"{kind}{moved}: cross-validated gain {one.gain:.3f}, above the margin {one.margin:.3f}"
        out().print(f"{one.client}, {one.records} records: {sentence}.", soft_wrap=True)
        out().print(f"if it stays: {STAYS}. if it is shown: {one.shown}", soft_wrap=True)
        folder = personalised.folder
        out().print(f"written: {folder} (use it: fedveil predict {folder} NEW.csv --out predictions.csv)")

    show(personalised.as_json(), as_json, text)


def _show_private(result: Result, as_json: bool) -> None:
    """Show what a model that may be shown promises to the records of its party."""
    rows = result.certificate.as_json()["guarantees"]
    shown = next(row for row in rows if row["adversary"] == "final-model")
    values = {"folder": str(result.folder), "epsilon": shown["epsilon"], "delta": shown["delta"]}

    def text() -> None:
        epsilon = rounded_up(shown["epsilon"])
        out().print(f"if it is shown: epsilon {epsilon} at delta {shown['delta']:g} for a record of this party")
        out().print(f"written: {result.folder} (certificate.json, model.npz, {BUNDLE})", soft_wrap=True)

    show(values, as_json, text)


def register(app: typer.Typer) -> None:
    """Add these commands to the application."""
    app.command(epilog="Example: fedveil predict results new.csv --out predictions.csv --probabilities")(predict)
    app.command("personalise", epilog="Example: fedveil personalise results --client A --data a.csv --out mine")(
        personalise_model
    )
    app.command(epilog="Example: fedveil export results --to onnx --out model.onnx")(export)
