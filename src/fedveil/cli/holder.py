"""The command of a key holder: a third party that opens encrypted sums, one a round, and has no data."""

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from fedveil.cli.serving import page_of
from fedveil.cli.show import Json, show
from fedveil.core.files import owners_folder
from fedveil.engine.files import private_folder, sole_use
from fedveil.federation.agreements import KEY_FILE, Carried
from fedveil.federation.carrying.fresh_process import FreshProcess
from fedveil.federation.carrying.serving import say, stop_requests
from fedveil.federation.deploy.own_keys import read_site
from fedveil.federation.site.key_holder import KeyHolder
from fedveil.federation.site.record import World, clear_records
from fedveil.federation.site.socket import listening, serve


def keyholder(
    key: Annotated[Path, typer.Option("--key", help="The holder's identity.key; aggregator.pub lies beside it.")],
    records: Annotated[Path, typer.Option("--records", help="Folder for keys and the record of every run.")],
    socket: Annotated[Path | None, typer.Option("--socket", help="Where the relay knocks; beside the key.")] = None,
    accept: Annotated[list[str] | None, typer.Option("--accept", help="A plan's hash, or: any.")] = None,
    group: Annotated[str | None, typer.Option("--group", help="The group that the relay runs under.")] = None,
    module: Annotated[
        list[str] | None, typer.Option("--module", help="FILE:FUNCTION of this machine that a plan may name.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Hold the key of encrypted sums: shows every plan, and opens one sum a round of those it has accepted."""
    identity, aggregator = read_site(key)
    owners_folder(records)
    holder = KeyHolder(
        identity=identity,
        aggregator=aggregator,
        folder=records.absolute(),
        accept=frozenset(accept or ()),
        world=World(os.urandom, lambda: datetime.now(UTC)),
        show=_show,
        modules=frozenset(module or ()),
    )
    stopped = stop_requests()
    with sole_use(private_folder(records / "private")), listening(socket or key.parent / "guard.sock", group) as door:
        clear_records(records, (KEY_FILE,))
        say(f"{identity.name}: listening for {aggregator.name}")
        serve(door, holder, say, lambda: bool(stopped))
    show({"key_holder": identity.name, "stopped": True}, as_json, lambda: None)


def _show(plan: Carried) -> None:
    with FreshProcess() as fresh:
        say(fresh(page_of, plan.text()))


def register(app: typer.Typer) -> None:
    """Add this command to the application."""
    app.command(epilog="Example: fedveil keyholder --key identity.key --records records --accept HASH")(keyholder)
