"""The command that measures a released model on other records: privately, or exactly on public ones."""

from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from fedveil.cli.progress import waiting
from fedveil.cli.quality import tell_evaluation, tell_quality
from fedveil.cli.show import Json, Module, out, rounded_up, show, tell_total, total_json
from fedveil.core.errors import require
from fedveil.jobs.evaluation import Evaluated, evaluate_model, evaluate_publicly
from fedveil.privacy.guarantee import NAMELESS, Neighbours
from fedveil.release.bundle import FILE as BUNDLE
from fedveil.release.model import load_model

Model = Annotated[Path, typer.Argument(metavar="DIR|MODEL", help=f"The folder a run left, or its {BUNDLE} alone.")]
Folder = Annotated[Path, typer.Option("--out", help="Folder for a private evaluation; new, or with --resume.")]


def evaluate(
    model: Model,
    data: Annotated[
        str, typer.Argument(help="Labelled records: a file, a folder, a database's address, sklearn:NAME.")
    ],
    epsilon: Annotated[
        float | None, typer.Option("--epsilon", help="What it may cost these records; charged in their ledger.")
    ] = None,
    delta: Annotated[float | None, typer.Option("--delta", help="Below one over the records.")] = None,
    public: Annotated[
        bool, typer.Option("--public", help="The records are public: exact metrics, and no charge.")
    ] = False,
    unit: Annotated[str, typer.Option("--unit", help="What is protected: record or client.")] = "record",
    neighbours: Annotated[str, typer.Option("--neighbours", help="replace-one or zero-out.")] = "replace-one",
    client: Annotated[
        str | None, typer.Option("--client-column", help="The column that says whose record it is.")
    ] = None,
    query: Annotated[
        str | None, typer.Option("--query", help="The SELECT that gives the records of a database.")
    ] = None,
    ledger: Annotated[Path | None, typer.Option("--ledger", help="The ledger, if not beside the data.")] = None,
    folder: Folder = Path("evaluation"),
    resume: Annotated[bool, typer.Option("--resume", help="Finish an evaluation that was interrupted.")] = False,
    module: Module = None,
    as_json: Json = False,
) -> None:
    """Measure a released model on other records: privately, with a certificate, or exactly on public ones."""
    hint = "Give --epsilon for records that are not public, and --public for records that are."
    require(public != (epsilon is not None), "--epsilon", "be given, or --public, and not both", epsilon, hint)
    require(unit in NAMELESS, "--unit", f"be one of {', '.join(NAMELESS)}", unit)
    known = get_args(Neighbours)
    require(neighbours in known, "--neighbours", f"be one of {', '.join(known)}", neighbours)
    loaded = load_model(model)
    with waiting("reading the data", quiet=as_json) as stage:
        if epsilon is None:
            evaluated = evaluate_publicly(loaded, data, client_column=client, query=query)
        else:
            stage("counting with noise how good the model is")
            evaluated = evaluate_model(
                loaded,
                data,
                epsilon=epsilon,
                out=folder,
                delta=delta,
                unit=unit,
                neighbours=neighbours,
                client_column=client,
                query=query,
                ledger=ledger,
                resume=resume,
            )
    show(_as_json(evaluated), as_json, lambda: _tell(evaluated))


def _as_json(evaluated: Evaluated) -> dict[str, Any]:
    if evaluated.certificate is None:
        return {"test": evaluated.metrics}
    result = {
        "folder": str(evaluated.folder),
        "evaluation": evaluated.metrics,
        "certificate": evaluated.certificate.as_json(),
    }
    return result | total_json(evaluated.certificate.data_set)


def _tell(evaluated: Evaluated) -> None:
    if evaluated.certificate is None:
        tell_quality({"test": evaluated.metrics})
        return
    tell_evaluation({"evaluation": {**evaluated.metrics, "on": "other"}})
    target = evaluated.certificate.plan.target
    final = next(one.answer for one in evaluated.certificate.guarantees if one.adversary == target.adversary)
    charge = f"charged: epsilon {rounded_up(final.epsilon)} at delta {target.delta:g} for one {target.unit}"
    out().print(f"{charge} ({target.neighbours}), in the ledger of these records", soft_wrap=True)
    tell_total(evaluated.certificate.data_set, target.adversary)
    out().print(f"written: {evaluated.folder}", soft_wrap=True)


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(epilog="Example: fedveil evaluate results new.csv --epsilon 0.5 --out measured")(evaluate)
