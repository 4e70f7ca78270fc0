"""The command that attacks: a finished run, or the accountants themselves."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from fedveil.audit.finding import Finding, Verdict
from fedveil.audit.record import FILE, Audit, write_audit
from fedveil.certificate.certify import is_measured
from fedveil.cli.show import Json, Module, out, rounded_up, show
from fedveil.core.errors import BadValue, require, why
from fedveil.core.files import read_file
from fedveil.core.strict_json import read_object
from fedveil.engine.files import PRIVATE, PUBLIC, private_folder, write_atomically
from fedveil.noise.entropy import Entropy
from fedveil.privacy.guarantee import Neighbours

Target = Annotated[
    Path | None, typer.Argument(help="The folder of a run, of answers or of a generator; or a mechanism file.")
]

_CONCLUSIONS: dict[Verdict, str] = {
    "broken": "BROKEN: the certificate does not hold.",
    "consistent": "Nothing contradicts the certificate.",
    "not-judged": "No attack could judge the certificate.",
}


def audit(
    target: Target = None,
    study: Annotated[
        Path | None, typer.Option("--study", help="The run's study file: attacks that need its records too.")
    ] = None,
    runs: Annotated[int, typer.Option("--runs", help="Most runs of the game on each of two data sets.")] = 4000,
    processes: Annotated[int, typer.Option("--processes", help="Processes that make these runs.")] = 1,
    shadows: Annotated[int, typer.Option("--shadows", help="Shadow runs of membership inference; 0: none.")] = 32,
    alarm: Annotated[float, typer.Option("--alarm", help="Chance of a false alarm of each game.")] = 1e-6,
    canary_alarm: Annotated[float, typer.Option("--canary-alarm", help="The same for canaries and membership.")] = 0.05,
    delta: Annotated[float, typer.Option("--delta", help="For a mechanism file: where to compare.")] = 1e-5,
    command: Annotated[
        str | None, typer.Option("--command", help="Another trainer: a command with {data} and {out}.")
    ] = None,
    data: Annotated[Path | None, typer.Option("--data", help="With --command: its records, a CSV file.")] = None,
    column: Annotated[str, typer.Option("--target", help="With --command: the column to be predicted.")] = "",
    log: Annotated[
        Path | None, typer.Option("--log", "--opacus-log", help="A log of another training, to check a claim.")
    ] = None,
    claim: Annotated[str, typer.Option("--claim", help="What is claimed: epsilon=3,delta=1e-5.")] = "",
    neighbours: Annotated[
        str | None,
        typer.Option("--neighbours", help="replace-one (default) or add-remove; of a log, by default what it states."),
    ] = None,
    canaries: Annotated[int, typer.Option("--canaries", help="With --command: records put in by coins.")] = 200,
    trainings: Annotated[int, typer.Option("--trainings", help="With --command: play the game instead.")] = 1,
    module: Module = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress, no summary; errors only.")] = False,
    as_json: Json = False,
) -> None:
    """Attack it: what attackers achieve, beside what is certified."""
    if command is not None or log is not None:
        right = target is None and (command is None) != (log is None)
        require(right, "fedveil audit", "be given a run, --command or --log, one of them", [str(target), command, log])
        wanted = _Claimed(command, data, column, log, claim, neighbours, canaries, trainings, processes)
        if code := _audit_other(wanted, alarm, canary_alarm, quiet, as_json):
            raise typer.Exit(code)
        return
    if target is None:
        raise BadValue("fedveil audit must be given the folder of a run, a mechanism file, --command or --log.")
    require(target.is_dir() or study is None, "--study", "be left out for a mechanism file", str(study))
    if target.is_dir():
        attack = _audit_measured if is_measured(target) else _audit_run
        code = attack(target, study, (runs, processes, shadows, alarm, canary_alarm), quiet, as_json)
    else:
        code = _audit_mechanism(target, delta, as_json)
    if code:
        raise typer.Exit(code)


def _audit_run(
    folder: Path, study: Path | None, effort: tuple[int, int, int, float, float], quiet: bool, as_json: bool
) -> int:
    from fedveil.jobs.attack.audit import (  # imported here because drawing and training are slow to import
        Effort,
        audit_run,
    )
    from fedveil.report.page import write_report

    runs, processes, shadows, alarm, canary_alarm = effort
    wanted = Effort(runs=runs, processes=processes, shadows=shadows, alarm=alarm, canary_alarm=canary_alarm)
    with _telling(quiet) as tell:
        audited = audit_run(folder, wanted, Entropy.from_system(), study=study, watch=tell)
    return _conclude(folder, audited.public, audited.private, audited.skipped, write_report, quiet, as_json)


def _conclude(
    folder: Path,
    public: Audit,
    private: Audit | None,
    skipped: tuple[str, ...],
    report: Callable[[Path], Path] | None,
    quiet: bool,
    as_json: bool,
) -> int:
    """Write the findings, private ones apart, and the page anew; show them, and return the exit code."""
    if private is not None:
        closed = private_folder(folder / "private")  # a copy of only the public files of a run has no private folder
        write_atomically(closed / FILE, write_audit(private).encode(), mode=PRIVATE)
    write_atomically(folder / FILE, write_audit(public).encode(), mode=PUBLIC)
    written = [str(folder / FILE), *([] if report is None else [str(report(folder))])]
    own = () if private is None else private.findings
    findings = (*public.findings, *own)
    verdict = _verdict(findings)
    result = {
        "verdict": verdict,
        **read_object(write_audit(public), "audit.json"),
        "private_findings": [row.as_json() for row in own],
        "skipped": list(skipped),
        "written": written,
    }

    def text() -> None:
        if quiet:
            return
        if findings:
            _table(findings)
        for row in skipped:
            out().print(f"left out: {row}")
        if own:
            out().print("Membership inference read records that are not public: its findings stay in private/.")
        out().print(_CONCLUSIONS[verdict])
        out().print(f"written: {' (open '.join(written)}{')' * (len(written) > 1)}")

    show(result, as_json, text)
    return 1 if verdict == "broken" else 0


def _audit_measured(
    folder: Path, study: Path | None, effort: tuple[int, int, int, float, float], quiet: bool, as_json: bool
) -> int:
    """Attack answers, a generator or another stage of noisy sums."""
    from fedveil.jobs.attack.measured import audit_measured  # imported here because fitting is slow to import

    runs, _, shadows, alarm, canary_alarm = effort
    with _telling(quiet) as tell:
        audited = audit_measured(
            folder,
            runs,
            Entropy.from_system(),
            study=study,
            shadows=shadows,
            alarm=alarm,
            canary_alarm=canary_alarm,
            watch=tell or (lambda _: None),
        )
    return _conclude(folder, audited.public, audited.private, audited.skipped, None, quiet, as_json)


@dataclass(frozen=True, slots=True)
class _Claimed:
    """A claim about somebody else's training, and what it is held to."""

    command: str | None
    data: Path | None
    column: str
    log: Path | None
    claim: str
    neighbours: str | None
    canaries: int
    trainings: int
    processes: int


