"""The commands for synthetic data: make a generator once, and draw rows from it as often as wanted."""

from pathlib import Path
from typing import Annotated, Any

import typer

from fedveil.bundle.generating import DeepGenerator
from fedveil.certificate.certify import SEES as TRAINED
from fedveil.certificate.synthesis import ROWS, SEES
from fedveil.checks import require
from fedveil.cli.progress import progress
from fedveil.cli.show import Json, Module, out, plain_table, promised_rows, show, tell_total, total_json
from fedveil.cli.studies import Quiet, told
from fedveil.cli.waiting import waiting
from fedveil.guarantee import finite_or_none
from fedveil.jobs.remote_synthesis import How, synthesise_local, synthesise_on
from fedveil.jobs.synthesis import PAGE, SynthesisResult, sample, synthesise
from fedveil.run.system import System

Rows = Annotated[int, typer.Option("--rows", help="How many synthetic rows to draw.")]
Seed = Annotated[int | None, typer.Option("--seed", help="Of the rows, to draw the same again.")]


def synthesise_study(
    study: Annotated[Path, typer.Argument(help="A study file with a [generator] table.")],
    rows: Rows,
    folder: Annotated[Path, typer.Option("--out", help="Folder for the generator; new, or with --resume.")],
    seed: Seed = None,
    resume: Annotated[bool, typer.Option("--resume", help="Finish a generator that was interrupted.")] = False,
    on: Annotated[Path | None, typer.Option("--on", help="A deployment's folder: its sites have the data.")] = None,
    sites: Annotated[
        int | None, typer.Option("--sites", help="Try it on real processes of this machine: how many sites.")
    ] = None,
    module: Module = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Measure a private generator, charge and certify it, and draw synthetic rows."""
    require(on is None or sites is None, "--sites", "be left out with --on: the deployment has its sites", sites)
    if on is None and sites is None:
        with waiting("reading the data", quiet=as_json or quiet) as stage:
            result = synthesise(study, folder, rows=rows, seed=seed, resume=resume, system=System(tell=stage))
    else:
        with progress(quiet or as_json, "sum") as watch:
            how = How(seed, resume, watch, told(quiet or as_json), System(tell=watch.stage))
            if on is not None:
                result = synthesise_on(study, folder, on, rows=rows, how=how)
            else:
                result = synthesise_local(study, folder, sites or 0, rows=rows, how=how)
    if quiet and not as_json:
        return
    show(_as_json(result), as_json, lambda: _tell(result))


def sample_rows(
    folder: Annotated[Path, typer.Argument(help="The folder of a generator.")],
    rows: Rows,
    file: Annotated[Path | None, typer.Option("--out", help="The CSV file to write; synthetic.csv in DIR.")] = None,
    seed: Seed = None,
    module: Module = None,
    as_json: Json = False,
) -> None:
    """Draw more rows from a generator, free: no record is looked at."""
    with waiting("drawing rows", quiet=as_json):
        path = sample(folder, rows=rows, out=file, seed=seed)
    told = {"written": str(path), "rows": rows, "charged": 0}
    show(told, as_json, lambda: out().print(f"written: {path} ({rows:,} rows; nothing was charged)", soft_wrap=True))


def _as_json(result: SynthesisResult) -> dict[str, Any]:
    found, epsilons = result.generator, result.certificate.guarantees
    promised = {one.adversary: finite_or_none(one.answer.epsilon) for one in epsilons}
    if isinstance(found, DeepGenerator):
        more: dict[str, Any] = {"columns": list(found.header), "parameters": found.bundle.plan.model.parameters}
    else:
        pairs = [[found.names[a], found.names[b]] for a, b in found.pairs]
        more = {"columns": list(found.order), "pairs": pairs, "limited": found.limited}
        more |= {"wordless": list(found.wordless), "fractions": list(found.fractions)}
    return {
        "written": str(result.folder),
        "rows": result.rows,
        **more,
        "epsilon": promised,
        "delta": result.certificate.plan.target.delta,
        **total_json(result.certificate.data_set),
    }


def _tell(result: SynthesisResult) -> None:
    found = result.generator
    target = result.certificate.plan.target
    out().print(f"certificate of a generator: one {target.unit}, {target.neighbours}, delta {target.delta:g}")
    sees = TRAINED if isinstance(found, DeepGenerator) else SEES
    plain_table(promised_rows(result.certificate.guarantees, sees))
    tell_total(result.certificate.data_set, target.adversary)
    if isinstance(found, DeepGenerator):
        plan = found.bundle.plan
        rounds = "one round" if plan.method.total == 1 else f"{plan.method.total} rounds"
        out().print(f"trained: {plan.model.parameters or 0:,} parameters by {plan.method.kind}, {rounds}")
    else:
        out().print(f"measured: {len(found.names)} columns, and {len(found.pairs)} of their pairs precisely")
        if found.limited:
            told = f"The model has {found.model.tree.cells:,} cells; some pairs were left out to keep it in memory "
            out().print(f"{told}(generator.model_cells).", soft_wrap=True)
        for name in found.wordless:
            told = f"The column {name!r} shows none of its words: no word is frequent enough for the noise. Leave it"
            told = f"{told} out (data.ignore), or state its words (data.categories) or its dates (generator.dates)."
            out().print(told, soft_wrap=True)
        if found.fractions:
            told = f"These numbers are drawn with fractions: {', '.join(found.fractions)}. Name those that are whole"
            out().print(f"{told} numbers alone under generator.whole.", soft_wrap=True)
    out().print(f"written: {result.folder / ROWS} ({result.rows:,} rows)", soft_wrap=True)
    out().print(f"page: {result.folder / PAGE}", soft_wrap=True)
    out().print(f"next: fedveil sample {result.folder} --rows N (free)", soft_wrap=True)


def register(app: typer.Typer) -> None:
    """Add the commands for synthetic data."""
    example = "Example: fedveil synthesise study.toml --rows 10000 --out generator"
    app.command("synthesise", epilog=example)(synthesise_study)
    app.command("sample", epilog="Example: fedveil sample generator --rows 100000 --out rows.csv")(sample_rows)
