"""Show results: as one JSON object or as a table, and never a number below its value."""

import json
import math
import sys
from collections.abc import Callable, Sequence
from decimal import ROUND_CEILING, Context, Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from fedveil.certificate.data_set import DataSet
    from fedveil.privacy.guarantee import Adversary, Answer


def _allow(context: typer.Context, names: list[str] | None) -> list[str]:
    """Allow the named code until the command ends."""
    from fedveil.core.importing import allowing  # the list of commands is shown without it

    context.with_resource(allowing(*(names or ())))
    return names or []


Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Module = Annotated[
    list[str] | None,
    typer.Option(
        "--module", help="FILE:FUNCTION that may be imported and run if it is named; may be repeated.", callback=_allow
    ),
]
Out = Annotated[Path, typer.Option("--out", help="Folder to write to; made if it does not exist.")]


_printed: list[bool] = []  # one entry once a result is on standard output


def begin() -> None:
    """A new command: nothing is on standard output yet."""
    _printed.clear()


def has_printed_json() -> bool:
    """Return whether the command has printed a result as JSON."""
    return bool(_printed)


def plain_table(rows: list[dict[str, Any]], count: int = 6) -> None:
    """Rows of equal keys as a table, numbers to so many digits."""
    from rich.table import Table  # imported here and below because help, and wrong calls, need no drawing

    table = Table(box=None, pad_edge=False)
    for column in rows[0]:
        table.add_column(column, no_wrap=not column)  # the names of rows stay whole
    for row in rows:
        cells = (digits(v, count) if isinstance(v, float) else "-" if v is None else str(v) for v in row.values())
        table.add_row(*cells)
    out().print(table)


def tell_facts(rows: "Sequence[tuple[str, str]]") -> None:
    """Print named facts, one below another; a long one goes on under its beginning."""
    from rich.padding import Padding
    from rich.table import Table

    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column()
    for name, value in rows:
        table.add_row(name, value)
    out().print(Padding(table, (0, 0, 0, 2), expand=False))


def rounded_up(epsilon: float | None) -> str:
    """Return four decimals, never below the value; an infinite epsilon, or None, is no guarantee."""
    if epsilon is None or not math.isfinite(epsilon):
        return "no guarantee"
    return str(Decimal(repr(float(epsilon))).quantize(Decimal("0.0001"), rounding=ROUND_CEILING))


def digits(value: float, count: int, rounding: str = ROUND_CEILING) -> str:
    """Return so many significant digits, never below the value (or never above it)."""
    if not math.isfinite(value):
        return "no guarantee" if value > 0 else str(value)
    return f"{float(Context(prec=count, rounding=rounding).create_decimal(repr(float(value)))):.{count}g}"


def out() -> "Console":
    """Return the console for results, which writes to standard output."""
    from rich.console import Console

    return Console(soft_wrap=False, highlight=False, markup=False)


def show(result: dict[str, Any], as_json: bool, otherwise: Callable[[], None]) -> None:
    """Print the result as JSON, or in words."""
    if as_json:
        sys.stdout.write(json.dumps(result, allow_nan=False) + "\n")
        _printed.append(True)
    else:
        otherwise()


def tell_total(total: "DataSet | None", adversary: "Adversary") -> None:
    """Print what all runs on the data set cost together, where the ledger recorded it."""
    if total is not None:
        out().print(total.sentence(adversary), soft_wrap=True)


def total_json(total: "DataSet | None") -> dict[str, Any]:
    """Return the same as JSON values, also of a run that is the only one."""
    return {} if total is None else {"data_set": total.as_json()}


# What each observer sees, in the few words that a narrow terminal has room for; a certificate states it in full.
_SEES: "dict[Adversary, str]" = {
    "final-model": "the released model",
    "curious-client": "the models that it was sent",
    "every-model": "the model after every round",
    "server-with-secure-aggregation": "the noised sum of every round",
    "server": "every client's noised update",
}


def tell_guarantees(
    title: str,
    rows: "Sequence[tuple[Adversary, Answer]]",
    all_runs: "DataSet | None" = None,
    *,
    beside: "Literal['sees', 'proved by', '']" = "sees",
) -> None:
    """Print what each observer is promised, alone and in all runs; ``beside``: what stands there for a single run."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("observer", no_wrap=True)
    table.add_column("epsilon", justify="right", no_wrap=True)
    others = all_runs is not None and all_runs.runs > 1
    table.add_column("all runs" if others else beside, no_wrap=True)
    for adversary, answer in rows:
        if others and all_runs is not None:
            last = rounded_up(all_runs.cost(adversary).epsilon)
        else:
            last = {"sees": _SEES[adversary], "proved by": answer.certified_by or "-", "": ""}[beside]
        table.add_row(adversary, rounded_up(answer.epsilon), last)
    out().print(title, soft_wrap=True)
    out().print(table)
