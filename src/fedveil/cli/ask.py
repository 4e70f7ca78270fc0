"""The command for certified statistics: what answers would be worth, and the answers."""

from pathlib import Path
from typing import Annotated, Any

import typer

from fedveil.cli.parsing import check_where
from fedveil.cli.progress import Quiet, progress, report_sites, waiting
from fedveil.cli.show import Json, out, plain_table, show, tell_guarantees, tell_total, total_json
from fedveil.core.errors import require
from fedveil.engine.system import System
from fedveil.jobs.ask import PAGE, AskResult, Precision, Spending, ask_local, ask_on, ask_study, plan_questions
from fedveil.jobs.remote import How
from fedveil.privacy.guarantee import finite_or_none
from fedveil.stages.measured.plan import MeasuredPlan


def ask_questions(
    questions: Annotated[Path, typer.Argument(help="A question file (TOML); see docs/ask.md.")],
    folder: Annotated[Path | None, typer.Option("--out", help="Folder for the answers; new, or with --resume.")] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Say how precise answers will be; charge nothing.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Finish answers that were interrupted.")] = False,
    on: Annotated[Path | None, typer.Option("--on", help="A deployment's folder: its sites have the data.")] = None,
    sites: Annotated[
        int | None, typer.Option("--sites", help="Try it on real processes of this machine: how many sites.")
    ] = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Answer questions about private records: charged, certified, with intervals."""
    require(plan or folder is not None, "--out", "name a folder for the answers", None, "Or give --plan.")
    check_where(on, sites)
    if plan or folder is None:
        show_plan(questions, quiet, as_json)
        return
    if on is None and sites is None:
        with waiting("reading the data", quiet=as_json or quiet) as stage:
            result = ask_study(questions, folder, resume=resume, system=System(tell=stage))
    else:
        with progress(quiet or as_json, "sum") as watch:
            how = How(resume=resume, watch=watch, tell=report_sites(quiet or as_json), system=System(tell=watch.stage))
            result = ask_on(questions, folder, on, how) if on else ask_local(questions, folder, sites or 0, how)
    if quiet and not as_json:
        return
    show(_as_json(result), as_json, lambda: _tell(result))


def show_plan(questions: Path, quiet: bool, as_json: bool) -> None:
    """Show how precise the answers to a question file will be."""
    with waiting("reading the data", quiet=as_json or quiet):
        planned, expected, spent = plan_questions(questions)
    show(_plan_json(planned, expected, spent), as_json, lambda: _tell_plan(planned, expected, spent))


def _plan_json(plan: MeasuredPlan, expected: list[Precision], spent: Spending) -> dict[str, Any]:
    rows = [
        {
            "question": one.question,
            "what": one.what,
            "unit": one.unit,
            "half_widths": {f"{epsilon:g}": finite_or_none(width) for epsilon, width in one.half_widths.items()},
        }
        for one in expected
    ]
    promised = plan.promise(plan.target.adversary).epsilon
    ledger = {
        "spent": finite_or_none(spent.before),
        "with_these": finite_or_none(spent.after),
        "delta": spent.delta,
        "cap": spent.cap,
        "left": spent.left,
    }
    result = {"epsilon": promised, "delta": plan.target.delta, "noise": plan.sums.law}
    return {**result, "charged": 0, "expected": rows, "ledger": ledger}


def _tell_plan(plan: MeasuredPlan, expected: list[Precision], spent: Spending) -> None:
    target = plan.target
    out().print(f"questions: {len(expected)}, one {target.unit}, {target.neighbours}, delta {target.delta:g}")
    rows = []
    for one in expected:
        widths = {f"epsilon {epsilon:g}": _width(width) for epsilon, width in one.half_widths.items()}
        rows.append({"question": one.question, "half-width of": f"{one.what} ({one.unit})".replace(" ()", "")} | widths)
    plain_table(rows)
    out().print(spent.sentence(), soft_wrap=True)
    out().print("Half-widths of 95% intervals of the noise, if every record is asked about. Nothing was charged.")


def _width(width: float) -> str:
    return "no interval" if finite_or_none(width) is None else f"{width:.3g}"


def _as_json(result: AskResult) -> dict[str, Any]:
    promised = {one.adversary: finite_or_none(one.answer.epsilon) for one in result.certificate.guarantees}
    return {
        "written": str(result.folder),
        "epsilon": promised,
        "delta": result.certificate.plan.target.delta,
        "answers": result.answers["answers"],
        **total_json(result.certificate.data_set),
    }


def _tell(result: AskResult) -> None:
    target = result.certificate.plan.target
    for one in result.answers["answers"]:
        rows = one["tables"][""]
        out().print(f"\n{one['question']['name']}", highlight=False)
        if len(rows) <= 30:
            plain_table([{key: _shown(value) for key, value in row.items()} for row in rows])
        else:
            out().print(f"{len(rows)} rows: see the CSV file")
        for sentence in one["notes"]:
            out().print(sentence, soft_wrap=True)
    title = f"\nCertificate of the answers for one {target.unit} ({target.neighbours}), delta {target.delta:g}"
    tell_guarantees(title, [(one.adversary, one.answer) for one in result.certificate.guarantees], beside="")
    tell_total(result.certificate.data_set, target.adversary)
    out().print(f"page: {result.folder / PAGE}", soft_wrap=True)


def _shown(value: Any) -> Any:
    return f"{value:.5g}" if isinstance(value, float) else value


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("ask", epilog="Example: fedveil ask questions.toml --out answers")(ask_questions)
