"""The command of a site's guard, which owns the data."""

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from fedveil.cli.serving import give_memory_back, page_of
from fedveil.cli.show import Json, show
from fedveil.core.errors import require
from fedveil.core.files import owners_folder
from fedveil.engine.files import PUBLIC, private_folder, sole_use, write_atomically
from fedveil.federation.carrying.fresh_process import FreshProcess
from fedveil.federation.carrying.serving import say, stop_requests
from fedveil.federation.deploy.own_keys import read_holder, read_peers, read_site
from fedveil.federation.site.data import SiteData, read_site_data
from fedveil.federation.site.guard import Guard, Site, Terms
from fedveil.federation.site.record import World, clear_records
from fedveil.federation.site.socket import listening, serve
from fedveil.ledger.books import Ledger
from fedveil.privacy.guarantee import ADVERSARIES, Neighbours, Unit
from fedveil.stages.prepare.notes import notes_for_rows
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
    give_memory_back()
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
    own, peers, fresh = read_site_data(data), read_peers(key), FreshProcess()
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
        world=World(os.urandom, lambda: datetime.now(UTC), fresh),
        show=lambda plan: say(fresh(page_of, plan.text())),
        finished=lambda folder: _write_certificate(folder, fresh),
        note=lambda text: say(f"for you alone: {text}"),
        idle=fresh.rest,
    )
    for text in [*own.notes, *(notes_for_rows(own.records, own.rule) if own.cells is None else [])]:
        guard.note(text)
    stopped = stop_requests()
    with sole_use(private_folder(records / "private")), listening(socket or key.parent / "guard.sock", group) as door:
        clear_records(records)
        _check_data(records / "ledger.sqlite", own)
        say(f"{identity.name}: listening for {aggregator.name}")
        serve(door, guard, say, lambda: bool(stopped))
    show({"site": identity.name, "stopped": True}, as_json, lambda: None)


def _write_certificate(folder: Path, fresh: FreshProcess) -> None:
    """Write the certificate from the site's own record."""
    write_atomically(folder / "certificate.json", fresh(certificate_of, str(folder)).encode(), mode=PUBLIC)
    say(f"the run has ended; its record: {folder}")


def certificate_of(folder: str) -> str:
    """Return the certificate of a run, from its folder; for a fresh process, since a guard never loads this code."""
    from fedveil.certificate.certify import certify_any

    return certify_any(Path(folder), __version__).text()


def _check_data(ledger: Path, own: SiteData) -> None:
    """Refuse data that do not belong to the ledger here, before anybody asks for anything."""
    if ledger.exists():
        Ledger.open(ledger, own.fingerprint).close()


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
    """Add this command to the application."""
    app.command(epilog="Example: fedveil site --data data.toml --key site/identity.key --records records")(site)