def _audit_other(wanted: _Claimed, alarm: float, canary_alarm: float, quiet: bool, as_json: bool) -> int:
    from fedveil.audit.training_log import check_log, read_log
    from fedveil.jobs.attack.command import Trainer, audit_command, parse_claim

    known: dict[str, Neighbours] = {"replace-one": "replace-one", "add-remove": "zero-out", "zero-out": "zero-out"}
    given = wanted.neighbours
    require(given is None or given in known, "--neighbours", "be replace-one or add-remove", given)
    neighbours = None if given is None else known[given]
    claim, delta = parse_claim(wanted.claim)
    if wanted.log is not None:
        try:
            text = read_file(wanted.log).decode("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise BadValue(f"--log must be readable: {why(error)}.") from error
        findings = check_log(*read_log(text, neighbours), claim, delta=delta, alarm=alarm)
    else:
        if wanted.data is None:
            raise BadValue("--data must be given with --command: the records to train on, a CSV file.")
        trainer = Trainer(
            command=wanted.command or "",
            data=wanted.data,
            target=wanted.column,
            neighbours=neighbours or "replace-one",
        )
        with _telling(quiet) as tell:
            played = wanted.trainings > 1
            one = audit_command(
                trainer,
                claim,
                delta=delta,
                canaries=wanted.canaries,
                trainings=wanted.trainings,
                alarm=alarm if played else canary_alarm,
                generator=np.random.default_rng(),  # seeded by the system
                processes=wanted.processes,
                watch=tell or (lambda _: None),
            )
        findings = (one,)
    verdict = _verdict(findings)

    def text_of() -> None:
        if not quiet:
            for row in findings:
                out().print(f"{row.attack}: {row.verdict}. {row.evidence}", soft_wrap=True, highlight=False)
            out().print(_CONCLUSIONS[verdict].replace("certificate", "claim"))

    show({"verdict": verdict, "findings": [row.as_json() for row in findings]}, as_json, text_of)
    return 1 if verdict == "broken" else 0


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
    """Say what is being tried, on standard error: one line that changes, and where it is no terminal a line each."""
    if quiet:
        yield None
        return
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda what: console.print(what, soft_wrap=True, highlight=False)
        return
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
