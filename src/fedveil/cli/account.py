"""Commands about mechanisms: how private one is, how much noise it needs, and conversions between definitions."""

from decimal import ROUND_CEILING, ROUND_FLOOR
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from fedveil.accounting.calibrate import calibrate as least_noise
from fedveil.accounting.compare import account_for
from fedveil.accounting.convert import Approximate, Definition, GaussianPromise, Renyi, RepeatedApproximate, Truncated
from fedveil.accounting.places import PlaceCurve, PlaceDeltas, place_curve, place_deltas
from fedveil.cli.show import Json, digits, out, plain_table, rounded_up, show
from fedveil.core.errors import BadValue, require, why
from fedveil.core.files import read_file
from fedveil.privacy.guarantee import Answer, finite_or_none
from fedveil.privacy.mechanism import ApproximateDP, LastIterate, Mechanism, flatten
from fedveil.privacy.mechanism_file import parse_mechanism
from fedveil.report.trade_off import write_trade_off

File = Annotated[Path, typer.Argument(help="A mechanism file (TOML); see docs/mechanism-file.md.")]


def account(
    mechanism: File,
    delta: Annotated[float | None, typer.Option(help="Ask for epsilon at this delta.")] = None,
    epsilon: Annotated[float | None, typer.Option(help="Ask for delta at this epsilon.")] = None,
    group: Annotated[int, typer.Option(help="Protect this many records together.")] = 1,
    per_place: Annotated[bool, typer.Option(help="Public order: also epsilon (or delta) of every place.")] = False,
    trade_off: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the certified trade-off function: .csv or .svg.")
    ] = None,
    as_json: Json = False,
) -> None:
    """How private is this mechanism, under every bound that applies."""
    described = _read(mechanism)
    if trade_off is not None:
        fits = trade_off.suffix in (".csv", ".svg")
        require(fits, "--trade-off", "name a file that ends in .csv or .svg", str(trade_off))
    answer = account_for(described, delta=delta, epsilon=epsilon, group=group)
    result = answer_json(answer)
    curve = _places(described, delta, epsilon) if per_place else None
    if curve is not None:
        kind, values = ("epsilon", curve.epsilons) if isinstance(curve, PlaceCurve) else ("delta", curve.deltas)
        rows = [{"place": p, kind: finite_or_none(v)} for p, v in zip(curve.places, values, strict=True)]
        result["places"] = {"worst": finite_or_none(curve.worst), "mean": finite_or_none(curve.mean), "curve": rows}
    if trade_off is not None:
        result["trade_off"] = str(write_trade_off(answer, trade_off))

    def table() -> None:
        answer_table(answer, given_delta=delta is not None)
        if curve is not None:
            out().print(f"places: worst {rounded_up(curve.worst)}, mean {rounded_up(curve.mean)}")
            plain_table(result["places"]["curve"])
        if trade_off is not None:
            out().print(f"trade-off function: {trade_off}")

    show(result, as_json, table)


def _places(mechanism: Mechanism, delta: float | None, epsilon: float | None) -> PlaceCurve | PlaceDeltas:
    if not isinstance(mechanism, LastIterate):
        raise BadValue(f"--per-place must go with kind last-iterate, got {type(mechanism).__name__}.")
    return place_curve(mechanism, delta=delta) if delta is not None else place_deltas(mechanism, epsilon=epsilon or 0.0)


