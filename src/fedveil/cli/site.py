"""The commands of a site: its guard, which owns the data, and its node, which connects the guard to the link."""

import os
import signal
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from fedveil.certificate.certify import certify
from fedveil.checks import require
from fedveil.cli.show import Json, rounded_up, show
from fedveil.evaluate.words import fact_rows as evaluation_facts
from fedveil.federation.deploy.files import read_holder, read_peers, read_site
from fedveil.federation.flower.network import Link
from fedveil.federation.flower.node import run_node
from fedveil.federation.site.data import SiteData, read_site_data
from fedveil.federation.site.guard import Guard, Site, Terms
from fedveil.federation.site.record import World
from fedveil.federation.site.socket import listening, serve
from fedveil.federation.site.upkeep import clear_records
from fedveil.files import owners_folder
from fedveil.guarantee import Neighbours, Unit, finite_or_none
from fedveil.ledger import Ledger
from fedveil.ledger.costs import cost_of
from fedveil.plan import Plan
from fedveil.prepare.notes import notes_for_rows
from fedveil.prepare.words import fact_rows
from fedveil.promises import ADVERSARIES
from fedveil.run.files import PUBLIC, private_folder, sole_use, write_atomically
from fedveil.version import __version__


def site(
    data: Annotated[Path, typer.Option("--data", help="The site's data: a TOML file with [data] and [clients].")],
    key: Annotated[Path, typer.Option("--key", help="The site's identity.key; aggregator.pub lies beside it.")],
    records: Annotated[Path, typer.Option("--records", help="Folder for the ledger and the record of every run.")],
    socket: Annotated[Path | None, typer.Option("--socket", help="Where the relay knocks; beside the key.")] = None,
    accept: Annotated[list[str] | None, typer.Option("--accept", help="A plan's hash, or: any.")] = None,
    cap: Annotated[
        list[str] | None, typer.Option("--cap", help="ADVERSARY=EPSILON,DELTA; of all runs together.")
    ] = None,
    trials: Annotated[bool, typer.Option("--trials", help="Also run plans that promise nothing.")] = False,
    unit: Annotated[str, typer.Option("--unit", help="What caps count: record or client.")] = "record",
    neighbours: Annotated[
        str, typer.Option("--neighbours", help="What caps count: replace-one or zero-out.")
    ] = "replace-one",
    module: Annotated[
        list[str] | None, typer.Option("--module", help="FILE:FUNCTION of this machine that a plan may name.")
    ] = None,
    group: Annotated[str | None, typer.Option("--group", help="The group that the relay runs under.")] = None,
    as_json: Json = False,
) -> None:
    """Guard a site's data: shows every plan before its first update, and answers only what it has accepted."""
    identity, aggregator = read_site(key)
    terms = Terms(
        accept=frozenset(accept or ()),
        caps=tuple(_cap(text) for text in cap or ()),
        trials=trials,
        unit=_one_of("--unit", unit, Unit),
        neighbours=_one_of("--neighbours", neighbours, Neighbours),
        modules=frozenset(module or ()),
    )
    owners_folder(records)
    own, peers = read_site_data(data), read_peers(key)
    guard = Guard(
        site=Site(
            identity=identity,
            aggregator=aggregator,
            data=own,
            folder=records.absolute(),
            peers=peers,
            holder=read_holder(key),
        ),
        terms=terms,
        world=World(os.urandom, lambda: datetime.now(UTC)),
        show=lambda plan: say(page(plan)),
        finished=_certified,
        note=lambda text: say(f"for you alone: {text}"),
    )
    if own.cells is None:
        for text in notes_for_rows(own.records, own.rule):
            guard.note(text)
    stopped = until_signalled()
    with sole_use(private_folder(records / "private")), listening(socket or key.parent / "guard.sock", group) as door:
        clear_records(records)
        _check_data(records / "ledger.sqlite", own)
        say(f"{identity.name}: listening for {aggregator.name}")
        serve(door, guard, say, lambda: bool(stopped))
    show({"site": identity.name, "stopped": True}, as_json, lambda: None)


