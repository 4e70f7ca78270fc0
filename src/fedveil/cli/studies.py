"""Commands about studies: plan one, run it, certify what it left, and draw its report again."""

import math
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console

from fedveil.certificate.certify import (
    Certificate,
    certify_measured,
    certify_written,
    differences,
    is_measured,
    read_bytes,
)
from fedveil.certificate.data_set import DataSet
from fedveil.cli.card import regulators_answers, tell_answers
from fedveil.cli.progress import Quiet, progress, report_sites
from fedveil.cli.quality import tell_evaluation, tell_quality
from fedveil.cli.show import (
    Json,
    Module,
    Out,
    out,
    plain_table,
    show,
    tell_facts,
    tell_guarantees,
    tell_total,
    total_json,
)
from fedveil.core.errors import CannotCertify, require
from fedveil.core.strict_json import read_object
from fedveil.engine.system import System
from fedveil.jobs.local import Result, plan_study, run_study, tune_study
from fedveil.models.metrics import no_better
from fedveil.planning.design import Planned
from fedveil.planning.forget_design import later_requests
from fedveil.planning.plan import Plan, read_plan
from fedveil.planning.promises import ADVERSARIES, every_model_seen, promise
from fedveil.planning.study import Study, parse_study, tables_of
from fedveil.privacy.guarantee import Adversary, Answer, finite_or_none
from fedveil.release.bundle import FILE as BUNDLE
from fedveil.release.tracking import load_mlflow, log_to_mlflow
from fedveil.signing import FILE as SIGNATURE
from fedveil.signing import Signature, check_signature, read_signer
from fedveil.stages.evaluate.words import fact_rows as evaluation_facts
from fedveil.stages.prepare.request import fact_rows as preparation_facts
from fedveil.stages.sums import FILE as PREPARATION
from fedveil.stages.train.registry import facts_of, title_of
from fedveil.version import __version__

StudyFile = Annotated[Path, typer.Argument(help="A study file (TOML); see docs/study-file.md.")]
Folder = Annotated[Path, typer.Argument(help="The folder a run left.")]
Sign = Annotated[Path | None, typer.Option("--sign", help="A key that signs the certificate; from: fedveil keys new.")]
Mlflow = Annotated[
    str | None, typer.Option("--mlflow", help="Log what is released to this experiment of MLflow (extra mlflow).")
]

_MOST_NOTES = 12  # sentences for the data holder on the screen
DEMO_NAME = "Breast cancer, 4 hospitals"
DEMO = f"""
[study]
name = "{DEMO_NAME}"

[data]
source = "sklearn:breast_cancer"
public = true

[data.held_out]
fraction = 0.25

[clients]
kind = "uneven"
count = 4
alpha = 1.0

[model]
kind = "logistic"
radius = 10.0

[privacy]
epsilon = 1.0
delta = 1e-4
neighbours = "zero-out"

[prepare]
kind = "private"

[report]
baselines = true
"""


def plan(study: StudyFile, module: Module = None, as_json: Json = False) -> None:
    """Schedule, noise and guarantees of a study; trains nothing, touches no row values."""
    if "question" in tables_of(study):
        from fedveil.cli.ask import show_plan  # loaded only where a file asks questions

        show_plan(study, False, as_json)
        return
    planned = plan_study(study)
    result = _plan_json(planned)

    def text() -> None:
        _plan_text(planned.plan)
        out().print(planned.draft.reason)
        if "canaries" in result:
            out().print(result["canaries"])
        promises = [(who, promise(planned.plan, who)) for who in ADVERSARIES]
        _guarantee_table("Guarantees", planned.plan, promises, beside="proved by")
        out().print(result["erasure"])
        if (alone := result["every_model_seen"]) is not None:
            shares = ", ".join(f"{name} {value:.4g}" for name, value in alone.items() if value is not None)
            out().print(f"Epsilon at this noise if every model were seen: {shares or 'no guarantee'}.")
        if planned.draft.designed is not None:
            out().print(
                "Schedules compared, lowest expected risk first (noise: on the averaged gradient; *: certified, the "
                "others are estimates):"
            )
            best = sorted(planned.draft.designed.considered, key=lambda row: row.risk)[:8]
            plain_table([row.shown() for row in best], count=3)

    show(result, as_json, text)