def calibrate(
    mechanism: File,
    epsilon: Annotated[float, typer.Option(help="The epsilon to meet.")],
    delta: Annotated[float, typer.Option(help="The delta to meet.")],
    as_json: Json = False,
) -> None:
    """The least noise that meets the target; the file may leave its noise out."""
    factor, calibrated = least_noise(_read(mechanism, default_noise=1.0), epsilon=epsilon, delta=delta)
    answer = account_for(calibrated, delta=delta)
    noise = _noise_of(calibrated)
    result = {"noise": noise, "factor": factor, **answer_json(answer)}

    def table() -> None:
        shown = ", ".join(digits(value, 6) for value in noise[:6]) + (", ..." if len(noise) > 6 else "")
        out().print(
            f"noise {shown} gives epsilon {rounded_up(answer.epsilon)} at delta {delta:.12g}, by {answer.certified_by}"
        )

    show(result, as_json, table)


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
    level: Annotated[
        float | None, typer.Option(help="With --rdp: the greatest power of a test at this level (its false alarms).")
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
    result = _converted(promise, delta, epsilon, alpha) if level is None else _tested(promise, level, delta, epsilon)
    show(
        result,
        as_json,
        lambda: out().print("  ".join(_named(key, value) for key, value in result.items())),
    )


def _named(name: str, value: float | None) -> str:
    if value is None:
        return f"{name}: no guarantee"
    # zeta is a budget, so it is rounded down
    return f"{name} {digits(value, 7, ROUND_FLOOR if name == 'zeta' else ROUND_CEILING)}"


def _tested(promise: Definition, level: float, delta: float | None, epsilon: float | None) -> dict[str, float | None]:
    """Return the promise as the greatest power of a test."""
    require(isinstance(promise, Renyi), "--level", "go with --rdp", level)
    alone = delta is None and epsilon is None
    require(alone, "convert", "be asked for exactly one thing: --level beside neither --delta nor --epsilon", level)
    return {"level": level, "power": promise.power(level) if isinstance(promise, Renyi) else None}


def _converted(
    promise: Definition, delta: float | None, epsilon: float | None, alpha: float | None
) -> dict[str, float | None]:
    asked = sum(value is not None for value in (delta, epsilon, alpha))
    if alpha is not None and isinstance(promise, Approximate | RepeatedApproximate):
        return {
            "alpha": alpha,
            "zeta": promise.budget(alpha),
            "epsilon": promise.at_epsilon,
            "delta": promise.at_delta,
        }
    require(alpha is None, "--alpha", "go with --dp", alpha)
    if isinstance(promise, Approximate | RepeatedApproximate) and asked == 0:
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


def _read(path: Path, default_noise: float | None = None) -> Mechanism:
    try:
        text = read_file(path).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadValue(f"The mechanism file {str(path)!r} must be a readable text file: {why(error)}.") from error
    return parse_mechanism(text, default_noise=default_noise)


def _noise_of(mechanism: Mechanism) -> list[float]:
    levels: list[float] = []
    for part, _ in flatten(mechanism):
        if isinstance(part, LastIterate):
            levels += part.noise_std if isinstance(part.noise_std, tuple) else [part.noise_std]
        elif not isinstance(part, ApproximateDP):
            levels.append(part.noise_multiplier)
    return levels


def answer_json(answer: Answer) -> dict[str, Any]:
    """Return the answer in the documented JSON form."""
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


def answer_table(answer: Answer, *, given_delta: bool) -> None:
    """Print the answer, and every bound beside it."""
    value = (
        f"epsilon {rounded_up(answer.epsilon)} at delta {answer.delta:.12g}"
        if given_delta
        else f"delta {digits(answer.delta, 4)} at epsilon {answer.epsilon:.12g}"
    )
    out().print(f"certified: {value}, by {answer.certified_by or 'nothing'}")
    table = Table(box=None, pad_edge=False)
    for column in ("bound", "epsilon" if given_delta else "delta", "status", "reason"):
        table.add_column(column, justify="right" if column in ("epsilon", "delta") else "left")
    for bound in answer.bounds:
        number = bound.epsilon if given_delta else bound.delta
        shown = "-" if number is None else rounded_up(number) if given_delta else digits(number, 4)
        table.add_row(bound.name, shown, bound.status, bound.reason)
    out().print(table)


def register(app: typer.Typer) -> None:
    """Add these commands to the application."""
    app.command(epilog="Example: fedveil account mechanism.toml --delta 1e-5")(account)
    app.command(epilog="Example: fedveil calibrate mechanism.toml --epsilon 1 --delta 1e-5")(calibrate)
    app.command(epilog="Example: fedveil convert --rdp 10 1.0 --delta 1e-5")(convert)
