"""The command line: one short function a command; what they compute stands elsewhere.

Every command takes ``--json`` (one object on standard output, nothing else there) and exits 0 on success, 2 on a user's
mistake (one clear sentence on standard error), 1 otherwise.
"""

import json
import math
import os
import sys
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from pathlib import Path
from typing import Annotated, Any, NoReturn

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from fedveil import __version__
from fedveil.account.calibrate import calibrate as least_noise
from fedveil.account.compare import account_for
from fedveil.account.convert import Approximate, Definition, GaussianPromise, Renyi, Truncated
from fedveil.account.places import PlaceCurve, place_curve
from fedveil.checks import require
from fedveil.errors import BadValue, FedveilError
from fedveil.guarantee import Answer, finite_or_none
from fedveil.mechanism import ApproximateDP, LastIterate, Mechanism, flatten
from fedveil.mechanism_file import parse_mechanism
from fedveil.report.bounds import generalisation_table

app = typer.Typer(
    name="fedveil",
    help="Train across many data holders, release only the final model, certify how private it is.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _version(asked: bool) -> None:
    if asked:
        sys.stdout.write(f"fedveil {__version__}\n")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


File = Annotated[Path, typer.Argument(help="A mechanism file (TOML); see docs/mechanism-file.md.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Out = Annotated[Path, typer.Option("--out", help="Folder to write to; made if it does not exist.")]


@app.command(epilog="Example: fedveil account mechanism.toml --delta 1e-5")
def account(
    mechanism: File,
    delta: Annotated[float | None, typer.Option(help="Ask for epsilon at this delta.")] = None,
    epsilon: Annotated[float | None, typer.Option(help="Ask for delta at this epsilon.")] = None,
    group: Annotated[int, typer.Option(help="Protect this many records together.")] = 1,
    per_place: Annotated[bool, typer.Option(help="Public order: also the epsilon of every place.")] = False,
    as_json: Json = False,
) -> None:
    """How private is this mechanism, under every bound that applies."""
    described = _read(mechanism)
    answer = account_for(described, delta=delta, epsilon=epsilon, group=group)
    result = _answer_json(answer)
    curve = _places(described, delta) if per_place else None
    if curve is not None:
        rows = [{"place": p, "epsilon": finite_or_none(e)} for p, e in zip(curve.places, curve.epsilons, strict=True)]
        result["places"] = {"worst": finite_or_none(curve.worst), "mean": finite_or_none(curve.mean), "curve": rows}

    def table() -> None:
        _answer_table(answer, given_delta=delta is not None)
        if curve is not None:
            _out().print(f"places: worst {_rounded_up(curve.worst)}, mean {_rounded_up(curve.mean)}")
            _plain_table(result["places"]["curve"])

    _show(result, as_json, table)


def _places(mechanism: Mechanism, delta: float | None) -> PlaceCurve:
    hidden = isinstance(mechanism, LastIterate) and delta is not None
    require(hidden, "--per-place", "go with kind last-iterate and --delta", type(mechanism).__name__)
    return place_curve(mechanism, delta=delta or 0.0)  # type: ignore[arg-type]


@app.command(epilog="Example: fedveil calibrate mechanism.toml --epsilon 1 --delta 1e-5")
def calibrate(
    mechanism: File,
    epsilon: Annotated[float, typer.Option(help="The epsilon to meet.")],
    delta: Annotated[float, typer.Option(help="The delta to meet.")],
    as_json: Json = False,
) -> None:
    """The least noise that meets the target; the file may leave its noise out."""
    factor, found = least_noise(_read(mechanism, default_noise=1.0), epsilon=epsilon, delta=delta)
    answer = account_for(found, delta=delta)
    noise = _noise_of(found)
    result = {"noise": noise, "factor": factor, **_answer_json(answer)}

    def table() -> None:
        shown = ", ".join(_digits(value, 6) for value in noise[:6]) + (", ..." if len(noise) > 6 else "")
        _out().print(
            f"noise {shown} gives epsilon {_rounded_up(answer.epsilon)} at delta {delta:.12g}, by {answer.certified_by}"
        )

    _show(result, as_json, table)


@app.command(epilog="Example: fedveil convert --rdp 10 1.0 --delta 1e-5")
def convert(
    rdp: Annotated[
        tuple[float, float] | None, typer.Option(metavar="ALPHA ZETA", help="From (alpha, zeta)-RDP.")
    ] = None,
    zcdp: Annotated[float | None, typer.Option(metavar="RHO", help="From rho-zCDP.")] = None,
    tcdp: Annotated[
        tuple[float, float] | None, typer.Option(metavar="RHO OMEGA", help="From (rho, omega)-tCDP.")
    ] = None,
    gdp: Annotated[float | None, typer.Option(metavar="MU", help="From mu-GDP.")] = None,
    dp: Annotated[
        tuple[float, float] | None, typer.Option(metavar="EPSILON DELTA", help="From (epsilon, delta)-DP.")
    ] = None,
    delta: Annotated[float | None, typer.Option(help="Ask for epsilon at this delta.")] = None,
    epsilon: Annotated[float | None, typer.Option(help="Ask for delta at this epsilon.")] = None,
    alpha: Annotated[
        float | None, typer.Option(help="With --dp: the largest zeta at this order that keeps it.")
    ] = None,
    group: Annotated[int, typer.Option(help="For groups of so many records.")] = 1,
    times: Annotated[int, typer.Option(help="Used so many times.")] = 1,
    as_json: Json = False,
) -> None:
    """Between (alpha, zeta)-RDP, zCDP, tCDP, mu-GDP and (epsilon, delta), with groups and repetition."""
    given: list[Definition] = []
    given += [Renyi(*rdp)] if rdp is not None else []
    given += [Truncated(zcdp)] if zcdp is not None else []
    given += [Truncated(*tcdp)] if tcdp is not None else []
    given += [GaussianPromise(gdp)] if gdp is not None else []
    given += [Approximate(*dp)] if dp is not None else []
    require(
        len(given) == 1,
        "convert",
        "be given exactly one of --rdp, --zcdp, --tcdp, --gdp, --dp",
        f"{len(given)} of them",
    )
    require(1 <= times <= 10**12, "--times", "lie between 1 and 1e12", times)
    require(1 <= group <= 1000, "--group", "lie between 1 and 1000", group)
    promise = given[0].repeated(times).grouped(group)
    result = _converted(promise, delta, epsilon, alpha)
    _show(
        result,
        as_json,
        lambda: _out().print("  ".join(_named(key, value) for key, value in result.items())),
    )


def _named(name: str, value: float | None) -> str:
    if value is None:
        return f"{name} inf"
    return f"{name} {_digits(value, 7, ROUND_FLOOR if name == 'zeta' else ROUND_CEILING)}"  # zeta is a budget


def _converted(
    promise: Definition, delta: float | None, epsilon: float | None, alpha: float | None
) -> dict[str, float | None]:
    asked = sum(value is not None for value in (delta, epsilon, alpha))
    if alpha is not None and isinstance(promise, Approximate):
        return {
            "alpha": alpha,
            "zeta": promise.budget(alpha),
            "epsilon": promise.at_epsilon,
            "delta": promise.at_delta,
        }
    require(alpha is None, "--alpha", "go with --dp", alpha)
    if isinstance(promise, Approximate) and asked == 0:
        return {"epsilon": promise.at_epsilon, "delta": promise.at_delta}
    require(
        asked == 1,
        "convert",
        "be asked for exactly one thing: --delta D, --epsilon E (or --alpha A with --dp)",
        asked,
    )
    if delta is not None:
        older = promise.alternatives(delta) if isinstance(promise, Renyi) else {}
        others = {name: finite_or_none(value) for name, value in older.items()}
        return {"epsilon": finite_or_none(promise.epsilon(delta)), "delta": delta, **others}
    return {"epsilon": epsilon, "delta": promise.delta(epsilon or 0.0)}


@app.command(epilog="Example: fedveil bounds --nodes 10 --samples 100 --local-epsilon 1")
def bounds(
    nodes: Annotated[int, typer.Option(help="Nodes (clients) that train locally.")],
    samples: Annotated[int, typer.Option(help="Records at each node.")],
    sub_gaussian: Annotated[float, typer.Option(help="Sub-Gaussian parameter R of the loss.")] = 1.0,
    information: Annotated[
        float | None, typer.Option(help="Mutual information I(W_k; S_k) of each node, in nats.")
    ] = None,
    local_epsilon: Annotated[float | None, typer.Option(help="Each node's local privacy.")] = None,
    bits: Annotated[float | None, typer.Option(help="Bits each node sends.")] = None,
    dimension: Annotated[int, typer.Option(help="Dimension of the Gaussian-mean example.")] = 1,
    simulate: Annotated[int, typer.Option(help="Simulate the Gaussian-mean example with so many trials.")] = 0,
    seed: Annotated[int, typer.Option(help="Seed of the simulation.")] = 0,
    as_json: Json = False,
) -> None:
    """Generalisation bounds of federated averaging."""
    generator = np.random.default_rng(seed)
    rows = generalisation_table(
        nodes=nodes,
        samples=samples,
        sub_gaussian=sub_gaussian,
        information=information,
        local_epsilon=local_epsilon,
        bits=bits,
        dimension=dimension,
        trials=simulate,
        generator=generator,
    )
    _show(
        {"bounds": [row._asdict() for row in rows]},
        as_json,
        lambda: _plain_table([row._asdict() for row in rows]),
    )


@app.command(epilog="Example: fedveil figures --out figures")
def figures(
    out: Out = Path("figures"),
    only: Annotated[list[str] | None, typer.Option(help="Only these figures; may be repeated.")] = None,
    as_json: Json = False,
) -> None:
    """The papers' figures and ours, as SVG and PNG with the numbers in CSV."""
    from fedveil.report.figures import write_figures  # plotting is slow to import, and only needed here

    log = Console(stderr=True)
    with log.status("drawing") as status:
        written = write_figures(out, only=only, progress=lambda name: status.update(f"drawing {name}"))
    paths = [str(path) for path in written]
    _show({"written": paths}, as_json, lambda: _out().print("\n".join(paths)))


@app.command(epilog="Example: fedveil demo --out out/demo")
def demo(out: Out = Path("fedveil-demo"), as_json: Json = False) -> None:
    """Account for a federated run whose updates stay hidden, and draw what hiding buys."""
    from fedveil.report.demo import demo_run, write_demo  # plotting is slow to import, and only needed here

    run = demo_run()
    answer = account_for(run, delta=1e-5)
    paths = [str(path) for path in write_demo(run, answer, out)]

    def text() -> None:
        _out().print(_story(run))
        _answer_table(answer, given_delta=True)
        _out().print("written: " + ", ".join(paths))

    _show({**_answer_json(answer), "written": paths}, as_json, text)


def _story(run: LastIterate) -> str:
    return (
        f"{run.rounds} rounds of {run.batch} records each, dealt secretly; step {run.step_size:g}, "
        f"noise {run.noise_std:g} per record, model kept in a ball of diameter {run.diameter:g}.\n"
        "Only the last model is released. Replace-one neighbours, delta 1e-05."
    )


def _read(path: Path, default_noise: float | None = None) -> Mechanism:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadValue(f"The mechanism file {str(path)!r} must be a readable text file: {error}.") from error
    return parse_mechanism(text, default_noise=default_noise)


def _noise_of(mechanism: Mechanism) -> list[float]:
    found: list[float] = []
    for part, _ in flatten(mechanism):
        if isinstance(part, LastIterate):
            found += part.noise_std if isinstance(part.noise_std, tuple) else [part.noise_std]
        elif not isinstance(part, ApproximateDP):
            found.append(part.noise_multiplier)
    return found


def _answer_json(answer: Answer) -> dict[str, Any]:
    rows = []
    for bound in answer.bounds:
        row: dict[str, Any] = {
            "name": bound.name,
            "epsilon": finite_or_none(bound.epsilon),
            "delta": bound.delta,
            "status": bound.status,
            "reason": bound.reason,
        }
        if bound.epsilon_lower is not None:
            row["epsilon_lower"] = finite_or_none(bound.epsilon_lower)
        rows.append(row)
    return {
        "epsilon": finite_or_none(answer.epsilon),
        "delta": answer.delta,
        "certified_by": answer.certified_by,
        "bounds": rows,
    }


def _answer_table(answer: Answer, *, given_delta: bool) -> None:
    value = (
        f"epsilon {_rounded_up(answer.epsilon)} at delta {answer.delta:.12g}"
        if given_delta
        else f"delta {_digits(answer.delta, 4)} at epsilon {answer.epsilon:.12g}"
    )
    _out().print(f"certified: {value}, by {answer.certified_by or 'nothing'}")
    table = Table(box=None, pad_edge=False)
    for column in ("bound", "epsilon" if given_delta else "delta", "status", "reason"):
        table.add_column(column, justify="right" if column in ("epsilon", "delta") else "left")
    for bound in answer.bounds:
        number = bound.epsilon if given_delta else bound.delta
        shown = "-" if number is None else _rounded_up(number) if given_delta else _digits(number, 4)
        table.add_row(bound.name, shown, bound.status, bound.reason)
    _out().print(table)


def _plain_table(rows: list[dict[str, Any]]) -> None:
    table = Table(box=None, pad_edge=False)
    for column in rows[0]:
        table.add_column(column)
    for row in rows:
        table.add_row(*(_digits(v, 6) if isinstance(v, float) else "-" if v is None else str(v) for v in row.values()))
    _out().print(table)


def _rounded_up(epsilon: float) -> str:
    """Four decimals, never below the value."""
    if not math.isfinite(epsilon):
        return "inf"
    return str(Decimal(repr(float(epsilon))).quantize(Decimal("0.0001"), rounding=ROUND_CEILING))


def _digits(value: float, count: int, rounding: str = ROUND_CEILING) -> str:
    """So many significant digits, never below the value (or never above it)."""
    if not math.isfinite(value):
        return str(value)
    return f"{float(Context(prec=count, rounding=rounding).create_decimal(repr(float(value)))):.{count}g}"


def _out() -> Console:
    return Console(soft_wrap=False, highlight=False, markup=False)


def _show(result: dict[str, Any], as_json: bool, otherwise: Any) -> None:
    if as_json:
        sys.stdout.write(json.dumps(result, allow_nan=False) + "\n")
    else:
        otherwise()


def main() -> None:
    """Run a command; a user's mistake is one sentence and exit code 2, never a traceback."""
    try:
        code = app(standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except (FedveilError, ValueError) as error:
        _fail(2, str(error))
    except (typer.Abort, KeyboardInterrupt):
        _fail(1, "stopped")
    except Exception as error:
        usage = getattr(error, "format_message", None)  # what the option parser raises
        if usage is not None:
            _fail_usage(usage())
        if os.environ.get("FEDVEIL_DEBUG"):
            raise
        _fail(1, f"internal error, please report it: {type(error).__name__}: {error}")


def _fail_usage(message: str) -> NoReturn:
    if message.startswith("Usage:"):  # no command was given: the help itself
        sys.stderr.write(message + "\n")
        sys.exit(2)
    end = "" if message.endswith(("?", ".")) else "."
    _fail(2, f"{message}{end} See 'fedveil --help'.")


def _fail(code: int, sentence: str) -> NoReturn:
    sys.stderr.write(f"fedveil: {' '.join(sentence.split())}\n")
    sys.exit(code)
