"""The command that shows what was spent on a data set, by which runs, and what is left."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from fedveil.cli.show import Json, digits, out, rounded_up, show
from fedveil.core.errors import require
from fedveil.ledger.books import Ledger
from fedveil.ledger.budget import Cost
from fedveil.ledger.costs import Rule, charged
from fedveil.ledger.odometer import Left, ObserverRow, RunRow, observers, runs_of
from fedveil.ledger.place import find
from fedveil.privacy.guarantee import finite_or_none

_RULES: dict[Rule, tuple[str, str]] = {
    "curves": ("composition", "the certified curves of all runs, composed exactly"),
    "worst-case": ("stated costs", "composed; of some runs only epsilon and delta are known, and count at their worst"),
    "sum": ("plain sum", "epsilons and deltas added up, which is no more than composition gives here"),
    "none": ("no proof", "nothing finite is proved at this delta"),
}


def ledger(
    place: Annotated[Path, typer.Argument(help="A ledger, the folder of a run or a site, or a data set.")],
    delta: Annotated[float | None, typer.Option("--delta", help="Where exact composition is evaluated.")] = None,
    accept_head: Annotated[
        bool, typer.Option("--accept-head", help="Go on without a head that is missing beside the ledger.")
    ] = False,
    as_json: Json = False,
) -> None:
    """What was spent on a data set, by whom, and what is left under its caps, for every observer."""
    require(delta is None or 0 < delta < 1, "--delta", "lie strictly between 0 and 1", delta)
    path = find(place)
    with Ledger.look(path, accept_head=accept_head) as ledger:
        entries, caps = ledger.entries(), ledger.caps()
    runs, rows = runs_of(entries), observers(charged(entries), caps, delta)
    result = {
        "ledger": str(path),
        "entries": len(entries),
        "runs": [_run_json(run) for run in runs],
        "observers": [_observer_json(row) for row in rows],
    }
    show(result, as_json, lambda: _text(path, runs, rows))


def _text(path: Path, runs: list[RunRow], rows: list[ObserverRow]) -> None:
    out().print(f"{path}: {len(runs)} {_runs(len(runs))} charged", soft_wrap=True)
    if not rows:
        return
    table = _columns("run", "when", "study", "ended", "final-model: epsilon (delta)")
    for run in runs:
        final = next((cost for cost in run.costs if cost.adversary == "final-model"), run.costs[0])
        table.add_row(run.run[:12], (run.at or "-")[:16], (run.study or "-")[:20], run.ended, _pair(final))
    out().print(table)
    for run in runs:
        if run.expires:
            out().print(f"{run.run[:12]}: records expire {_months(run.expires)}", soft_wrap=True)
    for kind in dict.fromkeys(row.question[1:] for row in rows):
        out().print(f"one {kind[0]}, {kind[1]}: epsilon (delta) of all runs together")
        table = _columns("who", "added up", "fixed in advance", "by")
        for row in rows:
            if row.question[1:] == kind:
                composed = f"{rounded_up(row.composed)} ({digits(row.delta, 3)})"
                table.add_row(row.question[0], _pair(row.added), composed, _RULES[row.rule][0])
        out().print(table)
    for row in rows:
        if row.left is not None:
            out().print(_cap_text(row.left), soft_wrap=True)
    out().print("Added up, and spent under a cap: valid however later runs were chosen.")
    out().print("Fixed in advance: valid if all runs were fixed before the first result was seen.")
    for rule in dict.fromkeys(row.rule for row in rows):
        out().print(f"By {_RULES[rule][0]}: {_RULES[rule][1]}.", soft_wrap=True)


def _months(expires: Mapping[str, int], shown: int = 6) -> str:
    first, later = list(expires.items())[:shown], list(expires.items())[shown:]
    told = ", ".join(f"{count} in {month}" for month, count in first)
    return f"{told}, {sum(count for _, count in later)} later" if later else told


def _pair(cost: Cost) -> str:
    return f"{rounded_up(cost.epsilon)} ({digits(cost.delta, 3)})"


def _cap_text(left: Left) -> str:
    cap, more = left.cap, left.more
    added = "epsilons and deltas" if cap.order is None else f"Renyi divergences of order {cap.order:g}"
    room = "no room for a run like the last" if more == 0 else f"room for {more} more {_runs(more)} like the last"
    return (
        f"cap for {cap.adversary} ({cap.unit}, {cap.neighbours}): epsilon {rounded_up(left.spent)} of {cap.epsilon:g} "
        f"at delta {cap.delta:g} is spent, adding up {added}; {room}"
    )


def _runs(count: int) -> str:
    return "run" if count == 1 else "runs"


def _columns(*names: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in names:
        table.add_column(name)
    return table


def _cost_json(cost: Cost) -> dict[str, Any]:
    return {"adversary": cost.adversary, "epsilon": finite_or_none(cost.epsilon), "delta": cost.delta}


def _run_json(run: RunRow) -> dict[str, Any]:
    costs = [_cost_json(cost) | {"unit": cost.unit, "neighbours": cost.neighbours} for cost in run.costs]
    return {
        "run": run.run,
        "at": run.at,
        "study": run.study,
        "plan": run.plan,
        "ended": run.ended,
        "costs": costs,
        "expires": dict(run.expires),
    }


def _observer_json(row: ObserverRow) -> dict[str, Any]:
    adversary, unit, neighbours = row.question
    return {
        "adversary": adversary,
        "unit": unit,
        "neighbours": neighbours,
        "added_up": {"epsilon": finite_or_none(row.added.epsilon), "delta": row.added.delta},
        "fixed_in_advance": {"epsilon": finite_or_none(row.composed), "delta": row.delta, "rule": row.rule},
        "cap": None if row.left is None else _left_json(row.left),
    }


def _left_json(left: Left) -> dict[str, Any]:
    cap = left.cap
    return {
        "epsilon": cap.epsilon,
        "delta": cap.delta,
        "rule": "sum" if cap.order is None else "renyi",
        "order": cap.order,
        "spent": finite_or_none(left.spent),
        "left": left.share,
        "more_like_the_last": left.more,
    }


def register(app: typer.Typer) -> None:
    """Add this command to the application."""
    app.command(epilog="Example: fedveil ledger results")(ledger)
