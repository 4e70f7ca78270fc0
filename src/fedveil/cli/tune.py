"""The command that tunes: it searches a declared space, charges what the search costs, and releases the best model."""

from pathlib import Path
from typing import Annotated

import typer

from fedveil.cli.progress import progress
from fedveil.cli.show import Json, Module
from fedveil.cli.studies import Quiet, Sign, StudyFile, show_result
from fedveil.engine.system import System
from fedveil.jobs.local import tune_study


def tune(
    study: StudyFile,
    folder: Annotated[Path, typer.Option("--out", help="Folder for the results; new, or with --resume.")],
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an interrupted search.")] = False,
    sign: Sign = None,
    module: Module = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Search over the study's [tune] table, release only the best model, and charge what the search costs."""
    with progress(quiet, counted="trial") as watch:
        result = tune_study(study, folder, resume=resume, watch=watch, sign=sign, system=System(tell=watch.stage))
    show_result(result, quiet, as_json)


def register(app: typer.Typer) -> None:
    """Add this command to the application."""
    app.command(epilog="Example: fedveil tune study.toml --out results")(tune)