def run(
    study: StudyFile,
    folder: Annotated[Path, typer.Option("--out", help="Folder for the results; new, or with --resume.")],
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an interrupted run.")] = False,
    on: Annotated[Path | None, typer.Option("--on", help="A deployment's folder: its sites have the data.")] = None,
    trace: Annotated[
        Path | None, typer.Option("--trace", help="With --on: a file for a timeline of all rounds.")
    ] = None,
    sign: Sign = None,
    mlflow: Mlflow = None,
    module: Module = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Train, certify, report."""
    require(trace is None or on is not None, "--trace", "be left out without --on: there are no messages", trace)
    _check_mlflow(mlflow)
    with progress(quiet) as watch:
        if on is None:
            result = run_study(study, folder, resume=resume, watch=watch, sign=sign, system=telling(quiet, watch.stage))
        else:
            from fedveil.jobs.remote import run_on  # only here: messages and keys take a while to load

            tell = report_sites(quiet)
            result = run_on(study, folder, on, resume=resume, watch=watch, tell=tell, sign=sign, trace=trace)
    show_result(result, quiet, as_json)
    _log(folder, mlflow)


def tune(
    study: StudyFile,
    folder: Annotated[Path, typer.Option("--out", help="Folder for the results; new, or with --resume.")],
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an interrupted search.")] = False,
    sign: Sign = None,
    mlflow: Mlflow = None,
    module: Module = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Search over the study's [tune] table, release only the best model, and charge what the search costs."""
    _check_mlflow(mlflow)
    with progress(quiet, counted="trial") as watch:
        result = tune_study(study, folder, resume=resume, watch=watch, sign=sign, system=System(tell=watch.stage))
    show_result(result, quiet, as_json)
    _log(folder, mlflow)


def _check_mlflow(experiment: str | None) -> None:
    """Load MLflow before anything is charged, if the run is to be logged there."""
    if experiment is not None:
        load_mlflow()


def _log(folder: Path, experiment: str | None) -> None:
    if experiment is not None:
        run = log_to_mlflow(folder, experiment)
        Console(stderr=True).print(f"MLflow: logged to {experiment!r} as run {run}", soft_wrap=True)


def demo(folder: Out = Path("fedveil-demo"), quiet: Quiet = False, as_json: Json = False) -> None:
    """The main job on built-in data: train across four hospitals, release only the last model, certify it."""
    study: Study = parse_study(DEMO, base=Path(), name="demo")
    with progress(quiet) as watch:
        result = run_study(study, _fresh(folder), watch=watch, system=telling(quiet, watch.stage))
    show_result(result, quiet, as_json)


def certify_run(
    folder: Folder,
    signer: Annotated[
        Path | None, typer.Option("--signer", help="The public key of who must have signed the certificate.")
    ] = None,
    answers: Annotated[
        bool, typer.Option("--answers", help="Also a regulator's questions, point by point, and what is unprotected.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Recompute the certificate from the run's records alone, and say whether it matches."""
    if is_measured(folder):
        for option, given in (("--signer", signer), ("--answers", answers)):
            require(not given, option, "be left out: only runs are signed, and answer a regulator", str(given))
        _certify_measured(folder, as_json)
        return
    wanted = None if signer is None else read_signer(signer)
    certificate, changes = certify_written(folder, __version__)
    signature = None if changes else check_signature(folder, certificate.text().encode(), wanted)
    signed = None if signature is None else {"signer": signature.signer.fingerprint, "checked": wanted is not None}
    more = regulators_answers(folder) if answers and not changes else None

    def text() -> None:
        _certificate_table(certificate)
        if changes:
            out().print(f"NOT verified. It differs from the records: {'; '.join(changes)}.")
            return
        out().print(_verified(len(certificate.guarantees)))
        for sentence in certificate.charged_more:
            out().print(sentence)
        if certificate.version != __version__:
            out().print(f"It was made by version {certificate.version} and recomputed by {__version__}.")
        if signature is not None:
            out().print(_signed(signature, checked=wanted is not None), highlight=False)
        if more is not None:
            tell_answers(more)

    comparison = {"matches": not changes, "differences": changes, "charged_more": list(certificate.charged_more)}
    total = total_json(certificate.data_set)
    result = {
        **comparison,
        **read_object(certificate.text(), "certificate.json"),
        **total,
        "signature": signed,
        **(more or {}),
    }
    show(result, as_json, text)
    if changes:
        raise CannotCertify(f"The certificate in {folder} does not match the run's records: {'; '.join(changes)}.")


def _certify_measured(folder: Path, as_json: bool) -> None:
    """The same for a job that trains nothing."""
    certificate = certify_measured(folder, __version__)
    changes = differences(certificate, read_bytes(folder / "certificate.json"))

    def text() -> None:
        target = certificate.plan.target
        title = f"Certificate of {certificate.kind} for one {target.unit} ({target.neighbours}), delta {target.delta:g}"
        tell_guarantees(title, [(one.adversary, one.answer) for one in certificate.guarantees], beside="")
        tell_total(certificate.data_set, target.adversary)
        if changes:
            out().print(f"NOT verified. It differs from the records: {'; '.join(changes)}.")
        else:
            out().print(_verified(len(certificate.guarantees)))

    comparison = {"matches": not changes, "differences": changes}
    show({**comparison, **certificate.as_json(), **total_json(certificate.data_set)}, as_json, text)
    if changes:
        raise CannotCertify(f"The certificate in {folder} does not match the records: {'; '.join(changes)}.")


def _verified(count: int) -> str:
    both = {1: "its guarantee matches", 2: "both guarantees match"}.get(count, f"all {count} guarantees match")
    return f"Certificate verified: recomputed from plan and ledger, {both}."


def _signed(signature: Signature, *, checked: bool) -> str:
    if checked:
        return f"It is signed by {signature.signer.fingerprint}, the signer that was asked for."
    return (
        f"It bears a signature of {signature.signer.fingerprint}, which fits; whose key that is was not checked: give "
        "--signer KEY.pub."
    )


def report(folder: Folder, as_json: Json = False) -> None:
    """The HTML page again."""
    from fedveil.report.page import write_report  # imported here because drawing is slow to import

    certificate, changes = certify_written(folder, __version__)
    if not changes:
        check_signature(folder, certificate.text().encode())
    if changes:
        raise CannotCertify(f"The certificate in {folder} does not match the run's records: {'; '.join(changes)}.")
    path = write_report(folder)
    show({"written": [str(path)]}, as_json, lambda: out().print(f"written: {path}"))


def _fresh(folder: Path) -> Path:
    """Prepare the folder of the demo, which may be repeated: remove only what an earlier demo left."""
    path = folder / "plan.toml"
    if path.exists():
        plan = read_plan(path.read_text(encoding="utf-8"))
        hint = "A run's ledger must not be lost: name another folder."
        mine = plan.name == DEMO_NAME and plan.data.clients == 4 and plan.origin.public
        require(mine, "--out", "name a new folder, or one that a demo left", str(folder), hint)
        records = ("plan.toml", "model.npz", "ledger.jsonl", "certificate.json", SIGNATURE, "metrics.json")
        for name in (*records, PREPARATION, BUNDLE, "report.html"):
            (folder / name).unlink(missing_ok=True)
        shutil.rmtree(folder / "private", ignore_errors=True)
    return folder


def telling(quiet: bool, stage: Callable[[str], None]) -> System:
    """Return a system that tells the data holder on standard error what nobody else may know, unless it is to be quiet.

    What it says is computed from the records without noise, so it goes into no file that is published.
    """
    console = Console(stderr=True)
    if quiet:
        return System(tell=stage)
    lines: list[str] = []

    def note(text: str) -> None:
        lines.append(text)
        if len(lines) <= _MOST_NOTES:
            console.print(f"Note, not published: {text}", highlight=False, markup=False)
        elif len(lines) == _MOST_NOTES + 1:
            console.print("Note, not published: and more of that kind.", highlight=False)

    return System(tell=stage, note=note)


def show_result(result: Result, quiet: bool, as_json: bool) -> None:
    """Print the certificate and the quality of the model."""
    certificate, useless = result.certificate, no_better(result.metrics.get("test") or {})
    signer = None if result.signature is None else result.signature.signer.fingerprint
    summary = {
        **read_object(certificate.text(), "certificate.json"),
        **total_json(certificate.data_set),
        "warnings": [*certificate.plan.warnings, *([] if useless is None else [useless])],
        "metrics": result.metrics,
        "folder": str(result.folder),
        **({} if signer is None else {"signer": signer}),
    }

    def text() -> None:
        if quiet:
            return
        plan = certificate.plan
        _plan_text(plan)
        _certificate_table(certificate)
        if plan.selection:
            out().print(f"Tuning chose candidate {plan.selection.chosen + 1} of {len(plan.candidates)}.")
        tell_quality(result.metrics)
        tell_evaluation(result.metrics)
        if signer is not None:
            out().print(f"signed by {signer}", highlight=False, soft_wrap=True)
        out().print(f"written: {result.folder} (open {result.folder / 'report.html'})")
        out().print(f"use it: fedveil predict {result.folder} NEW.csv --out predictions.csv", soft_wrap=True)

    show(summary, as_json, text)


def _plan_text(plan: Plan) -> None:
    data, target = plan.data, plan.target
    out().print(plan.name, soft_wrap=True)
    model = f"{plan.model.kind}, {plan.dimension:,} parameters, from {data.records:,} records of {data.holders}"
    rows = [("model", model), ("algorithm", title_of(plan.method.kind))]
    rows += [*preparation_facts(plan.preparation, target), *facts_of(plan.method, plan.setup)]
    tell_facts([*rows, *evaluation_facts(plan.evaluation, target)])


def _certificate_table(certificate: Certificate) -> None:
    data_set = certificate.data_set
    promises = [(one.adversary, one.answer) for one in certificate.guarantees]
    _guarantee_table("Certificate", certificate.plan, promises, data_set)
    tell_total(data_set, certificate.plan.target.adversary)


def _guarantee_table(
    what: str,
    plan: Plan,
    rows: Sequence[tuple[Adversary, Answer]],
    all_runs: DataSet | None = None,
    *,
    beside: Literal["sees", "proved by"] = "sees",
) -> None:
    target = plan.target
    if plan.exposed_by is not None:
        out().print(f"NOT PRIVATE: {plan.exposed_by}.")
    for warning in plan.warnings:
        out().print(f"WARNING: {warning}")
    if plan.voided:
        rows = [(adversary, replace(answer, epsilon=math.inf)) for adversary, answer in rows]
    title = f"{what} for one {target.unit} ({target.neighbours}), delta {target.delta:g}"
    tell_guarantees(title, rows, all_runs, beside=beside)


def _forecast(plan: Plan) -> str:
    from fedveil.audit.one_run import forecast  # loaded only where there are canaries

    return forecast(plan.canaries, plan.data.records - plan.canaries, plan.target.epsilon, plan.target.delta)


def _plan_json(planned: Planned) -> dict[str, Any]:
    plan, designed = planned.plan, planned.draft.designed
    guarantees = []
    for adversary in ADVERSARIES:
        answer = promise(plan, adversary)
        guarantees.append(
            {
                "adversary": adversary,
                "epsilon": None if plan.voided else finite_or_none(answer.epsilon),
                "delta": answer.delta,
                "certified_by": answer.certified_by,
            }
        )
    return {
        "plan": plan.hash,
        "private": plan.private,
        "warnings": list(plan.warnings),
        "algorithm": plan.method.kind,
        "reason": planned.draft.reason,
        "method": plan.method.table(),
        **({"preparation": plan.preparation.table()} if plan.preparation else {}),
        **({"evaluation": plan.evaluation.table()} if plan.evaluation else {}),
        **({"canaries": _forecast(plan)} if plan.canaries else {}),
        "guarantees": guarantees,
        "considered": [asdict(row) for row in designed.considered] if designed else [],
        "every_model_seen": _every_model_seen(plan),
        "erasure": later_requests(plan),
    }


def _every_model_seen(plan: Plan) -> dict[str, float | None] | None:
    """Return epsilon at a hidden run's noise if every model were seen, by how the records are sampled."""
    costs = every_model_seen(plan)
    if costs is None:
        return None
    return {"as dealt": costs.known, "Poisson draws": costs.poisson, "independent draws": costs.independent}


def register(app: typer.Typer) -> None:
    """Add these commands to the application."""
    app.command(epilog="Example: fedveil demo --out out/demo")(demo)
    app.command(epilog="Example: fedveil plan study.toml")(plan)
    app.command(epilog="Example: fedveil run study.toml --out results")(run)
    app.command(epilog="Example: fedveil tune study.toml --out results")(tune)
    app.command("certify", epilog="Example: fedveil certify results")(certify_run)
    app.command(epilog="Example: fedveil report results")(report)
