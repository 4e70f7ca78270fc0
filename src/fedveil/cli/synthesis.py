"""The commands for synthetic data: make a generator once, and draw rows from it as often as wanted."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from fedveil.bundle.generating import DeepGenerator
from fedveil.certificate.certify import SEES as TRAINED
from fedveil.certificate.certify import Guarantee
from fedveil.certificate.synthesis import ROWS, SEES
from fedveil.cli.show import Json, out, plain_table, rounded_up, show
from fedveil.cli.waiting import waiting
from fedveil.guarantee import Adversary, finite_or_none
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
    as_json: Json = False,
) -> None:
    """Measure a private generator, charge and certify it, and draw synthetic rows."""
    with waiting("reading the data", quiet=as_json) as stage:
        result = synthesise(study, folder, rows=rows, seed=seed, resume=resume, system=System(tell=stage))
    show(_as_json(result), as_json, lambda: _tell(result))


def sample_rows(
    folder: Annotated[Path, typer.Argument(help="The folder of a generator.")],
    rows: Rows,
    file: Annotated[Path | None, typer.Option("--out", help="The CSV file to write; synthetic.csv in DIR.")] = None,
    seed: Seed = None,
    module: Annotated[
        str | None, typer.Option("--module", help="Of a torch generator of your own: its function, which is run.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Draw more rows from a generator, free: no record is looked at."""
    with waiting("drawing rows", quiet=as_json):
        path = sample(folder, rows=rows, out=file, seed=seed, module=module)
    told = {"written": str(path), "rows": rows, "charged": 0}
    show(told, as_json, lambda: out().print(f"written: {path} ({rows:,} rows; nothing was charged)", soft_wrap=True))


def promised_rows(guarantees: Sequence[Guarantee], sees: Mapping[Adversary, str]) -> list[dict[str, Any]]:
    """Return what each observer is promised, as rows of a table."""
    return [
        {"who": one.adversary, "epsilon": rounded_up(one.answer.epsilon), "sees": sees[one.adversary]}
        for one in guarantees
    ]


def _as_json(result: SynthesisResult) -> dict[str, Any]:
    found, epsilons = result.generator, result.certificate.guarantees
    promised = {one.adversary: finite_or_none(one.answer.epsilon) for one in epsilons}
    if isinstance(found, DeepGenerator):
        more: dict[str, Any] = {"columns": list(found.header), "parameters": found.bundle.plan.model.parameters}
    else:
        pairs = [[found.names[a], found.names[b]] for a, b in found.pairs]
        more = {"columns": list(found.names), "pairs": pairs, "limited": found.limited}
    return {
        "written": str(result.folder),
        "rows": result.rows,
        **more,
        "epsilon": promised,
        "delta": result.certificate.plan.target.delta,
    }


def _tell(result: SynthesisResult) -> None:
    found = result.generator
    target = result.certificate.plan.target
    out().print(f"certificate of a generator: one {target.unit}, {target.neighbours}, delta {target.delta:g}")
    sees = TRAINED if isinstance(found, DeepGenerator) else SEES
    plain_table(promised_rows(result.certificate.guarantees, sees))
    if isinstance(found, DeepGenerator):
        plan = found.bundle.plan
        out().print(
            f"trained: {plan.model.parameters or 0:,} parameters by {plan.method.kind}, {plan.method.total} rounds"
        )
    else:
        out().print(f"measured: {len(found.names)} columns, and {len(found.pairs)} of their pairs precisely")
        if found.limited:
            told = f"The model has {found.model.tree.cells:,} cells; some pairs were left out to keep it in memory "
            out().print(f"{told}(generator.model_cells).", soft_wrap=True)
    out().print(f"written: {result.folder / ROWS} ({result.rows:,} rows)", soft_wrap=True)
    out().print(f"page: {result.folder / PAGE}", soft_wrap=True)
    out().print(f"next: fedveil sample {result.folder} --rows N (free)", soft_wrap=True)


def register(app: typer.Typer) -> None:
    """Add the commands for synthetic data."""
    example = "Example: fedveil synthesise study.toml --rows 10000 --out generator"
    app.command("synthesise", epilog=example)(synthesise_study)
    app.command("sample", epilog="Example: fedveil sample generator --rows 100000 --out rows.csv")(sample_rows)
