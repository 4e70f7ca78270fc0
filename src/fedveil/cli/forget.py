"""The command that forgets records or a client: it goes on from a released model without them."""

from pathlib import Path
from typing import Annotated, Any

import typer

from fedveil.cli.progress import waiting
from fedveil.cli.show import Json, Module, out, show
from fedveil.core.errors import BadValue, require
from fedveil.jobs.forget import RECEIPT, forget, plan_forgetting
from fedveil.planning.forget_design import ForgetDesign, table_of


def forget_units(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of the run, or of the last request.")],
    rows: Annotated[str | None, typer.Option("--rows", help="Rows of the data, from 1, such as 17,41.")] = None,
    records: Annotated[Path | None, typer.Option("--records", help="A file that holds the rows that leave.")] = None,
    client: Annotated[str | None, typer.Option("--client", help="The client that leaves.")] = None,
    epsilon: Annotated[float, typer.Option("--epsilon", help="What is to be left of them in the new model.")] = 0.1,
    others: Annotated[
        float | None, typer.Option("--others", help="The most that it may cost everybody else; a tenth of retraining.")
    ] = None,
    rounds: Annotated[int | None, typer.Option("--rounds", help="How many rounds; chosen if left out.")] = None,
    target: Annotated[Path | None, typer.Option("--out", help="A new folder; without: only show the plan.")] = None,
    study: Annotated[Path | None, typer.Option("--study", help="The study of the run, if it was moved.")] = None,
    sign: Annotated[Path | None, typer.Option("--sign", help="A key that signs certificate and receipt.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Finish a request that was interrupted.")] = False,
    module: Module = None,
    as_json: Json = False,
) -> None:
    """Forget records or a client: go on training without them, with a certificate and a receipt for them."""
    require(rounds is None or rounds >= 1, "--rounds", "be at least 1", rounds)
    who: dict[str, Any] = {"rows": _numbers(rows), "records": records, "client": client, "study": study}
    how: dict[str, Any] = {"epsilon": epsilon, "others": others, "rounds": rounds}
    with waiting("looking for the rounds that forget them", quiet=as_json):
        if target is None:
            design, left = plan_forgetting(folder, **who, **how), None
        else:
            result = forget(folder, out=target, resume=resume, sign=sign, **who, **how)
            design, left = result.design, result.forgotten
    chosen = design.chosen
    values: dict[str, Any] = {
        "rounds": chosen.rounds,
        "epsilon_new_model_only": chosen.epsilon,
        "epsilon_others": chosen.others,
        "retraining": {"rounds": design.retraining_rounds, "epsilon_others": design.retraining_epsilon},
        "options": table_of(design.options),
        **({} if left is None else {"folder": str(target), "epsilon_all_models": left.every_model.epsilon}),
    }

    def text() -> None:
        for line in _lines(design):
            out().print(line, soft_wrap=True)
        if left is not None:
            kept = f"epsilon {left.every_model.epsilon:.3g}, as before, for whoever kept the old model"
            out().print(f"promised to those who left: epsilon {left.new_model.epsilon:.3g}; {kept}", soft_wrap=True)
            out().print(f"written: {target} (receipt for them: {target}/{RECEIPT}.html)", soft_wrap=True)
        else:
            out().print("nothing was charged; go on with --out DIR")

    show(values, as_json, text)


def _numbers(rows: str | None) -> list[int]:
    if rows is None:
        return []
    try:
        numbers = [int(part) for part in rows.split(",")]
    except ValueError as error:
        raise BadValue(f"--rows must be numbers of rows, such as 17,41, got {rows!r}.") from error
    require(all(number >= 1 for number in numbers), "--rows", "be counted from 1", rows)
    return numbers


def _lines(design: ForgetDesign) -> list[str]:
    chosen = design.chosen
    lines = [" rounds   left of them   charged to the others"]
    for one in design.options:
        mark = "  <- chosen" if one is chosen else ""
        lines.append(f"{one.rounds:7d}   {one.epsilon:12.3g}   {one.others:21.3g}{mark}")
    lines.append(f"train again: {design.retraining_rounds} rounds, charged {design.retraining_epsilon:.3g}")
    if design.retrain:
        lines.append("Training again without them costs everybody less: consider it.")
    return lines


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("forget", epilog="Example: fedveil forget results --rows 17,41 --epsilon 0.1 --out results-2")(
        forget_units
    )
