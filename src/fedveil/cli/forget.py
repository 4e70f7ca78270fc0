"""The command that forgets records or a client: it goes on from a released model without them."""

from pathlib import Path
from typing import Annotated, Any

import typer

from fedveil.cli.progress import Quiet, progress, report_sites
from fedveil.cli.show import Json, Module, digits, out, rounded_up, show
from fedveil.cli.studies import telling
from fedveil.core.errors import require
from fedveil.jobs.forget import RECEIPT, Aim, ForgetResult, forget, plan_forgetting, row_numbers
from fedveil.planning.forget_design import ForgetDesign, begins_with, notes_of, table_of
from fedveil.privacy.guarantee import finite_or_none

_PARTS = (0.0, *(2.0**-power for power in range(41)))


def forget_units(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of the run, or of the last request.")],
    rows: Annotated[str | None, typer.Option("--rows", help="Rows of the data, from 1, such as 17,41.")] = None,
    records: Annotated[Path | None, typer.Option("--records", help="A file that holds the rows that leave.")] = None,
    persons: Annotated[
        list[str] | None, typer.Option("--person", help="A person that leaves, with all its rows; may be repeated.")
    ] = None,
    client: Annotated[str | None, typer.Option("--client", help="The client that leaves; with --on, the site.")] = None,
    expired: Annotated[
        bool, typer.Option("--expired", help="All whose date in data.expires_column has passed.")
    ] = False,
    as_of: Annotated[
        str | None, typer.Option("--as-of", help="With --expired: by this day; today if left out.")
    ] = None,
    epsilon: Annotated[float, typer.Option("--epsilon", help="What is to be left of them in the new model.")] = 0.1,
    others: Annotated[
        float | None, typer.Option("--others", help="The most that it may cost everybody else; half of retraining.")
    ] = None,
    rounds: Annotated[int | None, typer.Option("--rounds", help="How many rounds; chosen if left out.")] = None,
    keep: Annotated[
        float | None,
        typer.Option("--keep", help="The part of the model they begin with: 1, 0.5, 0.25, ..., 0; chosen if left out."),
    ] = None,
    target: Annotated[Path | None, typer.Option("--out", help="A new folder; without: only show the plan.")] = None,
    on: Annotated[Path | None, typer.Option("--on", help="The aggregator's folder: go on with its sites.")] = None,
    left: Annotated[
        int | None, typer.Option("--left", help="With --on: how many records the sites have marked as left.")
    ] = None,
    study: Annotated[Path | None, typer.Option("--study", help="The study of the run, if it was moved.")] = None,
    sign: Annotated[Path | None, typer.Option("--sign", help="A key that signs certificate and receipt.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Finish a request that was interrupted.")] = False,
    quiet: Quiet = False,
    module: Module = None,
    as_json: Json = False,
) -> None:
    """Forget records or a client: go on training without them, with a certificate and a receipt for them."""
    require(rounds is None or rounds >= 1, "--rounds", "be at least 1", rounds)
    require(keep is None or keep in _PARTS, "--keep", "be 1, 0.5, 0.25, and so on, or 0", keep)
    require(as_of is None or expired, "--as-of", "come with --expired", as_of)
    how: dict[str, Any] = {"epsilon": epsilon, "others": others, "rounds": rounds, "keep": keep}
    result: ForgetResult | None = None
    with progress(quiet or as_json) as shown:
        shown.stage("looking for the rounds that forget them")
        if on is not None:
            hint = "The aggregator has no records: a site marks its own in its data file ([left] rows)."
            require(rows is None and records is None, "--on", "go without --rows and --records", str(on), hint)
            require(not persons, "--on", "go without --person", str(on))
            hint = 'A site marks those of its own in its data file: [left] expired = "2027-01-31".'
            require(not expired, "--on", "go without --expired", str(on), hint)
            from fedveil.jobs.remote_forget import forget_on, plan_forgetting_on  # Flower is slow to import

            across: dict[str, Any] = {"on": on, "aim": Aim(**how), "site": client, "marked": left, "study": study}
            if target is not None:
                told = report_sites(quiet or as_json)
                result = forget_on(folder, out=target, resume=resume, sign=sign, watch=shown, tell=told, **across)
            design = plan_forgetting_on(folder, **across) if result is None else result.design
        else:
            require(left is None, "--left", "come with --on", left, "Here, name rows: --rows.")
            numbers = [] if rows is None else row_numbers(rows)
            who: dict[str, Any] = {"rows": numbers, "records": records, "client": client, "study": study}
            who |= {
                "persons": persons or [],
                "expired": as_of or expired,
                "system": telling(quiet or as_json, shown.stage),
            }
            if target is not None:
                result = forget(folder, out=target, resume=resume, sign=sign, watch=shown, **who, **how)
            design = plan_forgetting(folder, **who, **how) if result is None else result.design
    _show(design, result, as_json)


def _show(design: ForgetDesign, result: ForgetResult | None, as_json: bool) -> None:
    chosen = design.chosen
    values: dict[str, Any] = {
        "rounds": chosen.rounds,
        "keep": chosen.keep,
        "columns_again": chosen.columns_again,
        "epsilon_new_model_only": chosen.epsilon,
        "epsilon_others": chosen.others,
        "expected_quality": chosen.quality,
        "retraining": {
            "rounds": design.retraining_rounds,
            "epsilon_others": design.retraining_epsilon,
            "expected_risk": design.retraining_risk,
            "expected_quality": design.retraining_quality,
            "recommended": design.retrain or None,
        },
        "options": table_of(design.options),
    }
    if result is not None:
        all_models = finite_or_none(result.forgotten.every_model.epsilon)
        values |= {"folder": str(result.folder), "epsilon_all_models": all_models}

    def text() -> None:
        for line in _lines(design):
            out().print(line, soft_wrap=True)
        if result is None:
            out().print("nothing was charged; go on with --out DIR")
            return
        left, folder = result.forgotten, result.folder
        new, kept = (rounded_up(one.epsilon) for one in (left.new_model, left.every_model))
        out().print(f"epsilon of those who left, for whoever has the new model only: {new}", soft_wrap=True)
        out().print(f"the same, for whoever kept the old model too: {kept}", soft_wrap=True)
        out().print(f"written: {folder} (receipt for them: {folder}/{RECEIPT}.html)", soft_wrap=True)

    show(values, as_json, text)


def _lines(design: ForgetDesign) -> list[str]:
    lines = [" rounds   begin with   left of them   charged to others   expected quality"]
    for one in design.options:
        mark = "  <- chosen" if one is design.chosen else ""
        epsilons = f"{digits(one.epsilon, 3):>12}   {digits(one.others, 3):>17}"
        lines.append(f"{one.rounds:7d}   {begins_with(one):>10}   {epsilons}   {one.quality:16.1%}{mark}")
    again = f"{digits(design.retraining_epsilon, 3):>17}   {design.retraining_quality:16.1%}"
    lines.append(f"{design.retraining_rounds:7d}   {'zeros':>10}   {'train again':>12}   {again}")
    lines.append("quality: of the way from a model that has learned nothing to the best of its kind")
    return [*lines, *notes_of(design)]


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("forget", epilog="Example: fedveil forget results --rows 17,41 --epsilon 0.1 --out results-2")(
        forget_units
    )