def node(
    superlink: Annotated[str, typer.Option("--superlink", help="HOST:PORT of the link.")],
    key: Annotated[Path, typer.Option("--key", help="The site's node.key.")],
    socket: Annotated[Path, typer.Option("--socket", help="The guard's socket.")],
    authority: Annotated[Path | None, typer.Option("--authority", help="authority.pem; beside the key.")] = None,
    patience: Annotated[float, typer.Option("--patience", help="Seconds to try to get in.")] = 90.0,
    as_json: Json = False,
) -> None:
    """Connect a site to the link: carries sealed envelopes to the guard and back, and runs no uploaded code."""
    host, _, port = superlink.rpartition(":")
    require(bool(host) and port.isdigit(), "--superlink", "be HOST:PORT", superlink)
    link = Link(name="link", host=host, port=int(port), authority=authority or key.parent / "authority.pem")
    for path in (key, link.authority):
        require(path.exists(), "The node", f"find {path.name}", str(path))
    stopped = until_signalled()
    run_node(link, key, socket.absolute(), patience, lambda: bool(stopped), say)
    show({"stopped": True}, as_json, lambda: None)


def until_signalled() -> list[int]:
    """Return a list that gets an entry when this process is asked to stop."""
    stopped: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda signum, _: stopped.append(signum))
    return stopped


def say(text: str) -> None:
    """Tell the operator, on standard error; standard output is for results."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def page(plan: Plan) -> str:
    """Return the page that the operator sees before the first update: what will run, what it promises and costs."""
    data, target = plan.data, plan.target
    facts = "; ".join(f"{name} {value}" for name, value in plan.method.facts(plan.setup))
    trust = plan.trust
    apart = ", a third party holds the key" if trust.key_holder == "third-party" else ""
    lines = [
        f"plan {plan.hash}",
        f"  {plan.name}: {plan.model.kind}, {plan.dimension} parameters",
        f"  its model is made here by {plan.model.module}" if plan.model.module else "",
        f"  {data.records} records of {data.holders}",
        *_measured(plan),
        f"  {plan.method.kind}: {facts}",
        f"  server {trust.server}, {trust.dropouts} dropouts, {trust.colluders} colluders{apart}"
        if plan.method.served
        else "",
        f"  one {target.unit}, {target.neighbours}, delta {target.delta:g}:",
    ]
    for adversary in ADVERSARIES:
        epsilon = cost_of(plan, adversary).epsilon
        value = "nothing is promised" if finite_or_none(epsilon) is None else f"epsilon {rounded_up(epsilon)}"
        lines.append(f"    {adversary}: {value}")
    lines += [f"  warning: {warning}" for warning in plan.warnings]
    lines.append("  accept it with: --accept " + plan.hash)
    return "\n".join(line for line in lines if line)


def _measured(plan: Plan) -> list[str]:
    """What the plan measures of the site's columns before training, and of its records after it, if it does."""
    rows = [] if plan.preparation is None else [fact_rows(plan.preparation, plan.target)]
    rows += [] if plan.evaluation is None else [evaluation_facts(plan.evaluation, plan.target)]
    return [f"  {'; '.join(f'{name} {value}' for name, value in facts)}" for facts in rows]


def _certified(folder: Path) -> None:
    """Write the certificate from the site's own record."""
    write_atomically(folder / "certificate.json", certify(folder, __version__).text().encode(), mode=PUBLIC)
    say(f"the run has ended; its record: {folder}")


def _check_data(books: Path, own: SiteData) -> None:
    """Refuse data that do not belong to the books here, before anybody asks for anything."""
    if books.exists():
        Ledger.open(books, own.fingerprint, older=own.records_fingerprint).close()


def _one_of(option: str, given: str, words: Any) -> Any:
    require(given in get_args(words), option, f"be one of {', '.join(get_args(words))}", given)
    return given


def _cap(text: str) -> tuple[Any, float, float]:
    name, _, pair = text.partition("=")
    values = pair.split(",")
    require(len(values) == 2 and name in ADVERSARIES, "--cap", "be ADVERSARY=EPSILON,DELTA", text)
    try:
        return name, float(values[0]), float(values[1])
    except ValueError:
        require(False, "--cap", "be ADVERSARY=EPSILON,DELTA", text)
        raise


def register(app: typer.Typer) -> None:
    """Add these commands to the application."""
    app.command(epilog="Example: fedveil site --data data.toml --key site/identity.key --records records")(site)
    app.command(epilog="Example: fedveil node --superlink HOST:9092 --key node.key --socket guard.sock")(node)
