"""One command: several algorithms, or several degrees of trust, on one study and one target."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from fedveil.cli.show import Json, Module, out, plain_table, rounded_up, show
from fedveil.core.errors import BadValue, why
from fedveil.core.files import public_folder
from fedveil.engine.files import PUBLIC, write_atomically
from fedveil.jobs.compare import Comparison, View
from fedveil.jobs.compare import compare as carry_out
from fedveil.report.compare_page import (
    NOISE,
    compare_page,
    noise_text,
    score_text,
    spread_text,
    useless_text,
    work_text,
)
from fedveil.report.words import bytes_text


def compare(
    study: Annotated[Path, typer.Argument(help="A study file (TOML); see docs/study-file.md.")],
    algorithms: Annotated[
        str, typer.Option("--algorithms", help="Names, with commas; settings as hidden:order=public. None: all.")
    ] = "",
    view: Annotated[
        str, typer.Option("--view", help="algorithms; trust: several observers; noise: which kind, for each.")
    ] = ("algorithms"),
    runs: Annotated[int, typer.Option("--runs", help="Models to train for each; every one is a release.")] = 3,
    folder: Annotated[Path | None, typer.Option("--out", help="Folder for compare.json and compare.html.")] = None,
    module: Module = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress, no summary; errors only.")] = False,
    as_json: Json = False,
) -> None:
    """Algorithms side by side at one target: every model it trains is a release of its own."""
    wanted = [name.strip() for name in algorithms.split(",") if name.strip()]
    said = Console(stderr=True, highlight=False, markup=False)
    with said.status("planning") as status:
        asked: View = view  # type: ignore[assignment]  # refused there if it is another word
        watch = (lambda _: None) if quiet else status.update
        comparison = carry_out(study, algorithms=wanted, view=asked, runs=runs, watch=watch)
    result, written = comparison.as_json(), [] if folder is None else _write_files(comparison, folder)

    def text() -> None:
        if not quiet:
            _tell(result, written)

    show({**result, "written": written}, as_json, text)


def _write_files(comparison: Comparison, folder: Path) -> list[str]:
    """Write the two files of a comparison and return their paths."""
    try:
        public_folder(folder)
    except OSError as error:
        raise BadValue(f"--out must name a folder that can be made: {why(error)}.") from error
    contents = {"compare.json": comparison.text(), "compare.html": compare_page(comparison.as_json())}
    for name, content in contents.items():
        write_atomically(folder / name, content.encode(), mode=PUBLIC)
    return [str(folder / name) for name in contents]


def _tell(result: Mapping[str, Any], written: list[str]) -> None:
    target, trust = result["target"], result["view"] != "algorithms"
    aim = f"epsilon {target['epsilon']:g}, delta {target['delta']:g}, one {target['unit']} ({target['neighbours']})"
    out().print(
        f"{result['study']}: every row with an epsilon meets {aim}"
        + ("." if trust else f", against {target['adversary']}.")
    )
    ran = [e for e in result["entries"] if e["refused"] is None]
    if ran:
        plain_table([_row(entry, result["metric"], trust) for entry in ran])
        plain_table([_work(entry) for entry in ran])
        out().print(NOISE)
    for entry in ran:
        if entry["explained"]:
            out().print(f"{entry['label']} (against {entry['adversary']}): {entry['explained']}.")
    for entry in result["entries"]:
        if entry["refused"] is not None:
            out().print(f"{entry['label']} does not take this study: {entry['refused']}")
    if result["baseline"] is not None:
        out().print(f"{result['constant']}: {result['metric']} {result['baseline']:.3f}")
    if result["no_better"]:
        out().print(f"WARNING: {useless_text(result)}", soft_wrap=True)
    if result["reference"] is not None:
        out().print(f"without privacy: {result['metric']} {result['reference']:.3f}")
    if result["counted"]:
        out().print("Scores are noisy counts on held-out records, which the plan of every model is charged for.")
    if not result["test_records"]:
        out().print("No records are held out, so nothing was scored: add [data.held_out] to the study.")
    out().print(result["warning"])
    for path in written:
        out().print(f"written: {path}")


def _row(entry: Mapping[str, Any], metric: str, trust: bool) -> dict[str, str]:
    promised = rounded_up(entry["epsilon"])
    return {
        "": entry["label"],
        metric: score_text(entry),
        **({} if entry.get("auc") is None else {"AUC": f"{entry['auc']:.3f}"}),
        **({} if trust else {"epsilon": promised}),
        "weights ±": spread_text(entry),
        "noise": noise_text(entry),
    }


def _work(entry: Mapping[str, Any]) -> dict[str, str]:
    return {
        "": entry["label"],
        "rounds": str(entry["rounds"]),
        "gradients": work_text(entry)[0],
        "delay": work_text(entry)[1],
        "sent": bytes_text(entry["bytes_up"]),
        "received": bytes_text(entry["bytes_down"]),
        "seconds": f"{entry['seconds']:.2g}",
    }


def register(app: typer.Typer) -> None:
    """Add this command to the application."""
    app.command(epilog="Example: fedveil compare study.toml --runs 5 --out comparison")(compare)
