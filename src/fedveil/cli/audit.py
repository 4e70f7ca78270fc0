"""The command that attacks: a finished run, or the accountants themselves."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from fedveil.audit.finding import Finding, Verdict
from fedveil.audit.record import FILE, write_audit
from fedveil.certificate.synthesis import holds_generator
from fedveil.cli.show import Json, Module, out, rounded_up, show
from fedveil.core.checks import require
from fedveil.core.errors import BadValue, why
from fedveil.core.files import read_file
from fedveil.core.strict_json import read_object
from fedveil.engine.files import PRIVATE, PUBLIC, private_folder, write_atomically
from fedveil.noise.entropy import Entropy

Target = Annotated[Path, typer.Argument(help="The folder of a run or of a generator, or a mechanism file.")]

_CONCLUSIONS: dict[Verdict, str] = {
    "broken": "BROKEN: the certificate does not hold.",
    "consistent": "Nothing contradicts the certificate.",
    "not-judged": "No attack could judge the certificate.",
}


def audit(
    target: Target,
    study: Annotated[
        Path | None, typer.Option("--study", help="The run's study file: attacks that need its records too.")
    ] = None,
    runs: Annotated[int, typer.Option("--runs", help="Runs of the game on each of two data sets.")] = 4000,
    shadows: Annotated[int, typer.Option("--shadows", help="Shadow runs of membership inference; 0: none.")] = 32,
    alarm: Annotated[float, typer.Option("--alarm", help="Chance of a false alarm of each game.")] = 1e-6,
    canary_alarm: Annotated[float, typer.Option("--canary-alarm", help="The same for canaries and membership.")] = 0.05,
    delta: Annotated[float, typer.Option("--delta", help="For a mechanism file: where to compare.")] = 1e-5,
    module: Module = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress, no summary; errors only.")] = False,
    as_json: Json = False,
) -> None:
    """Attack it: what attackers achieve, beside what is certified."""
    trained = target.is_dir() and not holds_generator(target)
    require(trained or study is None, "--study", "be left out for a generator and for a mechanism file", str(study))
    if holds_generator(target):
        code = _audit_generator(target, runs, alarm, quiet, as_json)
    elif target.is_dir():
        code = _audit_run(target, study, (runs, shadows, alarm, canary_alarm), quiet, as_json)
    else:
        code = _audit_mechanism(target, delta, as_json)
    if code:
        raise typer.Exit(code)


def _audit_run(
    folder: Path, study: Path | None, effort: tuple[int, int, float, float], quiet: bool, as_json: bool
) -> int:
    from fedveil.jobs.attack.audit import (  # imported here because drawing and training are slow to import
        Effort,
        audit_run,
    )
    from fedveil.report.page import write_report

    wanted = Effort(runs=effort[0], shadows=effort[1], alarm=effort[2], canary_alarm=effort[3])
    with _telling(quiet or as_json) as tell:
        audited = audit_run(folder, wanted, Entropy.from_system(), study=study, watch=tell)
    if audited.private is not None:
        closed = private_folder(folder / "private")  # a copy of only the public files of a run has no private folder
        write_atomically(closed / FILE, write_audit(audited.private).encode(), mode=PRIVATE)
    write_atomically(folder / FILE, write_audit(audited.public).encode(), mode=PUBLIC)
    page = write_report(folder)
    findings = (*audited.public.findings, *(audited.private.findings if audited.private else ()))
    verdict = _verdict(findings)
    result = {
        "verdict": verdict,
        **read_object(write_audit(audited.public), "audit.json"),
        "private_findings": [row.as_json() for row in audited.private.findings] if audited.private else [],
        "skipped": list(audited.skipped),
        "written": [str(folder / FILE), str(page)],
    }

    def text() -> None:
        if quiet:
            return
        if findings:
            _table(findings)
        for row in audited.skipped:
            out().print(f"left out: {row}")
        if audited.private is not None and audited.private.findings:
            out().print("Membership inference read records that are not public: its findings stay in private/.")
        out().print(_CONCLUSIONS[verdict])
        out().print(f"written: {folder / FILE} (open {page})")

    show(result, as_json, text)
    return 1 if audited.broken else 0


def _audit_generator(folder: Path, runs: int, alarm: float, quiet: bool, as_json: bool) -> int:
    """The distinguishing game on the measurements of a generator, with the noise of its plan."""
    from fedveil.jobs.attack.generator import audit_generator  # imported here because fitting is slow to import

    with _telling(quiet or as_json) as tell:
        audited = audit_generator(folder, runs, Entropy.from_system(), alarm=alarm, watch=tell)
    write_atomically(folder / FILE, write_audit(audited).encode(), mode=PUBLIC)
    verdict = _verdict(audited.findings)

    def text() -> None:
        if not quiet:
            _table(audited.findings)
            out().print(_CONCLUSIONS[verdict])
            out().print(f"written: {folder / FILE}")

    result = {"verdict": verdict, **read_object(write_audit(audited), "audit.json"), "written": [str(folder / FILE)]}
    show(result, as_json, text)
    return 1 if audited.broken else 0


def _verdict(findings: tuple[Finding, ...]) -> Verdict:
    """Return the verdict of all attacks: broken if any attack breaks the promise; not-judged if none could judge."""
    given = {row.verdict for row in findings}
    return "broken" if "broken" in given else "consistent" if "consistent" in given else "not-judged"


def _audit_mechanism(path: Path, delta: float, as_json: bool) -> int:
    from fedveil.audit.oracle import as_record, check
    from fedveil.privacy.mechanism import LastIterate
    from fedveil.privacy.mechanism_file import parse_mechanism

    try:
        mechanism = parse_mechanism(read_file(path).decode("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise BadValue(
            f"The file to audit must be readable, a run's folder or a mechanism file: {why(error)}."
        ) from error
    right = isinstance(mechanism, LastIterate)
    require(right, "mechanism.kind", "be last-iterate: the oracle follows hidden runs", type(mechanism).__name__)
    verdict = check(mechanism, delta)  # type: ignore[arg-type]
    record: dict[str, Any] = as_record(verdict)

    def text() -> None:
        for key, value in record.items():
            if not isinstance(value, dict | list):
                out().print(f"{key.replace('_', ' ')}: {value}")

    show(record, as_json, text)
    return 0 if record["verdict"] == "consistent" else 1


@contextmanager
def _telling(quiet: bool) -> Iterator[Any]:
    """Print what is being tried, on standard error."""
    if quiet:
        yield None
        return
    console = Console(stderr=True)
    with console.status("checking the run's records") as status:
        yield lambda what: status.update(what)


def _table(findings: tuple[Finding, ...]) -> None:
    table = Table(box=None, pad_edge=False)
    table.add_column("attack")  # on a narrow screen these two columns are wrapped, but never a number or a verdict
    table.add_column("on")
    for name in ("certified", "measured"):
        table.add_column(name, justify="right", no_wrap=True, min_width=len(name))
    table.add_column("", no_wrap=True, min_width=len("not-judged"))
    for row in findings:
        certified = rounded_up(row.certified)
        measured = f"{row.measured:.4f}" if row.kind == "lower-bound" else f"about {row.measured:.2f}"
        table.add_row(row.attack, row.adversary, certified, measured, row.verdict)
    out().print("epsilon, certified (no more than) and measured (no less than):")
    out().print(table)


def register(app: typer.Typer) -> None:
    """Add this command to the application."""
    app.command(epilog="Example: fedveil audit results --study study.toml")(audit)
