"""Commands that draw: generalisation bounds, and the papers' figures and ours."""

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console

from fedveil.certificate.certify import read_records
from fedveil.cli.show import Json, Out, out, plain_table, show
from fedveil.core.errors import BadValue, NotAvailable, require
from fedveil.ledger.costs import covered
from fedveil.report.bounds import bounds_of_run, generalisation_table


def bounds(
    nodes: Annotated[int | None, typer.Option(help="Nodes (clients) that train locally.")] = None,
    samples: Annotated[int | None, typer.Option(help="Records at each node.")] = None,
    of: Annotated[Path | None, typer.Option(help="The folder of a run: the bounds of its model.")] = None,
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
    """Generalisation bounds of federated averaging, or of the model of a run (--of DIR)."""
    if of is not None:
        hint = "They are in its plan."
        require(nodes is None and samples is None, "--nodes and --samples", "be left out with --of", nodes, hint)
        plan, _ = read_records(of)
        rows = bounds_of_run(plan, private=covered(plan))
        show({"bounds": [row._asdict() for row in rows]}, as_json, lambda: plain_table([row._asdict() for row in rows]))
        return
    if nodes is None or samples is None:
        raise BadValue("State --nodes and --samples, or the folder of a run: --of DIR.")
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
    show(
        {"bounds": [row._asdict() for row in rows]},
        as_json,
        lambda: plain_table([row._asdict() for row in rows]),
    )


def figures(
    folder: Out = Path("figures"),
    only: Annotated[list[str] | None, typer.Option(help="Only these figures; may be repeated.")] = None,
    as_json: Json = False,
) -> None:
    """The papers' figures and ours, as SVG and PNG with the numbers in CSV."""
    if find_spec("matplotlib") is None:
        raise NotAvailable("The figures need matplotlib: pip install 'fedveil[figures]'.")
    from fedveil.report.figures import write_figures  # imported here because plotting is slow to import

    log = Console(stderr=True)
    with log.status("drawing") as status:
        written = write_figures(folder, only=only, progress=lambda name: status.update(f"drawing {name}"))
    paths = [str(path) for path in written]
    show({"written": paths}, as_json, lambda: out().print("\n".join(paths)))


def register(app: typer.Typer) -> None:
    """Add these commands to the application."""
    app.command(
        epilog="Examples: fedveil bounds --nodes 10 --samples 100 --local-epsilon 1; fedveil bounds --of results"
    )(bounds)
    app.command(epilog="Example: fedveil figures --out figures")(figures)
