"""The commands for synthetic data: make a generator once, and draw rows from it as often as wanted."""

from pathlib import Path
from typing import Annotated, Any

import typer

from fedveil.certificate.stage_words import ROWS
from fedveil.cli.parsing import check_where
from fedveil.cli.progress import Quiet, progress, report_sites, waiting
from fedveil.cli.serving import interrupt_on_signals
from fedveil.cli.show import Json, Module, out, show, tell_guarantees, tell_total, total_json
from fedveil.engine.system import System
from fedveil.jobs.remote import How
from fedveil.jobs.remote_synthesis import synthesise_local, synthesise_on
from fedveil.jobs.synthesis import PAGE, SynthesisResult, sample, synthesise
from fedveil.privacy.guarantee import finite_or_none
from fedveil.release.generating import DeepGenerator

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
    check_where(on, sites)
    if on is None and sites is None:
        with waiting("reading the data", quiet=as_json or quiet) as stage:
            result = synthesise(study, folder, rows=rows, seed=seed, resume=resume, system=System(tell=stage))
    else:
        with progress(quiet or as_json, "sum") as watch:
            how = How(
                resume=resume,
                watch=watch,
                tell=report_sites(quiet or as_json),
                system=System(tell=watch.stage),
                seed=seed,
            )
            if on is not None:
                result = synthesise_on(study, folder, on, rows=rows, how=how)
            else:
                interrupt_on_signals()
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
    result = {"written": str(path), "rows": rows, "charged": 0}
    show(result, as_json, lambda: out().print(f"written: {path} ({rows:,} rows; nothing was charged)", soft_wrap=True))


def _as_json(result: SynthesisResult) -> dict[str, Any]:
    generator, epsilons = result.generator, result.certificate.guarantees
    promised = {one.adversary: finite_or_none(one.answer.epsilon) for one in epsilons}
    if isinstance(generator, DeepGenerator):
        more: dict[str, Any] = {"columns": list(generator.header), "parameters": generator.bundle.plan.model.parameters}
    else:
        pairs = [[generator.names[a], generator.names[b]] for a, b in generator.pairs]
        more = {"columns": list(generator.order), "pairs": pairs, "limited": generator.limited}
        more |= {"wordless": list(generator.wordless), "fractions": list(generator.fractions)}
    return {
        "written": str(result.folder),
        "rows": result.rows,
        **more,
        "epsilon": promised,
        "delta": result.certificate.plan.target.delta,
        **total_json(result.certificate.data_set),
    }


def _tell(result: SynthesisResult) -> None:
    generator = result.generator
    target = result.certificate.plan.target
    title = f"Certificate of a generator for one {target.unit} ({target.neighbours}), delta {target.delta:g}"
    tell_guarantees(title, [(one.adversary, one.answer) for one in result.certificate.guarantees], beside="")
    tell_total(result.certificate.data_set, target.adversary)
    if isinstance(generator, DeepGenerator):
        plan = generator.bundle.plan
        rounds = "one round" if plan.method.total == 1 else f"{plan.method.total} rounds"
        out().print(f"trained: {plan.model.parameters or 0:,} parameters by {plan.method.kind}, {rounds}")
    else:
        out().print(f"measured: {len(generator.names)} columns, and {len(generator.pairs)} of their pairs precisely")
        if generator.limited:
            sentence = (
                f"The model has {generator.model.tree.cells:,} cells; some pairs were left out to keep it in memory "
            )
            out().print(f"{sentence}(generator.model_cells).", soft_wrap=True)
        for name in generator.wordless:
            sentence = (
                f"The column {name!r} shows none of its words: no word is frequent enough for the noise. Leave it"
            )
            sentence = (
                f"{sentence} out (data.ignore), or state its words (data.categories) or its dates (generator.dates)."
            )
            out().print(sentence, soft_wrap=True)
        if generator.fractions:
            sentence = (
                f"These numbers are drawn with fractions: {', '.join(generator.fractions)}. Name those that are whole"
            )
            out().print(f"{sentence} numbers alone under generator.whole.", soft_wrap=True)
    out().print(f"written: {result.folder / ROWS} ({result.rows:,} rows)", soft_wrap=True)
    out().print(f"page: {result.folder / PAGE}", soft_wrap=True)
    out().print(f"next: fedveil sample {result.folder} --rows N (free)", soft_wrap=True)


def register(app: typer.Typer) -> None:
    """Add the commands for synthetic data."""
    example = "Example: fedveil synthesise study.toml --rows 10000 --out generator"
    app.command("synthesise", epilog=example)(synthesise_study)
    app.command("sample", epilog="Example: fedveil sample generator --rows 100000 --out rows.csv")(sample_rows)
